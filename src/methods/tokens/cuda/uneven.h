/*
 * Eviction at the end of a prompt for methods whose layers or KV heads keep different numbers of
 * tokens (pyramidkv, adakv, prefixkv, cake, windowkv). The rows that stay are moved from the pages
 * of a layer, which hold all KV heads, to pages of one KV head each. The new row of every decode
 * step is moved in the same way. Scores are computed by the kernels of evict.h.
 *
 * If the budget of a layer depends on all layers (prefixkv, cake), the pages of KV heads hold all
 * tokens of a prompt until its last layer is done. Each layer calls kvd_uneven_rank and
 * kvd_uneven_store. After the last layer, kvd_uneven_choose runs once for every layer, with
 * `stored` set to 1. If several layers keep the same tokens (windowkv), the first of them calls
 * kvd_uneven_windows, and each of them kvd_uneven_copy.
 *
 * A page of one KV head holds KVD_PAGE_TOKENS (64) tokens in layout BLOCKED: K [64][d_qk], then V
 * [64][d_v]. All KV heads have the same widths d_qk and d_v.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_UNEVEN_H
#define KVD_METHODS_TOKENS_CUDA_UNEVEN_H

#include "methods/tokens/cuda/evict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arguments for the whole prompts of a batch in one layer. */
typedef struct {
    /*
     * Arguments of the scoring kernels: the prompts, the rule and the scratch arrays of
     * kvd_evict_prompts. `budget` [slot] has the budgets of this layer; `state` is not used. `pool`
     * and `page_table` hold the prompts' rows before eviction.
     */
    kvd_evict_prompts_args prompt;
    /* Scratch, device [batch][n_kv_heads + 1]: thresholds of sort keys. */
    unsigned long long *least;
    int32_t *count; /* output, device [slot][n_kv_heads]: number of tokens that stay */
    /*
     * Page numbers in `heads` for the tokens that stay in every KV head, device [batch *
     * n_kv_heads][max_pages].
     */
    const int32_t *table;
    /* Device memory of pages that each hold tokens of a single KV head. */
    void *heads;
    /*
     * Scores that kvd_uneven_rank writes and by which kvd_uneven_choose ranks tokens, device
     * [n_kv_heads][n_q8], or [1][n_q8] if rule.whole_layer is set. If NULL, kvd_uneven_choose sums
     * and smooths prompt.mass instead.
     */
    float *rank;
    /*
     * Output of kvd_uneven_rank, with KVD_EVICT_SPREAD only: entropy and variance of the layer's
     * attention for every prompt, device [slot][2].
     */
    double *statistic;
    /*
     * Scratch for `statistic`: its terms per query head and page, device
     * [n_heads][n_q8 / 64 + batch][2].
     */
    float *spread;
    /* 1: the pages of KV heads already hold all tokens of the prompts; 0: they hold none. */
    int32_t stored;
    /*
     * Number of consecutive layers, starting with this one, that keep the tokens that
     * kvd_uneven_windows chooses.
     */
    int32_t layers;
    /* Number of elements of `count` from one layer to the next. */
    size_t layer_counts;
} kvd_uneven_prompts_args;

/*
 * Computes the scores of whole prompts, chooses the tokens that stay in every KV head, and copies
 * their rows to `heads`.
 */
cudaError_t kvd_uneven_prompts(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/*
 * Does the part of kvd_uneven_prompts after scoring: chooses tokens by `rank`, or by `mass` if
 * `rank` is NULL, fills `kept` and `count`, and copies the rows that stay.
 */
cudaError_t kvd_uneven_choose(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Computes the scores `rank` of whole prompts of a layer, and `statistic` if the rule needs it. */
cudaError_t kvd_uneven_rank(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/*
 * Computes the scores of the windows of a layer (runs of rule.review tokens), chooses the windows
 * that stay, and fills `kept` for this layer and `count` for `layers` layers. Does not use `rank`.
 */
cudaError_t kvd_uneven_windows(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/*
 * Copy rows of the prompts of a layer to the pages of KV heads: kvd_uneven_store those of all
 * tokens, kvd_uneven_copy those of the `count` tokens in `kept`.
 */
cudaError_t kvd_uneven_store(const kvd_uneven_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_uneven_copy(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/*
 * Moves the rows of the tokens in `kept` to the front of the pages of their KV head, which hold all
 * tokens. kvd_uneven_choose calls it last if `stored` is 1.
 */
cudaError_t kvd_uneven_compact(const kvd_uneven_prompts_args *args, cudaStream_t stream);

/* Arguments for one decode step of every request of a batch in one layer. */
typedef struct {
    kvd_attn_map map;
    int32_t batch, max_pages;
    /* Slot of each request, device [batch]. A row whose slot is at least n_slots is idle. */
    const int32_t *slot;
    int32_t n_slots;
    /* The new token of request b is the first row of page from_table [b][0] of `from`. */
    const int32_t *from_table; /* page numbers in `from`, device [batch][max_pages] */
    const void *from;          /* pages that hold all KV heads of the layer, on the device */
    /* Number of entries of every KV head, the new token included, device [batch * n_kv_heads]. */
    const int32_t *kv_len;
    const int32_t *table; /* device [batch * n_kv_heads][max_pages]: page numbers in `heads` */
    void *heads;          /* device memory of pages that each hold tokens of a single KV head */
} kvd_uneven_step_args;

/*
 * For every request, copies the new token's row of every KV head to the end of that head's pages,
 * in one launch.
 */
cudaError_t kvd_uneven_step(const kvd_uneven_step_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
