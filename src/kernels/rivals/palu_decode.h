/*
 * Palu's decode attention, CUDA, Hopper (sm_90a): rebuild, RoPE, scores, softmax and latent values in one kernel, the rebuild shared
 * by the query heads of a KV head. bf16 or fp16, layout PAGED of kernels/rivals/palu_layout.h. The work is cut into equal
 * runs of pages; partial results are merged in a fixed order, so the same lengths give the same bits.
 */
#ifndef KVD_KERNELS_RIVALS_PALU_DECODE_H
#define KVD_KERNELS_RIVALS_PALU_DECODE_H

#include <cuda_runtime_api.h>

#include "kernels/rivals/palu_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16                                                          */
    kvd_palu_shape shape;
    int32_t batch, max_pages;
    const int32_t *kv_len;     /* device [batch], >= 1                                   */
    const int32_t *page_table; /* device [batch][max_pages]                              */
    const void *q;             /* device [batch][n_heads * 128], after RoPE              */
    const void *pool;          /* device, latents of this layer                          */
    const void *up;            /* device, U packed                                       */
    const float *rope_cos,
        *rope_sin;      /* device [max position][64], row p: the cosines and sines of p * w_i. The
                                        kernel takes them apart as a page's start plus 0 .. 63, so angles must be
                                        linear in the position; at least 64 rows                */
    void *o;            /* device [batch][n_heads * rank_v]                out    */
    int32_t n_clusters; /* kvd_palu_decode_clusters()                             */
    void *workspace;    /* device, kvd_palu_decode_workspace_bytes; kept between plan and run */
} kvd_palu_decode_args;

/* Clusters of two CTAs that the current device holds at once; -1 when it cannot be asked or is no Hopper. */
int kvd_palu_decode_clusters(void);
size_t kvd_palu_decode_workspace_bytes(const kvd_palu_shape *shape, int batch, int n_clusters);

/* Counts pages from kv_len on the device. One plan serves every layer with the same lengths. */
cudaError_t kvd_palu_decode_plan(const kvd_palu_decode_args *args, cudaStream_t stream);
/* Runs what was planned. cudaErrorNotSupported where the device is no Hopper. */
cudaError_t kvd_palu_decode(const kvd_palu_decode_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
