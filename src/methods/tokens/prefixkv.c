/*
 * Method prefixkv: sets the token budgets of layers such that every layer keeps the same fraction
 * of its attention (Wang et al. 2024, "PrefixKV: Adaptive Prefix KV Cache is What Vision
 * Instruction-Following Models Need for Efficient Generation", arXiv 2412.03409, section 3, and its
 * public code).
 *
 * The importance of a token in a layer is the sum of the attention probabilities that it receives
 * from all tokens of the prompt in all query heads. A prefix of a layer is its most important
 * tokens. Each layer keeps the shortest prefix that holds a given fraction of the layer's
 * importance. This fraction, equal in all layers, is the largest with which the layers keep at most
 * n_layers times `budget` tokens. The first `sink` tokens and the last one stay. All KV heads of a
 * layer keep the same tokens. No token is dropped after the prompt.
 */
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { BUDGET, SINK };
static const kvd_parameter parameters[] = {
    {"budget", 0.5, 0, 1 << 24, false,
     "tokens kept, mean over layers: below 1 a fraction of the prompt, else a number"},
    {"sink", 4, 0, 4096, true, "first tokens kept"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_tradeoff tradeoff = {"budget", 0.9, 0.05, true, NULL, 0, 0};

/* Returns the number of doubles that `observe` writes per layer: the importance of every token. */
static size_t observed(const void *self, size_t n)
{
    (void)self;
    return n;
}

static int observe(const void *self, const kvd_observed_prompt *r, double *out, kvd_err *err)
{
    const kvd_tokens_shaped *const x = self;
    double *const a = malloc(2 * r->n * sizeof *a);
    if (!a)
        return kvd_no_memory(err, "probabilities of a row", 2 * r->n * sizeof *a);
    memset(out, 0, r->n * sizeof *out);
    for (int head = 0; head < x->config->n_heads; head++)
        for (size_t t = 0; t < r->n; t++) {
            kvd_tokens_probabilities(x->config, r, head, t, (float *)(void *)(a + r->n), a);
            for (size_t i = 0; i <= t; i++)
                out[i] += a[i];
        }
    free(a);
    return 0;
}

static int falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/*
 * Returns the number of tokens in the shortest prefix whose cumulative importance reaches the
 * fraction `share`. sum [n] holds cumulative importances, the most important token first.
 */
static size_t prefix_of(const double *sum, size_t n, double share)
{
    size_t k = 0;
    while (k + 1 < n && sum[k] < share)
        k++;
    return k + 1;
}

/*
 * Returns the number of tokens that a layer keeps: its prefix and `fixed` more tokens, at most n.
 */
static size_t kept_of(const double *sum, size_t n, size_t fixed, double share)
{
    const size_t k = prefix_of(sum, n, share) + fixed;
    return k < n ? k : n;
}

/*
 * Finds by bisection the fraction of importance that every layer's prefix must hold so that the
 * layers keep `budget` tokens in all. sum [layers][n] holds cumulative importances.
 */
static double share_of(const double *sum, size_t layers, size_t n, size_t fixed, size_t budget)
{
    /*
     * A fraction of 2 is never reached, because importances add up to 1; all tokens are then kept.
     */
    double low = 0, high = 2;
    for (int i = 0; i < 80; i++) {
        const double middle = (low + high) / 2;
        size_t total = 0;
        for (size_t l = 0; l < layers; l++)
            total += kept_of(sum + l * n, n, fixed, middle);
        if (total <= layers * budget)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int rank(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err)
{
    const kvd_tokens_shaped *const x = self;
    const size_t n = p->n, layers = (size_t)p->n_layers, heads = (size_t)x->config->n_kv_heads,
                 asked = (size_t)x->v->value[SINK], sink = asked + 1 < n ? asked : n - 1,
                 budget = kvd_tokens_budget(x->v->value[BUDGET], n);
    double *const sum = malloc(layers * n * sizeof *sum);
    if (!sum)
        return kvd_no_memory(err, "sums of all layers", layers * n * sizeof *sum);
    memcpy(sum, p->observed, layers * n * sizeof *sum);
    for (size_t l = 0; l < layers; l++) {
        double *const s = sum + l * n;
        qsort(s, n, sizeof *s, falling);
        for (size_t i = 1; i < n; i++)
            s[i] += s[i - 1];
        const double all = s[n - 1];
        for (size_t i = 0; i < n; i++)
            s[i] /= all;
    }
    const double share = share_of(sum, layers, n, sink + 1, budget);
    int status = 0;
    memset(level, KVD_LEVEL_HIGH, layers * heads * n);
    for (size_t l = 0; !status && l < layers; l++) {
        uint8_t *const first = level + l * heads * n;
        const size_t k = kept_of(sum + l * n, n, sink + 1, share);
        status = kvd_tokens_keep_top(p->observed + l * n + sink, n - 1 - sink,
                                     k < sink + 1 ? 0 : k - sink - 1, first + sink, err);
        for (size_t g = 1; g < heads; g++)
            memcpy(first + g * n, first, n);
    }
    free(sum);
    return status;
}

const kvd_tokens_method kvd_tokens_prefixkv = {
    .info =
        {
            .name = "prefixkv",
            .summary = "budgets of layers that keep the same share of attention",
            .parameter = parameters,
            .tradeoff = &tradeoff,
            .needs = KVD_NEEDS_PROMPT,
        },
    .open = kvd_tokens_open_shaped_budget,
    .close = free,
    .observed = observed,
    .observe = observe,
    .rank = rank,
    .prompt = kvd_tokens_take_ranked,
};
