/* Functions that the CPU and CUDA implementations of kvdim/attention.h provide to library.c, which
 * checks the arguments before it calls them. */
#ifndef KVD_KERNELS_LIBRARY_BACKEND_H
#define KVD_KERNELS_LIBRARY_BACKEND_H

#include <stdbool.h>

#include "common/err.h"
#include "kernels/layout.h"
#include "kvdim/attention.h"

typedef struct kvd_backend kvd_backend;

struct kvdim_layer {
    const kvd_backend *backend;
    kvd_attn_heads heads;
    kvd_attn_map map;
    int dtype; /* KVD_F16 or KVD_BF16 */
};

struct kvdim_plan {
    const kvdim_layer *layer;
    bool decode;
    int32_t max_pages, pool_pages;
    const int32_t *page_table; /* owned by the caller, in memory of the layer's device */
    /* For each request, in host memory: number of new tokens, number of all tokens, and first row
     * in Q and in the output O. */
    int32_t *q_len, *kv_len, *row;
    kvd_attn_batch batch; /* batch with the pointers q_len and kv_len of this struct */
    int32_t n_rows;       /* number of rows of Q and O */
    int32_t n_new;        /* number of new tokens */
    char *workspace;      /* owned by the caller; NULL on the CPU */
    void *state;          /* private data of the backend, owned by the plan */
};

/* Implementation of kvdim's attention library on one kind of device, CPU or GPU. Functions return
 * KVDIM_OK, or another status and fill *err. */
struct kvd_backend {
    kvdim_status (*check)(kvd_err *err);
    /* Sets *bytes to the device memory needed to divide a batch's attention among CTAs. */
    kvdim_status (*workspace)(const kvdim_plan *p, size_t *bytes, kvd_err *err);
    /* Divides the batch's attention among CTAs. The first call for a plan also creates p->state. */
    kvdim_status (*plan)(kvdim_plan *p, void *stream, kvd_err *err);
    kvdim_status (*append)(const kvdim_plan *p, const kvdim_append_args *args, void *stream,
                           kvd_err *err);
    kvdim_status (*attend)(const kvdim_plan *p, const kvdim_attend_args *args, void *stream,
                           kvd_err *err);
};

extern const kvd_backend kvd_backend_cpu;
#ifdef KVD_CUDA
extern const kvd_backend kvd_backend_cuda;
#endif

#endif
