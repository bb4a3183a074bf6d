/* Decode attention of Palu in CUDA (sm_90a), on pages of low-rank latent vectors. */
#ifndef KVD_KERNELS_RIVALS_PALU_DECODE_H
#define KVD_KERNELS_RIVALS_PALU_DECODE_H

#include <cuda_runtime_api.h>

#include "kernels/rivals/palu_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16 */
    kvd_palu_shape shape;
    int32_t batch, max_pages;
    const int32_t *kv_len;     /* device [batch], lengths in tokens, at least 1 */
    const int32_t *page_table; /* device [batch][max_pages] */
    const void *q;             /* queries after RoPE, device [batch][n_heads * 128] */
    const void *pool;          /* pages of latents, on the device */
    const void *up;            /* packed matrices U, on the device */
    /* RoPE tables, [max position][64] in device memory, with at least 64 positions. */
    const float *rope_cos, *rope_sin;
    void *o;            /* output, device [batch][n_heads * rank_v] */
    int32_t n_clusters; /* return value of kvd_palu_decode_clusters() */
    /* Device memory of kvd_palu_decode_workspace_bytes() bytes. kvd_palu_decode reads results that
     * kvd_palu_decode_plan has written to it. */
    void *workspace;
} kvd_palu_decode_args;

/* Returns the number of clusters of two CTAs that run at once, or -1 if the GPU is not a Hopper. */
int kvd_palu_decode_clusters(void);
size_t kvd_palu_decode_workspace_bytes(const kvd_palu_shape *shape, int batch, int n_clusters);

/* Divides the pages among clusters of two CTAs. This division can be used for all layers whose
 * requests have the same kv_len. */
cudaError_t kvd_palu_decode_plan(const kvd_palu_decode_args *args, cudaStream_t stream);
/* Computes Palu's decode attention. Returns cudaErrorNotSupported on GPUs other than Hopper. */
cudaError_t kvd_palu_decode(const kvd_palu_decode_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
