/* Sums of float32 arrays over GPUs, and copies between GPUs, by NCCL. Each GPU's host thread must
 * queue the same calls in the same order.
 *
 * After an error on one GPU, all later calls fail on every GPU. */
#ifndef KVD_MODEL_PASS_CUDA_SUM_H
#define KVD_MODEL_PASS_CUDA_SUM_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/err.h"

typedef struct kvd_gpu_sum kvd_gpu_sum;

/* Prepares NCCL for sums over GPUs first_gpu .. first_gpu + n - 1. */
kvd_gpu_sum *kvd_gpu_sum_new(int first_gpu, int n, kvd_err *err);
void kvd_gpu_sum_free(kvd_gpu_sum *s);
/* Returns name and version of the library, such as "NCCL 2.28.7". */
const char *kvd_gpu_sum_engine(const kvd_gpu_sum *s);

/* Queues a sum over GPUs: x [n] becomes the sum of all x, with equal bits on each GPU. */
int kvd_gpu_sum_add(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                    kvd_err *err);
/* Queues a broadcast: on each GPU, x [n] becomes a copy of the x of GPU 0. */
int kvd_gpu_sum_spread(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                       kvd_err *err);

/* memory that is sent to GPU number `gpu`, or received from it; all GPUs must queue the exchange */
typedef struct {
    int gpu;
    void *at;
    /* length in bytes of the buffer `at`, which must be equal on the sending and the receiving
     * GPU */
    size_t bytes;
} kvd_gpu_piece;
int kvd_gpu_sum_exchange(kvd_gpu_sum *s, int index, const kvd_gpu_piece *out, size_t n_out,
                         const kvd_gpu_piece *in, size_t n_in, cudaStream_t stream, kvd_err *err);

/* Waits for the work on `stream`. An error of this work counts as a failure of GPU `index`. */
int kvd_gpu_sum_wait(kvd_gpu_sum *s, int index, cudaStream_t stream, kvd_err *err);
/* Sets the function that destroys the CUDA graphs of GPU `index` after an error. */
void kvd_gpu_sum_graphs(kvd_gpu_sum *s, int index, void (*destroy)(void *ctx), void *ctx);
/* kvd_gpu_sum_fail records that GPU `index` has failed. kvd_gpu_sum_failed returns the GPU whose
 * failure was recorded first, or -1 if no GPU has failed. */
void kvd_gpu_sum_fail(kvd_gpu_sum *s, int index);
int kvd_gpu_sum_failed(const kvd_gpu_sum *s);

#endif
