/*
 * The operation graphs that cuDNN is asked for. Internal to cudnn.c.
 */
#ifndef KVD_KERNELS_RIVALS_CUDNN_FORM_H
#define KVD_KERNELS_RIVALS_CUDNN_FORM_H

#include "kernels/rivals/cudnn.h"
#include "kernels/rivals/cudnn_desc.h"

#ifdef KVD_HAVE_CUDNN

/* Unique ids of the tensors that are given at run time. */
enum {
    UID_Q = 1,
    UID_K,
    UID_V,
    UID_O,
    UID_SCALE,
    UID_Q_LEN,
    UID_KV_LEN,
    UID_NO_PADDING, /* -inf of the padding select */
    UID_NO_FUTURE,  /* -inf of the causal select  */
    UID_LAST
};

/* One way to ask: a finished operation graph. */
typedef struct {
    const char *name;
    desc graph;
    int64_t rows; /* query rows per head: q_len, or the group when a decode step is folded */
    int uids[UID_LAST], n_uids;
} kvd_cudnn_form;

/*
 * Builds one graph for a checked shape. number: 0, 1, ..., another for every form of a plan.
 *   folded  the heads of a group are the rows of one head (q_len 1)
 *   whole   the one-operation form, which has no causal mask: q_len 1 or causal 0
 * Descriptors go to the heap. Returns 0, or -1 with *err.
 */
int kvd_cudnn_form_build(const kvd_cudnn_shape *shape, cudnnHandle_t handle, int number, int folded,
                         int whole, kvd_cudnn_heap *heap, kvd_cudnn_form *form, kvd_err *err);

#endif
#endif
