/*
 * Kernels of method lower with hetero. Tokens are quantised with many (high precision) or few (low
 * precision) bits, with step and zero point per vector. Launchers return cudaError_t and never
 * synchronise, allocate or print.
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

/* Tokens at high precision: the `recent` newest, and `heavy` others with the largest scores. */
typedef struct {
    int32_t heavy, recent;
} kvd_lower_budget;

/* Cache of a layer and a batch, in device memory. A head has d_head numbers of K and of V. */
typedef struct {
    kvd_attn_map map;
    int32_t d_head;
    /* Bits per number of K and V at each precision: 1 .. 8, or 16 (float16). */
    int32_t bits[2][KVD_LOWER_LEVELS];
    int32_t n, max_pages, n_sms;
    const int32_t *kv_len, *slot; /* [n] */
    const int32_t *page_table;    /* [n][max_pages] */
    /* bf16 pages of the layer. In decode steps they hold the newest token. */
    uint16_t *rows;
    /*
     * Vector records [pages][n_kv_heads][2][KVD_PAGE_TOKENS] of kvd_lower_words words. For every 32
     * numbers, word j has bit j of their codes. The last word has the float16 step and zero point,
     * unless codes have 16 bits.
     */
    uint32_t *codes;
    uint8_t *level; /* [pages][n_kv_heads][KVD_PAGE_TOKENS] */
    float *score;   /* [pages][n_kv_heads][KVD_PAGE_TOKENS] sums of probabilities */
    /* Channel factors of low-precision keys, float16 [slots][n_kv_heads][d_head], or NULL. */
    uint16_t *factor;
    const kvd_lower_budget *budget; /* [slots] */
} kvd_lower_args;

/* Returns the number of words of a vector's record with `bits` bits per number. */
KVD_LOWER_INLINE int32_t kvd_lower_words(const int32_t bits[KVD_LOWER_LEVELS], int32_t d)
{
    const int32_t high = (d + 31) / 32 * bits[0] + (bits[0] < 16),
                  low = (d + 31) / 32 * bits[1] + (bits[1] < 16);
    return high > low ? high : low;
}

/* Prompts of a batch after their attention, in device memory. */
typedef struct {
    int32_t n_q8;
    const int32_t *q_start; /* [n] first row of each prompt in `mass` and `q` */
    /* Probabilities that each token received, [n_heads][n_q8]. */
    const float *mass;
    const void *q; /* bf16 queries, BLOCKED */
} kvd_lower_prompts_args;

/* Chooses the precision of each prompt token, computes channel factors and quantises the tokens. */
cudaError_t kvd_lower_prompts(const kvd_lower_args *a, const kvd_lower_prompts_args *p,
                              cudaStream_t stream);
/* Decodes all tokens but the newest to bf16. Rows after it become 0, up to a multiple of 8. */
cudaError_t kvd_lower_restore(const kvd_lower_args *a, cudaStream_t stream);
/*
 * Adds the steps' probabilities to scores and quantises the newest tokens. If more than `heavy`
 * older tokens have high precision, the one with the smallest score is quantised with fewer bits.
 * Must follow kvd_lower_restore and attention. q: bf16 [n][q_pitch]. lse [n][n_heads]: ln of
 * softmax denominators.
 */
cudaError_t kvd_lower_steps(const kvd_lower_args *a, const void *q, const float *lse,
                            cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
