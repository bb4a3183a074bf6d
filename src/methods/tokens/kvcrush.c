/* Method kvcrush: like method snapkv, but also keeps some of the tokens that snapkv would drop (Jha
 * et al. 2025, KVCrush, arXiv 2503.00022).
 *
 * A token has one bit per query head, 1 if that head alone would keep it. Dropped tokens are sorted
 * by the Hamming distance of their bits from reference bits; every k-th token in this order is
 * kept. */
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { CRUSH = KVD_WINDOW_KEYS, ANCHOR };
static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, KVD_BUDGET_MOST, false,
     "older tokens kept: below 1 a fraction of the prompt, else a number"},
    {"window", 32, 1, 4096, true, "number of last rows of the prompt that choose"},
    {"kernel", 7, 1, 255, true, "number of neighbours averaged; odd"},
    {"crush", 0.25, 0, 1, false, "fraction of the budget for representatives"},
    {"anchor", 0, 0, 1, true, "0: bits that alternate; 1: the more frequent bits"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_idle_key idle[] = {{"anchor", "crush", 0, 0}, {NULL, NULL, 0, 0}};

static int distances(const kvd_parameter_values *v, const kvd_prompt_attention *p, size_t n_heads,
                     size_t old, size_t budget, uint8_t *bit, size_t *distance, kvd_err *err)
{
    memset(distance, 0, old * sizeof *distance);
    for (size_t g = 0, h = 0; g < n_heads; g++)
        for (int j = 0; j < p[g].group; j++, h++) {
            size_t ones = 0;
            memset(bit, KVD_LEVEL_HIGH, old);
            if (kvd_tokens_keep_top(p[g].recent + (size_t)j * p[g].n, old, budget, bit, err))
                return -1;
            for (size_t t = 0; t < old; t++)
                ones += bit[t] != KVD_LEVEL_DROPPED;
            const bool anchor = v->value[ANCHOR] > 0 ? 2 * ones > old : h % 2 == 1;
            for (size_t t = 0; t < old; t++)
                distance[t] += (bit[t] != KVD_LEVEL_DROPPED) != anchor;
        }
    return 0;
}

/* Marks n of the dropped tokens as kept: takes them at equal steps from the dropped tokens in the
 * order of `distance`. most: largest distance. */
static void represent(const size_t *distance, size_t old, size_t most, size_t n, uint8_t *level)
{
    size_t others = 0, rank = 0, taken = 0;
    for (size_t t = 0; t < old; t++)
        others += level[t] == KVD_LEVEL_DROPPED;
    if (n == 0 || others == 0)
        return;
    const size_t every = others > n ? others / n : 1;
    for (size_t d = 0; d <= most; d++)
        for (size_t t = 0; t < old; t++)
            if (level[t] == KVD_LEVEL_DROPPED && distance[t] == d && rank++ % every == 0 &&
                taken < n) {
                level[t] = KVD_LEVEL_HIGH;
                taken++;
            }
}

static int prompt(const void *self, void *const *state, const kvd_prompt_attention *p,
                  size_t n_heads, uint8_t *const *level, kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const size_t old = kvd_tokens_window_old(v, p->n),
                 budget = kvd_tokens_budget(v->value[KVD_WINDOW_BUDGET], p->n),
                 crush = (size_t)(v->value[CRUSH] * (double)budget);
    double *const score = malloc(2 * (old + 1) * sizeof *score), *const one = score + old + 1;
    size_t *const distance = malloc((old + 1) * sizeof *distance);
    uint8_t *const bit = malloc(old + 1);
    (void)state;
    int status = score && distance && bit
                     ? 0
                     : kvd_no_memory(err, "scores of a layer", 3 * old * sizeof *score);
    for (size_t g = 0; !status && g < n_heads; g++) {
        kvd_tokens_window_scores(v, &p[g], one);
        for (size_t t = 0; t < old; t++)
            score[t] = (g ? score[t] : 0) + one[t];
    }
    status = status || kvd_tokens_keep_top(score, old, budget - crush, level[0], err) ||
             distances(v, p, n_heads, old, budget, bit, distance, err);
    if (!status)
        represent(distance, old, n_heads * (size_t)p->group, crush, level[0]);
    for (size_t g = 1; !status && g < n_heads; g++)
        memcpy(level[g], level[0], old);
    free(score);
    free(distance);
    free(bit);
    return status ? -1 : 0;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    kvd_tokens_window_rule(v, rule);
    rule->whole_layer = 1;
    rule->crush = v->value[CRUSH];
    rule->anchor = 1 + (int32_t)v->value[ANCHOR];
}

const kvd_tokens_method kvd_tokens_kvcrush = {
    .info = {.name = "kvcrush",
             .summary = "snapkv's tokens of a layer, and representatives of the others",
             .parameter = parameters,
             .idle = idle,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.45, 0.02, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_evict},
    .eviction =
        &(const kvd_tokens_eviction){.rule = evict_rule, .budget = kvd_tokens_window_budget},
    .window = kvd_tokens_window_rows,
    .check = kvd_tokens_check_window,
    .prompt_heads = prompt,
};
