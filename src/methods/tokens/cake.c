/* Method cake: gives larger token budgets to layers whose attention is spread over more tokens and
 * varies more between queries (Qin et al. 2025, CAKE, arXiv 2503.12491, section 4). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { GAMMA = KVD_WINDOW_KEYS, TAU1, TAU2 };
static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, KVD_BUDGET_MOST, false,
     "older tokens kept, mean over layers: below 1 a fraction of the prompt, else a number"},
    {"window", 32, 2, 4096, true, "number of last rows of the prompt that choose"},
    {"kernel", 5, 1, 255, true, "number of neighbours averaged; odd"},
    {"gamma", 200, 0, 1e6, false, "weight of the variance in the score of a token"},
    {"tau1", 1, 1e-3, 1e3, false, "the entropy of a layer counts to the power 1 / tau1"},
    {"tau2", 1, 1e-3, 1e3, false, "the variance of a layer counts to the power 1 / tau2"},
    {NULL, 0, 0, 0, false, NULL},
};

/* Returns how many numbers are stored per layer: the layer's weight for dividing the token budget,
 * and scores [n_kv_heads][old] of the older prompt tokens. */
static size_t observed(const void *self, size_t n)
{
    const kvd_tokens_self *const c = self;
    return 1 + (size_t)c->config->n_kv_heads * kvd_tokens_window_old(c->v, n);
}

/* For one query head, reads the attention of the newest tokens (the window) to the `old` tokens
 * before them. Adds its entropy to *h, its variance to *v and the tokens' scores to score [old]. */
static void add_head(const kvd_tokens_self *c, const kvd_observed_prompt *r, int head, size_t old,
                     float *product, double *a, double *mean, double *square, double *h, double *v,
                     double *score)
{
    const size_t rows = r->n - old, half = (size_t)c->v->value[KVD_WINDOW_KERNEL] / 2;
    memset(mean, 0, old * sizeof *mean);
    memset(square, 0, old * sizeof *square);
    for (size_t t = old; t < r->n; t++) {
        kvd_tokens_probabilities(c->config, r, head, t, product, a);
        for (size_t i = 0; i < old; i++) {
            const double before = mean[i];
            mean[i] += (a[i] - before) / (double)(t - old + 1);
            square[i] += (a[i] - before) * (a[i] - mean[i]);
            *h -= a[i] * log(a[i] + 1e-10);
        }
    }
    for (size_t i = 0; i < old; i++) {
        const double variance = square[i] / (double)(rows - 1);
        *v += variance;
        mean[i] += c->v->value[GAMMA] * variance;
    }
    for (size_t i = 0; i < old; i++)
        for (size_t j = i > half ? i - half : 0; j < old && j <= i + half; j++)
            score[i] += mean[j];
}

static double preference_of(const kvd_parameter_values *v, double h, double variance)
{
    return pow(h, 1 / v->value[TAU1]) * pow(variance, 1 / v->value[TAU2]);
}

static int observe(const void *self, const kvd_observed_prompt *r, double *out, kvd_err *err)
{
    const kvd_tokens_self *const c = self;
    const size_t old = kvd_tokens_window_old(c->v, r->n),
                 group = (size_t)kvd_config_group(c->config);
    double *const a = malloc((2 * r->n + 2 * old) * sizeof *a), h = 0, v = 0;
    if (!a)
        return kvd_no_memory(err, "scores of a prompt", (2 * r->n + 2 * old) * sizeof *a);
    float *const product = (float *)(void *)(a + r->n + 2 * old);
    memset(out, 0, observed(self, r->n) * sizeof *out);
    for (int head = 0; old && head < c->config->n_heads; head++)
        add_head(c, r, head, old, product, a, a + r->n, a + r->n + old, &h, &v,
                 out + 1 + (size_t)head / group * old);
    out[0] = preference_of(c->v, h, v);
    free(a);
    return 0;
}

/* Adds `total` tokens, in equal parts, to the elements of budget [n] that are below `most`. If
 * `total` is negative, subtracts -total tokens from the elements above 1. */
static void spread(long *budget, int n, long total, long most)
{
    const long amount = labs(total), sign = total > 0 ? 1 : -1;
    long valid = 0, at = 0;
    for (int l = 0; l < n; l++)
        valid += total > 0 ? budget[l] < most : budget[l] > 1;
    for (int l = 0; valid > 0 && l < n; l++)
        if (total > 0 ? budget[l] < most : budget[l] > 1)
            budget[l] += sign * (amount / valid + (at++ < amount % valid));
}

static void divide(const double *preference, size_t stride, int n, double total, long most,
                   long *budget)
{
    double sum = 0;
    long excess = 0, used = 0;
    for (int l = 0; l < n; l++)
        sum += preference[(size_t)l * stride];
    for (int l = 0; l < n; l++) {
        const double share = sum > 0 ? preference[(size_t)l * stride] / sum : 1.0 / n;
        budget[l] = (long)(share * total);
        excess += budget[l] > most ? budget[l] - most : 0;
        budget[l] = budget[l] > most ? most : budget[l];
    }
    if (excess > 0)
        spread(budget, n, excess, most);
    for (int l = 0; l < n; l++)
        used += budget[l];
    if (used != (long)total)
        spread(budget, n, (long)total - used, most);
}

static int rank(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err)
{
    const kvd_tokens_self *const c = self;
    const size_t old = kvd_tokens_window_old(c->v, p->n), heads = (size_t)c->config->n_kv_heads,
                 each = kvd_tokens_budget(c->v->value[KVD_WINDOW_BUDGET], p->n);
    const size_t stride = observed(self, p->n);
    long *const budget = malloc((size_t)p->n_layers * sizeof *budget);
    int status = budget ? 0 : kvd_no_memory(err, "budgets", (size_t)p->n_layers * sizeof *budget);
    memset(level, KVD_LEVEL_HIGH, (size_t)p->n_layers * heads * p->n);
    if (!status)
        divide(p->observed, stride, p->n_layers, (double)each * p->n_layers, (long)old, budget);
    for (size_t i = 0; !status && i < (size_t)p->n_layers * heads; i++)
        status = kvd_tokens_keep_top(p->observed + i / heads * stride + 1 + i % heads * old, old,
                                     (size_t)budget[i / heads], level + i * p->n, err);
    free(budget);
    return status;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    kvd_tokens_window_rule(v, rule);
    rule->ranking = KVD_EVICT_SPREAD;
    rule->gamma = (float)v->value[GAMMA];
}

static int evict_divide(const kvd_parameter_values *v, const kvd_evict_layers *s,
                        kvd_evict_budget *budget, kvd_err *err)
{
    const size_t layers = (size_t)s->n_layers, old = kvd_tokens_window_old(v, s->n),
                 each = kvd_tokens_budget(v->value[KVD_WINDOW_BUDGET], s->n);
    const size_t bytes = layers * (sizeof(double) + sizeof(long));
    double *const preference = calloc(1, bytes);
    if (!preference)
        return kvd_no_memory(err, "budgets", bytes);
    long *const tokens = (long *)(void *)(preference + layers);
    for (size_t l = 0; l < layers; l++)
        preference[l] = preference_of(v, s->x[l * s->each], s->x[l * s->each + 1]);
    divide(preference, 1, s->n_layers, (double)each * s->n_layers, (long)old, tokens);
    for (size_t l = 0; l < layers; l++)
        budget[l] = kvd_evict_once((size_t)tokens[l], kvd_tokens_window_rows(v));
    free(preference);
    return 0;
}

const kvd_tokens_method kvd_tokens_cake = {
    .info = {.name = "cake",
             .summary = "budgets of layers by entropy and variance of their attention",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.45, 0.02, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_uneven},
    .eviction = &(const kvd_tokens_eviction){.rule = evict_rule,
                                             .budget = kvd_tokens_window_budget,
                                             .divide = evict_divide},
    .check = kvd_tokens_check_window,
    .observed = observed,
    .observe = observe,
    .rank = rank,
    .prompt = kvd_tokens_take_ranked,
};
