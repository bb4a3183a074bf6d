/* Computes on a GPU: eigenvectors of symmetric matrices, and the leading singular vectors of a
 * prompt's keys or values. Functions that return cudaError_t launch kernels, and neither wait nor
 * allocate memory. */
#ifndef KVD_METHODS_DIMS_CUDA_LATENT_SPAN_H
#define KVD_METHODS_DIMS_CUDA_LATENT_SPAN_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Number of partial sums into which the sum of a matrix's squared elements is split. Arguments
 * `part` are arrays [batch][KVD_SPAN_PARTS]. */
enum { KVD_SPAN_PARTS = 256 };
/* Assumed rounding error of |X Q|^2 / |X|^2, with X a prompt's keys or values and Q an orthonormal
 * basis in bf16. */
#define KVD_SPAN_NOISE 3e-3F
/* Shape of `batch` row-major matrices. Successive rows are `ld` elements apart, successive matrices
 * `stride` elements. */
typedef struct {
    uint32_t rows, columns;
    size_t ld, stride;
    int32_t batch;
} kvd_span_shape;
/* Writes partial sums of the squared elements of matrices x to `part`. The elements are bf16 or, if
 * `bf16` is false, float32. */
cudaError_t kvd_span_squares(const void *x, bool bf16, kvd_span_shape m, float *part,
                             cudaStream_t stream);
/* Writes bf16 matrices x, each divided by its Frobenius norm, to `to`. `part` has the sums that
 * kvd_span_squares wrote for x. */
cudaError_t kvd_span_scale(const void *x, kvd_span_shape m, const float *part, void *to,
                           cudaStream_t stream);
/* Fills `batch` matrices [rows][columns] with zeros, except for one 1 or -1 per row. If rows >=
 * columns, the columns are orthogonal. */
cudaError_t kvd_span_start(void *to, bool bf16, size_t rows, size_t columns, int32_t batch,
                           cudaStream_t stream);
/* Subtracts shift * q from y [batch][n], in a power iteration for X^T X.
 *
 * - shift: root * max(1 - |X q|^2 - KVD_SPAN_NOISE, 0)
 * - part: partial sums of |X q|^2 */
cudaError_t kvd_span_shift(float *y, const void *q, size_t n, int32_t batch, const float *part,
                           float root, cudaStream_t stream);
/* Polynomial a x + b x^3 + c x^5 that moves the singular values of a matrix towards 1. x is a
 * singular value divided by s. */
typedef struct {
    float a, b, c, s;
} kvd_span_polynomial_of;
/* Replaces `gram` = Y^T Y [n][n] by M. Y M has the singular values p.a x + p.b x^3 + p.c x^5.
 *
 * - x: singular value of Y, divided by p.s and, unless `part` is NULL, by sqrt(|gram|)
 * - square: square of `gram`
 * - part: partial sums of |gram|^2 (Frobenius norm), or NULL */
cudaError_t kvd_span_polynomial(void *gram, bool bf16, const float *square, size_t n, int32_t batch,
                                const float *part, kvd_span_polynomial_of p, cudaStream_t stream);
cudaError_t kvd_span_split(float *y, float *low, size_t n, int32_t batch, cudaStream_t stream);
/* Rounds y to bf16 (`high`) and, unless `low` is NULL, writes the rounding errors to `low`. */
cudaError_t kvd_span_round(const float *y, void *high, void *low, size_t n, int32_t batch,
                           cudaStream_t stream);
/* Adds up the partial sums `part` [batch][KVD_SPAN_PARTS] of each matrix. Writes one total per
 * matrix to sum [batch]. */
cudaError_t kvd_span_sum(const float *part, float *sum, int32_t batch, cudaStream_t stream);
/* Converts the column-major matrix q [wide][width] to row-major bf16 [wide][rank]. Columns from
 * number `width` on are 0. */
cudaError_t kvd_span_store(const float *q, size_t wide, size_t width, size_t rank, void *to,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifndef __cplusplus
#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "model/pass/cuda/layer.h"

/* cuSOLVER handle and work memory to compute the eigenvectors of n symmetric matrices [d][d]. */
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

/* Prepares *s to compute the eigenvectors of n symmetric matrices [d][d] with cuSOLVER; `memory`
 * owns its arrays. *s must be zeroed before, and closed with kvd_latent_solver_close even after a
 * failure. */
int kvd_latent_solver_open(kvd_latent_solver *s, int d, int n, kvd_device_memory *memory,
                           cudaStream_t stream, kvd_err *err);
void kvd_latent_solver_close(kvd_latent_solver *s);
/* Queues on `stream`: replaces the symmetric matrices [n][d][d] by their eigenvectors, in ascending
 * order of eigenvalues, and copies cuSOLVER's status of each matrix (0: success) to host_info
 * [n]. */
int kvd_latent_solver_run(const kvd_latent_solver *s, float *matrix, int *host_info,
                          cudaStream_t stream, kvd_err *err);

/* Computes the leading right singular vectors of bf16 matrices X [n][wide].
 *
 * Each step replaces Q [wide][width] by the orthonormal polar factor of (X^T X - s I) Q, computed
 * with polynomials (Amsel et al. 2025, arXiv 2505.16932). The numbers s are roots of a Chebyshev
 * polynomial. */
typedef struct {
    const kvd_cublas *lib;
    cublasHandle_t blas;        /* the caller may replace it by one of another stream */
    size_t tokens, wide, width; /* largest number of rows, dimensions and vectors */
    /* bf16 arrays in device memory. x: the prompts' keys or values, divided by the Frobenius norm
     * of each prompt's matrix. z: x times basis. basis: current approximation of the singular
     * vectors. */
    uint16_t *x, *z, *basis;
    /* Device memory. q: current singular vectors. y: next singular vectors, before they are made
     * orthonormal. low: rounding errors of y. gram: y^T y. square: the square of gram. */
    float *q, *y, *low, *gram, *square;
    float *part, *part_gram, *captured;
} kvd_latent_span;

enum { KVD_LATENT_SPAN_BATCH = 4 /* largest number of prompts of a call */ };
/* Allocates the device arrays of *s, which *memory owns. Matrix products run on the stream of
 * worker `w`. */
int kvd_latent_span_make(kvd_latent_span *s, const kvd_gpu_worker *w, size_t tokens, size_t wide,
                         size_t width, kvd_device_memory *memory, kvd_err *err);
/* Keys or values of prompts of equal length, whose singular vectors are computed in one call. */
typedef struct {
    const uint16_t *x; /* device [batch][n][ld], `wide` elements of each row count */
    size_t ld, n, wide, batch;
    size_t width; /* number of vectors, at most n and `wide` */
    size_t rank;  /* at least width */
    /* Results in device memory: one matrix [wide][rank] per prompt. Its first columns are the
     * computed singular vectors, all other columns are 0. */
    uint16_t *basis[KVD_LATENT_SPAN_BATCH];
    /* [batch] Results in pinned memory: |X Q|^2 / |X|^2 of each prompt, with X its keys or values
     * and Q the computed singular vectors. */
    float *captured;
} kvd_latent_span_rows;
/* Computes the leading singular vectors of each prompt's K or V, asynchronously on `stream`.
 * s->blas must use the same stream. */
int kvd_latent_span_run(const kvd_latent_span *s, const kvd_latent_span_rows *r,
                        cudaStream_t stream, kvd_err *err);
/* Returns the number of prompts at the start of the batch that are as long as the first prompt, at
 * most KVD_LATENT_SPAN_BATCH. q_len [n]: length of each prompt in tokens. */
size_t kvd_latent_span_equal(const int32_t *q_len, size_t n);
/* Fails if the computation of singular vectors did not converge. `captured` is the fraction |X Q|^2
 * / |X|^2 of a prompt's keys or values X that the singular vectors Q capture; it must be between 0
 * and 1.02. */
int kvd_latent_span_check(float captured, kvd_err *err);
#endif
#endif
