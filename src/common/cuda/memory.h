/* Allocates device memory, and makes messages of CUDA errors. */
#ifndef KVD_COMMON_CUDA_MEMORY_H
#define KVD_COMMON_CUDA_MEMORY_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/err.h"

enum { KVD_DEVICE_ARRAYS = 160 };

/* Arrays on one device that are freed together. The caller must zero the list before use. */
typedef struct {
    void *array[KVD_DEVICE_ARRAYS];
    int n;
} kvd_device_memory;

/* Returns a new array, of one byte if `bytes` is 0. On failure returns NULL and fills *err. */
void *kvd_device_new(kvd_device_memory *m, size_t bytes, const char *what, kvd_err *err);
/*
 * Returns a new array with a copy of `host`, queued on `stream`. `host` must not change before the
 * caller has waited for the stream. On failure returns NULL and fills *err.
 */
void *kvd_device_copy(kvd_device_memory *m, const void *host, size_t bytes, const char *what,
                      void *stream, kvd_err *err);
/*
 * Write zeros, or a copy of host data, and return when they are written. A plain cudaMemset or
 * cudaMemcpy does not wait for the device.
 */
int kvd_device_zero(void *p, size_t bytes, const char *what, kvd_err *err);
int kvd_device_put(void *p, const void *host, size_t bytes, const char *what, kvd_err *err);
/* The device that has the arrays must be current. */
void kvd_device_release(kvd_device_memory *m);

/* Returns 0 if e is success, else -1 with the message "WHAT: " and the runtime's text. */
int kvd_cuda_check(cudaError_t e, const char *what, kvd_err *err);

#endif
