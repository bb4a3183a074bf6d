/* Method prefixkv: divides the token budget so that the kept tokens of every layer have the same
 * fraction of the layer's attention (Wang et al. 2024, PrefixKV, arXiv 2412.03409, section 3). */
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
#include "methods/tokens/tokens.h"

enum { BUDGET, SINK };
static const kvd_parameter parameters[] = {
    {"budget", 0.5, 0, KVD_BUDGET_MOST, false,
     "tokens kept, mean over layers: below 1 a fraction of the prompt, else a number"},
    {"sink", 4, 0, 4096, true, "first tokens kept"},
    {NULL, 0, 0, 0, false, NULL},
};

/* Returns how many tokens it takes, beginning with the most important one, for their importances to
 * add up to `share`. sum [n] has the prefix sums of the sorted importances. */
static size_t prefix_of(const double *sum, size_t n, double share)
{
    size_t low = 0, high = n - 1;
    if (share <= 0)
        return 0;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (sum[middle] < share)
            low = middle + 1;
        else
            high = middle;
    }
    return low + 1;
}

static size_t kept_of(const double *sum, size_t n, size_t fixed, double share)
{
    const size_t k = prefix_of(sum, n, share) + fixed;
    return k < n ? k : n;
}

/* Returns the largest fraction f for which all layers together keep at most layers * budget tokens.
 * Each layer keeps tokens with the fraction f of the layer's total importance. */
static double share_of(const double *sum, size_t layers, size_t n, size_t fixed, size_t budget)
{
    /* Bounds of the fraction of importance that each layer keeps, for a bisection. Any fraction
     * above 1 keeps all tokens. */
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

static size_t sinks_of(const kvd_parameter_values *v, size_t n)
{
    const size_t asked = (size_t)v->value[SINK];
    return asked + 1 < n ? asked : n - 1;
}

/* Writes the number of tokens that each layer keeps to `kept`. x [layers][n] has the importance of
 * each token. */
static int numbers_of(const kvd_parameter_values *v, const double *x, size_t layers, size_t n,
                      size_t *kept, kvd_err *err)
{
    const size_t fixed = sinks_of(v, n) + 1, budget = kvd_tokens_budget(v->value[BUDGET], n);
    double *const sum = malloc(layers * n * sizeof *sum);
    if (!sum)
        return kvd_no_memory(err, "sums of all layers", layers * n * sizeof *sum);
    memcpy(sum, x, layers * n * sizeof *sum);
#pragma omp parallel for schedule(dynamic)
    for (size_t l = 0; l < layers; l++) {
        double *const s = sum + l * n;
        kvd_sort_falling(s, n);
        for (size_t i = 1; i < n; i++)
            s[i] += s[i - 1];
        const double all = s[n - 1];
        for (size_t i = 0; i < n; i++)
            s[i] /= all;
    }
    const double share = share_of(sum, layers, n, fixed, budget);
    for (size_t l = 0; l < layers; l++)
        kept[l] = kept_of(sum + l * n, n, fixed, share);
    free(sum);
    return 0;
}

static int rank(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err)
{
    const kvd_tokens_self *const x = self;
    const size_t n = p->n, layers = (size_t)p->n_layers, heads = (size_t)x->config->n_kv_heads,
                 sink = sinks_of(x->v, n);
    size_t *const kept = malloc(layers * sizeof *kept);
    if (!kept)
        return kvd_no_memory(err, "numbers of tokens", layers * sizeof *kept);
    int status = numbers_of(x->v, p->observed, layers, n, kept, err);
    memset(level, KVD_LEVEL_HIGH, layers * heads * n);
    for (size_t l = 0; !status && l < layers; l++) {
        uint8_t *const first = level + l * heads * n;
        status =
            kvd_tokens_keep_top(p->observed + l * n + sink, n - 1 - sink,
                                kept[l] < sink + 1 ? 0 : kept[l] - sink - 1, first + sink, err);
        for (size_t g = 1; g < heads; g++)
            memcpy(first + g * n, first, n);
    }
    free(kept);
    return status;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    rule->whole_layer = 1;
    rule->sink = (int32_t)v->value[SINK];
}

static kvd_evict_budget evict_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    const size_t budget = kvd_tokens_budget(v->value[BUDGET], r->prompt),
                 sink = (size_t)v->value[SINK], most = budget > sink + 1 ? budget : sink + 1;
    return kvd_evict_once(most - 1, 1);
}

static int evict_divide(const kvd_parameter_values *v, const kvd_evict_layers *s,
                        kvd_evict_budget *budget, kvd_err *err)
{
    const size_t layers = (size_t)s->n_layers;
    size_t *const kept = malloc(layers * sizeof *kept);
    if (!kept)
        return kvd_no_memory(err, "numbers of tokens", layers * sizeof *kept);
    const int status = numbers_of(v, s->x, layers, s->n, kept, err);
    for (size_t l = 0; !status && l < layers; l++)
        budget[l] = kvd_evict_once(kept[l] - 1, 1);
    free(kept);
    return status;
}

const kvd_tokens_method kvd_tokens_prefixkv = {
    .info = {.name = "prefixkv",
             .summary = "budgets of layers that keep the same share of attention",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.05, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_uneven},
    .eviction = &(const kvd_tokens_eviction){.rule = evict_rule,
                                             .budget = evict_budget,
                                             .divide = evict_divide},
    .check = kvd_tokens_check_budget,
    .observed = kvd_tokens_received_doubles,
    .observe = kvd_tokens_observe_received,
    .rank = rank,
    .prompt = kvd_tokens_take_ranked,
};
