/*
 * Method importance: ZDC's important and unimportant tokens (ZDC section 5). The important tokens
 * of a layer have the largest sum of softmax denominators over the query heads, computed in
 * logarithms (D-10). The other tokens are stored at the smaller widths of dims_low (the plan's
 * second set of projections).
 *
 * With parameter `mean`, a denominator is divided by the number of keys that the token sees, which
 * the paper does not do (D-11). The paper finds layers with similar token sets offline; this code
 * compares them in every prompt. Tokens after the prompt are important (D-12). D-10 to D-12 are
 * readings of the paper in docs/readings.md.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { G, RISE, OVERLAP, MEAN, LAYERS };
static const kvd_parameter parameters[] = {
    {"g", 0.5, 0, 1, false, "fraction of important tokens in the first layer"},
    {"rise", 0, 0, 1, false, "increase of the fraction up to the last layer"},
    {"overlap", 0.95, 0, 1, false,
     "smallest overlap of both token sets at which adjacent layers share them"},
    {"mean", 0, 0, 1, true, "1: divide denominators by their number of keys"},
    {"layers", 0, 0, 1024, true,
     "number of consecutive layers that use the token sets of the first; 0: decided by overlap"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_tradeoff tradeoff = {"g", 0.9, 0.1, false, NULL, 0, 0};

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    (void)s;
    if (v->value[G] + v->value[RISE] > 1)
        return kvd_fail(
            err,
            "g = %g and rise = %g: the fraction of important tokens would be %g in the last layer",
            v->value[G], v->value[RISE], v->value[G] + v->value[RISE]);
    *self = (void *)(uintptr_t)v;
    return 0;
}

typedef struct {
    double value;
    size_t token;
} ranked;

static int falling(const void *a, const void *b)
{
    const ranked *const x = a, *const y = b;
    if (x->value > y->value || x->value < y->value)
        return x->value > y->value ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

double kvd_tokens_important(const kvd_parameter_values *v, int layer, int n_layers)
{
    const double depth = n_layers > 1 ? (double)layer / (n_layers - 1) : 0;
    return fmin(1, v->value[G] + v->value[RISE] * depth);
}

int kvd_tokens_layers(const kvd_parameter_values *v)
{
    return (int)v->value[LAYERS];
}

static void classify(const kvd_parameter_values *v, const kvd_prompt_layers *p, int l,
                     ranked *order, uint8_t *level)
{
    const double share = kvd_tokens_important(v, l, p->n_layers);
    const size_t important = (size_t)lround(share * (double)p->n);
    for (size_t t = 0; t < p->n; t++)
        order[t] = (ranked){p->log_denominator[(size_t)l * p->n + t] -
                                (v->value[MEAN] > 0 ? log((double)t + 1) : 0),
                            t};
    qsort(order, p->n, sizeof *order, falling);
    for (size_t i = 0; i < p->n; i++)
        level[order[i].token] = i < important ? KVD_LEVEL_HIGH : KVD_LEVEL_LOW;
}

/* Number of tokens that both layers assign to `level`, divided by the size of the larger set. */
static double overlap(const uint8_t *a, const uint8_t *b, size_t n, uint8_t level)
{
    size_t both = 0, in_a = 0, in_b = 0;
    for (size_t t = 0; t < n; t++) {
        in_a += a[t] == level;
        in_b += b[t] == level;
        both += a[t] == level && b[t] == level;
    }
    const size_t larger = in_a > in_b ? in_a : in_b;
    return larger ? (double)both / (double)larger : 1;
}

static int rank(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err)
{
    const kvd_parameter_values *const v = self;
    ranked *const order = malloc((p->n + 1) * sizeof *order);
    if (!order)
        return kvd_no_memory(err, "a ranking of tokens", p->n * sizeof *order);
    for (int l = 0; l < p->n_layers; l++)
        classify(v, p, l, order, level + (size_t)l * p->n);
    free(order);
    const int together = kvd_tokens_layers(v);
    /*
     * Goes from the last layer to the first, so that both compared layers still have their own
     * token sets. Layers l .. end - 1 use the sets of layer l.
     */
    for (int l = p->n_layers - 1, end = p->n_layers; l >= 0; l--) {
        uint8_t *const own = level + (size_t)l * p->n;
        const uint8_t *const before = l > 0 ? own - p->n : NULL;
        if (before &&
            (together ? l % together != 0
                      : overlap(before, own, p->n, KVD_LEVEL_LOW) >= v->value[OVERLAP] &&
                            overlap(before, own, p->n, KVD_LEVEL_HIGH) >= v->value[OVERLAP]))
            continue;
        for (int shared = l + 1; shared < end; shared++)
            memcpy(level + (size_t)shared * p->n, own, p->n);
        end = l;
    }
    return 0;
}

/* entry_bits: one bit per cached token says if the token is important. */
const kvd_tokens_method kvd_tokens_importance = {
    .info =
        {
            .name = "importance",
            .summary = "ZDC's important tokens by softmax denominators",
            .parameter = parameters,
            .tradeoff = &tradeoff,
            .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT,
            .gpu = &kvd_gpu_zdc,
        },
    .lowers = true,
    .only_lowers = true,
    .entry_bits = 1,
    .open = open,
    .rank = rank,
    .prompt = kvd_tokens_take_ranked,
};
