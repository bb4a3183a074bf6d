/*
 * Generates Q, K and V of a benchmark on the device, from kernels/timing/values.h in the layouts of
 * kernels/layout.h. The bits equal those of kvd_problem_rows on the host.
 */
#ifndef KVD_KERNELS_CUDA_FILL_H
#define KVD_KERNELS_CUDA_FILL_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"
#include "kernels/rivals/palu_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16 */
    int sharp;
    uint64_t seed;
    kvd_attn_map map;
    int32_t batch;
    /* Device [batch]: first row of each request in Q, and lengths. q_start is NULL in decode. */
    const int32_t *q_start, *q_len, *kv_len;
    int32_t n_q8; /* rows of blocked Q */
    /* Largest q_len (in kvd_fill_q) or largest kv_len (in kvd_fill_kv) of a request. */
    int32_t longest;
    const int32_t *page_table; /* device [batch][max_pages] */
    int32_t max_pages;
} kvd_fill_args;

/*
 * Fills blocked Q of prefill. Rows after a request's last query become zero up to a multiple of 8.
 */
cudaError_t kvd_fill_q(const kvd_fill_args *args, void *q, cudaStream_t stream);
/* Fills Q of decode, which is row-major. */
cudaError_t kvd_fill_q_rows(const kvd_fill_args *args, void *q, cudaStream_t stream);
/* Fills K and V, and the zeros that the layout requires. Leaves the rest of the pool unchanged. */
cudaError_t kvd_fill_kv(const kvd_fill_args *args, void *pool, cudaStream_t stream);

/*
 * Arguments of kvd_fill_strided, for K and V in the strided arrays of other implementations. The
 * value of request b, j-th element of `head`, token t and dimension i is at b * stride_batch + j *
 * stride_head + t * stride_token + i. Columns from `width` to `padded` - 1 become zero.
 */
typedef struct {
    int dtype, sharp;
    uint64_t seed;
    int tensor; /* a kvd_operand */
    int32_t batch, n_heads;
    /*
     * Indices of the heads to fill (query heads for Q, KV heads for K and V), and their dimensions.
     */
    int32_t head[KVD_HEADS_MAX], width[KVD_HEADS_MAX];
    /* Number of columns that are written, a multiple of 8. */
    int32_t padded;
    /*
     * Device [batch]: `len` is the number of rows of each request in the tensor that is filled,
     * `kv_len` the number of keys of the request. The last row of a request has the position of the
     * request's last key.
     */
    const int32_t *len, *kv_len;
    int32_t longest; /* largest `len`; rows from len to longest - 1 become zero */
    /* Distances in elements of `to`, multiples of 8 */
    int64_t stride_batch, stride_head, stride_token;
} kvd_fill_strided_args;

cudaError_t kvd_fill_strided(const kvd_fill_strided_args *args, void *to, cudaStream_t stream);

/*
 * Fills the latents of K and V in the pages (layout PAGED of kernels/rivals/palu_layout.h). Element
 * i of the latent of group j is what kvd_value returns for head j and dim i. Rows of the last page
 * from kv_len on become zero. args->map and args->q_start are not used.
 */
cudaError_t kvd_fill_latents(const kvd_fill_args *args, const kvd_palu_shape *shape, void *pool,
                             cudaStream_t stream);

/*
 * Fills the L2 cache by reading `buffer`, device memory of several times the size of L2. Writing
 * would leave dirty lines, which slow the next kernel.
 */
cudaError_t kvd_l2_flush(void *buffer, size_t bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
