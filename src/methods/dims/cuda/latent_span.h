/* Eigenvectors of symmetric matrices, and leading singular vectors of prompts' keys or values, on a
 * GPU. Launchers return cudaError_t and never synchronise or allocate. */
#ifndef KVD_METHODS_DIMS_CUDA_LATENT_SPAN_H
#define KVD_METHODS_DIMS_CUDA_LATENT_SPAN_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Number of partial sums of squares per matrix. Arrays `part` are [batch][KVD_SPAN_PARTS]. */
enum { KVD_SPAN_PARTS = 256 };
/* Rounding error of the fraction of a prompt's sum of squares that a bf16 basis captures. */
#define KVD_SPAN_NOISE 3e-3F
/* Row-major matrices. Rows are `ld` elements apart, matrices `stride` elements. */
typedef struct {
    uint32_t rows, columns;
    size_t ld, stride;
    int32_t batch;
} kvd_span_shape;
/* Writes the partial sums of squares of bf16 or, if bf16 is false, float32 matrices. */
cudaError_t kvd_span_squares(const void *x, bool bf16, kvd_span_shape m, float *part,
                             cudaStream_t stream);
/* Divides bf16 matrices by their norms. `part` has their partial sums of squares. */
cudaError_t kvd_span_scale(const void *x, kvd_span_shape m, const float *part, void *to,
                           cudaStream_t stream);
/* Writes [rows][columns] of 0, 1 and -1, with orthogonal columns if rows >= columns. */
cudaError_t kvd_span_start(void *to, bool bf16, size_t rows, size_t columns, int32_t batch,
                           cudaStream_t stream);
/* Shifts a power step y = X^T X q, with y and q [batch][n] and X a prompt's keys or values: y -=
 * root * f * q. f is the fraction of X's sum of squares outside the span of q: max(1 - sum of
 * `part` - KVD_SPAN_NOISE, 0). */
cudaError_t kvd_span_shift(float *y, const void *q, size_t n, int32_t batch, const float *part,
                           float root, cudaStream_t stream);
/* Polynomial a x + b x^3 + c x^5 of x = singular value / s, which moves singular values towards 1.
 * If `part` (sums of squares of Y^T Y) is given, s is multiplied by the fourth root of its sum. */
typedef struct {
    float a, b, c, s;
} kvd_span_polynomial_of;
/* Replaces G = Y^T Y [n][n] (`gram`) by a matrix M such that Y M has the singular values of Y after
 * polynomial `p`. `square` is G^2 in float32. */
cudaError_t kvd_span_polynomial(void *gram, bool bf16, const float *square, size_t n, int32_t batch,
                                const float *part, kvd_span_polynomial_of p, cudaStream_t stream);
cudaError_t kvd_span_split(float *y, float *low, size_t n, int32_t batch, cudaStream_t stream);
/* Rounds y to bf16 (`high`) and, unless `low` is NULL, writes the rounding errors to `low`. */
cudaError_t kvd_span_round(const float *y, void *high, void *low, size_t n, int32_t batch,
                           cudaStream_t stream);
/* Adds the partial sums of each matrix to sum [batch]. */
cudaError_t kvd_span_sum(const float *part, float *sum, int32_t batch, cudaStream_t stream);
/* Converts q [wide][width] to row-major bf16 [wide][rank]. Columns from `width` on become 0. */
cudaError_t kvd_span_store(const float *q, size_t wide, size_t width, size_t rank, void *to,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifndef __cplusplus
#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "model/pass/cuda/layer.h"

/* Computes the eigenvectors of n symmetric matrices [d][d] at once, with cuSOLVER. */
typedef struct {
    const kvd_cusolver *lib;
    cusolverDnHandle_t handle;
    cusolverDnParams_t params;
    int d, n;
    float *value;
    int *info; /* status of each matrix, device [n] */
    void *work, *host_work;
    size_t work_bytes, host_bytes;
} kvd_latent_solver;

/* Opens zeroed `*s`. Close it even after a failure. `memory` owns device arrays. */
int kvd_latent_solver_open(kvd_latent_solver *s, int d, int n, kvd_device_memory *memory,
                           cudaStream_t stream, kvd_err *err);
void kvd_latent_solver_close(kvd_latent_solver *s);
/* Replaces the matrices by their eigenvectors, in rising order of eigenvalues. */
int kvd_latent_solver_run(const kvd_latent_solver *s, float *matrix, int *host_info,
                          cudaStream_t stream, kvd_err *err);

/* Computes the leading right singular vectors of bf16 matrices X [n][wide] by power steps with
 * `width` vectors.
 *
 * A step replaces Q by the polar factor of (X^T X - s I) Q, with s the roots of a Chebyshev
 * polynomial. Odd polynomials of degree 5 give the polar factor (Amsel et al. 2025, arXiv
 * 2505.16932). */
typedef struct {
    const kvd_cublas *lib;
    cublasHandle_t blas;        /* the caller may replace it by one of another stream */
    size_t tokens, wide, width; /* largest number of rows, dimensions and vectors */
    /* bf16 on the device: a prompt's matrix X divided by its norm, X * basis, and the basis. */
    uint16_t *x, *z, *basis;
    /* Device memory: basis q, next basis y, its rounding errors, Gram matrix of y, its square. */
    float *q, *y, *low, *gram, *square;
    float *part, *part_gram, *captured;
} kvd_latent_span;

enum { KVD_LATENT_SPAN_BATCH = 4 /* largest number of prompts of a call */ };
/* Allocates the device arrays of *s, owned by *memory. Products use the worker's stream. */
int kvd_latent_span_make(kvd_latent_span *s, const kvd_gpu_worker *w, size_t tokens, size_t wide,
                         size_t width, kvd_device_memory *memory, kvd_err *err);
/* Prompts of equal lengths: singular vectors of their keys or values are computed together. */
typedef struct {
    const uint16_t *x; /* device [batch][n][ld], `wide` elements of each row count */
    size_t ld, n, wide, batch;
    size_t width; /* number of vectors, at most n and `wide` */
    size_t rank;  /* at least width */
    /* [wide][rank] Basis of each prompt in device memory: vectors, then columns of zeros. */
    uint16_t *basis[KVD_LATENT_SPAN_BATCH];
    /* [batch] in pinned memory: fraction of the prompt's sum of squares that the basis captures. */
    float *captured;
} kvd_latent_span_rows;
/* Starts computing r->basis and r->captured on `stream`, which must be that of s->blas. */
int kvd_latent_span_run(const kvd_latent_span *s, const kvd_latent_span_rows *r,
                        cudaStream_t stream, kvd_err *err);
/* Returns how many first entries of q_len [n] are equal, up to the largest batch. */
size_t kvd_latent_span_equal(const int32_t *q_len, size_t n);
/* Fails unless `captured` is a number from 0 to 1. */
int kvd_latent_span_check(float captured, kvd_err *err);
#endif
#endif
