/* Method windowkv: keeps windows of consecutive prompt tokens. A group of layers keeps the same
 * windows (Zuo et al. 2025, WindowKV, arXiv 2503.17922, section 3). Token budgets fall from layer
 * to layer as in method pyramidkv. */
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
#include "methods/tokens/tokens.h"

enum { BUDGET, WINDOW = KVD_WINDOW_ROWS, REVIEW, LAYERS, BETA, LARGEST };
static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, KVD_BUDGET_MOST, false,
     "older tokens kept, mean over layers: below 1 a fraction of the prompt, else a number"},
    {"window", 16, 1, 4096, true, "number of last rows of the prompt that choose"},
    {"review", 32, 1, 4096, true, "number of tokens of a window that stays or goes"},
    {"layers", 8, 1, 4096, true, "number of layers that keep the same tokens"},
    {"beta", 14, 1, 1e6, false, "the last group of layers keeps budget layers / beta older tokens"},
    {"largest", 0, 0, 1, true, "1: the score of a window is the mean of its largest half"},
    {NULL, 0, 0, 0, false, NULL},
};

static int check(const kvd_parameter_values *v, kvd_err *err)
{
    return v->value[BETA] < v->value[LAYERS]
               ? kvd_fail(err,
                          "beta = %g is below layers = %g: the last group of layers would keep "
                          "more than the first",
                          v->value[BETA], v->value[LAYERS])
               : 0;
}

static size_t observed(const void *self, size_t n)
{
    const kvd_tokens_self *const w = self;
    const size_t review = (size_t)w->v->value[REVIEW];
    return (kvd_tokens_window_old(w->v, n) + review - 1) / review;
}

/* Returns the score of a window of n consecutive tokens with scores x [n]. May reorder x. */
static double score_of(const kvd_tokens_self *w, double *x, size_t n)
{
    const size_t half = (size_t)w->v->value[REVIEW] / 2, some = w->v->value[LARGEST] < 1 || half > n
                                                                    ? n
                                                                : half > 0 ? half
                                                                           : 1;
    double sum = 0;
    if (some < n)
        kvd_sort_falling(x, n);
    for (size_t i = 0; i < some; i++)
        sum += x[i];
    return sum / (double)some;
}

static int observe(const void *self, const kvd_observed_prompt *r, double *out, kvd_err *err)
{
    const kvd_tokens_self *const w = self;
    const size_t old = kvd_tokens_window_old(w->v, r->n), review = (size_t)w->v->value[REVIEW];
    memset(out, 0, observed(self, r->n) * sizeof *out);
    if (r->layer % (int)w->v->value[LAYERS])
        /* Only the first layer of a group of layers scores tokens. The other layers of the group
         * keep the same tokens. */
        return 0;
    double *const a = malloc(3 * r->n * sizeof *a);
    if (!a)
        return kvd_no_memory(err, "scores of a prompt", 3 * r->n * sizeof *a);
    double *const sum = a + r->n;
    for (int head = 0; head < w->config->n_heads; head++) {
        memset(sum, 0, r->n * sizeof *sum);
        for (size_t t = old; t < r->n; t++) {
            kvd_tokens_probabilities(w->config, r, head, t, (float *)(void *)(sum + r->n), a);
            for (size_t i = 0; i < old; i++)
                sum[i] += a[i];
        }
        for (size_t i = 0; i < old; i += review)
            out[i / review] += score_of(w, sum + i, review < old - i ? review : old - i);
    }
    free(a);
    return 0;
}

static size_t budget_of(const kvd_parameter_values *v, size_t group, size_t groups, size_t budget)
{
    const size_t last = (size_t)((double)budget * v->value[LAYERS] / v->value[BETA]),
                 first = 2 * budget - last;
    if (groups < 2)
        return budget;
    return group == groups - 1 ? last : first - group * ((first - last) / (groups - 1));
}

static size_t dropped_of(size_t n, size_t old, size_t review, size_t budget)
{
    const size_t drop = old > budget ? (old - budget + review - 1) / review : 0;
    return drop < n ? drop : n;
}

/* Drops the windows with the smallest scores. Each of the n windows has one score and `review`
 * consecutive tokens. */
static int drop_windows(const double *score, size_t n, size_t old, size_t review, size_t budget,
                        uint8_t *level, kvd_err *err)
{
    const size_t drop = dropped_of(n, old, review, budget);
    uint8_t *const kept = malloc(n + 1);
    if (!kept)
        return kvd_no_memory(err, "windows of a prompt", n);
    memset(kept, KVD_LEVEL_HIGH, n);
    const int status = kvd_tokens_keep_top(score, n, n - drop, kept, err);
    for (size_t t = 0; !status && drop > 0 && t < old; t++)
        level[t] = kept[t / review];
    free(kept);
    return status;
}

static int rank(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err)
{
    const kvd_tokens_self *const w = self;
    const size_t heads = (size_t)w->config->n_kv_heads, each = (size_t)w->v->value[LAYERS],
                 layers = (size_t)p->n_layers, windows = observed(self, p->n),
                 budget = kvd_tokens_budget(w->v->value[BUDGET], p->n);
    memset(level, KVD_LEVEL_HIGH, layers * heads * p->n);
    for (size_t l = 0; l < layers; l++) {
        const size_t group = l / each;
        uint8_t *const first = level + l * heads * p->n;
        if (drop_windows(p->observed + group * each * windows, windows,
                         kvd_tokens_window_old(w->v, p->n), (size_t)w->v->value[REVIEW],
                         budget_of(w->v, group, (layers + each - 1) / each, budget), first, err))
            return -1;
        for (size_t g = 1; g < heads; g++)
            memcpy(first + g * p->n, first, p->n);
    }
    return 0;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    rule->window = (int32_t)v->value[WINDOW];
    rule->review = (int32_t)v->value[REVIEW];
    rule->layers = (int32_t)v->value[LAYERS];
    rule->largest = v->value[LARGEST] > 0;
}

/* Returns the number of tokens that stay: the newest tokens, and whole groups of `review` adjacent
 * older tokens. */
static kvd_evict_budget evict_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    const size_t review = (size_t)v->value[REVIEW], each = (size_t)v->value[LAYERS],
                 old = kvd_tokens_window_old(v, r->prompt), n = (old + review - 1) / review,
                 budget = kvd_tokens_budget(v->value[BUDGET], r->prompt),
                 drop = dropped_of(n, old, review,
                                   budget_of(v, (size_t)r->layer / each,
                                             ((size_t)r->n_layers + each - 1) / each, budget));
    return kvd_evict_once(drop > 0 ? (n - drop) * review : old, kvd_tokens_window_rows(v));
}

const kvd_tokens_method kvd_tokens_windowkv = {
    .info = {.name = "windowkv",
             .summary = "windows of consecutive tokens, the same in a group of layers",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.45, 0.02, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_uneven},
    .eviction = &(const kvd_tokens_eviction){.rule = evict_rule, .budget = evict_budget},
    .check = check,
    .observed = observed,
    .observe = observe,
    .rank = rank,
    .prompt = kvd_tokens_take_ranked,
};
