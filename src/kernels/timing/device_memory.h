/* What adapters of CUDA implementations share: device arrays that are given back together. Only in builds with CUDA. */
#ifndef KVD_KERNELS_DEVICE_MEMORY_H
#define KVD_KERNELS_DEVICE_MEMORY_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "kernels/timing/problem.h"

enum { KVD_DEVICE_ARRAYS = 160 };

/* Zeroed before use; safe to release then. */
typedef struct {
    void *array[KVD_DEVICE_ARRAYS];
    int n;
} kvd_device_memory;

/* NULL with *err; `what` is for the message. Contents are not set. At least one byte is there. */
void *kvd_device_new(kvd_device_memory *m, size_t bytes, const char *what, kvd_err *err);
/* A copy of host data, which must not change before the stream was waited for. */
void *kvd_device_copy(kvd_device_memory *m, const void *host, size_t bytes, const char *what, void *stream,
                      kvd_err *err);
void kvd_device_release(kvd_device_memory *m);

/* 0, or -1 with "WHAT: the runtime's words". */
int kvd_cuda_check(cudaError_t e, const char *what, kvd_err *err);

/* A page table [batch][max_pages] on the host whose pages lie scattered over a pool of *n_pages, none unused: what a server's
 * cache looks like after a while. The caller frees it. */
int32_t *kvd_scattered_pages(const kvd_problem *p, int *max_pages, size_t *n_pages, kvd_err *err);

/* Largest q_len or kv_len. */
int32_t kvd_problem_longest(const kvd_problem *p, bool queries);
bool kvd_problem_ragged(const kvd_problem *p);

#endif
