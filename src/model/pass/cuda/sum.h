/*
 * Sums of float32 arrays over several GPUs of one process, by NCCL, which a pass that is cut into
 * shares needs between its products; and exchanges of pieces of memory. One host thread per GPU
 * queues the same calls in the same order on its GPU's stream.
 *
 * An error on one GPU ends the sums for all GPUs, so that no GPU waits forever for another. The
 * failed GPU's thread calls kvd_gpu_sum_fail, the others find out in kvd_gpu_sum_wait, and all
 * later calls fail. If an error ended the context of a GPU, NCCL's memory on that GPU cannot be
 * freed, and therefore not its memory on the other GPUs either: it stays allocated until the
 * process ends.
 */
#ifndef KVD_MODEL_PASS_CUDA_SUM_H
#define KVD_MODEL_PASS_CUDA_SUM_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/err.h"

typedef struct kvd_gpu_sum kvd_gpu_sum;

/* Returns a new object for sums over the GPUs first_gpu .. first_gpu + n - 1. */
kvd_gpu_sum *kvd_gpu_sum_new(int first_gpu, int n, kvd_err *err);
void kvd_gpu_sum_free(kvd_gpu_sum *s);
/* Returns the name and version of the library that computes the sums, such as "NCCL 2.28.7". */
const char *kvd_gpu_sum_engine(const kvd_gpu_sum *s);

/*
 * Queues a sum on GPU `index`: its array x [n] becomes the sum of the arrays of all GPUs, bitwise
 * equal on each.
 */
int kvd_gpu_sum_add(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                    kvd_err *err);
/* Queues a broadcast: the array x [n] of every GPU becomes a copy of that of GPU 0. */
int kvd_gpu_sum_spread(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream,
                       kvd_err *err);

/*
 * Queues an exchange: GPU `index` sends the pieces `out` to other GPUs and receives the pieces
 * `in`, each list in the order of the other side; pieces to itself are copies. The exchange must be
 * queued on all GPUs.
 */
typedef struct {
    int gpu; /* the other GPU */
    void *at;
    size_t bytes; /* equal on both sides */
} kvd_gpu_piece;
int kvd_gpu_sum_exchange(kvd_gpu_sum *s, int index, const kvd_gpu_piece *out, size_t n_out,
                         const kvd_gpu_piece *in, size_t n_in, cudaStream_t stream, kvd_err *err);

/* Waits for the stream of GPU `index`; an error on this stream counts as a failure of that GPU. */
int kvd_gpu_sum_wait(kvd_gpu_sum *s, int index, cudaStream_t stream, kvd_err *err);
/*
 * Registers CUDA graphs into which sums of GPU `index` were captured. NCCL can end only after they
 * are gone, so if an error ends the sums, the waiting thread calls `destroy` first. It destroys the
 * graphs, which may be running.
 */
void kvd_gpu_sum_graphs(kvd_gpu_sum *s, int index, void (*destroy)(void *ctx), void *ctx);
/*
 * Records that GPU `index` has failed. Only the first failure, the cause of the others, is kept.
 * kvd_gpu_sum_failed returns it, or -1 if there is none.
 */
void kvd_gpu_sum_fail(kvd_gpu_sum *s, int index);
int kvd_gpu_sum_failed(const kvd_gpu_sum *s);

#endif
