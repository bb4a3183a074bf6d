/*
 * Interface between the public functions of include/kvdim/attention.h and their two implementations
 * (CPU and CUDA). A backend plans, stores and attends for objects whose arguments library.c has
 * checked.
 */
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
    const int32_t *page_table; /* page table of the caller, in memory of the layer's device */
    /*
     * [n_requests] lengths of each request and its first row in Q and O; on the host, owned by the
     * plan.
     */
    int32_t *q_len, *kv_len, *row;
    /* Lengths of the requests as the kernels take them (points to q_len and kv_len). */
    kvd_attn_batch batch;
    int32_t n_rows;  /* number of rows of Q and O */
    int32_t n_new;   /* number of new tokens, the sum of q_len */
    char *workspace; /* workspace of the caller; NULL on the CPU */
    void *state;     /* private data of the backend, which the plan owns */
};

/*
 * Functions of one device. They return KVDIM_OK, or another status and fill *err. `stream` is a
 * cudaStream_t.
 */
struct kvd_backend {
    kvdim_status (*check)(const kvdim_layer *layer, kvd_err *err);
    /* Stores in *bytes the size of the workspace that plan p needs. p->state does not exist yet. */
    kvdim_status (*workspace)(const kvdim_plan *p, size_t *bytes, kvd_err *err);
    /*
     * Creates p->state on first use, and divides the work among CTAs for the request lengths of
     * plan p.
     */
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
