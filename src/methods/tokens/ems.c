/* Method ems: keeps the prompt tokens with the most attention, merges tokens with less attention
 * into them, and removes the tokens with the least attention (Li et al. 2024). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { MERGE = KVD_WINDOW_KEYS, THRESHOLD };
static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, KVD_BUDGET_MOST, false,
     "older tokens kept: below 1 a fraction of the prompt, else a number"},
    {"window", 32, 1, 4096, true, "number of last rows of the prompt that choose"},
    {"kernel", 7, 1, 255, true, "number of neighbours averaged; odd"},
    {"merge", 2, 0, 1e6, false, "tokens that may be merged, as a multiple of those kept"},
    {"threshold", 0.5, -1, 1, false, "smallest cosine of keys that are merged"},
    {NULL, 0, 0, 0, false, NULL},
};

typedef struct {
    size_t old; /* number of prompt tokens before the last `window` */
    /* [old] Importance of each token before the newest ones. A token with importance 0 is never
     * merged. */
    double importance[];
} state_of_head;

static size_t state_bytes(const void *self, size_t n)
{
    (void)self;
    return sizeof(state_of_head) + n * sizeof(double);
}

static void find_importance(const kvd_parameter_values *v, const kvd_prompt_attention *p,
                            size_t old, double *raw, double *importance)
{
    const size_t half = (size_t)v->value[KVD_WINDOW_KERNEL] / 2;
    double local = 0, global = 0;
    for (size_t t = 0; t < old; t++) {
        raw[t] = 0;
        for (int j = 0; j < p->group; j++)
            raw[t] += p->recent[(size_t)j * p->n + t];
        local += raw[t] / (double)old;
        global += p->mass[t] / (double)(p->n - t) / (double)old;
    }
    for (size_t t = 0; t < old; t++)
        raw[t] = fmax(raw[t] / local, p->mass[t] / (double)(p->n - t) / global);
    for (size_t t = 0; t < old; t++) {
        importance[t] = 0;
        for (size_t i = t > half ? t - half : 0; i < old && i <= t + half; i++)
            importance[t] += raw[i];
    }
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    state_of_head *const s = state;
    const size_t old = s->old = kvd_tokens_window_old(v, p->n),
                 budget = kvd_tokens_budget(v->value[KVD_WINDOW_BUDGET], p->n);
    const double most = (double)budget * (1 + v->value[MERGE]);
    double *const raw = malloc((old + 1) * sizeof *raw);
    uint8_t *const kept = malloc(old + 1);
    int status = raw && kept ? 0 : kvd_no_memory(err, "scores of a prompt", old * sizeof *raw);
    if (!status) {
        find_importance(v, p, old, raw, s->importance);
        memset(kept, KVD_LEVEL_HIGH, old);
    }
    status =
        status || kvd_tokens_keep_top(s->importance, old, budget, level, err) ||
        kvd_tokens_keep_top(s->importance, old, most < (double)old ? (size_t)most : old, kept, err);
    for (size_t t = 0; !status && t < old; t++)
        if (kept[t] == KVD_LEVEL_DROPPED)
            s->importance[t] = 0;
    free(raw);
    free(kept);
    return status ? -1 : 0;
}

static int merge(const void *self, void *state, const kvd_merge_choice *c, size_t *into,
                 double *weight, kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const state_of_head *const s = state;
    double *const length = malloc(c->n * sizeof *length);
    if (!length)
        return kvd_no_memory(err, "lengths of keys", c->n * sizeof *length);
    for (size_t i = 0; i < c->n; i++)
        length[i] = kvd_tokens_length(c->k + i * c->d_k, c->d_k);
    for (size_t i = 0; i < s->old; i++) {
        double most = v->value[THRESHOLD];
        weight[i] = s->importance[i];
        for (size_t j = 0; j < s->old && s->importance[i] > 0; j++) {
            if (c->level[i] != KVD_LEVEL_DROPPED || c->level[j] == KVD_LEVEL_DROPPED)
                continue;
            const double u = kvd_tokens_dot(c->k + i * c->d_k, c->k + j * c->d_k, c->d_k) /
                             (length[i] * length[j]);
            if (u >= most) {
                most = u;
                into[i] = j;
            }
        }
    }
    free(length);
    return 0;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    kvd_tokens_window_rule(v, rule);
    rule->ranking = KVD_EVICT_IMPORTANT;
    rule->merge = KVD_MERGE_IMPORTANT;
    rule->cosine = v->value[THRESHOLD];
    rule->most = v->value[MERGE];
}

const kvd_tokens_method kvd_tokens_ems = {
    .info = {.name = "ems",
             .summary = "snapkv by global and local scores, with the next tokens merged",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.45, 0.02, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_evict},
    .eviction =
        &(const kvd_tokens_eviction){.rule = evict_rule, .budget = kvd_tokens_window_budget},
    .window = kvd_tokens_window_rows,
    .check = kvd_tokens_check_window,
    .state_bytes = state_bytes,
    .prompt = prompt,
    .merge = merge,
};
