/* GPU functions that keep different numbers of prompt tokens in different layers or KV heads. A
 * page stores tokens of only one KV head. */
#ifndef KVD_METHODS_TOKENS_CUDA_UNEVEN_H
#define KVD_METHODS_TOKENS_CUDA_UNEVEN_H

#include "methods/tokens/cuda/evict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arguments for choosing the prompt tokens that stay and copying them, in one layer, for a batch of
 * whole prompts. */
typedef struct {
    /* Arguments that all token-dropping methods use. `budget` is that of this layer, `pool` has the
     * uncompressed K and V of the prompts. */
    kvd_evict_prompts_args prompt;
    /* n_all: number of KV heads of this layer on all GPUs. first: index of this GPU's first KV
     * head, counted over all GPUs. */
    int32_t n_all, first;
    /* Scratch [batch][n_all + 1] in device memory: smallest sort key of a kept token. Each KV head
     * has one element; the last element is for the list of all heads' tokens. */
    unsigned long long *least;
    int32_t *count; /* device output [slot][n_kv_heads]: number of tokens that stay */
    /* [batch * n_kv_heads][max_pages] in device memory: page table of each KV head. The entries are
     * indices of pages in the array `heads`. */
    const int32_t *table;
    /* Pages in device memory. Each page belongs to one KV head. */
    void *heads;
    /* [n_all KV heads][n_q8 rows of Q] in device memory: scores of prompt tokens. NULL: the scores
     * are in prompt.mass. */
    float *rank;
    /* For KVD_EVICT_SPREAD: output [slot][2] in device memory, entropy and variance of the layer's
     * attention. */
    double *statistic;
    /* For KVD_EVICT_SPREAD: scratch [n_heads][n_q8 / 64 + batch][2] in device memory, entropy and
     * variance of the attention to each page of tokens. */
    float *spread;
    /* For method taskkv: number of KV heads of the layer that keep all tokens. */
    int32_t whole;
    /* For method taskkv: [batch][n_all][d_v] sums of the V vectors of all tokens, weighted by the
     * attention that the tokens received. */
    float *vector;
    int32_t *is_whole; /* [batch][n_all] 1 if the KV head keeps all tokens */
    /* 1 if the pages of the KV heads already have all tokens of the prompts. */
    int32_t stored;
    /* 1 if kvd_uneven_threshold has already computed the thresholds for keeping tokens
     * (`least`). */
    int32_t decided;
    /* Number of KV heads in all earlier layers, if all layers share one token budget. Otherwise
     * 0. */
    int32_t first_head;
    /* For method windowkv: number of consecutive layers, beginning with this one, that keep the
     * same tokens. */
    int32_t layers;
    /* Distance, in elements of the array `count`, between the counts of successive layers. */
    size_t layer_counts;
} kvd_uneven_prompts_args;

/* Scores all prompt tokens, chooses those that stay, and copies their K and V to pages of their KV
 * heads. */
cudaError_t kvd_uneven_prompts(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Chooses the tokens to keep, by the scores args->rank or, if NULL, by the received attention
 * prompt.mass. Fills prompt.kept and args->count, and copies K and V of the kept tokens to pages of
 * their KV heads. */
cudaError_t kvd_uneven_choose(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* For method taskkv: for each of this GPU's KV heads, sums the V vectors of all tokens, weighted by
 * the attention that they received (prompt.mass). Writes the sums to args->vector. */
cudaError_t kvd_uneven_vectors(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Merges runs of adjacent tokens with similar keys, and copies K and V of the merged tokens to
 * pages of KV heads. args->prompt.merging.count must equal args->count. */
cudaError_t kvd_uneven_runs(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Writes the scores of prompt tokens to args->rank and, with KVD_EVICT_SPREAD, entropy and variance
 * of the layer's attention to args->statistic. */
cudaError_t kvd_uneven_rank(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Finds the smallest sort key (score and index) of the tokens that stay, for n_layers layers with a
 * shared token budget. Writes it to args->least.
 *
 * - args: arguments of the first of these layers
 * - args->rank: scores [n_layers][n_all][n_q8]
 * - args->prompt.budget: member keep_old is the mean number of tokens that stay in a KV head */
cudaError_t kvd_uneven_threshold(const kvd_uneven_prompts_args *args, int32_t n_layers,
                                 cudaStream_t stream);
/* Scores groups of adjacent tokens (rule.review tokens each) by received attention, summed over
 * this GPU's query heads. Writes the scores of a prompt's groups from prompt.score[q_start] on. */
cudaError_t kvd_uneven_review(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* Chooses the groups of adjacent tokens to keep, for args->layers layers. Fills prompt.kept and
 * args->count. */
cudaError_t kvd_uneven_windows(const kvd_uneven_prompts_args *args, cudaStream_t stream);
/* kvd_uneven_store copies K and V of all prompt tokens to pages of their KV heads. kvd_uneven_copy
 * copies only K and V of the tokens that stay. */
cudaError_t kvd_uneven_store(const kvd_uneven_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_uneven_copy(const kvd_uneven_prompts_args *args, cudaStream_t stream);

/* Arguments for copying K and V of the new tokens of decode steps to the cache, in one layer. */
typedef struct {
    kvd_attn_map map;
    int32_t batch, max_pages;
    /* [batch] in device memory: slot of each request. Slots from n_slots on are padding. */
    const int32_t *slot;
    int32_t n_slots;
    /* Page table of the pages from which new tokens are copied. Row b begins with the page of
     * request b's only new token. */
    const int32_t *from_table; /* device [batch][max_pages] */
    const void *from;          /* device pages with all KV heads of the layer */
    /* [batch * n_kv_heads] in device memory: number of cached tokens of each KV head, including the
     * new token. */
    const int32_t *kv_len;
    const int32_t *table; /* device [batch * n_kv_heads][max_pages] page numbers in `heads` */
    void *heads;          /* device pages, each of one KV head */
} kvd_uneven_step_args;

/* Copies K and V of the new tokens of decode steps to the end of each KV head's pages. */
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
    /* layers: number of layers without a sliding window. kv: number of KV heads of a layer on this
     * GPU. */
    size_t layers, kv;
    /* Number of KV heads of a layer that share one token budget: all heads, or this GPU's heads. */
    size_t all;
    bool joined; /* true if several GPUs add up scores */
    size_t n_slots, max_len;
    kvd_uneven_slot *slot;
    size_t *entries; /* [n_slots][layers][kv] number of cached tokens */
    /* Pages of each KV head. Head g of layer l in slot s has the number (s * layers + l) * kv +
     * g. */
    kvd_pages pages;
    size_t page_bytes;
    kvd_evict_budget *budget; /* pinned [layers][n_slots] */
    kvd_evict_budget *there;
    /* [layers][heads.rows] in pinned memory: number of cached tokens of each KV head of each
     * request, including the new token. One more element at the end: number of KV heads per layer
     * times number of requests that decode. */
    int32_t *length;
    int32_t *lengths;
    /* [layers][n_slots][kv] in device memory: number of prompt tokens that stay in each KV head. */
    int32_t *count;
    int32_t *counted;
    float *mass, *score, *lse;
    float *rank; /* device [all][n_q8] scores of all GPUs (adakv, taskkv), or NULL */
    int32_t *kept;
    unsigned long long *least;
    kvd_evict_merging merging;
    int32_t *merged; /* pinned [n_slots] copy of merging.merged */
    /* For methods that process each prompt twice: prompt lengths without the second copy. prompt:
     * in pinned memory. prompts: in device memory. NULL for other methods. */
    int32_t *prompt, *prompts;
    size_t whole; /* number of KV heads per layer that keep all tokens (taskkv) */
    float *vector;
    int32_t *is_whole;
    /* Buffers of methods that choose each layer's token budget from the attention in all layers. */
    struct {
        /* on: true if each layer's token budget depends on the attention in all layers. shared:
         * true if the KV heads of all layers share one token budget. */
        bool on, shared;
        /* True if budgets depend on the entropy and variance of attention, false if they depend on
         * token scores. */
        bool spreads;
        /* Scores per token in a layer: 1 if all KV heads keep the same tokens, otherwise the number
         * of KV heads of all GPUs. */
        size_t ranks;
        float *rank;   /* device [layers][ranks][n_q8] ranking scores */
        float *spread; /* device scratch memory of kvd_uneven_rank */
        /* [GPUs][layers][n_slots][2] Entropy and variance of attention. `pair` is in device memory,
         * `pairs` in pinned memory. */
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

/* Returns the kernel arguments for dropping prompt tokens in a layer, for the prompts of a
 * batch. */
kvd_uneven_prompts_args kvd_uneven_prompts_of(const kvd_uneven *e, const kvd_paged_rows *r,
                                              int layer);
/* Returns the number of GPUs that exchange the scores of their KV heads. */
size_t kvd_uneven_gpus(const kvd_uneven *e);
/* Allocates e->late, the scores and token budgets of all layers, for `slices` prompts with `rows`
 * tokens in total. */
int kvd_uneven_make_late(kvd_uneven *e, size_t rows, size_t slices, kvd_err *err);
/* For every layer, queues the kernels that choose which tokens stay. Must be called after the
 * scores of the last layer have been queued. */
int kvd_uneven_after_layers(kvd_uneven *e, const kvd_paged_rows *r, kvd_err *err);
/* Zeroes the array with the scores of all layers. Must be called before each GPU writes the scores
 * of its own KV heads. */
int kvd_uneven_clear(const kvd_uneven *e, cudaStream_t stream, kvd_err *err);
/* Chooses the prompt tokens that stay in a layer by the scores of the KV heads of all GPUs. */
int kvd_uneven_choose_joined(const kvd_uneven *e, const kvd_uneven_prompts_args *a,
                             cudaStream_t stream, kvd_err *err);
#endif
#endif
