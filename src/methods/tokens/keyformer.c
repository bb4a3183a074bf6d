/* Method keyformer: keeps the newest tokens, and older tokens with the largest sums of softmax
 * probabilities, computed with Gumbel noise and a rising temperature (Adnan et al. 2024, Keyformer,
 * section 3). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/gumbel.h"
#include "methods/tokens/tokens.h"

enum { KEYS, RECENT, TAU0, TAU1 };
static const kvd_parameter parameters[] = {
    {"keys", 0.1, 0, KVD_BUDGET_MOST, false,
     "key tokens kept: below 1 a fraction of the tokens, else a number"},
    {"recent", 0.1, 0, KVD_BUDGET_MOST, false, "newest tokens kept, as keys"},
    {"tau0", 1, 1e-3, 1e3, false, "temperature at the prompt"},
    {"tau1", 2, 1e-3, 1e3, false, "temperature at the last step"},
    {NULL, 0, 0, 0, false, NULL},
};

static double regularise(const kvd_parameter_values *v, uint64_t seed, int layer, int head,
                         uint32_t token, double score, double progress)
{
    const double tau = v->value[TAU0] + (v->value[TAU1] - v->value[TAU0]) * progress;
    return (score + kvd_gumbel(kvd_gumbel_head(seed, layer, head), token)) / tau;
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    const kvd_tokens_self *const k = self;
    const size_t keys = kvd_tokens_budget(k->v->value[KEYS], p->n_expected);
    const size_t recent = kvd_tokens_budget(k->v->value[RECENT], p->n_expected);
    memcpy(state, p->score_mass, p->n * sizeof(double));
    return kvd_tokens_keep_top(p->score_mass, p->n > recent ? p->n - recent : 0, keys, level, err);
}

static int step(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err)
{
    const kvd_tokens_self *const k = self;
    const size_t keys = kvd_tokens_budget(k->v->value[KEYS], a->n_expected);
    const size_t recent = kvd_tokens_budget(k->v->value[RECENT], a->n_expected);
    const size_t steps = a->n_expected - a->prompt;
    const double progress = steps > 1 ? (double)(a->now - a->prompt) / (double)(steps - 1) : 0;
    double *const f = state, *const x = malloc(a->n * sizeof *x);
    if (!x)
        return kvd_no_memory(err, "scores of entries", a->n * sizeof *x);
    /* The newest token's element may still have the score of a token that was dropped. */
    f[a->n - 1] = 0;
    for (int j = 0; j < a->group; j++) {
        const float *const score = a->score + (size_t)j * a->n;
        const int head = a->kv_head * a->group + j;
        double top = -INFINITY, sum = 0;
        for (size_t i = 0; i < a->n; i++) {
            x[i] = regularise(k->v, k->seed, a->layer, head, a->position[i], (double)score[i],
                              progress);
            top = x[i] > top ? x[i] : top;
        }
        for (size_t i = 0; i < a->n; i++)
            sum += x[i] = exp(x[i] - top);
        for (size_t i = 0; i < a->n; i++)
            f[i] += x[i] / sum;
    }
    free(x);
    if (a->n > keys + recent && a->n > recent)
        level[kvd_tokens_least(f, a->n - recent)] = KVD_LEVEL_DROPPED;
    return 0;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    rule->tau0 = (float)v->value[TAU0];
    rule->tau1 = (float)v->value[TAU1];
}

const kvd_tokens_method kvd_tokens_keyformer = {
    .info = {.name = "keyformer",
             .summary = "tokens by a score with Gumbel noise, and the newest",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"keys", 0.45, 0.01, true, "recent", 0, 1},
             .needs = KVD_NEEDS_PROBABILITIES,
             .gpu = &kvd_gpu_evict},
    .eviction = &(const kvd_tokens_eviction){.rule = evict_rule, .budget = kvd_tokens_heavy_budget},
    .regularise = regularise,
    .check = kvd_tokens_check_heavy,
    .state_bytes = kvd_tokens_sums_bytes,
    .prompt = prompt,
    .step = step,
    .forget = kvd_tokens_forget_sums,
};
