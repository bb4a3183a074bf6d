/* Method scissorhands: counts the recent queries that gave a token less than mean attention, and
 * drops the tokens with the largest counts (Liu et al. 2023). */
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { BUDGET, RECENT, HISTORY, DROP };
static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, KVD_BUDGET_MOST, false,
     "entries per head: below 1 a fraction of the sequence, else a number"},
    {"recent", 0.05, 0, KVD_BUDGET_MOST, false, "newest tokens kept, as budget"},
    {"history", 64, 1, 64, true, "number of rows remembered"},
    {"drop", 16, 1, 1 << 20, true, "number of entries dropped at once"},
    {NULL, 0, 0, 0, false, NULL},
};

typedef struct {
    /* Number of pairs (query, query head) at the prompt's end that gave this token less than the
     * mean attention. */
    double prompt;
    /* History of the token: bit i is 1 if the decode step i steps ago gave it less than the mean
     * attention. */
    uint64_t rows;
    uint32_t steps; /* decode steps since the token was appended */
} entry;

static size_t window(const kvd_parameter_values *v)
{
    return (size_t)v->value[HISTORY];
}

static size_t state_bytes(const void *self, size_t n)
{
    (void)self;
    return n * sizeof(entry);
}

static int count_bits(uint64_t x)
{
    return __builtin_popcountll(x);
}

/* Returns `history` times the estimated number of recent queries that gave the token less than the
 * mean attention. */
static double unimportant(const entry *e, size_t history, int group)
{
    const double left = history > e->steps ? (double)(history - e->steps) : 0;
    const int bits = count_bits(e->rows & (history < 64 ? (1ull << history) - 1 : ~0ull));
    return (double)bits * (double)group * (double)history + e->prompt * left;
}

static int compress(const kvd_parameter_values *v, const entry *e, int group, size_t n, size_t over,
                    uint8_t *level, kvd_err *err)
{
    const size_t history = (size_t)v->value[HISTORY],
                 drop = (size_t)v->value[DROP] > over ? (size_t)v->value[DROP] : over;
    double *const score = malloc((n + 1) * sizeof *score);
    if (!score)
        return kvd_no_memory(err, "scores of entries", n * sizeof *score);
    for (size_t i = 0; i < n; i++)
        score[i] = -unimportant(e + i, history, group);
    const int status = kvd_tokens_keep_top(score, n, n > drop ? n - drop : 0, level, err);
    free(score);
    return status;
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const size_t budget = kvd_tokens_budget(v->value[BUDGET], p->n_expected);
    const size_t recent = kvd_tokens_budget(v->value[RECENT], p->n_expected);
    entry *const e = state;
    for (size_t t = 0; t < p->n; t++)
        e[t].prompt = p->below[t];
    if (p->n <= budget)
        return 0;
    return compress(v, e, p->group, p->n > recent ? p->n - recent : 0, p->n - budget, level, err);
}

static int step(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const size_t budget = kvd_tokens_budget(v->value[BUDGET], a->n_expected);
    const size_t recent = kvd_tokens_budget(v->value[RECENT], a->n_expected);
    entry *const e = state;
    memset(e + a->n - 1, 0, sizeof *e);
    for (size_t i = 0; i < a->n; i++) {
        int low = 0;
        for (int j = 0; j < a->group; j++)
            low += a->prob[(size_t)j * a->n + i] * (float)a->n < 1;
        e[i].rows = e[i].rows << 1 | (2 * low > a->group);
        e[i].steps++;
    }
    if (a->n <= budget)
        return 0;
    return compress(v, e, a->group, a->n > recent ? a->n - recent : 0, a->n - budget, level, err);
}

static void forget(const void *self, void *state, const size_t *kept, size_t n)
{
    entry *const e = state;
    (void)self;
    for (size_t i = 0; i < n; i++)
        e[i] = e[kept[i]];
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    rule->ranking = KVD_EVICT_PIVOTAL;
    rule->window = (int32_t)v->value[HISTORY];
}

static kvd_evict_budget evict_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    const size_t budget = kvd_tokens_budget(v->value[BUDGET], r->whole),
                 recent = kvd_tokens_budget(v->value[RECENT], r->whole),
                 limit = budget > recent ? budget : recent, asked = (size_t)v->value[DROP],
                 old = r->prompt > recent ? r->prompt - recent : 0,
                 over = r->prompt > limit ? r->prompt - limit : 0,
                 drop = over == 0      ? 0
                        : asked > over ? asked
                                       : over;
    kvd_evict_budget b = kvd_evict_always(old > drop ? old - drop : 0, recent, r);
    b.limit = kvd_evict_count(limit);
    b.drop = kvd_evict_count(asked);
    return b;
}

const kvd_tokens_method kvd_tokens_scissorhands = {
    .info = {.name = "scissorhands",
             .summary = "tokens that recent rows found important",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.06, true, "recent", 0, 0.25},
             .needs = KVD_NEEDS_PROBABILITIES,
             .gpu = &kvd_gpu_evict},
    .eviction = &(const kvd_tokens_eviction){.rule = evict_rule, .budget = evict_budget},
    .window = window,
    .check = kvd_tokens_check_budget,
    .state_bytes = state_bytes,
    .prompt = prompt,
    .step = step,
    .forget = forget,
};
