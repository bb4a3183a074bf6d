/* Kernels of token method lower together with quantisation method hetero: tokens are quantised with
 * many (high precision) or few (low precision) bits per number. Launchers return cudaError_t and
 * never synchronise or allocate. */
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

/* Tokens at high precision: the `recent` newest, and `heavy` older ones with the largest scores. */
typedef struct {
    int32_t heavy, recent;
} kvd_lower_budget;

/* Cache of a layer and a batch, in device memory. A head has d_head numbers of K and of V. */
typedef struct {
    kvd_attn_map map;
    int32_t d_head;
    /* Bits per number of K and V, at high and at low precision: 1 .. 8, or 16 (float16). */
    int32_t bits[2][KVD_LOWER_LEVELS];
    int32_t n, max_pages, n_sms;
    const int32_t *kv_len, *slot; /* [n] */
    const int32_t *page_table;    /* [n][max_pages] */
    /* bf16 pages of the layer. In decode steps they hold the newest token. */
    uint16_t *rows;
    /* [pages][n_kv_heads][2][KVD_PAGE_TOKENS] Quantised vectors of kvd_lower_words words. For every
     * 32 numbers, word j has bit j of them. The last word has the float16 step and zero point,
     * unless numbers have 16 bits. */
    uint32_t *codes;
    uint8_t *level; /* [pages][n_kv_heads][KVD_PAGE_TOKENS] */
    float *score;   /* [pages][n_kv_heads][KVD_PAGE_TOKENS] sums of probabilities */
    /* [slots][n_kv_heads][d_head] Channel factors of low-precision keys, float16, or NULL. */
    uint16_t *factor;
    const kvd_lower_budget *budget; /* [slots] */
} kvd_lower_args;

/* Returns the number of 32-bit words with room for a quantised vector of d numbers at either
 * precision. bits: bits per number at high and at low precision. */
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
    /* [n_heads][n_q8] Attention that each token received. */
    const float *mass;
    const void *q; /* bf16 queries, BLOCKED */
} kvd_lower_prompts_args;

/* Chooses the precision of each prompt token, computes channel factors and quantises the tokens. */
cudaError_t kvd_lower_prompts(const kvd_lower_args *a, const kvd_lower_prompts_args *p,
                              cudaStream_t stream);
/* Rounds K and V of the newest min(q_len[i], `most`) tokens of each request i, in the bf16 pages
 * a->rows, to numbers that can be stored at high precision without loss. q_len [n] is on the
 * device. Members of *a for codes, levels, scores, factors and budgets are not used. */
cudaError_t kvd_lower_round(const kvd_lower_args *a, const int32_t *q_len, int32_t most,
                            cudaStream_t stream);
/* Decodes all but the newest token to bf16 pages, and zeroes later rows up to a multiple of 8. */
cudaError_t kvd_lower_restore(const kvd_lower_args *a, cudaStream_t stream);
/* Adds the steps' probabilities to scores and quantises the newest tokens. One token per KV head
 * may be quantised with fewer bits. Must follow kvd_lower_restore and attention. q [n][q_pitch] is
 * bf16, lse [n][n_heads] has natural logs of softmax denominators. */
cudaError_t kvd_lower_steps(const kvd_lower_args *a, const void *q, const float *lse,
                            cudaStream_t stream);

#ifdef __cplusplus
}
#else
#include "methods/cuda/gpu_method.h"

/* Rounds K and V in a layer with a sliding window to numbers that have codes at high precision
 * (bits[..][KVD_LOWER_HIGH]): the prompts' tokens in the window, and the tokens of decode steps.
 * Must follow attention. */
int kvd_lower_round_window(const struct kvd_paged_cache *c, const kvd_paged_rows *r,
                           const int32_t bits[2][KVD_LOWER_LEVELS], kvd_err *err);
#endif
#endif
