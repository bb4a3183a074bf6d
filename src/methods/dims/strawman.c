/*
 * strawman: every request decomposes its own prompt (ZACK, the online SVD of its Fig. 6, and ZACK/OE).
 *
 * When a prompt has ended, K (after RoPE) and V of every KV head are decomposed, X = U S R^T, by the eigenvectors of X^T X, and stored as the
 * leading columns of X R; so is every later row, by the R of its request. A step decompresses all of it, (X R_p) R_p^T, and attends at full
 * width. The prompt's own rows attend uncompressed.
 */
#include <math.h>
#include <stdlib.h>

#include "common/linalg.h"
#include "methods/axis.h"

static const kvd_parameter parameters[] = {
    {"p", 0.5, 0, 0.999, false, "share of the dims that is removed, the same in every head"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_rate rate = {"p", 0.1, 0.9, false, NULL, 0, 0};

static size_t width(const kvd_values *v, size_t d)
{
    const long kept = lround((1 - v->value[0]) * (double)d);
    return kept < 1 ? 1 : (size_t)kept;
}

static int project(size_t n, size_t d, size_t w, const float *x, float *a, kvd_err *err)
{
    double *const gram = calloc(2 * d * d + d + kvd_gram_scratch(d), sizeof *gram);
    if (!gram)
        return kvd_no_memory(err, "a prompt's second moments", 2 * d * d * sizeof *gram);
    double *const R = gram + d * d, *const sigma = R + d * d;
    const int status = kvd_gram_add(gram, d, x, n, d, sigma + d, err) || kvd_gram_svd(gram, d, sigma, R, err);
    for (size_t i = 0; !status && i < d; i++)
        for (size_t j = 0; j < w; j++)
            a[i * w + j] = (float)R[i * d + j];
    free(gram);
    return status ? -1 : 0;
}

const kvd_channels_method kvd_channels_strawman = {
    .name = "strawman",
    .summary = "K and V of every request cut by an SVD of its own prompt, decompressed at every step",
    .parameter = parameters,
    .rate = &rate,
    .needs = KVD_NEEDS_PROMPT,
    .width = width,
    .project = project};
