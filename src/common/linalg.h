/* Float64 linear algebra, row-major. A singular vector's entry of largest magnitude is positive. */
#ifndef KVD_COMMON_LINALG_H
#define KVD_COMMON_LINALG_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

/* Computes the singular values of X [n][d], in descending order, and its right singular vectors,
 * the columns of R. */
int kvd_svd_right(const double *X, size_t n, size_t d, double *sigma, double *R, kvd_err *err);

/* QR decomposition of a stream of rows (TSQR: Demmel, Grigori, Hoemmen, Langou 2012) */
typedef struct kvd_tsqr kvd_tsqr;
kvd_tsqr *kvd_tsqr_new(size_t d, kvd_err *err);
/* Adds n finite rows X [n][d]. The division of rows among calls does not matter. */
int kvd_tsqr_add(kvd_tsqr *q, const double *X, size_t n, kvd_err *err);
/* Writes singular values sigma [d] and right singular vectors R [d][d] of all rows so far. */
int kvd_tsqr_svd(kvd_tsqr *q, double *sigma, double *R, kvd_err *err);
void kvd_tsqr_free(kvd_tsqr *q);

/* Computes X's singular values and right vectors from G = X^T X [d][d]. sigma[k] has a relative
 * error of eps * (sigma[0] / sigma[k])^2 / 10. A clearly negative eigenvalue is an error. */
int kvd_gram_svd(const double *G, size_t d, double *sigma, double *R, kvd_err *err);
/* Replaces eigenvalues of X^T X, in descending order, by their square roots. Fails if an eigenvalue
 * is clearly negative. */
int kvd_gram_sigma(double *lambda, size_t d, kvd_err *err);

/* kvd_gram_add adds X^T X of n rows to G [d][d], with scratch memory of kvd_gram_scratch(d)
 * doubles. */
size_t kvd_gram_scratch(size_t d);
int kvd_gram_add(double *G, size_t d, const float *X, size_t n, size_t ld, double *scratch,
                 kvd_err *err);

/* Decomposes M [d][d] = U diag(s) V^T. Entries of largest magnitude in U's columns are positive. */
int kvd_svd_square(const double *M, size_t d, double *U, double *s, double *V, kvd_err *err);

/* Computes S = G^{1/2} of a symmetric G [d][d], the rank of G and, unless P is NULL, the
 * pseudo-inverse P of S. */
int kvd_sqrt_psd(const double *G, size_t d, double rcond, double *S, double *P, size_t *rank,
                 kvd_err *err);

/* Finds C [k][m] that minimises |A C - Y| by QR, for A [n][k] with linearly independent columns and
 * Y [n][m]. */
int kvd_least_squares(const double *A, size_t n, size_t k, const double *Y, size_t m, double *C,
                      kvd_err *err);

/* kvd_fix_signs negates columns of R [d][d], so that the entry of largest magnitude of each column
 * becomes positive. kvd_fix_signs_two also negates the columns of S [d][d] that it negates in R. */
void kvd_fix_signs(double *R, size_t d);
void kvd_fix_signs_two(double *R, double *S, size_t d);

/* Returns the largest absolute entry of R^T R - I, or infinity if R has a NaN. */
double kvd_orthogonality(const double *R, size_t d);

/* Returns true if x [n] holds a NaN or infinity. *at receives the index of the first one. */
bool kvd_find_nonfinite(const double *x, size_t n, size_t *at);

#endif
