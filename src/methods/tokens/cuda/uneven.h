/*
 * Eviction at the end of a prompt whose layers or KV heads keep different numbers of tokens
 * (methods/tokens: pyramidkv, adakv). The rows that stay move from the pages of a layer, which hold
 * all KV heads, to pages of one KV head each; so does the new row of every step. Scores are those
 * of evict.h.
 *
 * A page of one KV head holds KVD_PAGE_TOKENS tokens in layout BLOCKED: K [64][d_qk], then V
 * [64][d_v]. All KV heads have the same widths.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_UNEVEN_H
#define KVD_METHODS_TOKENS_CUDA_UNEVEN_H

#include "methods/tokens/cuda/evict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arguments for whole prompts of a layer. */
typedef struct {
    /*
     * Arguments of the scoring kernels: prompts, rule and scratch of kvd_evict_prompts. `budget`
     * [slot] are the budgets of this layer; `state` is not used. `pool` and `page_table` hold the
     * prompts' rows.
     */
    kvd_evict_prompts_args prompt;
    unsigned long long *least; /* device [batch][n_kv_heads + 1], scratch */
    int32_t *count;            /* output, device [slot][n_kv_heads]: number of tokens that stay */
    /* Pages of every KV head for the tokens that stay, device [batch * n_kv_heads][max_pages]. */
    const int32_t *table;
    void *heads; /* device, pages of one KV head */
} kvd_uneven_prompts_args;

/* Computes the scores of whole prompts, chooses the tokens that stay, and copies their rows. */
cudaError_t kvd_uneven_prompts(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/*
 * Does the part of kvd_uneven_prompts after the scores: chooses tokens from `mass`, fills `kept`
 * and `count`, and copies the rows.
 */
cudaError_t kvd_uneven_choose(const kvd_uneven_prompts_args *args, cudaStream_t stream);

/* Arguments for one decode step of every request of a layer. */
typedef struct {
    kvd_attn_map map;
    int32_t batch, max_pages;
    /* Slot of each request, device [batch]; rows whose slot is at least n_slots are idle. */
    const int32_t *slot;
    int32_t n_slots;
    /* The new row of request b is the first row of page from_table [b][0] of `from`. */
    const int32_t *from_table; /* device [batch][max_pages] */
    const void *from;          /* device, pages of all KV heads of the layer */
    /* Number of entries of every KV head including the new one, device [batch * n_kv_heads]. */
    const int32_t *kv_len;
    const int32_t *table; /* device [batch * n_kv_heads][max_pages] */
    void *heads;          /* device, pages of one KV head */
} kvd_uneven_step_args;

/*
 * Copies the new row of every decode step to the end of the entries of every KV head, in one
 * launch.
 */
cudaError_t kvd_uneven_step(const kvd_uneven_step_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
