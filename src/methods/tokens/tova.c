/* Method tova: keeps the tokens to which the newest token attends most. All KV heads keep the same
 * tokens (Oren et al. 2024, TOVA, arXiv 2401.06104, section 4). */
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { BUDGET };
static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, KVD_BUDGET_MOST, false,
     "entries per head: below 1 a fraction of the sequence, else a number"},
    {NULL, 0, 0, 0, false, NULL},
};

static size_t window(const kvd_parameter_values *v)
{
    (void)v;
    return 1;
}

/* Keeps `budget` tokens: the newest token, and the older tokens with the largest elements of sum
 * [n]. Frees `sum`. */
static int keep(const kvd_parameter_values *v, double *sum, size_t n, size_t n_expected,
                size_t n_heads, uint8_t *const *level, kvd_err *err)
{
    const size_t asked = kvd_tokens_budget(v->value[BUDGET], n_expected),
                 budget = asked ? asked : 1;
    const int status = kvd_tokens_keep_top(sum, n - 1, budget - 1, level[0], err);
    for (size_t g = 1; !status && g < n_heads; g++)
        memcpy(level[g], level[0], n);
    free(sum);
    return status;
}

static int prompt(const void *self, void *const *state, const kvd_prompt_attention *p,
                  size_t n_heads, uint8_t *const *level, kvd_err *err)
{
    const size_t n = p->n;
    double *const sum = calloc(n, sizeof *sum);
    (void)state;
    if (!sum)
        return kvd_no_memory(err, "scores of a prompt", n * sizeof *sum);
    for (size_t g = 0; g < n_heads; g++)
        for (size_t j = 0; j < (size_t)p[g].group; j++)
            for (size_t i = 0; i < n; i++)
                sum[i] += p[g].recent[j * n + i];
    return keep(kvd_tokens_values(self), sum, n, p->n_expected, n_heads, level, err);
}

static int step(const void *self, void *const *state, const kvd_step_attention *a, size_t n_heads,
                uint8_t *const *level, kvd_err *err)
{
    const size_t n = a->n;
    double *const sum = calloc(n, sizeof *sum);
    (void)state;
    if (!sum)
        return kvd_no_memory(err, "scores of entries", n * sizeof *sum);
    for (size_t g = 0; g < n_heads; g++)
        for (size_t j = 0; j < (size_t)a[g].group; j++)
            for (size_t i = 0; i < n; i++)
                sum[i] += (double)a[g].prob[j * n + i];
    return keep(kvd_tokens_values(self), sum, n, a->n_expected, n_heads, level, err);
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    (void)v;
    rule->window = 1;
    rule->whole_layer = 1;
}

static kvd_evict_budget evict_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    const size_t all = kvd_tokens_budget(v->value[BUDGET], r->whole);
    return kvd_evict_always(all > 0 ? all - 1 : 0, 1, r);
}

const kvd_tokens_method kvd_tokens_tova = {
    .info = {.name = "tova",
             .summary = "tokens that the newest row attends to, the same in all heads of a layer",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.02, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROBABILITIES,
             .gpu = &kvd_gpu_evict},
    .eviction = &(const kvd_tokens_eviction){.rule = evict_rule, .budget = evict_budget},
    .window = window,
    .check = kvd_tokens_check_budget,
    .prompt_heads = prompt,
    .step_heads = step,
};
