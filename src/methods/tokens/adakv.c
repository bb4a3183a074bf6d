/* Method adakv: drops prompt tokens like method snapkv, but the KV heads of a layer share one token
 * budget (Feng et al. 2024, Ada-KV). */
#include <stdlib.h>

#include "methods/tokens/tokens.h"

enum { ALPHA = KVD_WINDOW_KEYS };
static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, KVD_BUDGET_MOST, false,
     "older tokens kept, mean over KV heads: below 1 a fraction of the prompt, else a number"},
    {"window", 32, 1, 4096, true, "number of last rows of the prompt that choose"},
    {"kernel", 7, 1, 255, true, "number of neighbours averaged; odd"},
    {"alpha", 0.2, 0, 1, false, "fraction of the budget that every KV head keeps for itself"},
    {NULL, 0, 0, 0, false, NULL},
};

/* Keeps n_heads * budget tokens: the `floor` tokens with the largest scores in each KV head, then
 * the tokens with the largest scores in any head. */
static int choose(double *score, size_t n_heads, size_t old, size_t budget, size_t floor,
                  uint8_t *all, uint8_t *const *level, kvd_err *err)
{
    double top = 0;
    for (size_t i = 0; i < n_heads * old; i++)
        top = score[i] > top ? score[i] : top;
    for (size_t g = 0; g < n_heads; g++) {
        if (kvd_tokens_keep_top(score + g * old, old, floor, level[g], err))
            return -1;
        for (size_t t = 0; t < old; t++) {
            if (level[g][t] != KVD_LEVEL_DROPPED)
                score[g * old + t] += top + 1;
            level[g][t] = KVD_LEVEL_HIGH;
            all[g * old + t] = KVD_LEVEL_HIGH;
        }
    }
    if (kvd_tokens_keep_top(score, n_heads * old, n_heads * budget, all, err))
        return -1;
    for (size_t g = 0; g < n_heads; g++)
        for (size_t t = 0; t < old; t++)
            level[g][t] = all[g * old + t];
    return 0;
}

static int prompt(const void *self, void *const *state, const kvd_prompt_attention *p,
                  size_t n_heads, uint8_t *const *level, kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const size_t old = kvd_tokens_window_old(v, p->n),
                 asked = kvd_tokens_budget(v->value[KVD_WINDOW_BUDGET], p->n),
                 budget = asked < old ? asked : old,
                 floor = (size_t)(v->value[ALPHA] * (double)budget);
    double *const score = malloc((n_heads * old + 1) * sizeof *score);
    uint8_t *const all = malloc(n_heads * old + 1);
    (void)state;
    int status =
        score && all ? 0 : kvd_no_memory(err, "scores of a layer", n_heads * old * sizeof *score);
    for (size_t g = 0; !status && g < n_heads; g++)
        kvd_tokens_window_scores(v, &p[g], score + g * old);
    status = status || choose(score, n_heads, old, budget, floor, all, level, err);
    free(score);
    free(all);
    return status ? -1 : 0;
}

static kvd_evict_budget evict_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    const size_t old = kvd_tokens_window_old(v, r->prompt),
                 asked = kvd_tokens_budget(v->value[KVD_WINDOW_BUDGET], r->prompt),
                 mean = asked < old ? asked : old;
    kvd_evict_budget b = kvd_evict_once(mean, kvd_tokens_window_rows(v));
    b.keep_own = (int32_t)(v->value[ALPHA] * (double)mean);
    return b;
}

const kvd_tokens_method kvd_tokens_adakv = {
    .info = {.name = "adakv",
             .summary = "snapkv with one budget for all KV heads of a layer",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.45, 0.02, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_uneven},
    .eviction =
        &(const kvd_tokens_eviction){.rule = kvd_tokens_window_rule, .budget = evict_budget},
    .window = kvd_tokens_window_rows,
    .check = kvd_tokens_check_window,
    .prompt_heads = prompt,
};
