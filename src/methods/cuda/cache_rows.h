/* Kernels on K and V of a cache: rounding, copies to and from pages, quantisation, and sums of the
 * attention that tokens receive. */
#ifndef KVD_METHODS_CUDA_CACHE_ROWS_H
#define KVD_METHODS_CUDA_CACHE_ROWS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/half.h"
#include "kernels/layout.h"
#include "methods/bits/packed_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rounds x [n][width] of type `type`, ld elements per token, to type `store`, and writes the result
 * as float32. */
cudaError_t kvd_cache_round(kvd_dtype type, const void *x, size_t ld, kvd_dtype store, size_t n,
                            size_t width, float *to, cudaStream_t stream);

/* Copies K and V of n pairs (token, KV head) from pages to rows [n][2 d] or, if `back`, from rows
 * to pages. k [n]: device address of each pair's K; its V is 64 d elements later. */
cudaError_t kvd_cache_move(uint16_t *const *k, size_t n, int d, uint16_t *rows, bool back,
                           cudaStream_t stream);

/* Attention of the new queries of n requests to tokens in bf16 pages. Arrays are device memory. In
 * prompts all tokens are new; a decode step has one new token. */
typedef struct {
    kvd_attn_map map;
    bool prompts;
    int32_t n, max_pages;
    const int32_t *kv_len;     /* [n] number of tokens of a request */
    const int32_t *page_table; /* [n][max_pages] */
    /* Queries in bf16. Prompts: in 8 x 8 blocks (kernels/layout.h), from row q_start[b] on. Decode
     * steps: row-major [n][map.q_pitch]. */
    const void *q;
    const int32_t *q_start; /* [n] for prompts */
    int32_t n_q8;           /* rows of `q` of prompts */
    const void *pool;
    /* Natural log of the softmax denominators: [n_heads][n_q8] for prompts, [n][n_heads] for decode
     * steps. */
    const float *lse;
    /* Number of tokens that are quantised together and leave the sliding window together. */
    int32_t block;
    /* Number of newest tokens for which decode steps compute sums of attention probabilities. */
    int32_t newest;
    /* Output: sum of the attention probabilities of each token, per KV head. Shape:
     * [n_kv_heads][n_q8] for prompts, [n][n_kv_heads][newest] for decode steps, where token t has
     * index t % newest. */
    float *sum;
} kvd_cache_received;
/* Writes to a->sum the attention probabilities that each token receives, summed over queries and
 * over the query heads of a KV head. Writes no sum for tokens that have left the window. */
cudaError_t kvd_cache_receive(const kvd_cache_received *a, cudaStream_t stream);

/* Rows to quantise in one KV head. first: index of the first row of K (element 0) and of V (element
 * 1). n: number of rows of K and of V. */
typedef struct {
    int32_t first[2], n[2];
    float scale[2]; /* of the tensor (kvd_scales_at), for floating-point codes */
} kvd_cache_codes;

/* Quantises rows of K and V and replaces them by the decoded values. `list` [n], in device memory,
 * selects the rows in `rows` [][2 d].
 *
 * With integer codes, each scale of K covers `group` tokens of a channel, and each scale of V
 * covers `group` channels of a token. */
cudaError_t kvd_cache_code(uint16_t *rows, int d, const kvd_cache_codes *list, size_t n,
                           const kvd_packed_form *f, int group, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
