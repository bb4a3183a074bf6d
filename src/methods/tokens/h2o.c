/*
 * h2o: heavy hitters and recent tokens stay (Zhang et al. 2023, "H2O: Heavy-Hitter Oracle", Algorithm 1, and its public code).
 *
 * Every KV head keeps the `recent` newest tokens and, of the others, the `heavy` ones with the largest sum of attention
 * probabilities that they received so far, from all query heads that read it. One is evicted with every step once the budget is
 * full. Budgets below 1 are shares of the sequence's tokens.
 */
#include <string.h>

#include "methods/tokens/tokens.h"

enum { HEAVY, RECENT };
static const kvd_parameter parameters[] = {
    {"heavy", 0.1, 0, 1 << 24, false, "heavy hitters that stay: a share below 1, else tokens"},
    {"recent", 0.1, 0, 1 << 24, false, "newest tokens that stay, likewise"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_rate rate = {"heavy", 0.45, 0.01, true, "recent", 0, 1};

static int open(const kvd_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    (void)s;
    if (kvd_tokens_check_budget("heavy", v->value[HEAVY], err) ||
        kvd_tokens_check_budget("recent", v->value[RECENT], err))
        return -1;
    if (v->value[HEAVY] <= 0 && v->value[RECENT] <= 0)
        return kvd_fail(err, "heavy = recent = 0 keeps nothing");
    *self = (void *)(uintptr_t)v;
    return 0;
}

/* The state is the sums, one per entry. */
static size_t state_bytes(const void *self, size_t n)
{
    (void)self;
    return n * sizeof(double);
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level, kvd_err *err)
{
    const kvd_values *const v = self;
    const size_t heavy = kvd_tokens_budget(v->value[HEAVY], p->n_expected);
    const size_t recent = kvd_tokens_budget(v->value[RECENT], p->n_expected);
    const size_t old = p->n > recent ? p->n - recent : 0;
    memcpy(state, p->mass, p->n * sizeof(double));
    return kvd_tokens_keep_top(p->mass, old, heavy, level, err);
}

static int step(const void *self, void *state, const kvd_step_attention *a, uint8_t *level, kvd_err *err)
{
    const kvd_values *const v = self;
    const size_t heavy = kvd_tokens_budget(v->value[HEAVY], a->n_expected);
    const size_t recent = kvd_tokens_budget(v->value[RECENT], a->n_expected);
    double *const sum = state;
    (void)err;
    sum[a->n - 1] = 0; /* what stood here was of an entry that is gone */
    for (int j = 0; j < a->group; j++)
        for (size_t i = 0; i < a->n; i++)
            sum[i] += (double)a->prob[(size_t)j * a->n + i];
    if (a->n > heavy + recent && a->n > recent)
        level[kvd_tokens_least(sum, a->n - recent)] = KVD_LEVEL_DROPPED;
    return 0;
}

static void forget(const void *self, void *state, const size_t *kept, size_t n)
{
    double *const sum = state;
    (void)self;
    for (size_t i = 0; i < n; i++)
        sum[i] = sum[kept[i]];
}

const kvd_tokens_method kvd_tokens_h2o = {.name = "h2o",
                                          .summary = "tokens with the most attention so far, and the newest",
                                          .parameter = parameters,
                                          .rate = &rate,
                                          .needs = KVD_NEEDS_PROBABILITIES,
                                          .open = open,
                                          .state_bytes = state_bytes,
                                          .prompt = prompt,
                                          .step = step,
                                          .forget = forget};
