/*
 * Sums of float32 arrays over GPUs, and exchanges of memory, by NCCL. Each GPU's host thread must
 * queue the same calls in the same order.
 *
 * After an error on one GPU, kvd_gpu_sum_wait and all later calls fail on every GPU.
 */
#ifndef KVD_MODEL_PASS_CUDA_SUM_H
#define KVD_MODEL_PASS_CUDA_SUM_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/err.h"

typedef struct kvd_gpu_sum kvd_gpu_sum;

/*
 * Prepares sums over GPUs first_gpu .. first_gpu + n - 1. On failure returns NULL and fills *err.
 */
kvd_gpu_sum *kvd_gpu_sum_new(int first_gpu, int n, kvd_err *err);
void kvd_gpu_sum_free(kvd_gpu_sum *s);
/* Returns the library's name and version, such as "NCCL 2.28.7". */
const char *kvd_gpu_sum_engine(const kvd_gpu_sum *s);

/*
 * Queues a sum over all GPUs on GPU `index`: x [n] becomes the sum of all GPUs' arrays x, equal bit
 * for bit on each.
 */
int kvd_gpu_sum_add(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                    kvd_err *err);
/* Queues a broadcast on GPU `index`: x [n] becomes a copy of GPU 0's array. */
int kvd_gpu_sum_spread(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                       kvd_err *err);

/*
 * A block of memory to send to, or to receive from, another GPU. All GPUs must queue the exchange.
 */
typedef struct {
    /* GPU that receives or sends the block. */
    int gpu;
    void *at;
    /* Number of bytes of the block, equal on both GPUs. */
    size_t bytes;
} kvd_gpu_piece;
int kvd_gpu_sum_exchange(kvd_gpu_sum *s, int index, const kvd_gpu_piece *out, size_t n_out,
                         const kvd_gpu_piece *in, size_t n_in, cudaStream_t stream, kvd_err *err);

/* Waits for the work on `stream`. An error in this work counts as a failure of GPU `index`. */
int kvd_gpu_sum_wait(kvd_gpu_sum *s, int index, cudaStream_t stream, kvd_err *err);
/*
 * Registers a callback that destroys the CUDA graphs that contain sums. It is called after an
 * error.
 */
void kvd_gpu_sum_graphs(kvd_gpu_sum *s, int index, void (*destroy)(void *ctx), void *ctx);
/* Records that GPU `index` failed; kvd_gpu_sum_failed returns the first GPU that failed, or -1. */
void kvd_gpu_sum_fail(kvd_gpu_sum *s, int index);
int kvd_gpu_sum_failed(const kvd_gpu_sum *s);

#endif
