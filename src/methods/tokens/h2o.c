/* Method h2o: each KV head keeps the `recent` newest tokens, and the `heavy` older tokens that have
 * received the most attention (Zhang et al. 2023, H2O, Algorithm 1). */
#include <string.h>

#include "methods/tokens/tokens.h"

enum { HEAVY, RECENT };
static const kvd_parameter parameters[] = {
    {"heavy", 0.1, 0, KVD_BUDGET_MOST, false,
     "heavy hitters kept: below 1 a fraction of the tokens, else a number"},
    {"recent", 0.1, 0, KVD_BUDGET_MOST, false, "newest tokens kept, as heavy"},
    {NULL, 0, 0, 0, false, NULL},
};

int kvd_tokens_check_heavy(const kvd_parameter_values *v, kvd_err *err)
{
    return v->value[HEAVY] <= 0 && v->value[RECENT] <= 0
               ? kvd_fail(err, "%s = recent = 0 keeps nothing", v->method->parameter[HEAVY].key)
               : 0;
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const size_t heavy = kvd_tokens_budget(v->value[HEAVY], p->n_expected);
    const size_t recent = kvd_tokens_budget(v->value[RECENT], p->n_expected);
    const size_t old = p->n > recent ? p->n - recent : 0;
    memcpy(state, p->mass, p->n * sizeof(double));
    return kvd_tokens_keep_top(p->mass, old, heavy, level, err);
}

static int step(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const size_t heavy = kvd_tokens_budget(v->value[HEAVY], a->n_expected);
    const size_t recent = kvd_tokens_budget(v->value[RECENT], a->n_expected);
    double *const sum = state;
    (void)err;
    /* The newest token's element may still have the sum of a token that was dropped. */
    sum[a->n - 1] = 0;
    for (int j = 0; j < a->group; j++)
        for (size_t i = 0; i < a->n; i++)
            sum[i] += (double)a->prob[(size_t)j * a->n + i];
    if (a->n > heavy + recent && a->n > recent)
        level[kvd_tokens_least(sum, a->n - recent)] = KVD_LEVEL_DROPPED;
    return 0;
}

kvd_evict_budget kvd_tokens_heavy_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    return kvd_evict_always(kvd_tokens_budget(v->value[HEAVY], r->whole),
                            kvd_tokens_budget(v->value[RECENT], r->whole), r);
}

const kvd_tokens_method kvd_tokens_h2o = {
    .info = {.name = "h2o",
             .summary = "tokens with the most attention so far, and the newest",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"heavy", 0.45, 0.01, true, "recent", 0, 1},
             .needs = KVD_NEEDS_PROBABILITIES,
             .gpu = &kvd_gpu_evict},
    .eviction = &(const kvd_tokens_eviction){.budget = kvd_tokens_heavy_budget},
    .check = kvd_tokens_check_heavy,
    .state_bytes = kvd_tokens_sums_bytes,
    .prompt = prompt,
    .step = step,
    .forget = kvd_tokens_forget_sums,
};
