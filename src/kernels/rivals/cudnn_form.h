#ifndef KVD_KERNELS_RIVALS_CUDNN_FORM_H
#define KVD_KERNELS_RIVALS_CUDNN_FORM_H

#include "kernels/rivals/cudnn.h"

/* Access to cuDNN's backend API. In a build without cuDNN, this file declares nothing. */

#ifdef KVD_HAVE_CUDNN

#include <cuda_runtime_api.h>
#include <cudnn_graph.h>
#include <stddef.h>

#include "common/err.h"

typedef cudnnBackendDescriptor_t desc;

typedef struct {
    void *so;
    __typeof__(cudnnGetVersion) *version;
    __typeof__(cudnnGetErrorString) *error_string;
    __typeof__(cudnnGetLastErrorString) *last_error;
    __typeof__(cudnnCreate) *create;
    __typeof__(cudnnDestroy) *destroy;
    __typeof__(cudnnSetStream) *set_stream;
    __typeof__(cudnnBackendCreateDescriptor) *desc_create;
    __typeof__(cudnnBackendDestroyDescriptor) *desc_destroy;
    __typeof__(cudnnBackendFinalize) *finalize;
    __typeof__(cudnnBackendSetAttribute) *set;
    __typeof__(cudnnBackendGetAttribute) *get;
    __typeof__(cudnnBackendExecute) *execute;
} kvd_cudnn_library;

extern kvd_cudnn_library kvd_cudnn_lib;

/* Loads libcudnn.so.9 and looks up its functions. Later calls do nothing. */
int kvd_cudnn_load(kvd_err *err);

enum { KVD_CUDNN_DESCS_MAX = 4096 };

typedef struct {
    desc *made; /* [KVD_CUDNN_DESCS_MAX] created descriptors */
    size_t n;
} kvd_cudnn_heap;

int kvd_cudnn_heap_init(kvd_cudnn_heap *heap, kvd_err *err);
void kvd_cudnn_heap_release(kvd_cudnn_heap *heap);

/* State of a sequence of cuDNN calls. After a failure, later calls do nothing. */
typedef struct {
    kvd_cudnn_heap *heap;
    cudnnStatus_t status;
    const char *what; /* name of the call that failed */
    char words[256];  /* cuDNN's error text */
} kvd_cudnn_steps;

static inline int ok(const kvd_cudnn_steps *b)
{
    return b->status == CUDNN_STATUS_SUCCESS;
}

static inline void note(kvd_cudnn_steps *b, cudnnStatus_t s, const char *what)
{
    if (s == CUDNN_STATUS_SUCCESS || !ok(b))
        return;
    b->status = s;
    b->what = what;
    b->words[0] = '\0';
    kvd_cudnn_lib.last_error(b->words, sizeof b->words);
    b->words[sizeof b->words - 1] = '\0';
}

static inline int fail(const kvd_cudnn_steps *b, kvd_err *err)
{
    return kvd_fail(err, "cuDNN: %s: %s (%d) %s", b->what, kvd_cudnn_lib.error_string(b->status),
                    (int)b->status, b->words);
}

static inline desc make(kvd_cudnn_steps *b, cudnnBackendDescriptorType_t type, const char *what)
{
    desc d = NULL;
    if (!ok(b))
        return NULL;
    if (b->heap->n == KVD_CUDNN_DESCS_MAX) {
        note(b, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "too many descriptors");
        return NULL;
    }
    note(b, kvd_cudnn_lib.desc_create(type, &d), what);
    if (ok(b))
        b->heap->made[b->heap->n++] = d;
    return d;
}

static inline void set(kvd_cudnn_steps *b, desc d, cudnnBackendAttributeName_t name,
                       cudnnBackendAttributeType_t type, int64_t n, const void *values,
                       const char *what)
{
    if (ok(b))
        note(b, kvd_cudnn_lib.set(d, name, type, n, values), what);
}

static inline void get(kvd_cudnn_steps *b, desc d, cudnnBackendAttributeName_t name,
                       cudnnBackendAttributeType_t type, int64_t n, int64_t *got, void *values,
                       const char *what)
{
    if (ok(b))
        note(b, kvd_cudnn_lib.get(d, name, type, n, got, values), what);
}

static inline void set_desc(kvd_cudnn_steps *b, desc d, cudnnBackendAttributeName_t name,
                            desc value, const char *what)
{
    set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value, what);
}

static inline void finish(kvd_cudnn_steps *b, desc d, const char *what)
{
    if (ok(b))
        note(b, kvd_cudnn_lib.finalize(d), what);
}

/* Ids of the input and output tensors of a graph. */
enum {
    UID_Q = 1,
    UID_K,
    UID_V,
    UID_O,
    UID_SCALE,
    UID_Q_LEN,
    UID_KV_LEN,
    UID_NO_PADDING, /* constant -inf, which replaces the scores of padding keys */
    UID_NO_FUTURE,  /* constant -inf, which replaces the scores of later keys */
    UID_LAST
};

typedef struct {
    const char *name;
    desc graph;
    /* Number of rows of Q in each product Q K^T: q_len rows of one query head or, if `folded`, one
     * row of each query head that shares K. */
    int64_t rows;
    int uids[UID_LAST], n_uids;
} kvd_cudnn_form;

/* Builds a cuDNN operation graph that computes attention. Adds its descriptors to `heap`.
 *
 * - shape: attention shape that was already checked
 * - number: index of the graph, which makes the ids of its tensors unique
 * - folded: if true, query heads that share a KV head become rows of one head; requires q_len 1
 * - whole: if true, attention is a single cuDNN operation; requires q_len 1 or causal 0 */
int kvd_cudnn_form_build(const kvd_cudnn_shape *shape, cudnnHandle_t handle, int number, int folded,
                         int whole, kvd_cudnn_heap *heap, kvd_cudnn_form *form, kvd_err *err);

#endif

#endif
