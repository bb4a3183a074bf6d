/*
 * Eviction on the device: chooses the cached tokens (entries) of each KV head that stay.
 *
 * Pages hold entries in any order, keys after RoPE; all KV heads hold equally many. If scores are
 * equal, the earlier token is dropped. Launchers follow model/pass/cuda/blocks.h.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_EVICT_H
#define KVD_METHODS_TOKENS_CUDA_EVICT_H

#include <cuda_runtime_api.h>

#include "common/cuda/memory.h"
#include "kernels/layout.h"
#include "methods/tokens/eviction.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Device scores and positions [n_slots][n_layers][kv_head][room]. layer: of the launch. */
typedef struct {
    float *score;
    uint32_t *position;
    /*
     * KVD_EVICT_PIVOTAL: history bits, newest step in bit 0; 1: below the mean probability. `score`
     * counts the prompt only.
     */
    uint64_t *rows;
    int32_t n_slots, n_layers, room, layer;
} kvd_evict_state;

/* Device data of merging rules (kvd_evict_rule.merge). */
typedef struct {
    /*
     * Scratch [n_kv_heads][n_q8]. into: receiving token (-1: none), weight: in the mean, both by
     * index in `kept`. length: 1 / |key|.
     */
    int32_t *into;
    float *weight, *length;
    /*
     * [slot][layer][kv_head] Running mean of dropped tokens' cosines (KVD_MERGE_LIKE); NaN: none
     * yet.
     */
    double *threshold;
    int32_t *merged; /* [slot] merged tokens, added up */
    /* [slot][n_kv_heads] Tokens that stay (KVD_MERGE_RUNS); NULL: by budget. */
    int32_t *count;
    /* Scratch [batch][n_kv_heads]: index of the dropped token; -1: none. */
    int32_t *victim;
    void *near; /* scratch, kvd_evict_near_bytes bytes */
} kvd_evict_merging;

/*
 * RoPE and scratch for KVD_EVICT_EXPECTED. `interleaved` pairs 2 i and 2 i + 1, otherwise i and i +
 * dims/2.
 */
typedef struct {
    int32_t dims, half; /* dimensions that RoPE rotates; d_head / 2 */
    int32_t interleaved;
    /* Device [positions][half] kvd_rope_tables; NULL without RoPE. */
    const float *cosine, *sine;
    /*
     * Device [positions][half][2] Mean cosine and sine over positions n .. n + rule.future - 1, row
     * n.
     */
    const float *future;
    /* Square of kvd_rope_tables' constant factor. */
    float square;
    float *work; /* device, kvd_evict_expected_bytes bytes */
} kvd_evict_expected;

/* Arguments of kvd_evict_prompts: whole prompts of a batch, in one layer. */
typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    /* NULL state.score: scores and positions are not stored. */
    kvd_evict_state state;
    const kvd_evict_budget *budget;
    int32_t hopper;
    /* Model layer, prompts, Q rows, page table row length, longest prompt. */
    int32_t layer, batch, n_q8, max_pages, longest;
    /*
     * Device [batch]: first row in `q`, tokens, slot. KVD_EVICT_REPEATED doubles rows: prompt, then
     * copy.
     */
    const int32_t *q_start, *q_len, *slot;
    /* Device [batch][max_pages]. */
    const int32_t *page_table;
    /* Device queries, BLOCKED (kernels/layout.h). */
    const void *q;
    void *pool; /* device pages with K and V of the layer */
    /* Device [n_heads][n_q8] ln of softmax denominators; overwritten with a temperature. */
    float *lse;
    /* Device scratch [n_heads][n_q8]: token scores per query head, from received probabilities. */
    float *mass;
    /* Device scratch [n_q8] for rule.anchor: distance from the anchor. */
    float *distance;
    /*
     * 1: `mass` and `distance` are summed over tensor-parallel GPUs with n_heads query heads
     * (rule.whole_layer).
     */
    int32_t summed, n_heads;
    /* Device output [n_kv_heads][n_q8] token scores, except KVD_EVICT_FIRST. */
    float *score;
    /*
     * Device output [n_kv_heads][n_q8]: tokens that stay, rising; if tokens merge, then all others.
     */
    int32_t *kept;
    kvd_evict_merging merging;
    kvd_evict_expected expected;
} kvd_evict_prompts_args;

/*
 * Scores prompt tokens and moves those that stay to the front of the pages. Prompts must start at
 * position 0.
 */
cudaError_t kvd_evict_prompts(const kvd_evict_prompts_args *args, cudaStream_t stream);
/*
 * Steps of kvd_evict_prompts. _score and _score_sm90 write `mass`, _score_keys and _score_expected
 * `score`; _score_any picks one. _choose then moves tokens.
 */
cudaError_t kvd_evict_score(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_sm90(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_keys(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_expected(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_any(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_choose(const kvd_evict_prompts_args *args, cudaStream_t stream);
/*
 * With rule.whole_layer on several GPUs: sums `mass` over query heads into its first row and fills
 * `distance`. The caller adds both [n_q8] over GPUs before kvd_evict_choose.
 */
cudaError_t kvd_evict_sum_heads(const kvd_evict_prompts_args *args, cudaStream_t stream);
/*
 * _mark: mass [q_start + t] = 1 if one of the last `rows` (fraction) gives token t mean probability
 * >= threshold, else 0.
 * _marked: drops tokens with mass 0 except the newest, fills `kept`, length [batch] and keep_old of
 * args->budget [slot], moves K and V.
 */
cudaError_t kvd_evict_mark(const kvd_evict_prompts_args *args, double rows, double threshold,
                           cudaStream_t stream);
cudaError_t kvd_evict_marked(const kvd_evict_prompts_args *args, int32_t *length,
                             kvd_evict_budget *budget, cudaStream_t stream);
size_t kvd_evict_expected_bytes(int n_heads, int d_head);
/*
 * Merges dropped prompt tokens into kept ones, in the pages. `kept` must list kept tokens, then all
 * others.
 */
cudaError_t kvd_evict_merge(const kvd_evict_prompts_args *args, cudaStream_t stream);
/* KVD_MERGE_RUNS: fills `kept`, merging.count and weights from `mass`, which is overwritten. */
cudaError_t kvd_evict_runs(const kvd_evict_prompts_args *args, cudaStream_t stream);

/* Arguments of kvd_evict_steps: one decode step per request, one layer. */
typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    kvd_evict_state state;
    const kvd_evict_budget *budget;
    int32_t layer, batch, max_pages, splits;
    /* Device [batch]: cached tokens, newest included; slot (n_slots and above: padding). */
    const int32_t *kv_len, *slot;
    const uint32_t *at;        /* device [batch]: position of the newest token */
    const int32_t *page_table; /* device [batch][max_pages] */
    const void *q;             /* device [batch][q_pitch] queries */
    void *pool;
    /* Device [batch][n_heads] ln of softmax denominators, unless temperature or KVD_EVICT_FIRST. */
    const float *lse;
    /* Scratch, kvd_evict_steps_bytes bytes, for a temperature or KVD_EVICT_PIVOTAL. */
    float *work;
    /*
     * Device [batch][room] with rule.whole_layer on several GPUs, else NULL: receives score sums
     * over KV heads, which the caller adds over GPUs before kvd_evict_steps_drop.
     */
    float *sums;
    kvd_evict_merging merging;
} kvd_evict_steps_args;

/*
 * Adds probabilities to scores (not with KVD_EVICT_FIRST), drops surplus tokens and moves the
 * highest indices to freed ones. splits: CTAs per KV head, 1, 2, 4 or 8 on sm_90, else 1.
 */
cudaError_t kvd_evict_steps(const kvd_evict_steps_args *args, cudaStream_t stream);
cudaError_t kvd_evict_steps_drop(const kvd_evict_steps_args *args, cudaStream_t stream);
cudaError_t kvd_evict_steps_sum(const kvd_evict_steps_args *args, cudaStream_t stream);
/* Returns the bytes of kvd_evict_steps_args.work for `room` cached tokens per KV head. */
size_t kvd_evict_steps_bytes(const kvd_attn_map *map, size_t batch, size_t room);
/* Merges the token at merging.victim and moves the newest token to its place. */
cudaError_t kvd_evict_merge_step(const kvd_evict_steps_args *args, cudaStream_t stream);
size_t kvd_evict_near_bytes(const kvd_attn_map *map, size_t batch);
/*
 * _work: scratch of n elements for prompts. _slots: zeroed counts of merged tokens; *host [n_slots]
 * is pinned, to be freed with cudaFreeHost. *m owns device memory.
 */
int kvd_evict_merging_work(kvd_evict_merging *g, kvd_device_memory *m, size_t n, kvd_err *err);
int kvd_evict_merging_slots(kvd_evict_merging *g, kvd_device_memory *m, size_t n_slots,
                            int32_t **host, cudaStream_t stream, kvd_err *err);
/* Returns the CTAs per KV head that fill a device of n_sms multiprocessors. */
int32_t kvd_evict_splits(const kvd_attn_map *map, size_t batch, size_t room, int n_sms);

#ifdef __cplusplus
}
#endif

#ifndef __cplusplus
#include "methods/cuda/paged_cache.h"

/* Returns how many of a prompt's n tokens stay in a KV head. */
static inline size_t kvd_evict_kept(const kvd_evict_budget *b, size_t n)
{
    const size_t newest = n < (size_t)b->keep_new ? n : (size_t)b->keep_new, old = n - newest;
    return newest + (old < (size_t)b->keep_old ? old : (size_t)b->keep_old);
}

/* For tests. */

/*
 * Copies scores and positions of a KV head's cached tokens to host arrays, sized for the longest
 * request. Only for methods whose steps drop by score.
 */
int kvd_gpu_evict_read(const kvd_gpu_method *m, size_t slot, int layer, int kv_head, float *score,
                       uint32_t *position, size_t *n, kvd_err *err);

/* Return cached tokens, and pages, of a KV head; only if heads may hold different numbers. */
size_t kvd_gpu_uneven_entries(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);
size_t kvd_gpu_uneven_pages(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);

/*
 * Copies the pages that a KV head chose in decode step `step` (last layer), rising; *tokens: tokens
 * in them. Only for methods that choose pages.
 */
int kvd_gpu_selection_read(const kvd_gpu_method *m, size_t step, int kv_head, int32_t *page,
                           size_t *n, size_t *tokens, kvd_err *err);
#endif

#endif
