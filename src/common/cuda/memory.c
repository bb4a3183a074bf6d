#include "common/cuda/memory.h"

#include <assert.h>
#include <string.h>

int kvd_cuda_check(cudaError_t e, const char *what, kvd_err *err)
{
    if (!e)
        return 0;
    (void)cudaGetLastError();
    return kvd_fail(err, "%s: %s", what, cudaGetErrorString(e));
}

void *kvd_device_new(kvd_device_memory *m, size_t bytes, const char *what, kvd_err *err)
{
    void *p = NULL;
    assert(m->n < KVD_DEVICE_ARRAYS);
    const cudaError_t e = cudaMalloc(&p, bytes ? bytes : 1);
    if (e) {
        (void)cudaGetLastError();
        kvd_fail(err, "%s: %zu bytes on the device: %s", what, bytes, cudaGetErrorString(e));
        return NULL;
    }
    return m->array[m->n++] = p;
}

void *kvd_device_copy(kvd_device_memory *m, const void *host, size_t bytes, const char *what,
                      void *stream, kvd_err *err)
{
    void *const p = kvd_device_new(m, bytes, what, err);
    return p && !kvd_queue_put(p, host, bytes, stream, what, err) ? p : NULL;
}

int kvd_device_zero(void *p, size_t bytes, const char *what, kvd_err *err)
{
    return kvd_cuda_check(cudaMemset(p, 0, bytes), what, err) ||
                   kvd_cuda_check(cudaStreamSynchronize(NULL), what, err)
               ? -1
               : 0;
}

int kvd_device_put(void *p, const void *host, size_t bytes, const char *what, kvd_err *err)
{
    return kvd_cuda_check(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice), what, err) ||
                   kvd_cuda_check(cudaStreamSynchronize(NULL), what, err)
               ? -1
               : 0;
}

void *kvd_pinned_new(size_t bytes, const char *what, kvd_err *err)
{
    void *p = NULL;
    return kvd_cuda_check(cudaMallocHost(&p, bytes), what, err) ? NULL : p;
}

int kvd_queue_put(void *to, const void *from, size_t bytes, cudaStream_t stream, const char *what,
                  kvd_err *err)
{
    return kvd_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), what,
                          err);
}

int kvd_queue_get(void *to, const void *from, size_t bytes, cudaStream_t stream, const char *what,
                  kvd_err *err)
{
    return kvd_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), what,
                          err);
}

int kvd_queue_copy(void *to, const void *from, size_t bytes, cudaStream_t stream, const char *what,
                   kvd_err *err)
{
    return kvd_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), what,
                          err);
}

void kvd_device_release(kvd_device_memory *m)
{
    for (int i = 0; i < m->n; i++)
        (void)cudaFree(m->array[i]);
    memset(m, 0, sizeof *m);
}
