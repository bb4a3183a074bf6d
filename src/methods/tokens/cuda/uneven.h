/*
 * Eviction at the end of a prompt for methods whose layers or KV heads keep different numbers of
 * tokens (pyramidkv, adakv, prefixkv, cake, windowkv, taskkv, kvmerger, kvzip). The rows of the
 * tokens that stay are copied from the pages of a layer to pages of one KV head each.
 *
 * The caller must call these functions:
 *
 * prefixkv, cake (the budget of a layer depends on all layers): in each layer kvd_uneven_rank and
 * kvd_uneven_store. After the last layer kvd_uneven_choose for every layer, with `stored` set to 1.
 * kvzip (the KV heads of all layers share one budget): in each layer kvd_uneven_rank and
 * kvd_uneven_store. After the last layer kvd_uneven_threshold once, then kvd_uneven_choose for
 * every layer, with `stored` and `decided` set to 1.
 * windowkv (several layers keep the same tokens): in the first of these layers kvd_uneven_windows,
 * in each of them kvd_uneven_copy.
 * taskkv (some KV heads of a layer keep all tokens): in each layer kvd_uneven_prompts, whose
 * kvd_uneven_choose finds these heads by their semantic vectors.
 * kvmerger: in each layer kvd_uneven_runs.
 * other methods: in each layer kvd_uneven_prompts.
 *
 * A page of one KV head holds KVD_PAGE_TOKENS (64) tokens in layout BLOCKED: K [64][d_qk], then V
 * [64][d_v]. All KV heads have the same widths.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_UNEVEN_H
#define KVD_METHODS_TOKENS_CUDA_UNEVEN_H

#include "methods/tokens/cuda/evict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arguments for the whole prompts of a batch, in one layer. */
typedef struct {
    /*
     * `prompt.budget` [slot] is for this layer. `prompt.state` is not used. `prompt.pool` and
     * `prompt.page_table` hold the prompts before eviction.
     */
    kvd_evict_prompts_args prompt;
    /* Scratch, device [batch][n_kv_heads + 1]: thresholds of sort keys. */
    unsigned long long *least;
    int32_t *count; /* output, device [slot][n_kv_heads]: number of tokens that stay */
    /*
     * Device [batch * n_kv_heads][max_pages]: for each prompt and KV head, its page numbers in
     * `heads`.
     */
    const int32_t *table;
    /* Device memory of the pages, each of which belongs to one KV head. */
    void *heads;
    /*
     * Scores of tokens, device [n_kv_heads][n_q8], or [1][n_q8] if rule.whole_layer is set. If
     * NULL, kvd_uneven_choose computes the scores itself, by summing and smoothing prompt.mass.
     */
    float *rank;
    /*
     * Output of kvd_uneven_rank, for KVD_EVICT_SPREAD only: entropy and variance of the attention,
     * device [slot][2].
     */
    double *statistic;
    /* Scratch for `statistic`, device [n_heads][n_q8 / 64 + batch][2]. */
    float *spread;
    /*
     * Number of KV heads that keep all tokens, chosen by semantic vectors. If it is above 0,
     * `vector` and `is_whole` are scratch on the device.
     */
    int32_t whole;
    /* [batch][n_kv_heads][d_v] semantic vectors (all multiplied by the same unknown factor) */
    float *vector;
    int32_t *is_whole; /* [batch][n_kv_heads] 1: the KV head keeps all tokens */
    /* 1 if the pages in `heads` already hold all tokens of the prompts. */
    int32_t stored;
    /* 1 if kvd_uneven_threshold has filled `least`. The threshold is then common to all layers. */
    int32_t decided;
    /* Number of KV heads in all earlier layers if `decided` is 1; otherwise 0. */
    int32_t first_head;
    /*
     * Number of consecutive layers, from this one on, that keep the tokens chosen by
     * kvd_uneven_windows.
     */
    int32_t layers;
    /* Distance in elements between the parts of `count` of two adjacent layers. */
    size_t layer_counts;
} kvd_uneven_prompts_args;

/* Computes the scores of all prompt tokens, then does the work of kvd_uneven_choose. */
cudaError_t kvd_uneven_prompts(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/*
 * Chooses tokens by `rank` (or `mass`), fills `kept` and `count`, and copies K and V of the tokens
 * that stay.
 */
cudaError_t kvd_uneven_choose(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/*
 * Merges runs of tokens with similar keys (kvmerger), and copies the tokens that stay. The array
 * prompt.merging.count must be `count`.
 */
cudaError_t kvd_uneven_runs(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Computes the scores in `rank`, and `statistic` if the rule is KVD_EVICT_SPREAD. */
cudaError_t kvd_uneven_rank(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/*
 * Fills `least` from the scores of all KV heads of n_layers layers. `args` describes the first
 * layer, but `rank` has the elements of all layers: [n_layers][n_kv_heads][n_q8]. budget.keep_old
 * is the mean number of tokens that a KV head keeps. Equal scores are ranked by layer, then by KV
 * head, then by token; the later one is higher (kvzip.c).
 */
cudaError_t kvd_uneven_threshold(const kvd_uneven_prompts_args *args, int32_t n_layers,
                                 cudaStream_t stream);
/*
 * Chooses the windows (rule.review adjacent tokens each) with the largest scores. Fills `kept` for
 * this layer and `count` for `layers` layers. Does not use `rank`.
 */
cudaError_t kvd_uneven_windows(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/*
 * Copy K and V of prompts to the pages in `heads`. kvd_uneven_store copies all tokens.
 * kvd_uneven_copy copies the tokens in `kept`.
 */
cudaError_t kvd_uneven_store(const kvd_uneven_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_uneven_copy(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/*
 * Moves K and V of the tokens in `kept` to the front of the pages of their KV head, which must hold
 * all tokens. kvd_uneven_choose calls it if `stored` is 1.
 */
cudaError_t kvd_uneven_compact(const kvd_uneven_prompts_args *args, cudaStream_t stream);

/* Arguments for one decode step of every request of a batch, in one layer. */
typedef struct {
    kvd_attn_map map;
    int32_t batch, max_pages;
    /*
     * Device [batch]: slot of each row of the batch. A row whose slot is n_slots or more has no
     * request.
     */
    const int32_t *slot;
    int32_t n_slots;
    /*
     * Page numbers in the pool `from`. K and V of the new token of request b are in the first row
     * of page from_table[b][0].
     */
    const int32_t *from_table; /* device [batch][max_pages] */
    const void *from;          /* device pages that hold all KV heads of the layer */
    /*
     * Number of cached tokens of every KV head, the new token included, device [batch *
     * n_kv_heads].
     */
    const int32_t *kv_len;
    const int32_t *table; /* device [batch * n_kv_heads][max_pages]: page numbers in `heads` */
    void *heads;          /* device memory of the pages, each of one KV head */
} kvd_uneven_step_args;

/* Copies K and V of the new token of every request to the end of the pages of each KV head. */
cudaError_t kvd_uneven_step(const kvd_uneven_step_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
