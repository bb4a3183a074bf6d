/*
 * G += X^T X in float64 for many heads at once, on the GPU. The moments of activations
 * (collect/cuda/moments.c) and of gradients (analysis/cuda/sensitivity_cuda.c) use it. The rows of
 * X are bf16 or float32 values at any stride.
 */
#ifndef KVD_COMMON_CUDA_GRAM_H
#define KVD_COMMON_CUDA_GRAM_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_GRAM_PARTS = 5, KVD_GRAM_MAX_D = 256 };

/*
 * Heads of one tensor whose second moments X^T X are computed. X has one row per token. Value i of
 * row t of head h is x[h * head_stride + t * row_stride + i * dim_stride].
 */
typedef struct {
    const void *x;
    size_t head_stride, row_stride, dim_stride;
    int n_heads;
    /*
     * Matrices of second moments in device memory, [n_heads][d][d]. X^T X of the rows X of each
     * head is added to the lower triangle of the head's matrix. The upper triangle is undefined.
     */
    double *G;
} kvd_gram_part;

typedef struct {
    int bf16; /* type of the values in x: 1: bf16, 0: float32 */
    int d;    /* dimensions of a head (columns of X), 1 .. KVD_GRAM_MAX_D */
    size_t n_rows;
    int n_parts;
    kvd_gram_part part[KVD_GRAM_PARTS];
    /*
     * Scratch in device memory. Its size in bytes is kvd_gram_scratch_bytes(total number of heads
     * in part[0] .. part[n_parts - 1], d).
     */
    double *scratch;
} kvd_gram_args;

/* Returns the size in bytes of the scratch memory of kvd_gram_add_rows for any number of rows. */
size_t kvd_gram_scratch_bytes(int n_heads, int d);

/*
 * Queues, on `stream`, the addition of X^T X to the matrix G of every head. The heads are those of
 * args->part[0] .. args->part[n_parts - 1]. The bits of the result depend on the values, n_rows,
 * the number of heads and d. They are the same in every run and for every memory layout of the
 * rows.
 */
cudaError_t kvd_gram_add_rows(const kvd_gram_args *args, cudaStream_t stream);

/* Queues the copy of the lower triangle of each matrix of G [n][d][d] to its upper triangle. */
cudaError_t kvd_gram_mirror(double *G, size_t n, int d, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
