/*
 * Sums of float32 arrays over several GPUs of one process by NCCL, which a model that is split over
 * GPUs needs between its products; also exchanges of memory blocks between GPUs. One host thread
 * per GPU queues the same calls in the same order on its GPU's stream.
 *
 * An error on one GPU ends the sums for all GPUs, so that no GPU waits forever for another. The
 * failed GPU's thread calls kvd_gpu_sum_fail, the other threads find out in kvd_gpu_sum_wait, and
 * all later calls fail. If an error destroyed the CUDA context of a GPU, NCCL's memory cannot be
 * freed on any GPU: it stays allocated until the process ends.
 */
#ifndef KVD_MODEL_PASS_CUDA_SUM_H
#define KVD_MODEL_PASS_CUDA_SUM_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/err.h"

typedef struct kvd_gpu_sum kvd_gpu_sum;

/*
 * Returns a new object for sums over the GPUs first_gpu .. first_gpu + n - 1. On failure returns
 * NULL and fills *err.
 */
kvd_gpu_sum *kvd_gpu_sum_new(int first_gpu, int n, kvd_err *err);
void kvd_gpu_sum_free(kvd_gpu_sum *s);
/* Returns the name and version of the library that computes the sums, such as "NCCL 2.28.7". */
const char *kvd_gpu_sum_engine(const kvd_gpu_sum *s);

/*
 * Queues a sum on GPU `index`: its array x [n] becomes the sum of the arrays x of all GPUs, bitwise
 * equal on each GPU.
 */
int kvd_gpu_sum_add(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                    kvd_err *err);
/*
 * Queues a broadcast on GPU `index`: the array x [n] of every GPU becomes a copy of GPU 0's array.
 */
int kvd_gpu_sum_spread(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                       kvd_err *err);

/*
 * A memory block that a GPU sends to or receives from another GPU. kvd_gpu_sum_exchange queues an
 * exchange: GPU `index` sends the blocks `out` and receives the blocks `in`. Blocks from one GPU to
 * another are matched by their order in both lists; blocks from a GPU to itself are copied. The
 * exchange must be queued on all GPUs.
 */
typedef struct {
    /* Index of the GPU to which this memory block is sent or from which it is received. */
    int gpu;
    void *at;
    /* Size in bytes of this memory block, equal on the sending and the receiving GPU. */
    size_t bytes;
} kvd_gpu_piece;
int kvd_gpu_sum_exchange(kvd_gpu_sum *s, int index, const kvd_gpu_piece *out, size_t n_out,
                         const kvd_gpu_piece *in, size_t n_in, cudaStream_t stream, kvd_err *err);

/* Waits for the stream of GPU `index`; an error on this stream counts as a failure of that GPU. */
int kvd_gpu_sum_wait(kvd_gpu_sum *s, int index, cudaStream_t stream, kvd_err *err);
/*
 * Registers CUDA graphs into which sums of GPU `index` were captured. If an error ends the sums,
 * `destroy` is called with `ctx`. It must destroy the graphs, even if they are running, because
 * NCCL can end only after that. It is called by the thread that waits for this GPU in
 * kvd_gpu_sum_wait, or by kvd_gpu_sum_free.
 */
void kvd_gpu_sum_graphs(kvd_gpu_sum *s, int index, void (*destroy)(void *ctx), void *ctx);
/*
 * Records that GPU `index` has failed. Only the first failure, which causes the others, is kept.
 * kvd_gpu_sum_failed returns the index of that GPU, or -1 if none has failed.
 */
void kvd_gpu_sum_fail(kvd_gpu_sum *s, int index);
int kvd_gpu_sum_failed(const kvd_gpu_sum *s);

#endif
