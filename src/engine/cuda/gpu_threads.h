/*
 * One CPU thread per GPU of an engine. All threads run the same task. The calling thread serves the
 * first GPU. If one GPU fails, the sums over GPUs (model/pass/cuda/sum.h) are aborted on all GPUs,
 * so that no GPU waits for ever for the data of another.
 */
#ifndef KVD_ENGINE_CUDA_GPU_THREADS_H
#define KVD_ENGINE_CUDA_GPU_THREADS_H

#include "model/pass/cuda/forward.h"
#include "model/pass/cuda/sum.h"

/* Task that each thread runs. `gpu` is the index of the thread's GPU in the engine. */
typedef int (*kvd_gpu_threads_task)(void *ctx, int gpu, kvd_err *err);

typedef struct kvd_gpu_threads kvd_gpu_threads;
/*
 * Starts the threads of n GPUs, numbered from first_gpu. `sum` is borrowed. On failure returns NULL
 * and fills *err.
 */
kvd_gpu_threads *kvd_gpu_threads_new(int first_gpu, int n, kvd_gpu_sum *sum, kvd_err *err);
void kvd_gpu_threads_free(kvd_gpu_threads *h);
/*
 * Runs a task on all GPUs and waits for its end. If it fails, *err names the first GPU that failed
 * ("GPU 1: ..."), and every later run fails too.
 */
int kvd_gpu_threads_run(kvd_gpu_threads *h, kvd_gpu_threads_task task, void *ctx, kvd_err *err);

#endif
