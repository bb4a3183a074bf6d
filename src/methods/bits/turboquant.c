/* Method turboquant: rotates vectors randomly, then quantises each coordinate of x / |x| (Zandieh
 * et al. 2025, arXiv 2504.19874).
 *
 * With parameter `qjl`, the signs of random projections of each key's quantisation error are
 * stored, too (Zandieh et al. 2024, arXiv 2406.03482). */
#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "common/stats.h"
#include "methods/bits/bits.h"
#include "methods/bits/levels.h"
#include "methods/dims/dims.h"

enum { BITS, QJL, GROUP };
static const kvd_parameter parameters[] = {
    {"bits", 4, 1, 8, false,
     "bits per number; 2.5: half of the channels, those with the largest numbers, have 3, the "
     "others 2"},
    {"qjl", 1, 0, 1, true, "1: one bit of keys codes the residual, so that scores are unbiased"},
    {"group", 32, 1, 4096, true,
     "if bits has a fraction: number of tokens after the prompt whose channels are split together; "
     "fewer stay exact"},
    {NULL, 0, 0, 0, false, NULL},
};

enum { BINS = 2048, STREAM = 0x7151 };
/* Largest magnitude of a quantisation level. Unit: the standard deviation of one coordinate of a
 * randomly rotated vector. */
static const double RANGE = 8;

typedef struct {
    float *rotation, *sketch; /* [width][width] matrices P and S; S is NULL without `qjl` */
    float level[3][256];
} tables;

typedef struct {
    /* Bits per coordinate. A fraction `outliers` of the channels, namely those with the largest
     * sums of squares, have one bit more. */
    int bits;
    double outliers;
    bool qjl;
    uint64_t seed;
    int d_head;
    size_t widest;
    /* [widest + 1] Element d: random matrices and quantisation levels for vectors with d elements,
     * computed when first needed. */
    _Atomic(tables *) *of;
} turboquant;

static void free_tables(tables *t)
{
    if (!t)
        return;
    free(t->rotation);
    free(t->sketch);
    free(t);
}

/* Replaces the matrix `a` [n][n] of standard normal numbers by a uniformly distributed random
 * rotation. */
static int make_orthogonal(double *a, size_t n, kvd_err *err)
{
    double *const tau = malloc(2 * n * sizeof *tau), *const sign = tau ? tau + n : NULL;
    const lapack_int m = (lapack_int)n;
    if (!tau)
        return kvd_no_memory(err, "a rotation", 2 * n * sizeof *tau);
    lapack_int info = LAPACKE_dgeqrf(LAPACK_ROW_MAJOR, m, m, a, m, tau);
    for (size_t i = 0; i < n; i++)
        sign[i] = a[i * n + i] < 0 ? -1 : 1;
    info = info ? info : LAPACKE_dorgqr(LAPACK_ROW_MAJOR, m, m, m, a, m, tau);
    for (size_t i = 0; i < n * n; i++)
        a[i] *= sign[i % n];
    free(tau);
    return info ? kvd_fail(err, "no rotation of %zu dimensions: LAPACK returned %d", n, (int)info)
                : 0;
}

static int set_levels(size_t d, int bits, float *level, kvd_err *err)
{
    double *const histogram = malloc((BINS + 256) * sizeof *histogram), *const found =
                                                                            histogram
                                                                                ? histogram + BINS
                                                                                : NULL;
    const double range = fmin(1, RANGE / sqrt((double)d));
    if (!histogram)
        return kvd_no_memory(err, "a histogram", (BINS + 256) * sizeof *histogram);
    for (int b = 0; b < BINS; b++) {
        const double t = range * kvd_level_bin(b, BINS);
        /* A unit vector of one dimension is 1 or -1, so only the first and the last bin are
         * filled. */
        histogram[b] = d > 1 ? pow(1 - t * t, ((double)d - 3) / 2) : b == 0 || b == BINS - 1;
    }
    const int status = kvd_levels_find(histogram, BINS, 1 << bits, found, err);
    for (int k = 0; !status && k < 1 << bits; k++)
        level[k] = (float)(range * found[k]);
    free(histogram);
    return status;
}

static tables *make_tables(const turboquant *q, size_t d, kvd_err *err)
{
    kvd_rng r;
    tables *const t = calloc(1, sizeof *t);
    double *const a = malloc(d * d * sizeof *a);
    if (t) {
        t->rotation = malloc(d * d * sizeof *t->rotation);
        t->sketch = q->qjl ? malloc(d * d * sizeof *t->sketch) : NULL;
    }
    int status = t && a && t->rotation && (t->sketch || !q->qjl)
                     ? 0
                     : kvd_no_memory(err, "a rotation", d * d * sizeof *a);
    kvd_rng_seed(&r, q->seed, STREAM + d);
    for (size_t i = 0; !status && i < d * d; i++)
        a[i] = kvd_rng_normal(&r);
    status = status || make_orthogonal(a, d, err);
    for (size_t i = 0; !status && i < d * d; i++)
        t->rotation[i] = (float)a[i];
    for (size_t i = 0; !status && q->qjl && i < d * d; i++)
        t->sketch[i] = (float)kvd_rng_normal(&r);
    for (int i = 0; i < (q->outliers > 0 ? 3 : 2); i++)
        status = status || set_levels(d, q->bits - 1 + i, t->level[i], err);
    free(a);
    if (!status)
        return t;
    free_tables(t);
    return NULL;
}

/* Returns the random matrices and quantisation levels for vectors of d numbers, or NULL on failure.
 * Thread-safe. */
static const tables *tables_of(const turboquant *q, size_t d, kvd_err *err)
{
    tables *there = atomic_load(&q->of[d]);
    if (there)
        return there;
    tables *const made = make_tables(q, d, err);
    if (!made || atomic_compare_exchange_strong(&q->of[d], &there, made))
        return made;
    free_tables(made);
    return there;
}

int kvd_turboquant_tables_of(const void *self, size_t d, kvd_turboquant_tables *t, kvd_err *err)
{
    const turboquant *const q = self;
    const tables *const of = tables_of(q, d, err);
    if (!of)
        return -1;
    *t = (kvd_turboquant_tables){.rotation = of->rotation,
                                 .sketch = of->sketch,
                                 .level = of->level[1],
                                 .key_level = of->level[!q->qjl],
                                 .levels = of->level[0]};
    return 0;
}

int kvd_turboquant_d_head(const void *self)
{
    return ((const turboquant *)self)->d_head;
}

static void close(void *self)
{
    turboquant *const q = self;
    for (size_t d = 0; q->of && d <= q->widest; d++)
        free_tables(atomic_load(&q->of[d]));
    free(q->of);
    free(q);
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    turboquant *const q = calloc(1, sizeof *q);
    if (!q)
        return kvd_no_memory(err, "a method", sizeof *q);
    const int heads = s->dims && s->dims->rebuild ? s->dims->heads : 1;
    *q = (turboquant){.bits = (int)v->value[BITS],
                      .outliers = v->value[BITS] - floor(v->value[BITS]),
                      .qjl = v->value[QJL] > 0,
                      .seed = s->seed,
                      .d_head = s->config->d_head,
                      .widest = (size_t)s->config->d_head * (size_t)heads};
    q->of = calloc(q->widest + 1, sizeof *q->of);
    if (!q->of) {
        close(q);
        return kvd_no_memory(err, "tables of rotations", (q->widest + 1) * sizeof *q->of);
    }
    *self = q;
    return 0;
}

static float norm_of(const float *x, size_t n)
{
    double sum = 0;
    for (size_t j = 0; j < n; j++)
        sum += (double)x[j] * (double)x[j];
    return (float)sqrt(sum);
}

/* Computes y [n][d] = x a^T or, if `back` is true, y = x a. */
static void multiply(const float *x, size_t n, size_t d, const float *a, bool back, float *y)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, back ? CblasNoTrans : CblasTrans, (blasint)n,
                (blasint)d, (blasint)d, 1, x, (blasint)d, a, (blasint)d, 0, y, (blasint)d);
}

/* Estimates quantisation errors u - y from the signs of their random projections, and adds the
 * estimates to y. Overwrites u. */
static void add_residual(const tables *t, float *u, size_t n, size_t d, float *work, float *y)
{
    float *const signs = work, *const read = work + n * d;
    for (size_t i = 0; i < n * d; i++)
        u[i] -= y[i];
    multiply(u, n, d, t->sketch, false, signs);
    for (size_t i = 0; i < n * d; i++)
        signs[i] = signs[i] < 0 ? -1 : 1;
    multiply(signs, n, d, t->sketch, true, read);
    for (size_t i = 0; i < n; i++) {
        const float scale =
            kvd_round_f16(norm_of(u + i * d, d)) * (float)(sqrt(acos(0)) / (double)d);
        for (size_t j = 0; j < d; j++)
            y[i * d + j] += scale * read[i * d + j];
    }
}

/* Quantises n vectors x [n][d] and writes the decoded vectors to `decoded`, which may be x. Adds
 * the number of bits to *count. */
static int code_vectors(const turboquant *q, const float *x, size_t n, size_t d, int bits, bool qjl,
                        float *decoded, kvd_bits_count *count, kvd_err *err)
{
    const size_t size = n * d;
    const int scalar = bits - qjl;
    if (size == 0)
        return 0;
    const tables *const t = tables_of(q, d, err);
    if (!t)
        return -1;
    const float *const level = t->level[scalar - q->bits + 1];
    float *const work = malloc((4 * size + n) * sizeof *work);
    if (!work)
        return kvd_no_memory(err, "a block of the cache", (4 * size + n) * sizeof *work);
    float *const u = work, *const y = work + size, *const norm = work + 4 * size;
    for (size_t i = 0; i < n; i++) {
        norm[i] = norm_of(x + i * d, d);
        for (size_t j = 0; j < d; j++)
            y[i * d + j] = norm[i] > 0 ? x[i * d + j] / norm[i] : 0;
    }
    multiply(y, n, d, t->rotation, false, u);
    for (size_t i = 0; i < size; i++)
        y[i] = level[kvd_level_nearest(level, 1 << scalar, u[i])];
    if (qjl)
        add_residual(t, u, n, d, work + 2 * size, y);
    multiply(y, n, d, t->rotation, true, decoded);
    for (size_t i = 0; i < size; i++)
        decoded[i] *= kvd_round_f16(norm[i / d]);
    free(work);
    count->payload += bits * (double)size;
    count->side += (qjl ? 32 : 16) * (double)n;
    return 0;
}

/* Fills `order` with channel numbers: first the outliers, which have the largest sums of squares,
 * then the other channels. `outliers`: number of outliers. */
static void order_channels(const float *x, size_t n, size_t d, size_t outliers, kvd_ranked *order)
{
    for (size_t j = 0; j < d; j++) {
        order[j] = (kvd_ranked){0, j};
        for (size_t i = 0; i < n; i++)
            order[j].value += (double)x[i * d + j] * (double)x[i * d + j];
    }
    qsort(order, d, sizeof *order, kvd_by_falling_value);
    qsort(order, outliers, sizeof *order, kvd_by_index);
    qsort(order + outliers, d - outliers, sizeof *order, kvd_by_index);
}

/* Copies the first m channels of `order` from x to part [n][m] or, if `back` is true, from `part`
 * to x. */
static void move_channels(float *x, size_t n, size_t d, const kvd_ranked *order, size_t m,
                          float *part, bool back)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < m; j++) {
            float *const in = x + i * d + order[j].index, *const out = part + i * m + j;
            *(back ? in : out) = *(back ? out : in);
        }
}

static int code_split(const turboquant *q, const kvd_bits_block *b, bool qjl, float *decoded,
                      kvd_bits_count *count, kvd_err *err)
{
    const size_t n = b->n, d = b->d, outliers = (size_t)lround(q->outliers * (double)d);
    float *const part = malloc(n * d * sizeof *part);
    kvd_ranked *const order = malloc(d * sizeof *order);
    int status =
        part && order ? 0 : kvd_no_memory(err, "a block of the cache", n * d * sizeof *part);
    if (!status) {
        memcpy(decoded, b->x, n * d * sizeof *decoded);
        order_channels(b->x, n, d, outliers, order);
    }
    for (int other = 0; !status && other < 2; other++) {
        const kvd_ranked *const from = other ? order + outliers : order;
        const size_t m = other ? d - outliers : outliers;
        move_channels(decoded, n, d, from, m, part, false);
        status = code_vectors(q, part, n, m, q->bits + !other, qjl, part, count, err);
        if (!status)
            move_channels(decoded, n, d, from, m, part, true);
    }
    count->side += (double)d;
    free(order);
    free(part);
    return status ? -1 : 0;
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const turboquant *const q = self;
    const bool qjl = q->qjl && b->side == KVD_KEYS;
    *count = (kvd_bits_count){0, 0};
    return q->outliers > 0 ? code_split(q, b, qjl, decoded, count, err)
                           : code_vectors(q, b->x, b->n, b->d, q->bits, qjl, decoded, count, err);
}

static void window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    (void)side;
    *newest = 0;
    *block = v->value[BITS] > floor(v->value[BITS]) ? (size_t)v->value[GROUP] : 1;
}

const kvd_bits_method kvd_bits_turboquant = {
    .info = {.name = "turboquant",
             .summary = "random rotation, then the best levels of its coordinates; unbiased scores",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"bits", 8, 1, false, NULL, 0, 0},
             .needs = KVD_NEEDS_SEED,
             .gpu = &kvd_gpu_packed},
    .window = window,
    .open = open,
    .close = close,
    .code = code,
};
