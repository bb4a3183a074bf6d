/* Method alisa: a decode step reads the newest tokens, and the older tokens that got the most
 * attention in recent steps (Zhao et al. 2024, ALISA, arXiv 2403.17312, section IV). */
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { BUDGET, LOCAL, HISTORY };
static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, KVD_BUDGET_MOST, false,
     "tokens read by a step: below 1 a fraction of those held, else a number"},
    {"local", 0.5, 0, 1, false, "fraction of the budget for the newest tokens"},
    {"history", 8, 1, 64, true, "number of rows whose probabilities are summed"},
    {NULL, 0, 0, 0, false, NULL},
};

static size_t history_of(const kvd_tokens_self *a)
{
    return (size_t)a->v->value[HISTORY];
}

/* Returns the size in bytes of an array [n][history]: attention probabilities of n tokens for the
 * last `history` queries. Query t writes column t % history. */
static size_t state_bytes(const void *self, size_t n)
{
    return n * history_of(self) * sizeof(double);
}

static double select_bits(const void *self, const void *state, const uint32_t *position, size_t n,
                          size_t d, size_t number_bits)
{
    (void)state;
    (void)position, (void)d;
    return (double)(n * history_of(self) * number_bits);
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    const kvd_tokens_self *const x = self;
    const size_t n = p->n, history = history_of(x);
    const kvd_observed_prompt of_head = {
        .layer = p->layer, .n = n, .q = p->q, .k = p->k, .sinks = p->sinks};
    double *const a = malloc(2 * n * sizeof *a), *const column = state;
    (void)level;
    if (!a)
        return kvd_no_memory(err, "probabilities of a row", 2 * n * sizeof *a);
    for (size_t t = n > history ? n - history : 0; t < n; t++)
        for (int j = 0; j < p->group; j++) {
            kvd_tokens_probabilities(x->config, &of_head, j, t, (float *)(void *)(a + n), a);
            for (size_t i = 0; i <= t; i++)
                column[i * history + t % history] += a[i];
        }
    free(a);
    return 0;
}

static int step(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err)
{
    const size_t history = history_of(self);
    double *const column = state;
    (void)level, (void)err;
    for (size_t i = 0; i < a->n; i++) {
        double sum = 0;
        for (int j = 0; j < a->group; j++)
            sum += (double)a->prob[(size_t)j * a->n + i];
        column[i * history + a->now % history] = sum;
    }
    return 0;
}

static int choose(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                  kvd_err *err)
{
    const kvd_tokens_self *const x = self;
    const size_t history = history_of(x), budget = kvd_tokens_budget(x->v->value[BUDGET], c->n),
                 part = (size_t)(x->v->value[LOCAL] * (double)budget), local = part > 1 ? part : 1,
                 old = c->n > local ? c->n - local : 0;
    const double *const column = state;
    double *const sum = calloc(old + 1, sizeof *sum);
    uint8_t *const level = malloc(old + 1);
    int status = sum && level ? 0 : kvd_no_memory(err, "sums of tokens", old * sizeof *sum);
    for (size_t i = 0; !status && i < old; i++)
        for (size_t t = 0; t < history; t++)
            sum[i] += column[i * history + t];
    if (!status) {
        memset(level, KVD_LEVEL_HIGH, old);
        status = kvd_tokens_keep_top(sum, old, budget > local ? budget - local : 0, level, err);
    }
    for (size_t i = 0; !status && i < old; i++)
        read[i] = level[i] != KVD_LEVEL_DROPPED;
    free(level);
    free(sum);
    return status;
}

static kvd_read_rule read_rule(const kvd_parameter_values *v)
{
    return (kvd_read_rule){.budget = v->value[BUDGET],
                           .page = 1,
                           .ranking = KVD_READ_RECENT,
                           .local = v->value[LOCAL],
                           .history = (int32_t)v->value[HISTORY]};
}

const kvd_tokens_method kvd_tokens_alisa = {
    .info = {.name = "alisa",
             .summary = "every step reads the newest tokens and those of recent attention",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.02, true, NULL, 0, 0},
             .gpu = &kvd_gpu_selection},
    .read_rule = read_rule,
    .check = kvd_tokens_check_budget,
    .state_bytes = state_bytes,
    .prompt = prompt,
    .step = step,
    .select = choose,
    .select_bits = select_bits,
};
