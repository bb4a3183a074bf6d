/* usage: gpu_eigen [small | TIMES.csv]
 * Tests eigenvalues of batches of X^T X against LAPACK's dsyevd. small: no large matrices and no
 * times. TIMES.csv: file to write times on GPU and CPU to. */
#include <float.h>
#include <lapacke.h>

#include "analysis/cuda/eigen.h"
#include "common/clock.h"
#include "common/linalg.h"
#include "common/stats.h"
#include "common/threads.h"
#include "gpu_case.h"

enum { RANDOM, ILL, DEFICIENT, IDENTITY, DIAGONAL, ZERO, N_KINDS };
static const char *const kind_name[N_KINDS] = {"random",   "condition 1e8", "rank d/2",
                                               "identity", "diagonal",      "zero"};

/* Computes G = X^T X of m random vectors. `condition`: ratio of X's largest to its smallest
 * singular value. */
static void gram_of_rows(double *G, size_t d, size_t m, double condition, kvd_rng *r)
{
    double *X = need(m * d * sizeof *X);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < d; j++)
            X[i * d + j] =
                kvd_rng_normal(r) * pow(condition, -(double)j / (double)(d > 1 ? d - 1 : 1));
    for (size_t turn = 0; turn < 8 * d && condition > 1; turn++) {
        const size_t a = kvd_rng_below(r, d), b = kvd_rng_below(r, d);
        const double t = 6.283185307179586 * kvd_rng_uniform(r), c = cos(t), s = sin(t);
        for (size_t i = 0; i < m && a != b; i++) {
            const double x = X[i * d + a], y = X[i * d + b];
            X[i * d + a] = c * x - s * y;
            X[i * d + b] = s * x + c * y;
        }
    }
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j <= i; j++) {
            double sum = 0;
            for (size_t k = 0; k < m; k++)
                sum += X[k * d + i] * X[k * d + j];
            G[i * d + j] = G[j * d + i] = sum;
        }
    free(X);
}

static void make(double *G, size_t d, int kind, uint64_t stream)
{
    kvd_rng r;
    kvd_rng_seed(&r, 1, stream);
    memset(G, 0, d * d * sizeof *G);
    if (kind == RANDOM || kind == ILL)
        gram_of_rows(G, d, d + d / 2 + 1, kind == ILL ? 1e8 : 1, &r);
    else if (kind == DEFICIENT)
        gram_of_rows(G, d, d / 2, 1, &r);
    else if (kind != ZERO)
        for (size_t i = 0; i < d; i++)
            G[i * d + i] = kind == IDENTITY ? 1 : 1 + (double)((i * 7 + 3) % d);
}

typedef struct {
    /* largest errors over all matrices: of eigenvectors (orthogonality, residual), eigenvalues
     * (lambda) and singular values (sigma) */
    double orthogonality, residual, lambda, sigma;
    size_t wrong_signs, rising;
} errors;

static void worse(double *a, double b)
{
    if (!(b <= *a))
        *a = isnan(b) ? (double)INFINITY : b;
}

/* Updates the largest errors in *e with the errors of the decomposition of G into sigma and R.
 *
 * - residual: |G R - R diag(sigma^2)| / (d eps lambda_max)
 * - lambda: |sigma^2 - LAPACK's| / (d eps lambda_max)
 * - sigma: |sigma - LAPACK's| / sigma_max, for sigma above 1e-4 sigma_max */
static void check_matrix(const double *G, size_t d, const double *sigma, const double *R, errors *e)
{
    double *A = need(d * d * sizeof *A), *lambda = need(d * sizeof *lambda);
    memcpy(A, G, d * d * sizeof *A);
    if (LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'V', 'U', (lapack_int)d, A, (lapack_int)d, lambda))
        worse(&e->lambda, NAN);
    const double top = lambda[d - 1], unit = top > 0 ? (double)d * DBL_EPSILON * top : 1;
    worse(&e->orthogonality, kvd_orthogonality(R, d));
    for (size_t j = 0; j < d; j++) {
        const double want = lambda[d - 1 - j] > 0 ? lambda[d - 1 - j] : 0;
        double largest = 0;
        worse(&e->lambda, fabs(sigma[j] * sigma[j] - want) / unit);
        if (sqrt(want) >= 1e-4 * sqrt(top) && top > 0)
            worse(&e->sigma, fabs(sigma[j] - sqrt(want)) / sqrt(top));
        e->rising += j > 0 && !(sigma[j] <= sigma[j - 1]);
        for (size_t i = 0; i < d; i++) {
            double sum = 0;
            for (size_t k = 0; k < d; k++)
                sum += G[i * d + k] * R[k * d + j];
            worse(&e->residual, fabs(sum - sigma[j] * sigma[j] * R[i * d + j]) / unit);
            if (fabs(R[i * d + j]) > fabs(largest))
                largest = R[i * d + j];
        }
        e->wrong_signs += !(largest > 0);
    }
    host_free(A, lambda);
}

static errors check_all(const double *G, size_t n, size_t d, const double *sigma, const double *R)
{
    errors e = {0};
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < n; i++) {
        errors mine = {0};
        check_matrix(G + i * d * d, d, sigma + i * d, R + i * d * d, &mine);
#pragma omp critical
        {
            worse(&e.orthogonality, mine.orthogonality);
            worse(&e.residual, mine.residual);
            worse(&e.lambda, mine.lambda);
            worse(&e.sigma, mine.sigma);
            e.wrong_signs += mine.wrong_signs;
            e.rising += mine.rising;
        }
    }
    return e;
}

static void one_case(size_t n, size_t d, int kind)
{
    double *G = need(n * d * d * sizeof *G), *sigma = need(n * d * sizeof *sigma),
           *R = need(n * d * d * sizeof *R);
    const char *name = kind < N_KINDS ? kind_name[kind] : "every kind";
    size_t bad;
    kvd_err err;
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < n; i++)
        make(G + i * d * d, d, kind < N_KINDS ? kind : (int)(i % N_KINDS), i);
    memset(sigma, 0xff, n * d * sizeof *sigma);
    memset(R, 0xff, n * d * d * sizeof *R);
    if (kvd_gpu_gram_svd(G, n, d, sigma, R, &bad, NULL, &err)) {
        test_result(0, name, "%zu x %zu x %zu: matrix %zu: %s", n, d, d, bad, err.msg);
    } else {
        const errors e = check_all(G, n, d, sigma, R);
        test_result(e.orthogonality < 1e-13 * (double)(d + 10) && e.residual < 2 && e.lambda < 2 &&
                        e.sigma < 1e-10 && !e.wrong_signs && !e.rising,
                    name,
                    "%zu x %zu x %zu, orthogonal to %.1e, residual %.2f and eigenvalues %.2f of d "
                    "eps largest, sigma to %.1e of the largest%s%s",
                    n, d, d, e.orthogonality, e.residual, e.lambda, e.sigma,
                    e.wrong_signs ? ", signs are wrong" : "", e.rising ? ", sigma rises" : "");
    }
    host_free(G, sigma, R);
}

static void refusals(size_t n, size_t d)
{
    double *G = need(n * d * d * sizeof *G), *sigma = need(n * d * sizeof *sigma),
           *R = need(n * d * d * sizeof *R);
    const size_t second = n - 1, first = n / 2;
    for (int what = 0; what < 3; what++) {
        kvd_err mine, theirs;
        size_t bad = n + 1;
        for (size_t i = 0; i < n; i++)
            make(G + i * d * d, d, RANDOM, i);
        for (int k = 0; k < 2; k++) {
            double *at = G + (k ? second : first) * d * d;
            if (what == 2)
                for (size_t i = 0; i < d; i++)
                    at[i * d + i] = i ? 0.25 : -1;
            for (size_t i = 0; what == 2 && i < d * d; i++)
                at[i] = i % (d + 1) ? 0 : at[i];
            if (what < 2)
                at[(d - 1) * d + d / 2] = what ? (double)INFINITY : (double)NAN;
        }
        const int got = kvd_gpu_gram_svd(G, n, d, sigma, R, &bad, NULL, &mine);
        const int want = kvd_gram_svd(G + first * d * d, d, sigma, R, &theirs);
        const int good = got && want && bad == first && strcmp(mine.msg, theirs.msg) == 0;
        test_result(good, "refuses", "%s: matrix %zu: %s",
                    what == 0   ? "NaN"
                    : what == 1 ? "infinity"
                                : "a negative eigenvalue",
                    bad, mine.msg);
    }
    host_free(G, sigma, R);
}

enum { REPEATS = 7 };

static double median(double *x)
{
    kvd_sort(x, REPEATS);
    return x[REPEATS / 2];
}

static void times_of(size_t n, size_t d, FILE *csv)
{
    double *G = need(n * d * d * sizeof *G), *sigma = need(n * d * sizeof *sigma),
           *R = need(n * d * d * sizeof *R), device[REPEATS], whole[REPEATS];
    size_t bad;
    kvd_err err;
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < n; i++)
        make(G + i * d * d, d, RANDOM, i);
    double begun = kvd_clock_s();
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < n; i++) {
        kvd_err mine;
        if (kvd_gram_svd(G + i * d * d, d, sigma + i * d, R + i * d * d, &mine))
            printf("not ok eigen times: %s\n", mine.msg);
    }
    const double cpu = kvd_clock_s() - begun;
    for (int k = -1; k < REPEATS; k++) {
        double seconds;
        begun = kvd_clock_s();
        if (kvd_gpu_gram_svd(G, n, d, sigma, R, &bad, &seconds, &err)) {
            test_result(0, "times", "%zu x %zu: %s", n, d, err.msg);
            break;
        }
        if (k >= 0) {
            whole[k] = kvd_clock_s() - begun;
            device[k] = seconds;
        }
    }
    const double md = median(device), mw = median(whole);
    printf(
        "time eigen %zu x %zu x %zu: %.1f ms on the device, %.1f ms from host to host (medians of %d); "
        "dsyevd "
        "%.1f ms on %zu threads\n",
        n, d, d, 1e3 * md, 1e3 * mw, (int)REPEATS, 1e3 * cpu, kvd_thread_count());
    if (csv)
        fprintf(csv, "%zu,%zu,%.3f,%.3f,%.3f,%.3f,%.3f,%zu\n", n, d, 1e3 * md, 1e3 * device[0],
                1e3 * mw, 1e3 * whole[0], 1e3 * cpu, kvd_thread_count());
    host_free(G, sigma, R);
}

static void times(const char *path)
{
    static const size_t size[][2] = {{1024, 64}, {1024, 80},  {1024, 96},  {16, 128},
                                     {128, 128}, {1024, 128}, {4096, 128}, {256, 256}};
    FILE *csv = path ? fopen(path, "w") : NULL;
    if (csv)
        fprintf(
            csv,
            "matrices,d,device_median_ms,device_min_ms,whole_median_ms,whole_min_ms,cpu_ms,cpu_threads\n");
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        times_of(size[i][0], size[i][1], csv);
    if (path && (!csv || fclose(csv))) {
        test_result(0, "times", "cannot write '%s'", path);
    }
}

int main(int argc, char **argv)
{
    static const size_t widths[] = {1, 2, 16, 64, 80, 96, 128, 256};
    const int small = argc > 1 && strcmp(argv[1], "small") == 0;
    if (!gpu_devices("eigen", 1))
        return 0;
    const int saved = kvd_blas_serial();
    double begun = kvd_clock_s();
    one_case(1, 2, RANDOM);
    printf("time eigen first call, with the start of the device and of cuSOLVER: %.0f ms\n",
           1e3 * (kvd_clock_s() - begun));
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        const size_t d = widths[w];
        for (int kind = 0; kind < N_KINDS && (!small || d <= 80); kind++) {
            one_case(1, d, kind);
            one_case(7, d, kind);
        }
        if (!small)
            one_case(d > 128 ? 128 : 1024, d, N_KINDS);
    }
    refusals(5, 16);
    refusals(40, 64);
    if (!small)
        times(argc > 1 ? argv[1] : NULL);
    kvd_blas_restore(saved);
    return failures != 0;
}
