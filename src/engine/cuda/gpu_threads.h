/* One CPU thread per GPU of an engine. If one GPU fails, the sums over all GPUs are aborted. */
#ifndef KVD_ENGINE_CUDA_GPU_THREADS_H
#define KVD_ENGINE_CUDA_GPU_THREADS_H

#include "model/pass/cuda/forward.h"
#include "model/pass/cuda/sum.h"

typedef int (*kvd_gpu_threads_task)(void *ctx, int gpu, kvd_err *err);

typedef struct kvd_gpu_threads kvd_gpu_threads;
/* Starts threads of n GPUs; `sum` is borrowed. On failure returns NULL and fills *err. */
kvd_gpu_threads *kvd_gpu_threads_new(int first_gpu, int n, kvd_gpu_sum *sum, kvd_err *err);
void kvd_gpu_threads_free(kvd_gpu_threads *h);
/* Runs a task on all GPUs. On failure *err names the failed GPU, and all later runs fail. */
int kvd_gpu_threads_run(kvd_gpu_threads *h, kvd_gpu_threads_task task, void *ctx, kvd_err *err);

#endif
