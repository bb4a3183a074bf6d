/* Method knorm: keeps the prompt tokens whose keys have the smallest norms (Devoto et al. 2024). */
#include <math.h>
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
    double *const score = malloc(p->n * sizeof *score);
    (void)state;
    if (!score)
        return kvd_no_memory(err, "scores of a prompt", p->n * sizeof *score);
    for (size_t t = 0; t < p->n; t++)
        score[t] = -sqrt(kvd_tokens_dot(p->k + t * p->ld, p->k + t * p->ld, p->d));
    const int status =
        kvd_tokens_keep_top(score, p->n, kvd_tokens_budget(v->value[0], p->n), level, err);
    free(score);
    return status;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    (void)v;
    rule->ranking = KVD_EVICT_SHORT_KEYS;
}

const kvd_tokens_method kvd_tokens_knorm = {
    .info = {.name = "knorm",
             .summary = "tokens of the prompt with the shortest keys",
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
