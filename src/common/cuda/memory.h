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

/*
 * Returns a new array on the current device, of one byte if `bytes` is 0. Its contents are
 * undefined. On failure returns NULL and fills *err.
 */
void *kvd_device_new(kvd_device_memory *m, size_t bytes, const char *what, kvd_err *err);
/*
 * Returns a new array with a copy of `host`, queued on `stream`. `host` must not change before the
 * caller has waited for the stream. On failure returns NULL and fills *err.
 */
void *kvd_device_copy(kvd_device_memory *m, const void *host, size_t bytes, const char *what,
                      void *stream, kvd_err *err);
/*
 * kvd_device_zero writes zeros to device memory, kvd_device_put a copy of host data. Both return
 * only when the device has finished; cudaMemset and cudaMemcpy may return earlier.
 */
int kvd_device_zero(void *p, size_t bytes, const char *what, kvd_err *err);
int kvd_device_put(void *p, const void *host, size_t bytes, const char *what, kvd_err *err);
/*
 * Returns new host memory that the device can access, which cudaFreeHost frees. On failure returns
 * NULL and fills *err.
 */
void *kvd_pinned_new(size_t bytes, const char *what, kvd_err *err);
/*
 * Queue a copy of `bytes` bytes on the stream: from the host to the device, from the device to the
 * host, and on the device. The caller must not change the host memory at `from`, or read the host
 * memory at `to`, before the stream has made the copy.
 */
int kvd_queue_put(void *to, const void *from, size_t bytes, cudaStream_t stream, const char *what,
                  kvd_err *err);
int kvd_queue_get(void *to, const void *from, size_t bytes, cudaStream_t stream, const char *what,
                  kvd_err *err);
int kvd_queue_copy(void *to, const void *from, size_t bytes, cudaStream_t stream, const char *what,
                   kvd_err *err);
/* Frees all arrays of the list. The device on which they are must be current. */
void kvd_device_release(kvd_device_memory *m);

/*
 * Returns 0 if e is success. Otherwise returns -1 with the message "WHAT: " and CUDA's text for e.
 */
int kvd_cuda_check(cudaError_t e, const char *what, kvd_err *err);

#endif
