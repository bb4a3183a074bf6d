/*
 * Sums of float32 arrays over GPUs of one process, and exchanges of memory, by NCCL. One host
 * thread per GPU queues equal calls in equal order.
 *
 * After kvd_gpu_sum_fail on one GPU, kvd_gpu_sum_wait and all later calls fail on every GPU. A lost
 * CUDA context keeps NCCL's memory until the process ends.
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
/* Returns a text such as "NCCL 2.28.7". */
const char *kvd_gpu_sum_engine(const kvd_gpu_sum *s);

/* Queues a sum on GPU `index`: x [n] becomes the sum over GPUs, bitwise equal on each. */
int kvd_gpu_sum_add(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                    kvd_err *err);
/* Queues a broadcast on GPU `index`: x [n] becomes a copy of GPU 0's array. */
int kvd_gpu_sum_spread(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                       kvd_err *err);

/*
 * A block sent to or received from a GPU, matched by list order; blocks to itself are copied. All
 * GPUs must queue the exchange.
 */
typedef struct {
    /* receiving or sending GPU */
    int gpu;
    void *at;
    /* Equal on the sending and the receiving GPU. */
    size_t bytes;
} kvd_gpu_piece;
int kvd_gpu_sum_exchange(kvd_gpu_sum *s, int index, const kvd_gpu_piece *out, size_t n_out,
                         const kvd_gpu_piece *in, size_t n_in, cudaStream_t stream, kvd_err *err);

/* Waits for the work on `stream`; an error in it counts as a failure of GPU `index`. */
int kvd_gpu_sum_wait(kvd_gpu_sum *s, int index, cudaStream_t stream, kvd_err *err);
/*
 * Registers destroy(ctx), which kvd_gpu_sum_wait after an error and kvd_gpu_sum_free call to
 * destroy CUDA graphs with sums, even running ones.
 */
void kvd_gpu_sum_graphs(kvd_gpu_sum *s, int index, void (*destroy)(void *ctx), void *ctx);
/*
 * Records a failure of GPU `index`; only the first counts. kvd_gpu_sum_failed returns its GPU, or
 * -1.
 */
void kvd_gpu_sum_fail(kvd_gpu_sum *s, int index);
int kvd_gpu_sum_failed(const kvd_gpu_sum *s);

#endif
