/*
 * Sums of float32 arrays over several GPUs of one process, and exchanges of memory blocks, by NCCL.
 * One host thread per GPU queues the same calls in the same order on its GPU's stream.
 *
 * An error on one GPU ends the sums for all GPUs: its thread calls kvd_gpu_sum_fail, the other
 * threads find out in kvd_gpu_sum_wait, and all later calls fail. If the error destroyed a CUDA
 * context, NCCL's memory stays allocated until the process ends.
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

/*
 * Queues a sum on GPU `index`: x [n] becomes the sum of the arrays of all GPUs, bitwise equal on
 * each GPU.
 */
int kvd_gpu_sum_add(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                    kvd_err *err);
/* Queues a broadcast on GPU `index`: x [n] becomes a copy of GPU 0's array. */
int kvd_gpu_sum_spread(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                       kvd_err *err);

/*
 * A memory block that a GPU sends to or receives from another GPU. The blocks that one GPU sends to
 * another are matched by their order in the lists `out` and `in`; blocks from a GPU to itself are
 * copied. The exchange must be queued on all GPUs.
 */
typedef struct {
    /* the GPU that receives or sends the block */
    int gpu;
    void *at;
    /* Size of the block, equal on the sending and the receiving GPU. */
    size_t bytes;
} kvd_gpu_piece;
int kvd_gpu_sum_exchange(kvd_gpu_sum *s, int index, const kvd_gpu_piece *out, size_t n_out,
                         const kvd_gpu_piece *in, size_t n_in, cudaStream_t stream, kvd_err *err);

/*
 * Waits until the work on `stream` has finished. An error in this work counts as a failure of GPU
 * `index`.
 */
int kvd_gpu_sum_wait(kvd_gpu_sum *s, int index, cudaStream_t stream, kvd_err *err);
/*
 * Registers a callback for CUDA graphs that contain sums of GPU `index`. If an error ends the sums,
 * destroy(ctx) must destroy these graphs, even if they are running. `destroy` is called by
 * kvd_gpu_sum_wait for this GPU and by kvd_gpu_sum_free.
 */
void kvd_gpu_sum_graphs(kvd_gpu_sum *s, int index, void (*destroy)(void *ctx), void *ctx);
/*
 * Records that GPU `index` has failed; only the first failure is kept. kvd_gpu_sum_failed returns
 * the index of the GPU that failed first, or -1.
 */
void kvd_gpu_sum_fail(kvd_gpu_sum *s, int index);
int kvd_gpu_sum_failed(const kvd_gpu_sum *s);

#endif
