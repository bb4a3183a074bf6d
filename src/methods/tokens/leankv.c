/* Method sparsity, a part of LeanKV: each KV head drops insignificant tokens, and marks less
 * significant ones for low precision (LeanKV sections 4.1 to 4.3 and Algorithm 1).
 *
 * A token's significance is the mean attention probability that later tokens gave it. */
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
#include "methods/tokens/tokens.h"

enum { TH, TL, WINDOW };
static const kvd_parameter parameters[] = {
    {"th", 0.05, 0, 1, false, "cumulative significance below which tokens are lowered"},
    {"tl", 0.005, 0, 1, false, "cumulative significance below which tokens are dropped"},
    {"window", 64, 1, 1 << 20, true, "number of newest tokens always at the high level"},
    {NULL, 0, 0, 0, false, NULL},
};

typedef struct {
    /* Thresholds of the mean attention that a token received, relative to the average token. Below
     * cut_high, a token gets low precision. Below cut_low, it is dropped. */
    double cut_low, cut_high;
    size_t room;
    /* Two arrays [room]: sum of the attention probabilities that each token received, then number
     * of probabilities in each sum. */
    double sum_rows[];
} significance;

static int check(const kvd_parameter_values *v, kvd_err *err)
{
    return v->value[TL] > v->value[TH]
               ? kvd_fail(err, "tl = %g is above th = %g", v->value[TL], v->value[TH])
               : 0;
}

static size_t state_bytes(const void *self, size_t n)
{
    (void)self;
    return sizeof(significance) + 2 * n * sizeof(double);
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    significance *const s = state;
    const size_t window = (size_t)v->value[WINDOW], body = p->n > window ? p->n - window : 0;
    kvd_ranked *const order = malloc((body + 1) * sizeof *order);
    double total = 0, cumulative = 0;
    if (!order)
        return kvd_no_memory(err, "a ranking of tokens", body * sizeof *order);
    s->room = p->n_expected;
    for (size_t t = 0; t < p->n; t++) {
        s->sum_rows[t] = (p->mass[t] - p->own[t]) / p->group;
        s->sum_rows[s->room + t] = (double)(p->n - t - 1);
        if (t < body) {
            order[t] = (kvd_ranked){s->sum_rows[t] / (double)(p->n - t - 1), t};
            total += order[t].value;
        }
    }
    qsort(order, body, sizeof *order, kvd_by_rising_value);
    for (size_t i = 0; i < body; i++) {
        const double relative = order[i].value * (double)body / total;
        cumulative += order[i].value / total;
        if (cumulative < v->value[TL]) {
            level[order[i].index] = KVD_LEVEL_DROPPED;
            s->cut_low = relative;
        } else if (cumulative < v->value[TH]) {
            level[order[i].index] = KVD_LEVEL_LOW;
        } else {
            break;
        }
        s->cut_high = relative;
    }
    free(order);
    return 0;
}

static double significance_of(const significance *s, size_t i)
{
    return s->sum_rows[i] / s->sum_rows[s->room + i];
}

/* Returns the index of the least significant of the n tokens at precision level `wanted`, or n if
 * no token is at this level. */
static size_t least_of(const significance *s, const uint8_t *level, size_t n, uint8_t wanted)
{
    size_t least = n;
    for (size_t i = 0; i < n; i++)
        if (level[i] == wanted && (least == n || significance_of(s, i) < significance_of(s, least)))
            least = i;
    return least;
}

static int step(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const size_t window = (size_t)v->value[WINDOW];
    significance *const s = state;
    (void)err;
    double mean = 0;
    s->room = a->n_expected;
    /* Clears the new token's numbers, which may be left from a dropped token. */
    s->sum_rows[a->n - 1] = s->sum_rows[s->room + a->n - 1] = 0;
    for (size_t i = 0; i + 1 < a->n; i++) {
        for (int j = 0; j < a->group; j++)
            s->sum_rows[i] += (double)a->prob[(size_t)j * a->n + i] / a->group;
        s->sum_rows[s->room + i] += 1;
    }
    if (a->n <= window)
        return 0;
    const size_t leaving = a->n - window - 1, body = leaving + 1;
    for (size_t i = 0; i < body; i++)
        mean += significance_of(s, i) / (double)body;
    const double now = significance_of(s, leaving) / mean;
    if (now < s->cut_low) {
        level[leaving] = KVD_LEVEL_DROPPED;
        return 0;
    }
    const uint8_t to = now < s->cut_high ? KVD_LEVEL_LOW : KVD_LEVEL_HIGH;
    level[leaving] = to;
    const size_t victim = least_of(s, level, body, to);
    const double its = significance_of(s, victim) / mean;
    if (its < s->cut_low)
        level[victim] = KVD_LEVEL_DROPPED;
    else if (to == KVD_LEVEL_HIGH && its < s->cut_high)
        level[victim] = KVD_LEVEL_LOW;
    return 0;
}

static void forget(const void *self, void *state, const size_t *kept, size_t n)
{
    significance *const s = state;
    (void)self;
    for (size_t i = 0; i < n; i++) {
        s->sum_rows[i] = s->sum_rows[kept[i]];
        s->sum_rows[s->room + i] = s->sum_rows[s->room + kept[i]];
    }
}

const kvd_tokens_method kvd_tokens_leankv = {
    .info = {.name = "sparsity",
             .summary = "LeanKV's per-head levels by significance",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"tl", 0.01, 0.6, true, "th", 0, 1},
             .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_leankv},
    .lowers = true,
    .entry_bits = 16 + 32, /* bits of a cached token's significance and position */
    .check = check,
    .state_bytes = state_bytes,
    .prompt = prompt,
    .step = step,
    .forget = forget,
};
