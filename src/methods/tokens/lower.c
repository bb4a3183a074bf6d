/* Method lower: the tokens that method h2o would drop keep fewer bits or fewer dimensions instead,
 * and never return to full precision (MiKV, Yang et al. 2024, section 3). */
#include "methods/tokens/tokens.h"

enum { HEAVY, RECENT };
static const kvd_parameter parameters[] = {
    {"heavy", 0.1, 0, KVD_BUDGET_MOST, false,
     "heavy hitters kept high: below 1 a fraction of the tokens, else a number"},
    {"recent", 0.1, 0, KVD_BUDGET_MOST, false, "newest tokens kept high, as heavy"},
    {NULL, 0, 0, 0, false, NULL},
};

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    if (kvd_tokens_h2o.prompt(self, state, p, level, err))
        return -1;
    for (size_t i = 0; i < p->n; i++)
        level[i] = level[i] == KVD_LEVEL_DROPPED ? KVD_LEVEL_LOW : level[i];
    return 0;
}

static int step(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const size_t heavy = kvd_tokens_budget(v->value[HEAVY], a->n_expected);
    const size_t recent = kvd_tokens_budget(v->value[RECENT], a->n_expected);
    double *const sum = state;
    size_t high = 0, least = a->n;
    (void)err;
    for (int j = 0; j < a->group; j++)
        for (size_t i = 0; i < a->n; i++)
            sum[i] += (double)a->prob[(size_t)j * a->n + i];
    for (size_t i = 0; i + recent < a->n; i++)
        if (level[i] == KVD_LEVEL_HIGH) {
            high++;
            least = least == a->n || sum[i] < sum[least] ? i : least;
        }
    if (high > heavy)
        level[least] = KVD_LEVEL_LOW;
    return 0;
}

const kvd_tokens_method kvd_tokens_lower = {
    .info = {.name = "lower",
             .summary = "tokens that h2o would drop stay at the low level",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"heavy", 0.45, 0.01, true, "recent", 0, 1},
             .needs = KVD_NEEDS_PROBABILITIES,
             .gpu = &kvd_gpu_lower},
    .lowers = true,
    .only_lowers = true,
    .entry_bits = 1,
    .state_bytes = kvd_tokens_sums_bytes,
    .prompt = prompt,
    .step = step,
};
