/* Device memory and the runtime's errors, for host code that uses CUDA. Only in builds with CUDA, as all of a folder cuda/. */
#ifndef KVD_COMMON_CUDA_MEMORY_H
#define KVD_COMMON_CUDA_MEMORY_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/err.h"

enum { KVD_DEVICE_ARRAYS = 160 };

/* Arrays of one device that are given back together. Zeroed before use; safe to release then. */
typedef struct {
    void *array[KVD_DEVICE_ARRAYS];
    int n;
} kvd_device_memory;

/* NULL with *err: "WHAT: N bytes on the device: ..."; on the current device. Contents are not set. At least one byte is there. */
void *kvd_device_new(kvd_device_memory *m, size_t bytes, const char *what, kvd_err *err);
/* A copy of host data, which must not change before the stream was waited for. */
void *kvd_device_copy(kvd_device_memory *m, const void *host, size_t bytes, const char *what, void *stream,
                      kvd_err *err);
/*
 * Zeros, or a copy of host data, there when they return 0: streams that do not block (cudaStreamNonBlocking), as those of the pass, do not wait
 * for the stream that cudaMemset and cudaMemcpy use, and neither call waits for the device itself.
 */
int kvd_device_zero(void *p, size_t bytes, const char *what, kvd_err *err);
int kvd_device_put(void *p, const void *host, size_t bytes, const char *what, kvd_err *err);
/* With the device current on which they were made. */
void kvd_device_release(kvd_device_memory *m);

/* 0, or -1 with "WHAT: the runtime's words". */
int kvd_cuda_check(cudaError_t e, const char *what, kvd_err *err);

#endif
