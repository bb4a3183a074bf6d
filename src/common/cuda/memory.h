/* Allocates device memory, and makes messages of CUDA errors. */
#ifndef KVD_COMMON_CUDA_MEMORY_H
#define KVD_COMMON_CUDA_MEMORY_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "common/memory.h"

/* arrays on one device that are freed together; must be zero before use */
typedef struct {
    void **array, **pinned;
    int n, n_pinned;
    int room, pinned_room;
    kvd_pool host;
    /* 0, or -1 after a failed allocation; later allocations then fail too */
    int status;
    kvd_err failure;
} kvd_device_memory;

/* Returns a new array on the current device with undefined contents. */
void *kvd_device_new(kvd_device_memory *m, size_t bytes, const char *what, kvd_err *err);
/* Returns a new device array whose bytes all have the value `byte`. */
void *kvd_device_filled(kvd_device_memory *m, size_t bytes, int byte, const char *what,
                        kvd_err *err);
/* kvd_device_pinned returns zeroed pinned host memory. kvd_device_host returns zeroed pageable host
 * memory. kvd_device_release frees the memory of both functions. */
void *kvd_device_pinned(kvd_device_memory *m, size_t bytes, const char *what, kvd_err *err);
void *kvd_device_host(kvd_device_memory *m, size_t bytes, const char *what, kvd_err *err);
/* Returns a new device array with a copy of `host`. */
void *kvd_device_from(kvd_device_memory *m, const void *host, size_t bytes, const char *what,
                      kvd_err *err);
/* Queues the copy of `host` to a new device array. `host` must not change until the copy ends. */
void *kvd_device_copy(kvd_device_memory *m, const void *host, size_t bytes, const char *what,
                      void *stream, kvd_err *err);
/* kvd_device_zero fills device memory with zeros. kvd_device_put copies `host` to device memory.
 * Both functions return after the device has finished. */
int kvd_device_zero(void *p, size_t bytes, const char *what, kvd_err *err);
int kvd_device_put(void *p, const void *host, size_t bytes, const char *what, kvd_err *err);
/* Returns new pinned host memory, which cudaFreeHost frees. */
void *kvd_pinned_new(size_t bytes, const char *what, kvd_err *err);
/* Queue a copy to the GPU (put), to the host (get), or within the GPU (copy). Host memory must not
 * be used until the copy ends. */
int kvd_queue_put(void *to, const void *from, size_t bytes, cudaStream_t stream, const char *what,
                  kvd_err *err);
int kvd_queue_get(void *to, const void *from, size_t bytes, cudaStream_t stream, const char *what,
                  kvd_err *err);
int kvd_queue_copy(void *to, const void *from, size_t bytes, cudaStream_t stream, const char *what,
                   kvd_err *err);
/* Frees all arrays of the list. The device that holds the arrays must be current. */
void kvd_device_release(kvd_device_memory *m);

/* Returns 0 if e is success. Otherwise returns -1 and stores CUDA's text for e. */
int kvd_cuda_check(cudaError_t e, const char *what, kvd_err *err);

#endif
