/*
 * Dense linear algebra with LAPACK, in float64. Matrices are row-major unless a name says
 * otherwise.
 *
 * The signs of singular vectors are fixed: the entry of largest magnitude (of equal ones, the
 * first) is positive. Results of different machines can therefore be compared.
 */
#ifndef KVD_COMMON_LINALG_H
#define KVD_COMMON_LINALG_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

/*
 * Computes singular values sigma [d], falling, and right singular vectors (the columns of R [d][d])
 * of X [n][d] by LAPACK dgesdd. If n < d, the missing singular values are 0 and R is completed to
 * an orthogonal matrix. Fails on NaN or infinity, if memory runs out, and if LAPACK does not
 * converge; sigma and R are then undefined.
 */
int kvd_svd_right(const double *X, size_t n, size_t d, double *sigma, double *R, kvd_err *err);

/*
 * QR decomposition of a stream of rows (TSQR: Demmel, Grigori, Hoemmen, Langou 2012, sequential
 * form). Memory does not grow with the number of rows.
 */
typedef struct kvd_tsqr kvd_tsqr;
kvd_tsqr *kvd_tsqr_new(size_t d, kvd_err *err);
/*
 * Adds rows X [n][d]. A value that is not finite is an error. The result does not depend on how
 * rows are divided among calls.
 */
int kvd_tsqr_add(kvd_tsqr *q, const double *X, size_t n, kvd_err *err);
/*
 * Writes the singular values sigma [d] and right singular vectors R [d][d] of all rows added so
 * far. If there are none, sigma is 0 and R is any orthogonal matrix. More rows may be added
 * afterwards.
 */
int kvd_tsqr_svd(kvd_tsqr *q, double *sigma, double *R, kvd_err *err);
void kvd_tsqr_free(kvd_tsqr *q);

/*
 * Computes singular values sigma [d], falling, and right singular vectors R [d][d] of a matrix X
 * from its Gram matrix G [d][d] = X^T X (LAPACK dsyevd). Eigenvalues slightly below 0 come from
 * rounding and count as 0. A clearly negative eigenvalue is an error.
 *
 * The relative error of sigma[k] is about eps * (sigma[0] / sigma[k])^2 / 10; that of
 * kvd_svd_right, which decomposes X itself, is about eps * sigma[0] / sigma[k]. With kvd_gram_svd
 * the error is below 1e-9 for bfloat16 data and up to 1e-8 for float16 data. For float32 data the
 * smallest singular values can be lost.
 */
int kvd_gram_svd(const double *G, size_t d, double *sigma, double *R, kvd_err *err);
/*
 * Replaces the falling eigenvalues lambda [d] of a Gram matrix by their square roots. Negative
 * eigenvalues are treated as in kvd_gram_svd.
 */
int kvd_gram_sigma(double *lambda, size_t d, kvd_err *err);

/*
 * kvd_gram_add adds X^T X to G [d][d] in float64, for n float32 rows X, which start ld elements
 * apart. Both triangles of G are updated. A value that is not finite is an error; G is then
 * undefined. The caller gives `scratch`, memory for as many doubles as kvd_gram_scratch returns.
 */
size_t kvd_gram_scratch(size_t d);
int kvd_gram_add(double *G, size_t d, const float *X, size_t n, size_t ld, double *scratch,
                 kvd_err *err);

/*
 * Decomposes M [d][d] = U diag(s) V^T. Singular vectors are columns of U and V; their signs are
 * chosen so that the entry of largest magnitude in each column of U is positive.
 */
int kvd_svd_square(const double *M, size_t d, double *U, double *s, double *V, kvd_err *err);

/*
 * Computes S = G^{1/2} of a positive semidefinite matrix G [d][d] and, if P is not NULL, the
 * pseudo-inverse P of S. Eigenvalues of G below rcond times the largest one are left out of P.
 * *rank receives the number of eigenvalues that are not below this limit, also if P is NULL.
 */
int kvd_sqrt_psd(const double *G, size_t d, double rcond, double *S, double *P, size_t *rank,
                 kvd_err *err);

/*
 * Solves least squares by QR (dgels): finds C [k][m] for which each column of A C - Y has the
 * smallest Euclidean length. A is [n][k] and Y is [n][m], n >= k. Fails on numbers that are not
 * finite and if the columns of A are dependent.
 */
int kvd_least_squares(const double *A, size_t n, size_t k, const double *Y, size_t m, double *C,
                      kvd_err *err);

/*
 * Negate columns of R [d][d] whose entry of largest magnitude is negative. kvd_fix_signs_two also
 * negates the same columns of S.
 */
void kvd_fix_signs(double *R, size_t d);
void kvd_fix_signs_two(double *R, double *S, size_t d);

/*
 * Returns the largest absolute entry of R^T R - I; infinity if R holds a NaN, and NaN if memory
 * runs out. Test the result with !(x <= limit).
 */
double kvd_orthogonality(const double *R, size_t d);

/* Returns true if x [n] holds a NaN or infinity; *at receives the index of the first one. */
bool kvd_find_nonfinite(const double *x, size_t n, size_t *at);

#endif
