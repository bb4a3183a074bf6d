/* Generates benchmark Q, K and V on the device, bit for bit like kvd_problem_rows. */
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
    /* [batch] in device memory: index of a request's first query in Q (the pointer is NULL in
     * decode), number of queries, number of keys. */
    const int32_t *q_start, *q_len, *kv_len;
    int32_t n_q8;    /* number of rows of blocked Q */
    int32_t longest; /* Largest q_len (kvd_fill_q) or kv_len (kvd_fill_kv) of a request. */
    const int32_t *page_table; /* device [batch][max_pages] */
    int32_t max_pages;
} kvd_fill_args;

/* Fills Q of prefill with test data. Rows that pad a request to a multiple of 8 rows become
 * zero. */
cudaError_t kvd_fill_q(const kvd_fill_args *args, void *q, cudaStream_t stream);
/* Fills Q of decode, [batch][q_pitch], with generated values. */
cudaError_t kvd_fill_q_rows(const kvd_fill_args *args, void *q, cudaStream_t stream);
/* Fills cached K and V with test data. Padding that the layout requires becomes zero. */
cudaError_t kvd_fill_kv(const kvd_fill_args *args, void *pool, cudaStream_t stream);

/* Strided Q, K or V to fill with test data. Request b, head j, token t, dimension i is at b *
 * stride_batch + j * stride_head + t * stride_token + i. Columns from `width` on are zero. */
typedef struct {
    int dtype, sharp;
    uint64_t seed;
    int tensor; /* a kvd_operand */
    int32_t batch, n_heads;
    /* [n_heads] index of each head in the model (query head for Q, KV head for K and V), and number
     * of its dimensions to fill */
    int32_t head[KVD_HEADS_MAX], width[KVD_HEADS_MAX];
    int32_t padded; /* number of columns that are written, a multiple of 8 */
    /* [batch] in device memory. len: number of rows to fill with random numbers in each request.
     * kv_len: number of keys of each request. */
    const int32_t *len, *kv_len;
    int32_t longest; /* largest `len`; rows from len to longest - 1 are zero */
    /* Number of elements between requests, between heads and between tokens of the tensor. Each is
     * a multiple of 8. */
    int64_t stride_batch, stride_head, stride_token;
} kvd_fill_strided_args;

cudaError_t kvd_fill_strided(const kvd_fill_strided_args *args, void *to, cudaStream_t stream);

/* Fills pages with generated latent vectors. Ignores args->map and q_start. */
cudaError_t kvd_fill_latents(const kvd_fill_args *args, const kvd_palu_shape *shape, void *pool,
                             cudaStream_t stream);

/* Flushes the L2 cache by reading `buffer`, which must be several times larger than L2. */
cudaError_t kvd_l2_flush(void *buffer, size_t bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
