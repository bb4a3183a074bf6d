#include "common/cuda/memory.h"

#include <stdlib.h>
#include <string.h>

int kvd_cuda_check(cudaError_t e, const char *what, kvd_err *err)
{
    if (!e)
        return 0;
    (void)cudaGetLastError();
    return kvd_fail(err, "%s: %s", what, cudaGetErrorString(e));
}

/* Records a failed allocation in *m. Later calls then fail with the same message. */
static void *failed(kvd_device_memory *m, const kvd_err *err)
{
    m->status = -1;
    m->failure = *err;
    return NULL;
}

/* Makes room for one more pointer in *list, which has n pointers. */
static int grow(void ***list, int n, int *room, kvd_err *err)
{
    if (n < *room)
        return 0;
    const int more = *room ? 2 * *room : 32;
    void **const p = realloc(*list, (size_t)more * sizeof *p);
    if (!p)
        return kvd_no_memory(err, "a list of arrays", (size_t)more * sizeof *p);
    *list = p;
    *room = more;
    return 0;
}

void *kvd_device_new(kvd_device_memory *m, size_t bytes, const char *what, kvd_err *err)
{
    void *p = NULL;
    if (m->status) {
        *err = m->failure;
        return NULL;
    }
    if (grow(&m->array, m->n, &m->room, err))
        return failed(m, err);
    const cudaError_t e = cudaMalloc(&p, bytes ? bytes : 1);
    if (e) {
        (void)cudaGetLastError();
        kvd_fail(err, "%s: %zu bytes on the device: %s", what, bytes, cudaGetErrorString(e));
        return failed(m, err);
    }
    return m->array[m->n++] = p;
}

void *kvd_device_filled(kvd_device_memory *m, size_t bytes, int byte, const char *what,
                        kvd_err *err)
{
    void *const p = kvd_device_new(m, bytes, what, err);
    return p && (kvd_cuda_check(cudaMemset(p, byte, bytes), what, err) ||
                 kvd_cuda_check(cudaStreamSynchronize(NULL), what, err))
               ? failed(m, err)
               : p;
}

void *kvd_device_pinned(kvd_device_memory *m, size_t bytes, const char *what, kvd_err *err)
{
    if (m->status) {
        *err = m->failure;
        return NULL;
    }
    if (grow(&m->pinned, m->n_pinned, &m->pinned_room, err))
        return failed(m, err);
    void *const p = kvd_pinned_new(bytes, what, err);
    if (!p)
        return failed(m, err);
    memset(p, 0, bytes);
    return m->pinned[m->n_pinned++] = p;
}

void *kvd_device_host(kvd_device_memory *m, size_t bytes, const char *what, kvd_err *err)
{
    if (m->status) {
        *err = m->failure;
        return NULL;
    }
    void *const p = kvd_pool_new(&m->host, bytes);
    if (p)
        return p;
    (void)kvd_no_memory(err, what, bytes);
    return failed(m, err);
}

void *kvd_device_from(kvd_device_memory *m, const void *host, size_t bytes, const char *what,
                      kvd_err *err)
{
    void *const p = kvd_device_new(m, bytes, what, err);
    return p && kvd_device_put(p, host, bytes, what, err) ? failed(m, err) : p;
}

void *kvd_device_copy(kvd_device_memory *m, const void *host, size_t bytes, const char *what,
                      void *stream, kvd_err *err)
{
    void *const p = kvd_device_new(m, bytes, what, err);
    return p && kvd_queue_put(p, host, bytes, stream, what, err) ? failed(m, err) : p;
}

int kvd_device_zero(void *p, size_t bytes, const char *what, kvd_err *err)
{
    return kvd_status(kvd_cuda_check(cudaMemset(p, 0, bytes), what, err) ||
                      kvd_cuda_check(cudaStreamSynchronize(NULL), what, err));
}

int kvd_device_put(void *p, const void *host, size_t bytes, const char *what, kvd_err *err)
{
    return kvd_status(
        kvd_cuda_check(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice), what, err) ||
        kvd_cuda_check(cudaStreamSynchronize(NULL), what, err));
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
    for (int i = 0; i < m->n_pinned; i++)
        (void)cudaFreeHost(m->pinned[i]);
    free(m->array);
    free(m->pinned);
    kvd_pool_free(&m->host);
    memset(m, 0, sizeof *m);
}
