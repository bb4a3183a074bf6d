/*
 * Eviction on the device: chooses which cached tokens of each KV head stay.
 *
 * Pages hold cached tokens in any order, keys after RoPE. All KV heads hold equally many. If scores
 * are equal, the earlier token is dropped. Launchers follow model/pass/cuda/blocks.h.
 */
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

/* Scores and positions of cached tokens, [n_slots][n_layers][kv_head][room] in device memory. */
typedef struct {
    float *score;
    uint32_t *position;
    /*
     * For KVD_EVICT_PIVOTAL: history of each token, newest step in bit 0. A bit is 1 if the token's
     * probability was below the mean. `score` then counts the prompt only.
     */
    uint64_t *rows;
    int32_t n_slots, n_layers, room, layer;
} kvd_evict_state;

/*
 * Latent vectors of K and V with the positions of their tokens (dims/cuda/latents.h), which move in
 * the place of K and V. KV heads must not share them.
 */
typedef struct {
    void *pool;                  /* device pages of the layer. NULL: K and V move */
    size_t page;                 /* elements of a page */
    const kvd_latent_head *head; /* [n_kv_heads] in device memory */
    int32_t positions;           /* of kvd_latent_put_args */
} kvd_evict_latents;

/* Device data of methods that merge dropped tokens into kept ones (kvd_evict_rule.merge). */
typedef struct {
    /*
     * Scratch [n_kv_heads][n_q8]. into: index of the token that receives token i of `kept`, or -1.
     * weight: weight of token i in the mean. length: 1 / |key| of every token.
     */
    int32_t *into;
    float *weight, *length;
    /* Running mean of dropped tokens' cosines, NaN at first, [slot][layer][kv_head]. */
    double *threshold;
    int32_t *merged; /* [slot] number of tokens merged so far, over all requests */
    /* Number of tokens that stay (KVD_MERGE_RUNS), [slot][n_kv_heads]. NULL: see the budgets. */
    int32_t *count;
    /* Scratch memory [batch][n_kv_heads]: index of the dropped token, or -1. */
    int32_t *victim;
    void *near; /* scratch memory of kvd_evict_near_bytes bytes */
} kvd_evict_merging;

/*
 * RoPE and scratch memory for KVD_EVICT_EXPECTED. `interleaved` pairs dimensions 2 i and 2 i + 1,
 * otherwise i and i + dims / 2.
 */
typedef struct {
    int32_t dims, half; /* number of dimensions that RoPE rotates, and d_head / 2 */
    int32_t interleaved;
    /*
     * Tables in device memory of RoPE made by kvd_rope_tables, [positions][half]. NULL without
     * RoPE.
     */
    const float *cosine, *sine;
    /*
     * [positions][half][2] in device memory: mean cosine and sine over positions n .. n +
     * rule.future - 1.
     */
    const float *future;
    /* Square of the constant factor that kvd_rope_tables puts into the tables. */
    float square;
    float *work; /* device memory of kvd_evict_expected_bytes bytes */
} kvd_evict_expected;

/*
 * Networks for KVD_EVICT_TRAINED on the device. They have the inputs and outputs of this GPU's
 * heads.
 */
typedef struct {
    size_t hidden, inputs; /* number of hidden units, and of inputs: Q, K and V of a token */
    const uint16_t *fc1;   /* [n_layers][hidden][inputs] bf16 */
    const float *fc2;      /* [n_layers][n_kv_heads][hidden] */
    float *units;          /* scratch memory for hidden units */
} kvd_evict_trained;

/* Arguments of the kernels that drop prompt tokens: whole prompts of a batch, in one layer. */
typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    /* If state.score is NULL, scores and positions are not stored. */
    kvd_evict_state state;
    const kvd_evict_budget *budget;
    int32_t hopper;
    /* Layer of the model, number of prompts, rows of `q`, pages per table row, longest prompt. */
    int32_t layer, batch, n_q8, max_pages, longest;
    /*
     * [batch] in device memory: first row in `q`, number of tokens and slot of each prompt. With
     * KVD_EVICT_REPEATED each prompt has twice the rows, as a copy follows.
     */
    const int32_t *q_start, *q_len, *slot;
    /* Page tables [batch][max_pages] in device memory of the prompts. */
    const int32_t *page_table;
    /* In device memory: queries in 8 x 8 blocks (layout BLOCKED of kernels/layout.h). */
    const void *q;
    void *pool; /* device pages with K and V of the layer */
    /* If latents.pool is set, K and V are scored and their latent vectors are moved. */
    kvd_evict_latents latents;
    /*
     * [n_heads][n_q8] in device memory: natural logs of softmax denominators. Overwritten if tau0 >
     * 0.
     */
    float *lse;
    /* Scratch [n_heads][n_q8] in device memory: probabilities that each token received, summed. */
    float *mass;
    /* Scratch [n_q8] in device memory for rule.anchor: distance from the anchor. */
    float *distance;
    /*
     * `summed` is 1 if `mass` and `distance` are already sums over the tensor-parallel GPUs.
     * n_heads is the number of query heads of all these GPUs.
     */
    int32_t summed, n_heads;
    /*
     * Output [n_kv_heads][n_q8] in device memory: score of each token. Not used with
     * KVD_EVICT_FIRST.
     */
    float *score;
    /*
     * Output [n_kv_heads][n_q8] in device memory: kept tokens, rising; if merging, then the others.
     */
    int32_t *kept;
    kvd_evict_merging merging;
    kvd_evict_expected expected;
} kvd_evict_prompts_args;

/*
 * kvd_evict_score_any scores the tokens of prompts that begin at position 0, by the function for
 * the rule and device. kvd_evict_choose then moves the kept tokens to the front of the pages.
 * kvd_evict_score_keys and kvd_evict_score_expected write `score`, the other scoring functions
 * write `mass`.
 */
cudaError_t kvd_evict_score(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_sm90(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_keys(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_expected(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_any(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_choose(const kvd_evict_prompts_args *args, cudaStream_t stream);
/*
 * For rule.whole_layer on several GPUs: sums `mass` over query heads into its first row, and fills
 * `distance`. The caller adds both [n_q8] over GPUs before kvd_evict_choose.
 */
cudaError_t kvd_evict_sum_heads(const kvd_evict_prompts_args *args, cudaStream_t stream);
/*
 * kvd_evict_mark sets mass [q_start + t] to 1 if one of the last `rows` (fraction of the prompt)
 * gives token t a mean probability of at least `threshold`, otherwise to 0. kvd_evict_marked drops
 * tokens with mass 0, but never the newest. It fills `kept`, and sets length [batch] and each
 * running request's budget.keep_old to the number of kept tokens.
 */
cudaError_t kvd_evict_mark(const kvd_evict_prompts_args *args, double rows, double threshold,
                           cudaStream_t stream);
cudaError_t kvd_evict_marked(const kvd_evict_prompts_args *args, int32_t *length,
                             kvd_evict_budget *budget, cudaStream_t stream);
size_t kvd_evict_expected_bytes(int n_heads, int d_head);
/* Merges dropped prompt tokens into kept ones. `kept` lists the kept tokens, then all others. */
cudaError_t kvd_evict_merge(const kvd_evict_prompts_args *args, cudaStream_t stream);
/* For KVD_MERGE_RUNS: fills `kept`, merging.count and weights from `mass`, which is overwritten. */
cudaError_t kvd_evict_runs(const kvd_evict_prompts_args *args, cudaStream_t stream);

/* Arguments of kvd_evict_steps: one decode step per request, in one layer. */
typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    kvd_evict_state state;
    const kvd_evict_budget *budget;
    int32_t layer, batch, max_pages, splits;
    /*
     * [batch] in device memory: number of cached tokens, including the newest, and slot (index of
     * the running request; n_slots and above are padding).
     */
    const int32_t *kv_len, *slot;
    const uint32_t *at;        /* device [batch]: position of the newest token */
    const int32_t *page_table; /* device [batch][max_pages] */
    const void *q;             /* device [batch][q_pitch] queries */
    void *pool;
    kvd_evict_latents latents; /* as in kvd_evict_prompts_args */
    /*
     * [batch][n_heads] in device memory: logs of softmax denominators; unused if tau0 > 0 or
     * KVD_EVICT_FIRST.
     */
    const float *lse;
    /* Scratch memory of kvd_evict_steps_bytes bytes if tau0 > 0, and for KVD_EVICT_PIVOTAL. */
    float *work;
    /*
     * [batch][room] in device memory: if several GPUs divide the heads with rule.whole_layer,
     * otherwise NULL. If set, kvd_evict_steps only sums scores into it. The caller then adds them
     * over GPUs and calls kvd_evict_steps_drop.
     */
    float *sums;
    kvd_evict_merging merging;
} kvd_evict_steps_args;

/*
 * After a decode step, adds its probabilities to the scores (not with KVD_EVICT_FIRST), drops
 * surplus tokens and moves the last tokens to the freed indices. `splits` is the number of CTAs per
 * KV head: 1, 2, 4 or 8 on sm_90, otherwise 1.
 */
cudaError_t kvd_evict_steps(const kvd_evict_steps_args *args, cudaStream_t stream);
cudaError_t kvd_evict_steps_drop(const kvd_evict_steps_args *args, cudaStream_t stream);
cudaError_t kvd_evict_steps_sum(const kvd_evict_steps_args *args, cudaStream_t stream);
/* Returns the bytes of kvd_evict_steps_args.work for `room` cached tokens per KV head. */
size_t kvd_evict_steps_bytes(const kvd_attn_map *map, size_t batch, size_t room);
/* Merges the dropped token at index merging.victim and moves the newest token to its place. */
cudaError_t kvd_evict_merge_step(const kvd_evict_steps_args *args, cudaStream_t stream);
size_t kvd_evict_near_bytes(const kvd_attn_map *map, size_t batch);
/*
 * kvd_evict_merging_work allocates scratch memory of n elements for prompts.
 * kvd_evict_merging_slots allocates zeroed counts of merged tokens. *host [n_slots] is pinned; a
 * slot holds one running request. *m owns all memory.
 */
int kvd_evict_merging_work(kvd_evict_merging *g, kvd_device_memory *m, size_t n, kvd_err *err);
int kvd_evict_merging_slots(kvd_evict_merging *g, kvd_device_memory *m, size_t n_slots,
                            int32_t **host, kvd_err *err);
/* Returns the number of CTAs per KV head that fills a device of n_sms multiprocessors. */
int32_t kvd_evict_splits(const kvd_attn_map *map, size_t batch, size_t room, int n_sms);

#ifdef __cplusplus
}
#endif

#ifndef __cplusplus
#include "methods/cuda/paged_cache.h"

/* Returns those arguments of a layer's prompts `r` that do not depend on the method. */
kvd_evict_prompts_args kvd_evict_prompts_of(const kvd_paged_cache *c, const kvd_paged_rows *r,
                                            int layer);
/* Makes *a read unprojected keys, if prompts attend to them. Queries then are unprojected too. */
void kvd_evict_prompts_whole(const kvd_paged_cache *c, kvd_evict_prompts_args *a);

/*
 * Makes the eviction method *m move the latent vectors of *store with their positions, in the place
 * of K and V. The store must outlive *m, and no two KV heads may share a latent vector.
 */
void kvd_gpu_evict_latents(kvd_gpu_method *m, const kvd_latent_store *store);

/* Copies the networks of the plan to the device. *memory owns all arrays of *x. */
int kvd_evict_trained_make(kvd_evict_trained *x, const kvd_gpu_method *m, kvd_device_memory *memory,
                           kvd_err *err);
/* Queues the scores of a layer's prompt tokens: score [n_kv_heads][n_q8], for kvd_evict_choose. */
int kvd_evict_trained_score(const kvd_evict_trained *x, const kvd_gpu_method *m,
                            const kvd_paged_rows *r, float *score, kvd_err *err);

/* Returns how many of the n tokens of a prompt stay in a KV head. */
static inline size_t kvd_evict_kept(const kvd_evict_budget *b, size_t n)
{
    const size_t newest = n < (size_t)b->keep_new ? n : (size_t)b->keep_new, old = n - newest;
    return newest + (old < (size_t)b->keep_old ? old : (size_t)b->keep_old);
}

/* The functions from here on are for tests only. */

/*
 * Copies scores and positions of a KV head's cached tokens to host arrays, sized for the longest
 * request. For methods whose decode steps drop tokens by score.
 */
int kvd_gpu_evict_read(const kvd_gpu_method *m, size_t slot, int layer, int kv_head, float *score,
                       uint32_t *position, size_t *n, kvd_err *err);

/* Return the numbers of cached tokens and pages of a KV head, if these may differ among heads. */
size_t kvd_gpu_uneven_entries(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);
size_t kvd_gpu_uneven_pages(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);

/*
 * Copies the page numbers, rising, that a KV head chose in decode step `step` (last layer) to the
 * host. *tokens becomes the number of tokens in them. For methods that choose pages.
 */
int kvd_gpu_selection_read(const kvd_gpu_method *m, size_t step, int kv_head, int32_t *page,
                           size_t *n, size_t *tokens, kvd_err *err);
#endif

#endif
