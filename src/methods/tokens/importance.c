/*
 * importance: ZDC's important and unimportant tokens (ZDC section 5): the important ones are those whose softmax denominators, summed
 * over heads, are the largest of their layer; the others are lowered, to the narrower widths of dims_low.
 *
 * Decided at the end of the prompt, for all KV heads of a layer alike. Denominators are summed as logarithms (D-10); `mean` divides
 * them by the number of keys of their row, which the paper does not (D-11). Important are the share `g` of the first layer, `g` + `rise` of
 * the last, linear between (Eq. 6 wants it to rise, D-6). Neighbouring layers whose important and unimportant sets overlap by at least
 * `overlap` use the sets of the first of them. The paper finds such layers offline; here every prompt does, unless `layers` says how many
 * go together. Tokens after the prompt are at the high level, which the paper leaves open (D-12).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { G, RISE, OVERLAP, MEAN, LAYERS };
static const kvd_parameter parameters[] = {
    {"g", 0.5, 0, 1, false, "share of important tokens in the first layer"},
    {"rise", 0, 0, 1, false, "what the share grows by up to the last layer"},
    {"overlap", 0.95, 0, 1, false, "overlap of both sets from which layers share them"},
    {"mean", 0, 0, 1, true, "1: denominators are divided by their number of keys"},
    {"layers", 0, 0, 1024, true, "so many neighbouring layers share the sets of the first; 0: by overlap"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_rate rate = {"g", 0.9, 0.1, false, NULL, 0, 0};

static int open(const kvd_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    (void)s;
    if (v->value[G] + v->value[RISE] > 1)
        return kvd_fail(err,
                        "g = %g and rise = %g: the share of important tokens would be %g in the last layer",
                        v->value[G], v->value[RISE], v->value[G] + v->value[RISE]);
    *self = (void *)(uintptr_t)v;
    return 0;
}

static size_t state_bytes(const void *self, size_t n)
{
    (void)self, (void)n;
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

double kvd_tokens_important(const kvd_values *v, int layer, int n_layers)
{
    const double depth = n_layers > 1 ? (double)layer / (n_layers - 1) : 0;
    return fmin(1, v->value[G] + v->value[RISE] * depth);
}

int kvd_tokens_layers(const kvd_values *v)
{
    return (int)v->value[LAYERS];
}

static void classify(const kvd_values *v, const kvd_prompt_layers *p, int l, ranked *order, uint8_t *level)
{
    const double share = kvd_tokens_important(v, l, p->n_layers);
    const size_t important = (size_t)lround(share * (double)p->n);
    for (size_t t = 0; t < p->n; t++)
        order[t] = (ranked){
            p->log_denominator[(size_t)l * p->n + t] - (v->value[MEAN] > 0 ? log((double)t + 1) : 0), t};
    qsort(order, p->n, sizeof *order, falling);
    for (size_t i = 0; i < p->n; i++)
        level[order[i].token] = i < important ? KVD_LEVEL_HIGH : KVD_LEVEL_LOW;
}

/* What two layers' sets of one level have in common, of the larger one. */
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
    const kvd_values *const v = self;
    ranked *const order = malloc((p->n + 1) * sizeof *order);
    if (!order)
        return kvd_no_memory(err, "a ranking of tokens", p->n * sizeof *order);
    for (int l = 0; l < p->n_layers; l++)
        classify(v, p, l, order, level + (size_t)l * p->n);
    free(order);
    bool *const shares = calloc((size_t)p->n_layers, sizeof *shares);
    if (!shares)
        return kvd_no_memory(err, "groups of layers", (unsigned long long)p->n_layers);
    const int together = kvd_tokens_layers(v);
    for (int l = 1; l < p->n_layers; l++) {
        const uint8_t *const b = level + (size_t)l * p->n, *const a = b - p->n;
        shares[l] = together ? l % together != 0
                             : overlap(a, b, p->n, KVD_LEVEL_LOW) >= v->value[OVERLAP] &&
                                   overlap(a, b, p->n, KVD_LEVEL_HIGH) >= v->value[OVERLAP];
    }
    for (int l = 1; l < p->n_layers; l++)
        if (shares[l])
            memcpy(level + (size_t)l * p->n, level + (size_t)(l - 1) * p->n, p->n);
    free(shares);
    return 0;
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level, kvd_err *err)
{
    (void)self, (void)state, (void)err;
    memcpy(level, p->ranked, p->n);
    return 0;
}

/* One bit says which class an entry has. */
const kvd_tokens_method kvd_tokens_importance = {.name = "importance",
                                                 .summary = "ZDC's important tokens by softmax denominators",
                                                 .parameter = parameters,
                                                 .rate = &rate,
                                                 .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT,
                                                 .lowers = true,
                                                 .only_lowers = true,
                                                 .entry_bits = 1,
                                                 .open = open,
                                                 .state_bytes = state_bytes,
                                                 .rank = rank,
                                                 .prompt = prompt};
