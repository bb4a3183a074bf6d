/* Method keydiff: keeps the prompt tokens whose keys have the smallest cosines with the mean of all
 * keys, each first scaled to length 1 (Park et al. 2025, KeyDiff, arXiv 2504.15364, section 3). */
#include <stdlib.h>

#include "methods/tokens/tokens.h"

static const kvd_parameter parameters[] = {
    {"budget", 0.5, 0, KVD_BUDGET_MOST, false,
     "tokens kept: below 1 a fraction of the prompt, else a number"},
    {NULL, 0, 0, 0, false, NULL},
};

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    double *const score = malloc((p->n + p->d) * sizeof *score);
    (void)state;
    if (!score)
        return kvd_no_memory(err, "scores of a prompt", (p->n + p->d) * sizeof *score);
    double *const anchor = score + p->n;
    for (size_t c = 0; c < p->d; c++)
        anchor[c] = 0;
    for (size_t t = 0; t < p->n; t++) {
        const float *const k = p->k + t * p->ld;
        const double of_k = kvd_tokens_length(k, p->d);
        for (size_t c = 0; c < p->d; c++)
            anchor[c] += (double)k[c] / of_k;
    }
    /* Dividing `anchor`, the sum of the keys, by its length would not change the order of the
     * scores. */
    for (size_t t = 0; t < p->n; t++) {
        const float *const k = p->k + t * p->ld;
        double product = 0;
        for (size_t c = 0; c < p->d; c++)
            product += (double)k[c] * anchor[c];
        score[t] = -product / kvd_tokens_length(k, p->d);
    }
    const int status =
        kvd_tokens_keep_top(score, p->n, kvd_tokens_budget(v->value[0], p->n), level, err);
    free(score);
    return status;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    (void)v;
    rule->ranking = KVD_EVICT_ODD_KEYS;
}

const kvd_tokens_method kvd_tokens_keydiff = {
    .info = {.name = "keydiff",
             .summary = "tokens of the prompt whose keys differ most from the mean",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.05, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_evict},
    .eviction = &(const kvd_tokens_eviction){.rule = evict_rule,
                                             .budget = kvd_tokens_prompt_budget,
                                             .whole_keys = true},
    .check = kvd_tokens_check_budget,
    .prompt = prompt,
};
