/* Methods `importance` and `received` keep more dimensions of K and V for important tokens than for
 * other tokens, in each layer (ZDC paper, section 5).
 *
 * Method `importance` ranks a token by log(sum over query heads of its query's softmax
 * denominator). Method `received` ranks a token by the attention that it receives. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
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
static const kvd_parameter parameters_received[] = {
    {"g", 0.5, 0, 1, false, "fraction of important tokens in the first layer"},
    {"rise", 0, 0, 1, false, "increase of the fraction up to the last layer"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_tradeoff tradeoff = {"g", 0.9, 0.1, false, NULL, 0, 0};
static const kvd_idle_key idle[] = {{"overlap", "layers", 1, INFINITY}, {NULL, NULL, 0, 0}};

static int check(const kvd_parameter_values *v, kvd_err *err)
{
    return v->value[G] + v->value[RISE] > 1
               ? kvd_fail(err,
                          "g = %g and rise = %g: the fraction of important tokens would be %g in "
                          "the last layer",
                          v->value[G], v->value[RISE], v->value[G] + v->value[RISE])
               : 0;
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

/* Marks a fraction `share` of n tokens as important: those with the largest values in `order`. */
static void mark(double share, size_t n, kvd_ranked *order, uint8_t *level)
{
    const size_t important = (size_t)lround(share * (double)n);
    qsort(order, n, sizeof *order, kvd_by_falling_value);
    for (size_t i = 0; i < n; i++)
        level[order[i].index] = i < important ? KVD_LEVEL_HIGH : KVD_LEVEL_LOW;
}

static void classify(const kvd_parameter_values *v, const kvd_prompt_layers *p, int l,
                     kvd_ranked *order, uint8_t *level)
{
    for (size_t t = 0; t < p->n; t++)
        order[t] = (kvd_ranked){p->log_denominator[(size_t)l * p->n + t] -
                                    (v->value[MEAN] > 0 ? log((double)t + 1) : 0),
                                t};
    mark(kvd_tokens_important(v, l, p->n_layers), p->n, order, level);
}

/* Compares the sets of tokens that have precision `level` in a and in b. Returns the number of
 * common tokens, divided by the size of the larger set. */
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
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    kvd_ranked *const order = malloc((p->n + 1) * sizeof *order);
    if (!order)
        return kvd_no_memory(err, "a ranking of tokens", p->n * sizeof *order);
    for (int l = 0; l < p->n_layers; l++)
        classify(v, p, l, order, level + (size_t)l * p->n);
    free(order);
    const int together = kvd_tokens_layers(v);
    /* Visits the layers from the last to the first. The layers l to end - 1 use the important
     * tokens of layer l. */
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

/* Method importance. It stores one bit per cached token (entry_bits), which marks the token as
 * important or not. */
const kvd_tokens_method kvd_tokens_importance = {
    .info = {.name = "importance",
             .summary = "ZDC's important tokens by softmax denominators",
             .parameter = parameters,
             .idle = idle,
             .tradeoff = &tradeoff,
             .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_zdc},
    .lowers = true,
    .only_lowers = true,
    .entry_bits = 1,
    .check = check,
    .rank = rank,
    .prompt = kvd_tokens_take_ranked,
};

static int rank_received(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err)
{
    const kvd_tokens_self *const z = self;
    const size_t heads = (size_t)z->config->n_kv_heads;
    kvd_ranked *const order = malloc((p->n + 1) * sizeof *order);
    if (!order)
        return kvd_no_memory(err, "a ranking of tokens", p->n * sizeof *order);
    for (size_t l = 0; l < (size_t)p->n_layers; l++) {
        uint8_t *const own = level + l * heads * p->n;
        for (size_t t = 0; t < p->n; t++)
            order[t] = (kvd_ranked){p->observed[l * p->n + t], t};
        mark(kvd_tokens_important(z->v, (int)l, p->n_layers), p->n, order, own);
        for (size_t h = 1; h < heads; h++)
            memcpy(own + h * p->n, own, p->n);
    }
    free(order);
    return 0;
}

const kvd_tokens_method kvd_tokens_received = {
    .info = {.name = "received",
             .summary = "important tokens by the attention that they received, in every layer "
                        "(ZDC/LT)",
             .parameter = parameters_received,
             .tradeoff = &tradeoff,
             .needs = KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_zdc_received},
    .lowers = true,
    .only_lowers = true,
    .entry_bits = 1,
    .check = check,
    .observed = kvd_tokens_received_doubles,
    .observe = kvd_tokens_observe_received,
    .rank = rank_received,
    .prompt = kvd_tokens_take_ranked,
};
