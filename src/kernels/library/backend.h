/*
 * Interface between include/kvdim/attention.h and its two devices. A backend plans, stores and
 * attends for objects whose arguments library.c has checked.
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
    /* host, owned, [n_requests]; row: first row of a request in Q and O */
    int32_t *q_len, *kv_len, *row;
    kvd_attn_batch batch; /* views of q_len and kv_len */
    int32_t n_rows;       /* rows of Q and O */
    int32_t n_new;        /* sum of q_len */
    char *workspace;      /* the caller's; NULL on the CPU */
    void *state;          /* the backend's, owned */
};

/* Functions return KVDIM_OK, or another status and fill *err. `stream` is a cudaStream_t. */
struct kvd_backend {
    kvdim_status (*check)(const kvdim_layer *layer, kvd_err *err);
    /* Stores in *bytes the size of the workspace that plan p needs; p->state is not created yet. */
    kvdim_status (*workspace)(const kvdim_plan *p, size_t *bytes, kvd_err *err);
    /* Creates p->state on first use, and divides the work for the request lengths of plan p. */
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
