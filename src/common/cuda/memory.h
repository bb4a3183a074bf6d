/*
 * Allocation of device memory, and error messages of the CUDA runtime, for host code. As every
 * folder named cuda/, it is compiled only in builds with CUDA.
 */
#ifndef KVD_COMMON_CUDA_MEMORY_H
#define KVD_COMMON_CUDA_MEMORY_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/err.h"

enum { KVD_DEVICE_ARRAYS = 160 };

/*
 * List of arrays in the memory of one device that are freed together. The caller must zero it
 * before use. A zeroed list may be released.
 */
typedef struct {
    void *array[KVD_DEVICE_ARRAYS];
    int n;
} kvd_device_memory;

/*
 * Returns a new array on the current device, of `bytes` bytes or, if that is 0, one byte; its
 * contents are undefined. On failure returns NULL with the message "WHAT: N bytes on the device:
 * ...".
 */
void *kvd_device_new(kvd_device_memory *m, size_t bytes, const char *what, kvd_err *err);
/*
 * Returns a new array on the current device with a copy of `host` [bytes], queued on `stream`. The
 * host data must not change before the stream has been waited for. On failure returns NULL and
 * fills *err.
 */
void *kvd_device_copy(kvd_device_memory *m, const void *host, size_t bytes, const char *what,
                      void *stream, kvd_err *err);
/*
 * Write zeros, or a copy of host data, to device memory and return when they are written. A plain
 * cudaMemset or cudaMemcpy would not do: neither waits for the device, and streams that do not
 * block (cudaStreamNonBlocking), such as those of the forward pass, do not wait for the stream that
 * these calls use.
 */
int kvd_device_zero(void *p, size_t bytes, const char *what, kvd_err *err);
int kvd_device_put(void *p, const void *host, size_t bytes, const char *what, kvd_err *err);
/* Frees all arrays of *m. The device on which they were allocated must be current. */
void kvd_device_release(kvd_device_memory *m);

/*
 * Returns 0 if a CUDA runtime call succeeded (e), else -1 with the message "WHAT: " and the
 * runtime's error text.
 */
int kvd_cuda_check(cudaError_t e, const char *what, kvd_err *err);

#endif
