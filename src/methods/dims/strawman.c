/*
 * Method strawman: every request computes rotations from its own prompt (the online SVD of ZACK's
 * Fig. 6, and ZACK/OE). K (after RoPE) and V of every KV head are decomposed as X = U S R^T and
 * stored as X R_p, with R_p the leading columns of R. A decode step rebuilds all keys and values as
 * (X R_p) R_p^T. The prompt itself attends to unprojected K and V.
 */
#include <math.h>
#include <stdlib.h>

#include "common/linalg.h"
#include "methods/dims/dims.h"

static const kvd_parameter parameters[] = {
    {"p", 0.5, 0, 0.999, false, "fraction of the dims removed, the same in every head"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_tradeoff tradeoff = {"p", 0.1, 0.9, false, NULL, 0, 0};

static size_t width(const kvd_parameter_values *v, size_t d)
{
    const long kept = lround((1 - v->value[0]) * (double)d);
    return kept < 1 ? 1 : (size_t)kept;
}

/*
 * Writes to x the component of unit vector i that is orthogonal to the first m columns of R.
 * Returns its squared length.
 */
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

/*
 * If the prompt has fewer tokens than dimensions, the last eigenvectors are rounding noise, which
 * would differ between runs. Replaces each such column of R by a unit vector, made orthogonal to
 * all earlier columns and normalised. `spare` is scratch [2][d].
 */
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

static int project(size_t n, size_t d, size_t w, const float *x, float *a, kvd_err *err)
{
    double *const gram = calloc(2 * d * d + d + kvd_gram_scratch(d), sizeof *gram);
    if (!gram)
        return kvd_no_memory(err, "a prompt's second moments", 2 * d * d * sizeof *gram);
    double *const R = gram + d * d, *const sigma = R + d * d;
    const int status =
        kvd_gram_add(gram, d, x, n, d, sigma + d, err) || kvd_gram_svd(gram, d, sigma, R, err);
    if (!status)
        complete(d, w, sigma, R, gram);
    for (size_t i = 0; !status && i < d; i++)
        for (size_t j = 0; j < w; j++)
            a[i * w + j] = (float)R[i * d + j];
    free(gram);
    return status ? -1 : 0;
}

const kvd_channels_method kvd_channels_strawman = {
    .info =
        {
            .name = "strawman",
            .summary = "K and V of every request cut by an SVD of its own prompt, decompressed at "
                       "every step",
            .parameter = parameters,
            .tradeoff = &tradeoff,
            .needs = KVD_NEEDS_PROMPT,
            .gpu = &kvd_gpu_strawman,
        },
    .width = width,
    .project = project,
};
