/*
 * Eviction after a prompt where layers or KV heads keep different numbers of tokens. Rows go to
 * pages of one KV head: 64 tokens, BLOCKED, K [64][d_qk], V [64][d_v].
 *
 * Calls per layer:
 *
 * prefixkv, cake: kvd_uneven_rank, kvd_uneven_store, and after the last layer kvd_uneven_choose
 * with stored = 1.
 *
 * kvzip: the same, but kvd_uneven_threshold once before kvd_uneven_choose with decided = 1.
 *
 * windowkv: kvd_uneven_windows (in a group's first layer), kvd_uneven_copy.
 *
 * taskkv, pyramidkv, adakv: kvd_uneven_prompts.
 *
 * kvmerger: kvd_uneven_runs.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_UNEVEN_H
#define KVD_METHODS_TOKENS_CUDA_UNEVEN_H

#include "methods/tokens/cuda/evict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arguments for whole prompts of a batch, in one layer. */
typedef struct {
    /*
     * prompt.budget [slot] is for this layer. prompt.pool and prompt.page_table hold prompts before
     * eviction.
     */
    kvd_evict_prompts_args prompt;
    /* Device scratch [batch][n_kv_heads + 1]: thresholds of sort keys. */
    unsigned long long *least;
    int32_t *count; /* device output [slot][n_kv_heads]: number of tokens that stay */
    /* Device [batch * n_kv_heads][max_pages]: page numbers in `heads`. */
    const int32_t *table;
    /* Device pages, each of one KV head. */
    void *heads;
    /*
     * Device [n_kv_heads][n_q8] token scores, or [1][n_q8] with rule.whole_layer. If NULL,
     * prompt.mass is summed and smoothed instead.
     */
    float *rank;
    /* Device output [slot][2] with KVD_EVICT_SPREAD: entropy and variance of attention. */
    double *statistic;
    /* Scratch memory for `statistic`, device [n_heads][n_q8 / 64 + batch][2]. */
    float *spread;
    /*
     * Number of KV heads that keep all tokens. `vector` and `is_whole` are device scratch memory.
     */
    int32_t whole;
    /* [batch][n_kv_heads][d_v] semantic vectors, up to a common factor */
    float *vector;
    int32_t *is_whole; /* [batch][n_kv_heads] 1 if the KV head keeps all tokens */
    /* 1 if `heads` already holds all tokens of the prompts. */
    int32_t stored;
    /* 1 if kvd_uneven_threshold has filled `least`, for all layers. */
    int32_t decided;
    /* Number of KV heads in all earlier layers if `decided`, otherwise 0. */
    int32_t first_head;
    /* Number of consecutive layers, from this one on, that keep this layer's windows. */
    int32_t layers;
    /* Elements between the parts of `count` of adjacent layers. */
    size_t layer_counts;
} kvd_uneven_prompts_args;

/* Scores all prompt tokens, then works like kvd_uneven_choose. */
cudaError_t kvd_uneven_prompts(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Chooses tokens by `rank` (or `mass`), fills `kept` and `count` and copies rows. */
cudaError_t kvd_uneven_choose(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/*
 * Merges runs of tokens with similar keys (kvmerger) and copies rows. prompt.merging.count must be
 * `count`.
 */
cudaError_t kvd_uneven_runs(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Computes `rank` and, with KVD_EVICT_SPREAD, `statistic`. */
cudaError_t kvd_uneven_rank(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/*
 * Fills `least` from n_layers layers, beginning with that of `args`. rank is
 * [n_layers][n_kv_heads][n_q8], budget.keep_old the mean number of tokens per KV head. Among equal
 * scores, tokens of later layers stay, then of later KV heads, then later tokens (kvzip.c).
 */
cudaError_t kvd_uneven_threshold(const kvd_uneven_prompts_args *args, int32_t n_layers,
                                 cudaStream_t stream);
/*
 * Chooses windows of rule.review tokens. Fills `kept` of this layer, and `count` of `layers`
 * layers.
 */
cudaError_t kvd_uneven_windows(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Copy K and V of prompts to `heads`: all tokens, or those in `kept`. */
cudaError_t kvd_uneven_store(const kvd_uneven_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_uneven_copy(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Moves the tokens in `kept` to the front of their KV head's pages. */
cudaError_t kvd_uneven_compact(const kvd_uneven_prompts_args *args, cudaStream_t stream);

/* Arguments for one decode step per request, in one layer. */
typedef struct {
    kvd_attn_map map;
    int32_t batch, max_pages;
    /* Device [batch]: slot of each row. Slots from n_slots on are padding. */
    const int32_t *slot;
    int32_t n_slots;
    /*
     * [batch][max_pages] on the device: page numbers in `from`. New K and V of request b are in the
     * first row of page from_table[b][0].
     */
    const int32_t *from_table; /* device [batch][max_pages] */
    const void *from;          /* device pages with all KV heads of the layer */
    /* Device [batch * n_kv_heads]: number of cached tokens with the new one. */
    const int32_t *kv_len;
    const int32_t *table; /* device [batch * n_kv_heads][max_pages] page numbers in `heads` */
    void *heads;          /* device pages, each of one KV head */
} kvd_uneven_step_args;

/* Copies new K and V to the end of each KV head's pages. */
cudaError_t kvd_uneven_step(const kvd_uneven_step_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
