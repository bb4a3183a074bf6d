/* Method minicache: adjacent layers in the deeper half of the model share directions (Liu et al.
 * 2024, MiniCache, section 4). Method xkv: adjacent layers share singular vectors.
 *
 * In minicache, vectors of K and V keep their norms. The directions of a token's vectors in two
 * layers are replaced by one, interpolated at `t`. Vectors stay unmerged if the angle between them
 * is in the upper fraction `gamma` of the prompt's range of angles. */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>

#include "common/linalg.h"
#include "methods/layers/layers.h"

enum { START, T, GAMMA };
static const kvd_parameter minicache_parameters[] = {
    {"start", 0.5, 0, 1, false, "fraction of the layers, from the first on, that are not merged"},
    {"t", 0.6, 0, 1, false, "interpolation between the two directions; 1: the deeper layer's"},
    {"gamma", 0.05, 0, 1, false,
     "upper fraction of the range of angles whose pairs are not merged"},
    {NULL, 0, 0, 0, false, NULL},
};

static int minicache_group(const kvd_parameter_values *v, const kvd_config *c, int layer)
{
    const int first = (int)ceil(v->value[START] * c->n_layers);
    return layer >= first && (layer - first) % 2 == 0 && layer + 1 < c->n_layers ? 2 : 1;
}

typedef struct {
    double length[2], angle;
} pair;

static pair measure(const float *a, const float *b, size_t d)
{
    double aa = 0, bb = 0, ab = 0;
    for (size_t i = 0; i < d; i++) {
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
        ab += (double)a[i] * (double)b[i];
    }
    const double lengths = sqrt(aa) * sqrt(bb), cosine = lengths > 0 ? ab / lengths : 1;
    return (pair){{sqrt(aa), sqrt(bb)}, acos(cosine > 1 ? 1 : cosine < -1 ? -1 : cosine)};
}

static void interpolate(float *a, float *b, size_t d, const pair *p, double t)
{
    const double sine = sin(p->angle);
    /* Weights of the two vectors in spherical interpolation or, if the angle between them is almost
     * 0, in linear interpolation. */
    double from = sine > 1e-6 ? sin((1 - t) * p->angle) / sine : 1 - t;
    double to = sine > 1e-6 ? sin(t * p->angle) / sine : t;
    if (!(p->length[0] > 0) || !(p->length[1] > 0) || (sine <= 1e-6 && p->angle > 1)) {
        from = p->length[0] > 0 && (t < 0.5 || !(p->length[1] > 0));
        to = 1 - from;
    }
    double square = 0;
    for (size_t i = 0; i < d; i++) {
        const double e = (p->length[0] > 0 ? from * (double)a[i] / p->length[0] : 0) +
                         (p->length[1] > 0 ? to * (double)b[i] / p->length[1] : 0);
        square += e * e;
        a[i] = b[i] = (float)e;
    }
    const double scale = square > 0 ? 1 / sqrt(square) : 0;
    for (size_t i = 0; i < d; i++) {
        a[i] = (float)((double)a[i] * scale * p->length[0]);
        b[i] = (float)((double)b[i] * scale * p->length[1]);
    }
}

static int minicache_merge(const kvd_parameter_values *v, const kvd_layers_block *b,
                           kvd_layers_count *count, kvd_err *err)
{
    const size_t vectors = b->n * b->heads;
    double lo = INFINITY, hi = -INFINITY;
    pair *const p = malloc(vectors * sizeof *p);
    if (!p)
        return kvd_no_memory(err, "angles of a prompt", vectors * sizeof *p);
    for (size_t i = 0; i < vectors; i++) {
        p[i] = measure(b->x[0] + i * b->d, b->x[1] + i * b->d, b->d);
        lo = fmin(lo, p[i].angle);
        hi = fmax(hi, p[i].angle);
    }
    *count = (kvd_layers_count){0, (double)vectors};
    for (size_t i = 0; i < vectors; i++)
        if (p[i].angle > hi - v->value[GAMMA] * (hi - lo)) {
            count->numbers += 2 * (double)b->d;
        } else {
            interpolate(b->x[0] + i * b->d, b->x[1] + i * b->d, b->d, &p[i], v->value[T]);
            count->numbers += (double)b->d + 2;
        }
    free(p);
    return 0;
}

const kvd_layers_method kvd_layers_minicache = {
    .info = {.name = "minicache",
             .summary = "pairs of deep layers share directions",
             .parameter = minicache_parameters,
             .tradeoff = &(const kvd_tradeoff){"start", 0.5, 0, false, NULL, 0, 0},
             .needs = KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_minicache},
    .group = minicache_group,
    .merge = minicache_merge,
};

/* Method xkv: adjacent layers share singular vectors (Chang et al. 2025, xKV, section 3). K of
 * `layers` layers is replaced by its best approximation of rank rank_k, and V by that of rank
 * rank_v. */
enum { LAYERS, RANK_K, RANK_V };
static const kvd_parameter xkv_parameters[] = {
    {"layers", 4, 1, 64, true, "number of adjacent layers that share a basis"},
    {"rank_k", 0.125, 0, 1 << 20, false,
     "rank of keys: below 1 a fraction of the numbers of a token in a group, else a rank"},
    {"rank_v", 0.1875, 0, 1 << 20, false, "rank of values, as rank_k"},
    {NULL, 0, 0, 0, false, NULL},
};

static int xkv_group(const kvd_parameter_values *v, const kvd_config *c, int layer)
{
    const int wanted = (int)v->value[LAYERS], left = c->n_layers - layer;
    return wanted < left ? wanted : left;
}

/* Copies K or V of all layers of a group to w [n][n_layers * heads * d] or, if `back`, from w. */
static void gather(const kvd_layers_block *b, double *w, bool back)
{
    const size_t width = b->heads * b->d, wide = (size_t)b->n_layers * width;
    for (size_t l = 0; l < (size_t)b->n_layers; l++)
        for (size_t t = 0; t < b->n; t++)
            for (size_t j = 0; j < width; j++)
                if (back)
                    b->x[l][t * width + j] = (float)w[t * wide + l * width + j];
                else
                    w[t * wide + l * width + j] = (double)b->x[l][t * width + j];
}

/* Replaces the matrix X of a group of layers by X B B^T, where the columns of B are the r leading
 * eigenvectors of X^T X. */
static int project(const kvd_layers_block *b, size_t wide, size_t r, kvd_err *err)
{
    const bool by_rows = b->n < wide;
    const size_t n = b->n, m = by_rows ? n : wide, other = by_rows ? wide : n;
    double *const x = malloc((n * wide + 2 * m * m + m + other * r) * sizeof *x);
    if (!x)
        return kvd_no_memory(err, "a prompt's singular vectors",
                             (n * wide + 2 * m * m) * sizeof *x);
    double *const gram = x + n * wide, *const basis = gram + m * m, *const sigma = basis + m * m,
                  *const part = sigma + m;
    const blasint N = (blasint)n, W = (blasint)wide, M = (blasint)m, R = (blasint)r;
    gather(b, x, false);
    cblas_dgemm(CblasRowMajor, by_rows ? CblasNoTrans : CblasTrans,
                by_rows ? CblasTrans : CblasNoTrans, M, M, (blasint)other, 1.0, x, W, x, W, 0.0,
                gram, M);
    const int status = kvd_gram_svd(gram, m, sigma, basis, err);
    if (!status && by_rows) {
        cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, W, R, N, 1.0, x, W, basis, M, 0.0,
                    part, R);
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, W, R, 1.0, basis, M, part, R, 0.0,
                    x, W);
    } else if (!status) {
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, R, W, 1.0, x, W, basis, M, 0.0,
                    part, R);
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, W, R, 1.0, part, R, basis, M, 0.0,
                    x, W);
    }
    if (!status)
        gather(b, x, true);
    free(x);
    return status;
}

int kvd_xkv_rank(const kvd_parameter_values *v, kvd_side side, size_t n, size_t wide, size_t *rank,
                 kvd_err *err)
{
    const int key = side == KVD_KEYS ? RANK_K : RANK_V;
    const double wanted = v->value[key];
    const size_t most = n < wide ? n : wide,
                 asked = wanted < 1 ? (size_t)(wanted * (double)wide + 0.5) : (size_t)wanted;
    *rank = asked < 1 ? 1 : asked < most ? asked : most;
    return !(wanted > 0) || (wanted >= 1 && wanted > floor(wanted))
               ? kvd_fail(err, "%s = %g is neither a fraction between 0 and 1 nor a whole rank",
                          xkv_parameters[key].key, wanted)
               : 0;
}

static int xkv_check(const kvd_parameter_values *v, const kvd_config *c, kvd_err *err)
{
    size_t rank;
    (void)c;
    return kvd_xkv_rank(v, KVD_KEYS, 1, 1, &rank, err) ||
                   kvd_xkv_rank(v, KVD_VALUES, 1, 1, &rank, err)
               ? kvd_in(err, "method 'xkv'")
               : 0;
}

static int xkv_merge(const kvd_parameter_values *v, const kvd_layers_block *b,
                     kvd_layers_count *count, kvd_err *err)
{
    const size_t wide = (size_t)b->n_layers * b->heads * b->d;
    size_t r;
    if (kvd_xkv_rank(v, b->side, b->n, wide, &r, err))
        return -1;
    *count = (kvd_layers_count){(double)(b->n * r + r * wide), 0};
    return project(b, wide, r, err);
}

const kvd_layers_method kvd_layers_xkv = {
    .info = {.name = "xkv",
             .summary = "one low-rank basis for the tokens of adjacent layers",
             .parameter = xkv_parameters,
             .tradeoff = &(const kvd_tradeoff){"rank_k", 0.4, 0.02, true, "rank_v", 0, 1.5},
             .needs = KVD_NEEDS_PROMPT | KVD_NEEDS_PRE_ROPE,
             .gpu = &kvd_gpu_xkv},
    .keys_before_rope = true,
    .check = xkv_check,
    .group = xkv_group,
    .merge = xkv_merge,
};
