/*
 * Q, K and V of a benchmark made on the device, element by element from kernels/timing/values.h, in the layouts that kernels read.
 * The same bits as kvd_problem_rows gives on the host. Layouts of kernels/layout.h; bf16 or fp16.
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
    const int32_t *q_start, *q_len, *kv_len; /* device [batch]; q_start NULL for decode            */
    int32_t n_q8;                            /* rows of blocked Q                                  */
    int32_t longest;                         /* largest q_len (fill_q) or kv_len (fill_kv)         */
    const int32_t *page_table;               /* device [batch][max_pages]                          */
    int32_t max_pages;
} kvd_fill_args;

/* Blocked Q of prefill, all heads; the rest of each last group of 8 rows becomes zero. */
cudaError_t kvd_fill_q(const kvd_fill_args *args, void *q, cudaStream_t stream);
/* Row-major Q of decode. */
cudaError_t kvd_fill_q_rows(const kvd_fill_args *args, void *q, cudaStream_t stream);
/* K and V into the pages, and the zeros that the layout asks for; nothing else of the pool is written. */
cudaError_t kvd_fill_kv(const kvd_fill_args *args, void *pool, cudaStream_t stream);

/*
 * Some heads of one tensor into any strided array, as rivals want them: element (b, j, t, i) at b * batch + j * head + t * token + i
 * of the j-th head of the list; columns from `width` up to `padded` become zero.
 */
typedef struct {
    int dtype, sharp;
    uint64_t seed;
    int tensor; /* kvd_tensor */
    int32_t batch, n_heads;
    int32_t head[KVD_HEADS_MAX], width[KVD_HEADS_MAX]; /* query heads of Q, KV heads of K and V */
    int32_t padded;                                    /* multiple of 8                        */
    const int32_t *len,
        *kv_len;     /* device [batch]: rows of this tensor; keys, the last of which is the last row */
    int32_t longest; /* largest len: rows from len up to it become zero              */
    int64_t stride_batch, stride_head, stride_token; /* in elements, multiples of 8 */
} kvd_fill_strided_args;

cudaError_t kvd_fill_strided(const kvd_fill_strided_args *args, void *to, cudaStream_t stream);

/* Latents of K and V into pages, as PAGED of kernels/rivals/palu_layout.h: tensor K or V, "head" the group, "dim" the rank. Rows of
 * the last page beyond kv_len become zero. map and q_start of args are not used. */
cudaError_t kvd_fill_latents(const kvd_fill_args *args, const kvd_palu_shape *shape, void *pool,
                             cudaStream_t stream);

/*
 * Leaves L2 full of lines of `buffer`, device, `bytes` (several times L2), by reading it. Not by writing: lines that were written have to
 * go to memory while the next kernel runs, which costs it up to L2 / bandwidth (some 13 us on an H200) that no kernel before it in a
 * model would cost.
 */
cudaError_t kvd_l2_flush(void *buffer, size_t bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
