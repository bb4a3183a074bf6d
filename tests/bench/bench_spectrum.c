/* usage: bench_spectrum [ROWS [D]]
 * Times three ways to compute the singular values of a head's random vectors X [ROWS][D]: dgesdd,
 * streaming QR, and eigenvalues of X^T X. The largest singular value is kappa times the
 * smallest. */
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/similarity.h"
#include "common/blas.h"
#include "common/clock.h"
#include "common/half.h"
#include "common/linalg.h"
#include "common/rng.h"
#include "common/stats.h"

enum { REPEATS = 5 };

static double median(double *x)
{
    kvd_sort(x, REPEATS);
    return x[REPEATS / 2];
}

static void *get(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p) {
        fprintf(stderr, "bench_spectrum: cannot allocate %zu x %zu bytes\n", n, size);
        exit(1);
    }
    return p;
}

typedef struct {
    size_t n, d;
    double *X; /* [n][d] */
    float *f;  /* [n][d]: X in float32 */
    double *R, *G, *scratch;
    double *svd, *tsqr, *gram; /* singular values [d] by each method */
} head;

static void make_rows(head *h, double kappa, kvd_dtype type)
{
    const size_t n = h->n, d = h->d;
    kvd_rng rng;
    kvd_err err;
    kvd_rng_seed(&rng, 1, 1);
    double *Z = get(n * d, sizeof *Z);
    for (size_t i = 0; i < n * d; i++)
        Z[i] = kvd_rng_normal(&rng) * pow(kappa, -(double)(i % d) / (double)(d - 1));
    if (kvd_random_basis(d, 1, 2, h->R, &err)) {
        fprintf(stderr, "bench_spectrum: %s\n", err.msg);
        exit(1);
    }
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n, (int)d, (int)d, 1, Z, (int)d,
                h->R, (int)d, 0, h->X, (int)d);
    uint16_t *half = get(d, sizeof *half);
    for (size_t i = 0; i < n; i++) {
        float *row = h->f + i * d;
        for (size_t j = 0; j < d; j++)
            row[j] = (float)h->X[i * d + j];
        if (type != KVD_F32) {
            kvd_from_f32(type, row, half, d);
            kvd_to_f32(type, half, row, d);
        }
        for (size_t j = 0; j < d; j++)
            h->X[i * d + j] = row[j];
    }
    free(half);
    free(Z);
}

static int by_svd(head *h, kvd_err *err)
{
    return kvd_svd_right(h->X, h->n, h->d, h->svd, h->R, err);
}

static int by_tsqr(head *h, kvd_err *err)
{
    kvd_tsqr *q = kvd_tsqr_new(h->d, err);
    const int status =
        !q || kvd_tsqr_add(q, h->X, h->n, err) || kvd_tsqr_svd(q, h->tsqr, h->R, err) ? -1 : 0;
    kvd_tsqr_free(q);
    return status;
}

static int by_gram_sum(head *h, kvd_err *err)
{
    memset(h->G, 0, h->d * h->d * sizeof *h->G);
    return kvd_gram_add(h->G, h->d, h->f, h->n, h->d, h->scratch, err);
}

static int by_eigen(head *h, kvd_err *err)
{
    return kvd_gram_svd(h->G, h->d, h->gram, h->R, err);
}

static int by_gram(head *h, kvd_err *err)
{
    return by_gram_sum(h, err) || by_eigen(h, err) ? -1 : 0;
}

static int by_dsyrk(head *h, kvd_err *err)
{
    (void)err;
    cblas_dsyrk(CblasColMajor, CblasUpper, CblasNoTrans, (int)h->d, (int)h->n, 1, h->X, (int)h->d,
                0, h->R, (int)h->d);
    return 0;
}

/* Finds the largest errors of the singular values `sigma` against dgesdd's: relative to each value,
 * and relative to the largest value. */
static void errors(const head *h, const double *sigma, double *relative, double *of_largest)
{
    *relative = *of_largest = 0;
    for (size_t j = 0; j < h->d; j++) {
        *relative = fmax(*relative, fabs(sigma[j] - h->svd[j]) / h->svd[j]);
        *of_largest = fmax(*of_largest, fabs(sigma[j] - h->svd[j]) / h->svd[0]);
    }
}

static int accuracy(head *h, kvd_err *err)
{
    static const kvd_dtype types[] = {KVD_BF16, KVD_F16, KVD_F32};
    printf("accuracy against dgesdd, largest error over %zu singular values:\n", h->d);
    printf("%-5s %13s %12s %16s %16s %16s\n", "rows", "nominal kappa", "kappa", "gram, relative",
           "tsqr, relative", "tsqr / sigma_0");
    for (size_t t = 0; t < 3; t++)
        for (double kappa = 1e4; kappa < 2e8; kappa *= 100) {
            double gram, tsqr, of_largest, ignored;
            make_rows(h, kappa, types[t]);
            if (by_svd(h, err) || by_tsqr(h, err) || by_gram(h, err))
                return -1;
            errors(h, h->gram, &gram, &ignored);
            errors(h, h->tsqr, &tsqr, &of_largest);
            printf("%-5s %13.0e %12.3g %16.1e %16.1e %16.1e\n", kvd_dtype_name(types[t]), kappa,
                   h->svd[0] / h->svd[h->d - 1], gram, tsqr, of_largest);
        }
    return 0;
}

static int speed(head *h, kvd_err *err)
{
    static const struct {
        const char *name;
        int (*run)(head *, kvd_err *);
    } what[] = {{"svd", by_svd},           {"tsqr", by_tsqr},
                {"gram", by_gram},         {"gram: X^T X", by_gram_sum},
                {"gram: eigen", by_eigen}, {"dsyrk", by_dsyrk}};
    enum { N = sizeof what / sizeof *what };
    double time[N][REPEATS], ms[N];
    make_rows(h, 1e4, KVD_BF16);
    for (int r = -1; r < REPEATS; r++)
        for (int i = 0; i < N; i++) {
            const double start = kvd_clock_s();
            if (what[i].run(h, err))
                return -1;
            if (r >= 0)
                time[i][r] = kvd_clock_s() - start;
        }
    printf("%zu x %zu, OpenBLAS with %d threads, medians of %d:\n", h->n, h->d,
           openblas_get_num_threads(), REPEATS);
    for (int i = 0; i < N; i++) {
        ms[i] = 1e3 * median(time[i]);
        printf("%-12s %9.2f ms\n", what[i].name, ms[i]);
    }
    printf(
        "svd / gram: %.1f   svd / tsqr: %.1f   dsyrk / X^T X: %.2f   dsyrk: %.1f GF/s (rows * d^2)\n",
        ms[0] / ms[2], ms[0] / ms[1], ms[5] / ms[3],
        (double)h->n * (double)(h->d * h->d) / ms[5] / 1e6);
    return 0;
}

int main(int argc, char **argv)
{
    kvd_blas_choose_core(argv);
    head h = {.n = argc > 1 ? strtoul(argv[1], NULL, 10) : 32768,
              .d = argc > 2 ? strtoul(argv[2], NULL, 10) : 128};
    kvd_err err = {""};
    if (h.n < h.d || h.d < 2 || h.n > 1 << 24 || h.d > 1024) {
        fprintf(stderr, "bench_spectrum: ROWS >= D, D within 2 .. 1024 are wanted\n");
        return 2;
    }
    h.X = get(h.n * h.d, sizeof *h.X);
    h.f = get(h.n * h.d, sizeof *h.f);
    h.R = get(h.d * h.d, sizeof *h.R);
    h.G = get(h.d * h.d, sizeof *h.G);
    h.scratch = get(kvd_gram_scratch(h.d), sizeof *h.scratch);
    h.svd = get(h.d, sizeof *h.svd);
    h.tsqr = get(h.d, sizeof *h.tsqr);
    h.gram = get(h.d, sizeof *h.gram);
    const int status = speed(&h, &err) || accuracy(&h, &err);
    if (status)
        fprintf(stderr, "bench_spectrum: %s\n", err.msg);
    free(h.X), free(h.f), free(h.R), free(h.G), free(h.scratch), free(h.svd), free(h.tsqr),
        free(h.gram);
    return status ? 1 : 0;
}
