/*
 * A thread for every GPU of an engine, which all do the same thing at the same time: the first GPU's is the caller's. An error of one ends the
 * sums (model/cuda/sum.h) for all, so that none waits for ever.
 */
#ifndef KVD_SERVING_CUDA_HANDS_H
#define KVD_SERVING_CUDA_HANDS_H

#include "model/cuda/forward.h"
#include "model/cuda/sum.h"

/* `gpu` of the hands' GPUs; ctx: the caller's. */
typedef int (*kvd_hand_task)(void *ctx, int gpu, kvd_err *err);

typedef struct kvd_hands kvd_hands;
/* n GPUs from first_gpu on; sum is borrowed. */
kvd_hands *kvd_hands_new(int first_gpu, int n, kvd_gpu_sum *sum, kvd_err *err);
void kvd_hands_free(kvd_hands *h);
/* All GPUs; an error is that of the first to fail, "GPU 1: ...", and all runs fail from then on. */
int kvd_hands_run(kvd_hands *h, kvd_hand_task task, void *ctx, kvd_err *err);

#endif
