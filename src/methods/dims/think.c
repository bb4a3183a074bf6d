/* Method think: prunes key channels whose products with the prompt's last queries are small. */
#include <math.h>
#include <stdlib.h>

#include "common/stats.h"
#include "methods/dims/dims.h"

enum { P, WINDOW };
static const kvd_parameter parameters[] = {
    {"p", 0.4, 0, 0.999, false, "fraction of the channels of keys pruned, rounded down"},
    {"window", 32, 1, 1 << 20, true,
     "number of last queries of the prompt that choose, and of newest tokens kept whole"},
    {NULL, 0, 0, 0, false, NULL},
};

static double square_of(const float *x, size_t n, size_t ld)
{
    double sum = 0;
    for (size_t t = 0; t < n; t++)
        sum += (double)x[t * ld] * (double)x[t * ld];
    return sum;
}

static int prune(const kvd_parameter_values *v, const kvd_channels_in *in, uint8_t *keep,
                 size_t *newest, kvd_err *err)
{
    const size_t window = (size_t)v->value[WINDOW], rows = window < in->n_q ? window : in->n_q;
    const size_t pruned = (size_t)(v->value[P] * (double)in->d);
    kvd_ranked *const order = malloc(in->d * sizeof *order);
    if (!order)
        return kvd_no_memory(err, "scores of channels", in->d * sizeof *order);
    for (size_t i = 0; i < in->d; i++) {
        double queries = 0;
        for (size_t j = 0; j < in->group; j++)
            queries +=
                sqrt(square_of(in->q + (in->n_q - rows) * in->ldq + j * in->d + i, rows, in->ldq));
        order[i] = (kvd_ranked){queries * sqrt(square_of(in->k + i, in->n_k, in->d)), i};
    }
    qsort(order, in->d, sizeof *order, kvd_by_falling_value);
    for (size_t i = 0; i < in->d; i++)
        keep[order[i].index] = i + pruned < in->d;
    free(order);
    *newest = window;
    return 0;
}

const kvd_channels_method kvd_channels_think = {
    .info = {.name = "think",
             .summary = "channels of a prompt's keys pruned by its last queries",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"p", 0.1, 0.9, false, NULL, 0, 0},
             .needs = KVD_NEEDS_PROMPT | KVD_NEEDS_QUERIES,
             .gpu = &kvd_gpu_think},
    .prune = prune,
};
