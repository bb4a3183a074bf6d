/* Methods that project K and V of each request on the leading columns of a rotation (orthogonal
 * matrix).
 *
 * Method strawman computes the right singular vectors of K and of V of each prompt. Parameter
 * online=1 computes the right singular vectors of the stacked matrices [Q; K] and [V; W_O] of each
 * prompt. With explicit=1, rotations come from a file. */
#include <math.h>
#include <stdlib.h>

#include "common/linalg.h"
#include "methods/dims/dims.h"
#include "model/checkpoint/weights.h"

static const kvd_parameter parameters[] = {
    {"p", 0.5, 0, 0.999, false, "fraction of the dims removed, the same in every head"},
    {NULL, 0, 0, 0, false, NULL},
};

static size_t width(const kvd_parameter_values *v, size_t d)
{
    const long kept = lround((1 - v->value[0]) * (double)d);
    return kept < 1 ? 1 : (size_t)kept;
}

/* Writes the part of unit vector i orthogonal to the first m columns of R to x. Returns |x|^2. */
static double leftover(size_t d, size_t m, const double *R, size_t i, double *x)
{
    double length = 0;
    for (size_t k = 0; k < d; k++)
        x[k] = k == i;
    for (size_t j = 0; j < m; j++)
        for (size_t k = 0; k < d; k++)
            x[k] -= R[i * d + j] * R[k * d + j];
    for (size_t k = 0; k < d; k++)
        length += x[k] * x[k];
    return length;
}

/* Replaces columns of R that are only rounding noise by vectors orthonormal to the other
 * columns. */
static void complete(size_t d, size_t w, const double *sigma, double *R, double *spare)
{
    size_t known = 0;
    while (known < w && sigma[known] > 1e-5 * sigma[0])
        known++;
    for (size_t j = known; j < w; j++) {
        double most = 0;
        for (size_t i = 0; i < d; i++) {
            const double length = leftover(d, j, R, i, spare + d);
            if (length > most * (1 + 1e-6)) {
                most = length;
                for (size_t k = 0; k < d; k++)
                    spare[k] = spare[d + k];
            }
        }
        for (size_t k = 0; k < d; k++)
            R[k * d + j] = spare[k] / sqrt(most);
    }
}

/* Adds to `gram` the Gram matrices of K or V and, if given in *x, of Q and W_O. */
static int add_rows(const kvd_channels_rows *x, double *gram, double *scratch, kvd_err *err)
{
    const size_t d = x->d;
    if (kvd_gram_add(gram, d, x->x, x->n, d, scratch, err))
        return -1;
    for (size_t j = 0; x->n_q && j < x->group; j++)
        if (kvd_gram_add(gram, d, x->q + j * d, x->n_q, x->ldq, scratch, err))
            return -1;
    for (size_t i = 0; x->moment && i < d * d; i++)
        gram[i] += x->moment[i];
    return 0;
}

static int project(const kvd_channels_rows *x, size_t w, float *a, kvd_err *err)
{
    const size_t d = x->d;
    double *const gram = calloc(2 * d * d + d + kvd_gram_scratch(d), sizeof *gram);
    if (!gram)
        return kvd_no_memory(err, "a prompt's second moments", 2 * d * d * sizeof *gram);
    double *const R = gram + d * d, *const sigma = R + d * d;
    const int status = add_rows(x, gram, sigma + d, err) || kvd_gram_svd(gram, d, sigma, R, err);
    if (!status)
        complete(d, w, sigma, R, gram);
    for (size_t i = 0; !status && i < d; i++)
        for (size_t j = 0; j < w; j++)
            a[i * w + j] = (float)R[i * d + j];
    free(gram);
    return status ? -1 : 0;
}

/* Adds the second moments of W_O to `moment`, one matrix per KV head. */
static int add_outputs(const kvd_config *c, const kvd_weight *weight, double *moment, kvd_err *err)
{
    enum { ROWS = 256 };
    const size_t d = (size_t)c->d_head, wide = (size_t)c->n_heads * d, model = (size_t)c->d_model,
                 group = (size_t)(c->n_heads / c->n_kv_heads);
    float *const rows = malloc(ROWS * wide * sizeof *rows);
    double *const scratch = malloc(kvd_gram_scratch(d) * sizeof *scratch);
    int status =
        rows && scratch ? 0 : kvd_no_memory(err, "rows of W_O", ROWS * wide * sizeof *rows);
    for (size_t at = 0; !status && at < model; at += ROWS) {
        const size_t n = model - at < ROWS ? model - at : ROWS;
        kvd_weight_read(weight, at * wide, n * wide, rows);
        for (size_t h = 0; !status && h < (size_t)c->n_heads; h++)
            status =
                kvd_gram_add(moment + h / group * d * d, d, rows + h * d, n, wide, scratch, err);
    }
    free(rows);
    free(scratch);
    return status;
}

double *kvd_channels_moments(const kvd_checkpoint *from, kvd_err *err)
{
    const kvd_config *const c = kvd_checkpoint_config(from);
    const size_t d = (size_t)c->d_head, layer = (size_t)c->n_kv_heads * d * d,
                 n = (size_t)c->n_layers * layer;
    double *const moment = calloc(n, sizeof *moment);
    int status = moment ? 0 : kvd_no_memory(err, "second moments of W_O", n * sizeof *moment);
    for (int l = 0; !status && l < c->n_layers; l++) {
        kvd_weight w;
        status = kvd_weight_find(from, KVD_PART_O, false, l, &w, err) ||
                 add_outputs(c, &w, moment + (size_t)l * layer, err);
        if (status)
            (void)kvd_in(err, "layer %d, W_O", l);
    }
    if (!status)
        return moment;
    free(moment);
    return NULL;
}

const kvd_channels_method kvd_channels_strawman = {
    .info = {.name = "strawman",
             .summary = "K and V of every request cut by an SVD of its own prompt, decompressed at "
                        "every step",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"p", 0.1, 0.9, false, NULL, 0, 0},
             .needs = KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_strawman},
    .width = width,
    .project = project,
};

static const kvd_parameter none[] = {{NULL, 0, 0, 0, false, NULL}};

const kvd_channels_method kvd_channels_online = {
    .info = {.name = "online=1",
             .summary = "rotations of every request from its own prompt",
             .parameter = none,
             .needs = KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_strawman},
    .project = project,
    .stacks = true,
};

const kvd_channels_method kvd_channels_explicit = {
    .info = {.name = "explicit=1",
             .summary = "the method's rotations, with rows cut and rebuilt explicitly",
             .parameter = none,
             .needs = KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_strawman},
    .shared = true,
};
