#include "common/linalg.h"

#include <assert.h>
#include <cblas.h>
#include <errno.h>
#include <float.h>
#include <lapacke.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Allocates a row-major matrix. LAPACK reads it as its transpose, so that LAPACK's left singular
 * vectors are this matrix's right ones. */

static double *alloc_doubles(size_t rows, size_t cols, const char *what, kvd_err *err)
{
    if (cols && rows > SIZE_MAX / sizeof(double) / cols) {
        kvd_no_memory(err, what, ULLONG_MAX);
        return NULL;
    }
    const size_t bytes = rows * cols * sizeof(double);
    double *p = malloc(bytes);
    if (!p)
        kvd_no_memory(err, what, bytes);
    return p;
}

bool kvd_find_nonfinite(const double *x, size_t n, size_t *at)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i])) {
            *at = i;
            return true;
        }
    return false;
}

static int refuse_nonfinite(const char *name, const double *x, size_t rows, size_t cols,
                            kvd_err *err)
{
    size_t at;
    if (kvd_find_nonfinite(x, rows * cols, &at))
        return kvd_fail(err, "%s[%zu][%zu] is not finite", name, at / cols, at % cols);
    return 0;
}

static void transpose(const double *src, size_t d, double *dst)
{
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            dst[i * d + j] = src[j * d + i];
}

/* Returns the sign of the largest-magnitude element of column j, the first among equals. */
static double column_sign(const double *R, size_t d, size_t j)
{
    double largest = 0;
    for (size_t i = 0; i < d; i++)
        if (fabs(R[i * d + j]) > fabs(largest))
            largest = R[i * d + j];
    return largest < 0 ? -1.0 : 1.0;
}

void kvd_fix_signs(double *R, size_t d)
{
    for (size_t j = 0; j < d; j++)
        if (column_sign(R, d, j) < 0)
            for (size_t i = 0; i < d; i++)
                R[i * d + j] = -R[i * d + j];
}

void kvd_fix_signs_two(double *R, double *S, size_t d)
{
    for (size_t j = 0; j < d; j++)
        if (column_sign(R, d, j) < 0)
            for (size_t i = 0; i < d; i++) {
                R[i * d + j] = -R[i * d + j];
                S[i * d + j] = -S[i * d + j];
            }
}

double kvd_orthogonality(const double *R, size_t d)
{
    const int n = (int)d;
    double *C = malloc(d * d * sizeof *C);
    if (!C)
        return NAN;
    double worst = 0;
    cblas_dsyrk(CblasColMajor, CblasUpper, CblasNoTrans, n, n, 1.0, R, n, 0.0, C, n);
    for (size_t j = 0; j < d; j++)
        for (size_t i = 0; i <= j; i++) {
            const double off = fabs(C[j * d + i] - (i == j ? 1.0 : 0.0));
            if (!(off <= worst))
                worst = isnan(off) ? (double)INFINITY : off;
        }
    free(C);
    return worst;
}

/* Replaces LAPACKE's function, which would print errors to the standard output. */
void LAPACKE_xerbla(const char *name, lapack_int info);
void LAPACKE_xerbla(const char *name, lapack_int info)
{
    (void)name;
    (void)info;
}

static int svd_failed(const char *routine, lapack_int info, kvd_err *err)
{
    if (info == LAPACK_WORK_MEMORY_ERROR || info == LAPACK_TRANSPOSE_MEMORY_ERROR) {
        errno = ENOMEM;
        return kvd_fail_errno(err, "%s could not allocate its work space", routine);
    }
    if (info > 0)
        return kvd_fail(err, "%s did not converge, info %d", routine, (int)info);
    return kvd_fail(err, "%s failed, info %d", routine, (int)info);
}

int kvd_svd_right(const double *X, size_t n, size_t d, double *sigma, double *R, kvd_err *err)
{
    assert(d >= 1);
    double *A = NULL, *U = NULL, *vt = NULL;
    int status = -1;
    if (n == 0)
        return kvd_fail(err, "no rows to decompose");
    /* The size of LAPACK's workspace, about n * d, must fit into 32 bits. */
    if (d > 16384 || n > (size_t)INT32_MAX / d - 4 * d - 64)
        return kvd_fail(err, "%zu rows of %zu are too many for one dgesdd: use tsqr or gram", n, d);
    if (refuse_nonfinite("X", X, n, d, err))
        return -1;

    A = alloc_doubles(n, d, "a copy of the rows", err);
    U = alloc_doubles(d, d, "the basis", err);
    vt = n <= d ? alloc_doubles(n, n, "the left vectors", err)
                : alloc_doubles(1, 1, "the left vectors", err);
    if (!A || !U || !vt)
        goto done;
    memcpy(A, X, n * d * sizeof *A);
    /* If X has more rows than columns, LAPACK overwrites A, a copy of X, with the left singular
     * vectors. */
    const bool tall = n > d;
    const lapack_int info =
        LAPACKE_dgesdd(LAPACK_COL_MAJOR, tall ? 'O' : 'A', (lapack_int)d, (lapack_int)n, A,
                       (lapack_int)d, sigma, U, (lapack_int)d, vt, tall ? 1 : (lapack_int)n);
    if (info) {
        svd_failed("dgesdd", info, err);
        goto done;
    }
    for (size_t j = n; j < d; j++)
        sigma[j] = 0;
    transpose(U, d, R);
    kvd_fix_signs(R, d);
    status = 0;
done:
    free(vt);
    free(U);
    free(A);
    return status;
}

int kvd_svd_square(const double *M, size_t d, double *U, double *s, double *V, kvd_err *err)
{
    assert(d >= 1);
    if (refuse_nonfinite("M", M, d, d, err))
        return -1;
    double *A = alloc_doubles(d, d, "a copy of the matrix", err);
    double *left = alloc_doubles(d, d, "the basis", err);
    int status = -1;
    if (!A || !left)
        goto done;
    memcpy(A, M, d * d * sizeof *A);
    /* LAPACK reads M = U S V^T by columns, as M^T = V S U^T. Its left singular vectors are
     * therefore V, and its right ones U. */
    const lapack_int n = (lapack_int)d;
    const lapack_int info = LAPACKE_dgesdd(LAPACK_COL_MAJOR, 'A', n, n, A, n, s, left, n, U, n);
    if (info) {
        svd_failed("dgesdd", info, err);
        goto done;
    }
    transpose(left, d, V);
    kvd_fix_signs_two(U, V, d);
    status = 0;
done:
    free(left);
    free(A);
    return status;
}

/* rows and block size with which LAPACK's dtpqrt is 2 to 3 times faster than dgeqrf */
enum { TSQR_ROWS = 512, TSQR_PANEL = 8 };

struct kvd_tsqr {
    size_t d, filled, panel;
    double *r; /* triangular factor of all rows so far, [d][d], column-major */
    /* [d][TSQR_ROWS] rows that are not yet part of the factor R, column-major */
    double *block;
    double *t, *work;
};

kvd_tsqr *kvd_tsqr_new(size_t d, kvd_err *err)
{
    assert(d >= 1 && d <= 16384);
    kvd_tsqr *q = kvd_new(1, sizeof *q, "a streaming QR", err);
    if (!q)
        return NULL;
    q->d = d;
    q->panel = d < TSQR_PANEL ? d : TSQR_PANEL;
    q->r = alloc_doubles(d, d, "a streaming QR", err);
    q->block = alloc_doubles(d, TSQR_ROWS, "a streaming QR", err);
    q->t = alloc_doubles(q->panel, d, "a streaming QR", err);
    q->work = alloc_doubles(q->panel, d, "a streaming QR", err);
    if (!q->r || !q->block || !q->t || !q->work) {
        kvd_tsqr_free(q);
        return NULL;
    }
    memset(q->r, 0, d * d * sizeof *q->r);
    return q;
}

void kvd_tsqr_free(kvd_tsqr *q)
{
    if (!q)
        return;
    free(q->work);
    free(q->t);
    free(q->block);
    free(q->r);
    free(q);
}

static int reduce(kvd_tsqr *q, kvd_err *err)
{
    if (q->filled == 0)
        return 0;
    const lapack_int d = (lapack_int)q->d, nb = (lapack_int)q->panel;
    const lapack_int info = LAPACKE_dtpqrt_work(LAPACK_COL_MAJOR, (lapack_int)q->filled, d, 0, nb,
                                                q->r, d, q->block, TSQR_ROWS, q->t, nb, q->work);
    if (info)
        return kvd_fail(err, "dtpqrt failed, info %d", (int)info);
    q->filled = 0;
    return 0;
}

/* Copies n rows of X to q->block, which is stored by columns. */
static void put_rows(kvd_tsqr *q, const double *X, size_t n)
{
    const size_t d = q->d;
    for (size_t i0 = 0; i0 < n; i0 += 8) {
        const size_t m = n - i0 < 8 ? n - i0 : 8;
        for (size_t j = 0; j < d; j++) {
            double *to = q->block + j * TSQR_ROWS + q->filled + i0;
            for (size_t i = 0; i < m; i++)
                to[i] = X[(i0 + i) * d + j];
        }
    }
    q->filled += n;
}

int kvd_tsqr_add(kvd_tsqr *q, const double *X, size_t n, kvd_err *err)
{
    if (refuse_nonfinite("X", X, n, q->d, err))
        return -1;
    while (n > 0) {
        const size_t room = TSQR_ROWS - q->filled, m = n < room ? n : room;
        put_rows(q, X, m);
        X += m * q->d;
        n -= m;
        if (q->filled == TSQR_ROWS && reduce(q, err))
            return -1;
    }
    return 0;
}

int kvd_tsqr_svd(kvd_tsqr *q, double *sigma, double *R, kvd_err *err)
{
    if (reduce(q, err))
        return -1;
    double *rows = alloc_doubles(q->d, q->d, "the triangular factor", err);
    if (!rows)
        return -1;
    transpose(q->r, q->d, rows);
    const int status = kvd_svd_right(rows, q->d, q->d, sigma, R, err);
    free(rows);
    return status;
}

static int refuse_negative(const double *lambda, size_t d, kvd_err *err)
{
    const double largest = fmax(fabs(lambda[0]), fabs(lambda[d - 1]));
    if (lambda[d - 1] < -(double)d * DBL_EPSILON * largest)
        return kvd_fail(err, "not a Gram matrix: eigenvalue %.6g beside the largest %.6g",
                        lambda[d - 1], lambda[0]);
    return 0;
}

/* Computes the eigenvalues of G [d][d], falling, and its eigenvectors, columns of Z. */
static int eigen(const double *G, size_t d, double *lambda, double *Z, kvd_err *err)
{
    assert(d >= 1);
    if (refuse_nonfinite("G", G, d, d, err))
        return -1;
    double *A = alloc_doubles(d, d, "a copy of the Gram matrix", err);
    if (!A)
        return -1;
    memcpy(A, G, d * d * sizeof *A);
    const lapack_int info =
        LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'V', 'U', (lapack_int)d, A, (lapack_int)d, lambda);
    if (info) {
        free(A);
        return svd_failed("dsyevd", info, err);
    }
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < d; j++)
            Z[i * d + j] = A[(d - 1 - j) * d + i];
    for (size_t i = 0; i < d / 2; i++) {
        const double x = lambda[i];
        lambda[i] = lambda[d - 1 - i];
        lambda[d - 1 - i] = x;
    }
    free(A);
    return refuse_negative(lambda, d, err);
}

int kvd_gram_sigma(double *lambda, size_t d, kvd_err *err)
{
    if (refuse_negative(lambda, d, err))
        return -1;
    for (size_t j = 0; j < d; j++)
        lambda[j] = lambda[j] > 0 ? sqrt(lambda[j]) : 0;
    return 0;
}

int kvd_gram_svd(const double *G, size_t d, double *sigma, double *R, kvd_err *err)
{
    if (eigen(G, d, sigma, R, err) || kvd_gram_sigma(sigma, d, err))
        return -1;
    kvd_fix_signs(R, d);
    return 0;
}

/* number of rows of X that are converted to double and multiplied at a time */
enum { GRAM_ROWS = 1024 };

size_t kvd_gram_scratch(size_t d)
{
    return GRAM_ROWS * d;
}

/* Fails with a message that names the first element of X that is not finite. */
static int blame_row(const float *X, size_t n, size_t d, size_t ld, kvd_err *err)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++)
            if (!isfinite(X[i * ld + j]))
                return kvd_fail(err, "X[%zu][%zu] is not finite", i, j);
    return kvd_fail(err, "the Gram matrix was not finite before rows were added");
}

int kvd_gram_add(double *G, size_t d, const float *X, size_t n, size_t ld, double *scratch,
                 kvd_err *err)
{
    assert(d >= 1 && d <= 16384 && ld >= d);
    for (size_t first = 0; first < n; first += GRAM_ROWS) {
        const size_t m = n - first < GRAM_ROWS ? n - first : GRAM_ROWS;
        for (size_t i = 0; i < m; i++) {
            const float *restrict from = X + (first + i) * ld;
            double *restrict to = scratch + i * d;
#pragma omp simd
            for (size_t j = 0; j < d; j++)
                to[j] = from[j];
        }
        /* dsyrk stores element (i, j) of X^T X, with i <= j, at G[j * d + i]. */
        cblas_dsyrk(CblasColMajor, CblasUpper, CblasNoTrans, (int)d, (int)m, 1.0, scratch, (int)d,
                    1.0, G, (int)d);
    }
    /* A NaN or infinity makes the sum of squares of its column not finite. */
    for (size_t j = 0; j < d; j++)
        if (!isfinite(G[j * d + j]))
            return blame_row(X, n, d, ld, err);
    for (size_t j = 0; j < d; j++)
        for (size_t i = 0; i < j; i++)
            G[i * d + j] = G[j * d + i];
    return 0;
}

int kvd_sqrt_psd(const double *G, size_t d, double rcond, double *S, double *P, size_t *rank,
                 kvd_err *err)
{
    double *lambda = alloc_doubles(d, 1, "eigenvalues", err);
    double *Z = alloc_doubles(d, d, "eigenvectors", err);
    double *W = alloc_doubles(d, d, "scaled eigenvectors", err);
    int status = -1;
    if (!lambda || !Z || !W || eigen(G, d, lambda, Z, err))
        goto done;

    size_t kept = 0;
    while (kept < d && lambda[kept] > 0 && lambda[kept] >= rcond * lambda[0])
        kept++;
    *rank = kept;
    /* Computes the square root S = W W^T of G from its eigenvalues lambda and eigenvectors Z, where
     * W = Z diag(lambda^{1/4}). The inverse P of S has the exponent -1/4 instead. */
    const int n = (int)d;
    for (int inverse = 0; inverse <= (P ? 1 : 0); inverse++) {
        double *out = inverse ? P : S;
        for (size_t j = 0; j < d; j++) {
            double w = 0;
            if (inverse ? j < kept : lambda[j] > 0)
                w = inverse ? 1 / sqrt(sqrt(lambda[j])) : sqrt(sqrt(lambda[j]));
            for (size_t i = 0; i < d; i++)
                W[i * d + j] = Z[i * d + j] * w;
        }
        cblas_dsyrk(CblasRowMajor, CblasUpper, CblasNoTrans, n, n, 1.0, W, n, 0.0, out, n);
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < i; j++)
                out[i * d + j] = out[j * d + i];
    }
    status = 0;
done:
    free(W);
    free(Z);
    free(lambda);
    return status;
}

int kvd_least_squares(const double *A, size_t n, size_t k, const double *Y, size_t m, double *C,
                      kvd_err *err)
{
    size_t at;
    assert(n >= k && k >= 1 && m >= 1);
    if (kvd_find_nonfinite(A, n * k, &at) || kvd_find_nonfinite(Y, n * m, &at))
        return kvd_fail(err, "least squares: a number is not finite");
    double *const a = alloc_doubles(n, k, "equations", err), *const y =
                                                                 a ? alloc_doubles(n, m,
                                                                                   "equations", err)
                                                                   : NULL;
    int status = -1;
    if (a && y) {
        memcpy(a, A, n * k * sizeof *a);
        memcpy(y, Y, n * m * sizeof *y);
        const lapack_int info = LAPACKE_dgels(LAPACK_ROW_MAJOR, 'N', (lapack_int)n, (lapack_int)k,
                                              (lapack_int)m, a, (lapack_int)k, y, (lapack_int)m);
        memcpy(C, y, k * m * sizeof *C);
        status = info ? kvd_fail(err, "least squares: dgels failed, info %d", (int)info) : 0;
        /* dgels reports linearly dependent columns only if a pivot is exactly 0. */
        for (size_t j = 0; !status && j < k; j++)
            if (!(fabs(a[j * k + j]) > 1e-12 * fabs(a[0])))
                status = kvd_fail(err, "least squares: column %zu depends on those before it", j);
    }
    free(a);
    free(y);
    return status;
}
