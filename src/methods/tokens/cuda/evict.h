/* Drops cached tokens on the GPU: scores the tokens of each KV head, chooses those that stay and
 * moves them. Pages hold tokens in any order, with keys after RoPE. If two tokens have equal
 * scores, the earlier one is dropped. */
#ifndef KVD_METHODS_TOKENS_CUDA_EVICT_H
#define KVD_METHODS_TOKENS_CUDA_EVICT_H

#include <cuda_runtime_api.h>

#include "common/cuda/memory.h"
#include "kernels/layout.h"
#include "methods/dims/cuda/latents.h"
#include "methods/tokens/eviction.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scores and positions of cached tokens in device memory, [n_slots][n_layers][n_kv_heads][room].
 * `room` is the largest number of cached tokens of a KV head. */
typedef struct {
    float *score;
    uint32_t *position;
    /* For ranking KVD_EVICT_PIVOTAL: history of each token. Bit i is 1 if, in the decode step i
     * steps ago, the token got less than the mean attention probability. */
    uint64_t *rows;
    int32_t n_slots, n_layers, room, layer;
} kvd_evict_state;

/* Cache of method palu: latent vectors in place of K and V, and the tokens' positions. Each KV head
 * must have its own latent vectors. */
typedef struct {
    void *pool;                  /* pages of the layer on the device, or NULL */
    size_t page;                 /* elements of a page */
    const kvd_latent_head *head; /* [n_kv_heads] in device memory */
    int32_t positions;           /* of kvd_latent_put_args */
} kvd_evict_latents;

/* Device data of methods that merge dropped tokens into kept ones. */
typedef struct {
    /* Scratch arrays [n_kv_heads][n_q8] with an element per prompt token. into: index of the kept
     * token with which the token merges. weight: the token's weight in the merged token. length: 1
     * / |key|. */
    int32_t *into;
    float *weight, *length;
    /* [slot][layer][kv_head] Running mean of the cosine between a dropped token's key and the most
     * similar kept key. NaN until a token is dropped. */
    double *threshold;
    int32_t *merged; /* [slot] number of tokens merged so far, over all requests */
    /* [slot][n_kv_heads] Number of prompt tokens that stay. NULL if kvd_evict_budget alone
     * determines it. */
    int32_t *count;
    /* Scratch [batch][n_kv_heads]: index of the token that a decode step drops, or -1 if it drops
     * none. */
    int32_t *victim;
    void *near; /* scratch memory of kvd_evict_near_bytes bytes */
} kvd_evict_merging;

/* RoPE tables and scratch memory for the ranking KVD_EVICT_EXPECTED. */
typedef struct {
    int32_t dims, half; /* number of dimensions that RoPE rotates, and d_head / 2 */
    int32_t interleaved;
    /* [positions][half] in device memory: RoPE tables, or NULL if the model has no RoPE. */
    const float *cosine, *sine;
    /* [positions][half][2] in device memory. Row n has the means of RoPE's cosines and of its sines
     * over the positions n .. n + rule.future - 1. */
    const float *future;
    /* Square of the constant factor by which some models multiply the RoPE tables. */
    float square;
    float *work; /* device memory of kvd_evict_expected_bytes bytes */
} kvd_evict_expected;

/* Trained networks that score tokens (method locret), one per layer, for this GPU's KV heads. */
typedef struct {
    size_t hidden, inputs; /* number of hidden units, and of inputs: Q, K and V of a token */
    const uint16_t *fc1;   /* [n_layers][hidden][inputs] bf16 */
    const float *fc2;      /* [n_layers][n_kv_heads][hidden] */
    float *units;          /* scratch memory for hidden units */
} kvd_evict_trained;

/* Arguments for dropping prompt tokens in one layer, for a batch of whole prompts. */
typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    /* Scores and positions of cached tokens. If state.score is NULL, they are not stored. */
    kvd_evict_state state;
    const kvd_evict_budget *budget;
    int32_t hopper;
    /* layer: index of the layer. batch: number of prompts. n_q8: number of rows of Q. max_pages:
     * number of page table entries of a prompt. longest: number of tokens of the longest prompt. */
    int32_t layer, batch, n_q8, max_pages, longest;
    /* [batch] in device memory: first row of Q, number of tokens and slot of each prompt. With
     * ranking KVD_EVICT_REPEATED, each prompt is followed by a copy of itself, which also has rows
     * in Q. */
    const int32_t *q_start, *q_len, *slot;
    /* [batch][max_pages] in device memory: page table of the prompts. */
    const int32_t *page_table;
    /* Queries in device memory, in blocks of 8 tokens by 8 dimensions. */
    const void *q;
    void *pool; /* device pages with K and V of the layer */
    /* If latents.pool is not NULL, latent vectors of kept tokens are moved instead of K and V. */
    kvd_evict_latents latents;
    /* [n_heads][n_q8] in device memory: natural log of the softmax denominator of each row of Q.
     * Method keyformer overwrites it. */
    float *lse;
    /* Scratch [n_heads][n_q8] in device memory: attention that each prompt token received, at the
     * index of the token's row of Q. */
    float *mass;
    /* For method kvcrush (rule.anchor is not 0). Scratch [n_q8] in device memory: number of query
     * heads whose vote to keep or drop the token differs from the pattern chosen by rule.anchor. */
    float *distance;
    /* summed: 1 if token scores (`mass`, `distance`) are already summed over the query heads of all
     * GPUs. n_heads: number of query heads of all GPUs. */
    int32_t summed, n_heads;
    /* Output [n_kv_heads][n_q8] in device memory: score of each prompt token, at the index of the
     * token's row of Q. */
    float *score;
    /* Output [n_kv_heads][n_q8] in device memory: indices of the tokens that stay and, if dropped
     * tokens are merged, then indices of the dropped tokens. */
    int32_t *kept;
    kvd_evict_merging merging;
    kvd_evict_expected expected;
} kvd_evict_prompts_args;

/* Writes the attention that each prompt token received, per query head, to args->mass. */
cudaError_t kvd_evict_score(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_sm90(const kvd_evict_prompts_args *args, cudaStream_t stream);
/* Writes a score of each prompt token, per KV head, to args->score. */
cudaError_t kvd_evict_score_keys(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_expected(const kvd_evict_prompts_args *args, cudaStream_t stream);
/* Scores prompt tokens by the method's rule. Depending on the rule, writes scores per query head to
 * args->mass, or scores per KV head to args->score. */
cudaError_t kvd_evict_score_any(const kvd_evict_prompts_args *args, cudaStream_t stream);
/* Chooses the prompt tokens that stay, and moves their K and V to the front of the pages. */
cudaError_t kvd_evict_choose(const kvd_evict_prompts_args *args, cudaStream_t stream);
/* Sums args->mass, the attention that each token received, over this GPU's query heads. If
 * rule.anchor is not 0 (method kvcrush), also computes args->distance. The caller then adds both
 * arrays over all GPUs. */
cudaError_t kvd_evict_sum_heads(const kvd_evict_prompts_args *args, cudaStream_t stream);
/* kvd_evict_mark sets mass [q_start + t] to 1 if any late query of the prompt gives token t at
 * least the attention probability `threshold`, else to 0. Late queries are the last fraction `rows`
 * of the prompt's queries. kvd_evict_marked then drops the tokens with mass 0, but never the newest
 * token, and writes the number of kept tokens to length [batch]. */
cudaError_t kvd_evict_mark(const kvd_evict_prompts_args *args, double rows, double threshold,
                           cudaStream_t stream);
cudaError_t kvd_evict_marked(const kvd_evict_prompts_args *args, int32_t *length,
                             kvd_evict_budget *budget, cudaStream_t stream);
size_t kvd_evict_expected_bytes(int n_heads, int d_head);
/* Merges dropped prompt tokens into kept ones. args->kept must list the kept tokens, then the
 * dropped ones. */
cudaError_t kvd_evict_merge(const kvd_evict_prompts_args *args, cudaStream_t stream);
/* Finds runs of adjacent tokens with similar keys, to merge each run into one token. Fills
 * args->kept and `count`, `into` and `weight` of args->merging; overwrites args->mass. */
cudaError_t kvd_evict_runs(const kvd_evict_prompts_args *args, cudaStream_t stream);

/* Arguments for dropping tokens after a decode step in one layer. */
typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    kvd_evict_state state;
    const kvd_evict_budget *budget;
    int32_t layer, batch, max_pages, splits;
    /* [batch] in device memory: number of cached tokens and slot of each request. Slots from
     * n_slots on are padding. */
    const int32_t *kv_len, *slot;
    const uint32_t *at;        /* device [batch]: position of the newest token */
    const int32_t *page_table; /* device [batch][max_pages] */
    const void *q;             /* device [batch][q_pitch] queries */
    void *pool;
    kvd_evict_latents latents; /* Moved instead of K and V, unless `pool` is NULL. */
    /* [batch][n_heads] in device memory: natural logs of softmax denominators. Not used if
     * rule.tau0 > 0 (method keyformer). */
    const float *lse;
    /* Scratch memory of kvd_evict_steps_bytes bytes, used only by methods keyformer and
     * scissorhands. */
    float *work;
    /* [batch][room] in device memory: token scores summed over this GPU's KV heads. The caller adds
     * the sums of all GPUs and then calls kvd_evict_steps_drop. NULL if this GPU has all heads. */
    float *sums;
    kvd_evict_merging merging;
} kvd_evict_steps_args;

/* Adds a decode step's attention probabilities to the token scores, drops the tokens with the
 * smallest scores and moves the last cached tokens to the freed indices. args->splits is the number
 * of CTAs per KV head: 1, 2, 4 or 8 on sm_90, otherwise 1. */
cudaError_t kvd_evict_steps(const kvd_evict_steps_args *args, cudaStream_t stream);
cudaError_t kvd_evict_steps_drop(const kvd_evict_steps_args *args, cudaStream_t stream);
cudaError_t kvd_evict_steps_sum(const kvd_evict_steps_args *args, cudaStream_t stream);
/* Returns the bytes that kvd_evict_steps_args.work needs if a KV head has up to `room` cached
 * tokens. */
size_t kvd_evict_steps_bytes(const kvd_attn_map *map, size_t batch, size_t room);
/* Merges the token that a decode step drops, at index merging.victim, into a kept token, and moves
 * the newest token to the freed index. */
cudaError_t kvd_evict_merge_step(const kvd_evict_steps_args *args, cudaStream_t stream);
size_t kvd_evict_near_bytes(const kvd_attn_map *map, size_t batch);
/* Allocate arrays of *g, which *m then owns. kvd_evict_merging_work allocates the scratch arrays
 * `into`, `weight` and `length` with n elements. kvd_evict_merging_slots allocates `merged`
 * [n_slots], filled with 0, and *host [n_slots], pinned memory for a copy of `merged`. */
int kvd_evict_merging_work(kvd_evict_merging *g, kvd_device_memory *m, size_t n, kvd_err *err);
int kvd_evict_merging_slots(kvd_evict_merging *g, kvd_device_memory *m, size_t n_slots,
                            int32_t **host, kvd_err *err);
/* Returns how many CTAs a KV head needs so that a decode step occupies n_sms multiprocessors. */
int32_t kvd_evict_splits(const kvd_attn_map *map, size_t batch, size_t room, int n_sms);

#ifdef __cplusplus
}
#endif

#ifndef __cplusplus
#include "methods/cuda/paged_cache.h"

/* Returns kernel arguments for dropping prompt tokens in a layer. The caller must set the arguments
 * that depend on the eviction method. */
kvd_evict_prompts_args kvd_evict_prompts_of(const kvd_paged_cache *c, const kvd_paged_rows *r,
                                            int layer);
/* If the cache also has the keys of prompts before projection, makes *a point to these keys and to
 * the queries before projection. */
void kvd_evict_prompts_whole(const kvd_paged_cache *c, kvd_evict_prompts_args *a);

/* Makes method *m drop tokens from the latent vectors in *store instead of from K and V. *store
 * must outlive *m. KV heads must not share latent vectors. */
void kvd_gpu_evict_latents(kvd_gpu_method *m, const kvd_latent_store *store);

/* Copies the trained networks of method locret to the device. *memory owns all arrays of *x. */
int kvd_evict_trained_make(kvd_evict_trained *x, const kvd_gpu_method *m, kvd_device_memory *memory,
                           kvd_err *err);
/* Queues kernels that score a layer's prompt tokens with the trained networks of method locret.
 * score [n_kv_heads][n_q8], in device memory, gets the scores in the token order of Q. */
int kvd_evict_trained_score(const kvd_evict_trained *x, const kvd_gpu_method *m,
                            const kvd_paged_rows *r, float *score, kvd_err *err);

/* Returns how many of the n tokens of a prompt stay in a KV head. */
static inline size_t kvd_evict_kept(const kvd_evict_budget *b, size_t n)
{
    const size_t newest = n < (size_t)b->keep_new ? n : (size_t)b->keep_new, old = n - newest;
    return newest + (old < (size_t)b->keep_old ? old : (size_t)b->keep_old);
}

/* The functions from here on are for tests only. */

/* Copies the scores and positions of a KV head's cached tokens to host arrays, and their number to
 * *n. */
int kvd_gpu_evict_read(const kvd_gpu_method *m, size_t slot, int layer, int kv_head, float *score,
                       uint32_t *position, size_t *n, kvd_err *err);

/* kvd_gpu_uneven_entries returns the number of cached tokens of a KV head, kvd_gpu_uneven_pages the
 * number of its pages. */
size_t kvd_gpu_uneven_entries(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);
size_t kvd_gpu_uneven_pages(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);

/* Copies the indices of the selection pages (groups of adjacent tokens) that a KV head read in a
 * decode step to the host array page [*n]. *tokens gets the number of tokens in these groups. */
int kvd_gpu_selection_read(const kvd_gpu_method *m, size_t step, int kv_head, int32_t *page,
                           size_t *n, size_t *tokens, kvd_err *err);
#endif

#endif
