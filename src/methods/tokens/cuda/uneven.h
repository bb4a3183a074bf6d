/* Drops prompt tokens by methods that keep different numbers of tokens in different layers or KV
 * heads. Kept tokens are stored in pages that belong to one KV head each. */
#ifndef KVD_METHODS_TOKENS_CUDA_UNEVEN_H
#define KVD_METHODS_TOKENS_CUDA_UNEVEN_H

#include "methods/tokens/cuda/evict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arguments for choosing and copying the tokens of whole prompts that stay, in one layer. */
typedef struct {
    /* Common arguments. `budget` is this layer's, `pool` has the prompts' uncompressed K and V. */
    kvd_evict_prompts_args prompt;
    /* Number of KV heads on all GPUs that are ranked together, and index of this GPU's first. */
    int32_t n_all, first;
    /* Scratch [batch][n_all + 1] in device memory: smallest sort key of the tokens that stay in
     * each KV head by its own scores, then of those that stay in a budget shared by all heads. */
    unsigned long long *least;
    int32_t *count; /* device output [slot][n_kv_heads]: number of tokens that stay */
    /* [batch * n_kv_heads][max_pages] in device memory: numbers of each KV head's pages. */
    const int32_t *table;
    /* Pages in device memory, each of one KV head. */
    void *heads;
    /* [n_all][n_q8] on the device: scores that rank the tokens of each KV head, or NULL to use
     * prompt.mass. A token has the index of its row of Q. */
    float *rank;
    /* Output [slot][2] on the device with KVD_EVICT_SPREAD: entropy, variance of attention. */
    double *statistic;
    /* Device scratch [n_heads][n_q8 / 64 + batch][2]: entropy, variance of attention per page. */
    float *spread;
    /* Number of KV heads that keep all tokens (method taskkv). */
    int32_t whole;
    /* [batch][n_all][d_v] Values of all tokens, weighted by attention and summed. */
    float *vector;
    int32_t *is_whole; /* [batch][n_all] 1 if the KV head keeps all tokens */
    /* 1 if the KV heads' pages already hold all tokens of the prompts. */
    int32_t stored;
    /* 1 if kvd_uneven_threshold has already computed `least`, smallest sort keys that stay. */
    int32_t decided;
    /* Number of KV heads in all earlier layers if all layers share one budget, otherwise 0. */
    int32_t first_head;
    /* Number of consecutive layers, from this one on, that keep the same tokens (windowkv). */
    int32_t layers;
    /* Number of elements from one layer to the next in the array of token counts. */
    size_t layer_counts;
} kvd_uneven_prompts_args;

/* Scores all prompt tokens, then chooses and copies tokens like kvd_uneven_choose. */
cudaError_t kvd_uneven_prompts(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Chooses tokens by args->rank or, if that is NULL, by prompt.mass (received attention). Fills
 * prompt.kept and count, and copies K and V of the tokens to pages of their KV heads. */
cudaError_t kvd_uneven_choose(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* For method taskkv: sums the V vectors of all tokens in each of this GPU's KV heads, weighted by
 * received attention (prompt.mass). Output: args->vector. */
cudaError_t kvd_uneven_vectors(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Merges runs of tokens with similar keys, and copies K and V of the tokens that stay.
 * args->prompt.merging.count must equal args->count. */
cudaError_t kvd_uneven_runs(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Writes the scores by which prompt tokens are ranked to args->rank and, with KVD_EVICT_SPREAD,
 * entropy and variance of attention to args->statistic. */
cudaError_t kvd_uneven_rank(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Computes the smallest sort keys that stay, args->least, for a budget that n_layers layers share,
 * beginning with the layer of `args`. rank [n_layers][n_all][n_q8] has the scores. budget.keep_old
 * is the mean number of tokens per KV head. If scores are equal, tokens of later layers stay. */
cudaError_t kvd_uneven_threshold(const kvd_uneven_prompts_args *args, int32_t n_layers,
                                 cudaStream_t stream);
/* Scores groups of rule.review adjacent tokens by received attention, summed over this GPU's heads.
 * Writes one score per group, from prompt.score[q_start] on. */
cudaError_t kvd_uneven_review(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Chooses groups of rule.review adjacent tokens, for args->layers layers. Fills kept and count. */
cudaError_t kvd_uneven_windows(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Copy K and V of all prompt tokens, or (kvd_uneven_copy) of kept tokens, to pages of KV heads. */
cudaError_t kvd_uneven_store(const kvd_uneven_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_uneven_copy(const kvd_uneven_prompts_args *args, cudaStream_t stream);

/* Arguments for copying the new K and V of decode steps to the cache, in one layer. */
typedef struct {
    kvd_attn_map map;
    int32_t batch, max_pages;
    /* [batch] in device memory: slot of each request. Slots from n_slots on are padding. */
    const int32_t *slot;
    int32_t n_slots;
    /* Page table on the device. The first page of each request has its new K and V. */
    const int32_t *from_table; /* device [batch][max_pages] */
    const void *from;          /* device pages with all KV heads of the layer */
    /* [batch * n_kv_heads] in device memory: number of cached tokens with the new one. */
    const int32_t *kv_len;
    const int32_t *table; /* device [batch * n_kv_heads][max_pages] page numbers in `heads` */
    void *heads;          /* device pages, each of one KV head */
} kvd_uneven_step_args;

/* Copies new K and V of decode steps to the end of each KV head's pages. */
cudaError_t kvd_uneven_step(const kvd_uneven_step_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#ifndef __cplusplus
#include "methods/cuda/paged_cache.h"
#include "methods/tokens/tokens.h"

/* State of a request, for methods whose KV heads keep different numbers of tokens. */
typedef struct {
    size_t tokens;
    /* Number of cached tokens, summed over KV heads and layers. */
    double held;
    int32_t merged; /* value of kvd_evict_merging.merged before this request */
} kvd_uneven_slot;

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_gpu_heads heads;
    kvd_evict_rule rule;
    /* Number of layers without a sliding window, and number of KV heads of this GPU. */
    size_t layers, kv;
    /* Number of KV heads of a layer, perhaps on several GPUs, whose tokens are ranked together. */
    size_t all;
    bool joined; /* true if several GPUs add up scores */
    size_t n_slots, max_len;
    kvd_uneven_slot *slot;
    size_t *entries; /* [n_slots][layers][kv] number of cached tokens */
    /* Pages of KV heads: head g of layer l in slot s has number (s * layers + l) * kv + g. */
    kvd_pages pages;
    size_t page_bytes;
    kvd_evict_budget *budget; /* pinned [layers][n_slots] */
    kvd_evict_budget *there;
    /* [layers][heads.rows] Number of cached tokens of each request's KV heads, including the new
     * token, in pinned memory. An additional last element has the number of decode steps times KV
     * heads. */
    int32_t *length;
    int32_t *lengths;
    /* [layers][n_slots][kv] in device memory: number of tokens of the latest prompt that stay. */
    int32_t *count;
    int32_t *counted;
    float *mass, *score, *lse;
    float *rank; /* device [all][n_q8] scores of all GPUs (adakv, taskkv), or NULL */
    int32_t *kept;
    unsigned long long *least;
    kvd_evict_merging merging;
    int32_t *merged; /* pinned [n_slots] copy of merging.merged */
    /* For methods that repeat each prompt: number of tokens of each prompt without its copy, in
     * pinned and in device memory. Otherwise NULL. */
    int32_t *prompt, *prompts;
    size_t whole; /* number of KV heads per layer that keep all tokens (taskkv) */
    float *vector;
    int32_t *is_whole;
    /* Data of methods whose token budgets depend on the scores of all layers. */
    struct {
        /* True if budgets depend on all layers (kvd_tokens_eviction.divide is set or `shared`). */
        bool on, shared; /* true if KV heads of all layers share one budget */
        /* True if budgets depend on entropy and variance of attention, false if on scores. */
        bool spreads;
        /* Ranking scores per token and layer: one per KV head of all GPUs, or 1 for all heads. */
        size_t ranks;
        float *rank;   /* device [layers][ranks][n_q8] ranking scores */
        float *spread; /* device scratch memory of kvd_uneven_rank */
        /* [GPUs][layers][n_slots][2] Entropy, variance of attention, on the device and pinned. */
        double *pair;
        double *pairs;
        double *own; /* those of this GPU [layers][n_slots][2], if joined */
        float *scores;
        double *x;                  /* one prompt's statistics, as kvd_evict_layers.x */
        kvd_evict_budget *of_layer; /* [layers] one prompt's budgets */
        size_t first, end;
        kvd_err err;
    } late;
    cudaStream_t stream;
    kvd_device_memory memory;
} kvd_uneven;

/* Returns the kernel arguments for the prompts of a batch in one layer. */
kvd_uneven_prompts_args kvd_uneven_prompts_of(const kvd_uneven *e, const kvd_paged_rows *r,
                                              int layer);
/* Returns the number of GPUs whose scores are added up. */
size_t kvd_uneven_gpus(const kvd_uneven *e);
/* Allocates e->late, scores and budgets of all layers, for `slices` prompts with `rows` tokens. */
int kvd_uneven_make_late(kvd_uneven *e, size_t rows, size_t slices, kvd_err *err);
/* Starts choosing tokens in all layers. Must be called after the scores of the last layer. */
int kvd_uneven_after_layers(kvd_uneven *e, const kvd_paged_rows *r, kvd_err *err);
/* Zeroes the scores of all layers, because each GPU then writes only those of its KV heads. */
int kvd_uneven_clear(const kvd_uneven *e, cudaStream_t stream, kvd_err *err);
/* Chooses the tokens of prompts in a layer by the scores of the KV heads of all GPUs. */
int kvd_uneven_choose_joined(const kvd_uneven *e, const kvd_uneven_prompts_args *a,
                             cudaStream_t stream, kvd_err *err);
#endif
#endif
