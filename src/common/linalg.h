/*
 * Dense linear algebra with LAPACK in float64, row-major unless a name says otherwise.
 *
 * Signs of singular vectors are fixed: the first entry of largest magnitude is positive.
 */
#ifndef KVD_COMMON_LINALG_H
#define KVD_COMMON_LINALG_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

/*
 * Computes singular values sigma [d], falling, and right singular vectors (columns of R [d][d]) of
 * X [n][d] by dgesdd. If n < d, missing values are 0 and R is orthogonal. Fails on NaN, infinity or
 * no convergence; sigma and R are then undefined.
 */
int kvd_svd_right(const double *X, size_t n, size_t d, double *sigma, double *R, kvd_err *err);

/*
 * QR decomposition of a stream of rows in constant memory (TSQR: Demmel, Grigori, Hoemmen, Langou
 * 2012, sequential).
 */
typedef struct kvd_tsqr kvd_tsqr;
kvd_tsqr *kvd_tsqr_new(size_t d, kvd_err *err);
/* Adds rows X [n][d], all finite. How rows are divided among calls has no effect. */
int kvd_tsqr_add(kvd_tsqr *q, const double *X, size_t n, kvd_err *err);
/*
 * Writes singular values sigma [d] and right singular vectors R [d][d] of all rows so far; without
 * rows, sigma is 0, R any orthogonal matrix. More rows may follow.
 */
int kvd_tsqr_svd(kvd_tsqr *q, double *sigma, double *R, kvd_err *err);
void kvd_tsqr_free(kvd_tsqr *q);

/*
 * Computes singular values sigma [d], falling, and right singular vectors R [d][d] of X from G
 * [d][d] = X^T X (dsyevd). Eigenvalues slightly below 0 count as 0; clearly negative ones are an
 * error.
 *
 * The relative error of sigma[k] is about eps * (sigma[0] / sigma[k])^2 / 10, against eps *
 * sigma[0] / sigma[k] of kvd_svd_right: below 1e-9 for bfloat16 data, up to 1e-8 for float16.
 */
int kvd_gram_svd(const double *G, size_t d, double *sigma, double *R, kvd_err *err);
/*
 * Replaces falling eigenvalues lambda [d] of a Gram matrix by square roots; negative ones as in
 * kvd_gram_svd.
 */
int kvd_gram_sigma(double *lambda, size_t d, kvd_err *err);

/*
 * Adds X^T X to both triangles of G [d][d] in float64, for n float32 rows X, ld elements apart. A
 * value that is not finite is an error; G is then undefined. `scratch`: kvd_gram_scratch doubles.
 */
size_t kvd_gram_scratch(size_t d);
int kvd_gram_add(double *G, size_t d, const float *X, size_t n, size_t ld, double *scratch,
                 kvd_err *err);

/*
 * Decomposes M [d][d] = U diag(s) V^T. The entry of largest magnitude in each column of U is
 * positive.
 */
int kvd_svd_square(const double *M, size_t d, double *U, double *s, double *V, kvd_err *err);

/*
 * Computes S = G^{1/2} of a positive semidefinite G [d][d] and, unless P is NULL, the
 * pseudo-inverse P of S without eigenvalues of G below rcond times the largest. *rank: the number
 * of other eigenvalues.
 */
int kvd_sqrt_psd(const double *G, size_t d, double rcond, double *S, double *P, size_t *rank,
                 kvd_err *err);

/*
 * Solves least squares by QR (dgels): C [k][m] minimises each column of A C - Y, A [n][k], Y
 * [n][m], n >= k. Fails on numbers that are not finite and on dependent columns of A.
 */
int kvd_least_squares(const double *A, size_t n, size_t k, const double *Y, size_t m, double *C,
                      kvd_err *err);

/*
 * Negate columns of R [d][d] whose entry of largest magnitude is negative; kvd_fix_signs_two also
 * negates these columns of S.
 */
void kvd_fix_signs(double *R, size_t d);
void kvd_fix_signs_two(double *R, double *S, size_t d);

/*
 * Returns the largest absolute entry of R^T R - I; infinity if R holds a NaN; NaN without memory.
 * Test !(x <= limit).
 */
double kvd_orthogonality(const double *R, size_t d);

/* Returns true if x [n] holds a NaN or infinity; *at: index of the first one. */
bool kvd_find_nonfinite(const double *x, size_t n, size_t *at);

#endif
