/*
 * Sums of float32 arrays over several GPUs of one process, by NCCL: what a pass that is cut into shares needs between its
 * products; and exchanges of pieces of memory. One host thread per GPU queues the same calls in the same order on its GPU's stream.
 *
 * An error on one GPU ends the sums for all, so that none waits for ever for one that does not come: kvd_gpu_sum_fail
 * says so, the others find out in kvd_gpu_sum_wait, and all calls fail from then on. What NCCL holds of a GPU whose context an error
 * has ended cannot be given back, nor then what it holds of the others: it stays until the process ends.
 */
#ifndef KVD_MODEL_CUDA_SUM_H
#define KVD_MODEL_CUDA_SUM_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/err.h"

typedef struct kvd_gpu_sum kvd_gpu_sum;

/* For GPUs first_gpu .. first_gpu + n - 1. */
kvd_gpu_sum *kvd_gpu_sum_new(int first_gpu, int n, kvd_err *err);
void kvd_gpu_sum_free(kvd_gpu_sum *s);
/* "NCCL 2.28.7" */
const char *kvd_gpu_sum_engine(const kvd_gpu_sum *s);

/* Queues on GPU `index`: x [n] there becomes the sum over the GPUs, the same bits on each. */
int kvd_gpu_sum_add(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream, kvd_err *err);
/* x [n] becomes that of GPU 0. */
int kvd_gpu_sum_spread(kvd_gpu_sum *s, int index, float *x, size_t n, cudaStream_t stream, kvd_err *err);

/*
 * What GPU `index` sends to others and what it receives, each in the order of the other side; pieces to itself are copies. Queued on all
 * GPUs at once.
 */
typedef struct {
    int gpu; /* the other one */
    void *at;
    size_t bytes; /* the same on both sides */
} kvd_gpu_piece;
int kvd_gpu_sum_exchange(kvd_gpu_sum *s, int index, const kvd_gpu_piece *out, size_t n_out,
                         const kvd_gpu_piece *in, size_t n_in, cudaStream_t stream, kvd_err *err);

/* Waits for the stream of GPU `index`; an error there is one of that GPU. */
int kvd_gpu_sum_wait(kvd_gpu_sum *s, int index, cudaStream_t stream, kvd_err *err);
/*
 * For CUDA graphs that sums of GPU `index` were captured into: NCCL ends when they are gone and not before, so `destroy` is called before the
 * sums end by an error, by the thread that waits. It destroys the graphs, which may be running.
 */
void kvd_gpu_sum_graphs(kvd_gpu_sum *s, int index, void (*destroy)(void *ctx), void *ctx);
/* GPU `index` has failed. Of several the first, the cause of the others, is remembered: -1 while there is none. */
void kvd_gpu_sum_fail(kvd_gpu_sum *s, int index);
int kvd_gpu_sum_failed(const kvd_gpu_sum *s);

#endif
