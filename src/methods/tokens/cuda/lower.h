/*
 * Kernels of method lower together with hetero (methods/tokens/lower.c, methods/bits/hetero.c) in
 * the CUDA engine: every token of a KV head is stored as codes of many bits (high) or of fewer bits
 * (low). A vector, K or V of a token and KV head, has a step and a zero point of its own.
 *
 * Launchers return cudaError_t, launch on the stream, and never synchronise, allocate or print.
 */
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

/*
 * Numbers of tokens that stay at high precision: the `recent` newest tokens, and the `heavy` older
 * tokens with the largest scores.
 */
typedef struct {
    int32_t heavy, recent;
} kvd_lower_budget;

/*
 * One layer, its memory, and the requests of a batch. Every KV head has d_head numbers of K and of
 * V. Pointers are device memory.
 */
typedef struct {
    kvd_attn_map map;
    int32_t d_head;
    /* bits of codes of K and of V at each precision level: 1 .. 8, or 16 for float16 numbers */
    int32_t bits[2][KVD_LOWER_LEVELS];
    int32_t n, max_pages, n_sms;
    const int32_t *kv_len, *slot; /* [n] */
    const int32_t *page_table;    /* [n][max_pages] */
    /* bf16 pages of the layer. In a decode step they hold the newest token. */
    uint16_t *rows;
    /*
     * Records of vectors, [pages][n_kv_heads][2][KVD_PAGE_TOKENS]. Each record has kvd_lower_words
     * words: for every 32 numbers, word j has bit j of their codes; the last word has the float16
     * step in its lower half and the zero point above. Codes of 16 bits have no such last word.
     */
    uint32_t *codes;
    uint8_t *level; /* [pages][n_kv_heads][KVD_PAGE_TOKENS] */
    float *score;   /* [pages][n_kv_heads][KVD_PAGE_TOKENS] sums of attention probabilities */
    /*
     * Factors by which the channels of keys at low precision are multiplied before they are coded,
     * float16, [slots][n_kv_heads][d_head]. NULL: none.
     */
    uint16_t *factor;
    const kvd_lower_budget *budget; /* [slots] */
} kvd_lower_args;

/* Returns the number of words of the record of a vector with `bits` bits per code. */
KVD_LOWER_INLINE int32_t kvd_lower_words(const int32_t bits[KVD_LOWER_LEVELS], int32_t d)
{
    const int32_t high = (d + 31) / 32 * bits[0] + (bits[0] < 16),
                  low = (d + 31) / 32 * bits[1] + (bits[1] < 16);
    return high > low ? high : low;
}

/* Prompts of a batch after their attention. Pointers are device memory. */
typedef struct {
    int32_t n_q8;
    const int32_t *q_start; /* [n] first row of each prompt in `mass` and `q` */
    /* Sums of the probabilities that each token received, [n_heads][n_q8]. */
    const float *mass;
    const void *q; /* queries, bf16, in layout BLOCKED */
} kvd_lower_prompts_args;

/*
 * Chooses the level of every token of the prompts in every KV head, computes the factors of
 * channels, and codes the tokens.
 */
cudaError_t kvd_lower_prompts(const kvd_lower_args *a, const kvd_lower_prompts_args *p,
                              cudaStream_t stream);
/*
 * Restores all tokens but the newest of decode steps to `rows`, and sets the rows after the newest
 * token to 0 up to a multiple of 8.
 */
cudaError_t kvd_lower_restore(const kvd_lower_args *a, cudaStream_t stream);
/*
 * Adds the probabilities of decode steps to the scores and codes the newest token. A KV head may
 * then have more than `heavy` high-precision tokens before its `recent` newest tokens. In that
 * case, the one of these tokens that has the smallest score is coded at low precision. q
 * [n][q_pitch] are the queries in bf16, lse [n][n_heads] the natural logarithms of the softmax
 * denominators. Must follow kvd_lower_restore and the attention of the steps.
 */
cudaError_t kvd_lower_steps(const kvd_lower_args *a, const void *q, const float *lse,
                            cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
