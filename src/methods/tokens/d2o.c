/* Method d2o: chooses tokens like method h2o, and merges dropped tokens into kept tokens with
 * similar keys (Wan et al. 2024, D2O, arXiv 2406.13035, section 3.3). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { HEAVY, RECENT, BETA };
static const kvd_parameter parameters[] = {
    {"heavy", 0.1, 0, KVD_BUDGET_MOST, false,
     "heavy hitters kept: below 1 a fraction of the tokens, else a number"},
    {"recent", 0.1, 0, KVD_BUDGET_MOST, false, "newest tokens kept, as heavy"},
    {"beta", 0.7, 0, 1, false, "weight of the newest similarity in the threshold"},
    {NULL, 0, 0, 0, false, NULL},
};

/* State of one KV head. `sum` has for each token the sum of the attention that it received. */
typedef struct {
    /* Running mean of the cosines between the keys of dropped tokens and the most similar kept
     * keys. */
    double threshold;
    /* 1 if a token has been dropped, so that `threshold` has a value, else 0. */
    double begun;
    double sum[];
} state_of_head;

static size_t state_bytes(const void *self, size_t n)
{
    return sizeof(state_of_head) + kvd_tokens_h2o.state_bytes(self, n);
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    return kvd_tokens_h2o.prompt(self, ((state_of_head *)state)->sum, p, level, err);
}

static int step(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err)
{
    return kvd_tokens_h2o.step(self, ((state_of_head *)state)->sum, a, level, err);
}

static void forget(const void *self, void *state, const size_t *kept, size_t n)
{
    kvd_tokens_h2o.forget(self, ((state_of_head *)state)->sum, kept, n);
}

/* Returns the largest cosine between key i and the key of any kept token. *like gets the index of
 * that kept token. */
static double similarity(const kvd_merge_choice *c, const double *length, size_t i, size_t *like)
{
    double most = -INFINITY;
    for (size_t j = 0; j < c->n; j++) {
        if (c->level[j] == KVD_LEVEL_DROPPED)
            continue;
        const double u =
            kvd_tokens_dot(c->k + i * c->d_k, c->k + j * c->d_k, c->d_k) / (length[i] * length[j]);
        if (u > most) {
            most = u;
            *like = j;
        }
    }
    return most;
}

static int merge(const void *self, void *state, const kvd_merge_choice *c, size_t *into,
                 double *weight, kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    state_of_head *const s = state;
    double *const length = malloc(2 * c->n * sizeof *length);
    double mean = 0, dropped = 0;
    if (!length)
        return kvd_no_memory(err, "similarities of entries", 2 * c->n * sizeof *length);
    double *const u = length + c->n;
    for (size_t i = 0; i < c->n; i++)
        length[i] = kvd_tokens_length(c->k + i * c->d_k, c->d_k);
    for (size_t i = 0; i < c->n; i++)
        if (c->level[i] == KVD_LEVEL_DROPPED) {
            mean += u[i] = similarity(c, length, i, &into[i]);
            dropped++;
        }
    mean /= dropped;
    s->threshold =
        s->begun > 0 ? v->value[BETA] * mean + (1 - v->value[BETA]) * s->threshold : mean;
    s->begun = 1;
    for (size_t i = 0; i < c->n; i++) {
        if (c->level[i] != KVD_LEVEL_DROPPED)
            continue;
        if (into[i] < c->n && u[i] >= s->threshold)
            weight[into[i]] = exp(1);
        else
            into[i] = c->n;
        weight[i] = exp(u[i]);
    }
    free(length);
    return 0;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    rule->merge = KVD_MERGE_LIKE;
    rule->beta = v->value[BETA];
}

const kvd_tokens_method kvd_tokens_d2o = {
    .info = {.name = "d2o",
             .summary = "h2o with dropped tokens merged into the kept ones most like them",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"heavy", 0.45, 0.01, true, "recent", 0, 1},
             .needs = KVD_NEEDS_PROBABILITIES,
             .gpu = &kvd_gpu_evict},
    .eviction = &(const kvd_tokens_eviction){.rule = evict_rule, .budget = kvd_tokens_heavy_budget},
    .check = kvd_tokens_check_heavy,
    .state_bytes = state_bytes,
    .prompt = prompt,
    .step = step,
    .forget = forget,
    .merges_steps = true,
    .merge = merge,
};
