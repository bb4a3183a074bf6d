/*
 * Dense linear algebra over LAPACK. Matrices are row-major unless a name says otherwise; all are
 * float64.
 *
 * The sign of every column of a basis (set of singular vectors) is fixed: its entry of largest
 * magnitude (of equals, the first) is positive. Results can therefore be compared between machines.
 */
#ifndef KVD_COMMON_LINALG_H
#define KVD_COMMON_LINALG_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

/*
 * Computes singular values and right singular vectors of the rows of one head (LAPACK dgesdd).
 *
 *   X      [n][d]  in   rows, not changed
 *   sigma  [d]     out  singular values, falling
 *   R      [d][d]  out  column j is the j-th right singular vector
 *
 * n < d is allowed: the missing singular values are 0 and R is completed to an
 * orthogonal matrix. Fails on NaN or infinity ("X[0][1] is not finite"), if memory
 * runs out, and if LAPACK does not converge; sigma and R are then unspecified.
 */
int kvd_svd_right(const double *X, size_t n, size_t d, double *sigma, double *R, kvd_err *err);

/*
 * Streaming QR decomposition of rows (TSQR: Demmel, Grigori, Hoemmen, Langou 2012, sequential
 * form). Keeps the triangular factor of all rows seen so far, so memory does not grow.
 */
typedef struct kvd_tsqr kvd_tsqr;
kvd_tsqr *kvd_tsqr_new(size_t d, kvd_err *err);
/*
 * Adds the rows of X [n][d] to the decomposition. Refuses values that are not finite. The rows are
 * gathered into blocks of fixed size, so the result has equal bits however the rows are divided
 * among calls.
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
 * Computes singular values sigma [d] and right singular vectors R [d][d] of a matrix X from its
 * Gram matrix G [d][d] = X^T X. sigma[j] is the square root of the j-th eigenvalue of G (LAPACK
 * dsyevd). Eigenvalues below 0 by rounding (above -d * eps * the largest) count as 0. A clearly
 * negative eigenvalue is an error, because G is then no Gram matrix.
 *
 * Squaring costs digits: the relative error of sigma[k] is of the order of eps * (sigma[0] /
 * sigma[k])^2 / 10, against eps * sigma[0] / sigma[k] for kvd_svd_right and kvd_tsqr_svd. For
 * bfloat16 data, sigma[0] / sigma[k] is below about 5e3 and the error below 1e-9. For float16 data
 * (ratios up to 4e4) the error reaches 1e-8. For float32 data the smallest singular values can be
 * lost altogether.
 */
int kvd_gram_svd(const double *G, size_t d, double *sigma, double *R, kvd_err *err);
/*
 * Replaces the eigenvalues lambda [d] of a Gram matrix, in falling order, by singular values,
 * which are their square roots. Fails as kvd_gram_svd does. Used for eigenvalues that were
 * computed elsewhere, such as on a GPU.
 */
int kvd_gram_sigma(double *lambda, size_t d, kvd_err *err);

/*
 * kvd_gram_add adds X^T X to G [d][d], for float32 rows X with leading dimension ld. Sums are in
 * float64 (dsyrk on blocks); both triangles are kept equal. A value that is not finite is an error
 * that names row and column; G is undefined then. `scratch` holds as many doubles as
 * kvd_gram_scratch(d) returns.
 */
size_t kvd_gram_scratch(size_t d);
int kvd_gram_add(double *G, size_t d, const float *X, size_t n, size_t ld, double *scratch,
                 kvd_err *err);

/*
 * Computes the singular value decomposition of a square matrix, M [d][d] = U diag(s) V^T. U and V
 * are row-major with singular vectors as columns; signs are fixed by U.
 */
int kvd_svd_square(const double *M, size_t d, double *U, double *s, double *V, kvd_err *err);

/*
 * Computes the square root S = G^{1/2} of a positive semidefinite matrix G [d][d] and, if P is not
 * NULL, the pseudo-inverse P of S. Eigenvalues of G below rcond times the largest one are left out
 * of P; *rank is the number of eigenvalues kept.
 */
int kvd_sqrt_psd(const double *G, size_t d, double rcond, double *S, double *P, size_t *rank,
                 kvd_err *err);

/*
 * Solves least squares by QR (dgels): C [k][m] minimises the length of each column of A C - Y, with
 * A [n][k], Y [n][m], n >= k. Fails on numbers that are not finite, if memory runs out, and if the
 * columns of A are dependent.
 */
int kvd_least_squares(const double *A, size_t n, size_t k, const double *Y, size_t m, double *C,
                      kvd_err *err);

/*
 * Flip the signs of columns of R [d][d] so that the entry of largest magnitude in each column is
 * positive. For every column of R that it flips, kvd_fix_signs_two also flips the column of S
 * [d][d] with the same index.
 */
void kvd_fix_signs(double *R, size_t d);
void kvd_fix_signs_two(double *R, double *S, size_t d);

/*
 * Returns the largest absolute entry of R^T R - I: the error of orthogonality of R [d][d]. Returns
 * infinity if R holds a NaN, and NaN if memory runs out. Test the result with !(x <= limit).
 */
double kvd_orthogonality(const double *R, size_t d);

/* Returns true if x [n] holds a NaN or infinity; *at is then the index of the first. */
bool kvd_find_nonfinite(const double *x, size_t n, size_t *at);

#endif
