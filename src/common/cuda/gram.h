/* Computes G += X^T X in float64 for many heads on the GPU. X: bf16 or float32, any strides. */
#ifndef KVD_COMMON_CUDA_GRAM_H
#define KVD_COMMON_CUDA_GRAM_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_GRAM_PARTS = 5, KVD_GRAM_MAX_D = 256 };

/* column i of row t of head h is x[h * head_stride + t * row_stride + i * dim_stride] */
typedef struct {
    const void *x;
    size_t head_stride, row_stride, dim_stride;
    int n_heads;
    double *G; /* Device [n_heads][d][d]. Only the lower triangles are defined. */
} kvd_gram_part;

typedef struct {
    int bf16; /* 1: bf16, 0: float32 */
    int d;    /* number of columns of X, 1 .. KVD_GRAM_MAX_D */
    size_t n_rows;
    int n_parts;
    kvd_gram_part part[KVD_GRAM_PARTS];
    /* device memory of kvd_gram_scratch_bytes(n, d) bytes, where n is the sum of part[i].n_heads */
    double *scratch;
} kvd_gram_args;

size_t kvd_gram_scratch_bytes(int n_heads, int d);

/* Queues G += X^T X for every head in args->part. Results are bit for bit reproducible. */
cudaError_t kvd_gram_add_rows(const kvd_gram_args *args, cudaStream_t stream);

/* Queues the copy of the lower triangle of each G [n][d][d] to the upper one. */
cudaError_t kvd_gram_mirror(double *G, size_t n, int d, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
