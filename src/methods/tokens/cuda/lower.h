/* Kernels for the method pair `lower+hetero`: important tokens are quantised with more bits per
 * number (high precision) than other tokens (low precision). Functions that return cudaError_t only
 * queue kernels. They never synchronise or allocate. */
#ifndef KVD_METHODS_TOKENS_CUDA_LOWER_H
#define KVD_METHODS_TOKENS_CUDA_LOWER_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"

#ifdef __CUDACC__
#define KVD_LOWER_INLINE static __host__ __device__ __forceinline__
#else
#define KVD_LOWER_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_LOWER_HIGH, KVD_LOWER_LOW, KVD_LOWER_LEVELS };

/* Number of tokens that a KV head keeps at high precision: the `recent` newest tokens, and the
 * `heavy` older tokens with the largest scores. */
typedef struct {
    int32_t heavy, recent;
} kvd_lower_budget;

/* Cache of one layer for a batch of requests, in device memory. K and V of a KV head have d_head
 * numbers per token. */
typedef struct {
    kvd_attn_map map;
    int32_t d_head;
    /* Bits per number at high and at low precision, for K, then for V: 1 to 8, or 16 for
     * float16. */
    int32_t bits[2][KVD_LOWER_LEVELS];
    int32_t n, max_pages, n_sms;
    const int32_t *kv_len, *slot; /* [n] */
    const int32_t *page_table;    /* [n][max_pages] */
    /* bf16 pages of the layer. When a decode step begins, they hold only the newest token. */
    uint16_t *rows;
    /* [pages][n_kv_heads][2][KVD_PAGE_TOKENS] Quantised K and V. A vector has kvd_lower_words
     * words. Each group of 32 numbers has one word per bit: word j has bit j of the 32 numbers. The
     * last word has the float16 step and zero point, unless numbers have 16 bits. */
    uint32_t *codes;
    uint8_t *level; /* [pages][n_kv_heads][KVD_PAGE_TOKENS] */
    float *score;   /* [pages][n_kv_heads][KVD_PAGE_TOKENS] sums of probabilities */
    /* [slots][n_kv_heads][d_head] float16 factors that multiply the channels of keys before these
     * are quantised at low precision. NULL if there are none. */
    uint16_t *factor;
    const kvd_lower_budget *budget; /* [slots] */
} kvd_lower_args;

/* Returns the number of 32-bit words that a quantised vector of d numbers needs at most. bits: bits
 * per number at high and at low precision. */
KVD_LOWER_INLINE int32_t kvd_lower_words(const int32_t bits[KVD_LOWER_LEVELS], int32_t d)
{
    const int32_t high = (d + 31) / 32 * bits[0] + (bits[0] < 16),
                  low = (d + 31) / 32 * bits[1] + (bits[1] < 16);
    return high > low ? high : low;
}

/* Queries of a batch of prompts in one layer, and the attention that prompt tokens received, in
 * device memory. */
typedef struct {
    int32_t n_q8;
    const int32_t *q_start; /* [n] first row of each prompt in `mass` and `q` */
    /* [n_heads][n_q8] Attention that each prompt token received, per query head. */
    const float *mass;
    const void *q; /* bf16 queries, BLOCKED */
} kvd_lower_prompts_args;

/* Chooses the precision of each prompt token, and quantises the tokens. Also computes a->factor, by
 * which key channels are multiplied before quantisation. */
cudaError_t kvd_lower_prompts(const kvd_lower_args *a, const kvd_lower_prompts_args *p,
                              cudaStream_t stream);
/* Quantises the newest min(q_len[i], `most`) tokens of each request i at high precision, and writes
 * the decoded K and V back to the bf16 pages a->rows. q_len [n] is in device memory. */
cudaError_t kvd_lower_round(const kvd_lower_args *a, const int32_t *q_len, int32_t most,
                            cudaStream_t stream);
/* Decodes all tokens but the newest to the bf16 pages a->rows. Fills the rest of the last group of
 * 8 tokens with zeros. */
cudaError_t kvd_lower_restore(const kvd_lower_args *a, cudaStream_t stream);
/* Adds a decode step's attention probabilities to the token scores. Quantises the newest token at
 * high precision and, per KV head, at most one older token at low precision.
 *
 * - q: bf16 queries [n][q_pitch]
 * - lse: natural logs of softmax denominators [n][n_heads]
 *
 * Must follow kvd_lower_restore and the attention. */
cudaError_t kvd_lower_steps(const kvd_lower_args *a, const void *q, const float *lse,
                            cudaStream_t stream);

#ifdef __cplusplus
}
#else
#include "methods/cuda/gpu_method.h"

/* Rounds K and V of new tokens, in a layer with a sliding window, to the values that high-precision
 * quantisation would give. Must follow the attention of the layer. */
int kvd_lower_round_window(const struct kvd_paged_cache *c, const kvd_paged_rows *r,
                           const int32_t bits[2][KVD_LOWER_LEVELS], kvd_err *err);
#endif
#endif
