/*
 * Eviction on the device: chooses the cached tokens (entries) of every KV head that stay after a
 * prompt and after every step.
 *
 * Pages hold the entries of a KV head in no particular order. Attention does not depend on the
 * order, because RoPE is already applied to the keys. Every KV head of every layer has the same
 * number of entries. Functions that launch kernels follow the conventions of
 * model/pass/cuda/blocks.h. As on the CPU, among equal scores the earlier token is dropped.
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

/*
 * Scores and positions of all cached tokens, device arrays [n_slots][n_layers][kv_head][room].
 * `layer` is the index in these arrays of the layer that a launch works on.
 */
typedef struct {
    float *score;
    uint32_t *position;
    /*
     * Used for KVD_EVICT_PIVOTAL: history of each token, one bit per decode step, the newest step
     * in bit 0. The bit is 1 if the step gave the token less than the mean probability. In this
     * case `score` counts only queries of the prompt, not decode steps.
     */
    uint64_t *rows;
    int32_t n_slots, n_layers, room, layer;
} kvd_evict_state;

/* Data of a rule that merges tokens (kvd_evict_rule.merge), on the device. */
typedef struct {
    /*
     * Scratch [n_kv_heads][n_q8] each. Element i of `into` and of `weight` belongs to the token
     * kept[i]. into: index in `kept` of the token into which a dropped token is merged; -1: none.
     * weight: weight of the token in the mean of the merged tokens. length: 1 / |key| of every
     * token.
     */
    int32_t *into;
    float *weight, *length;
    /*
     * [slot][layer][kv_head] Running mean of the cosines between dropped tokens and their nearest
     * kept tokens (KVD_MERGE_LIKE). NaN: no token was dropped yet.
     */
    double *threshold;
    int32_t *merged; /* [slot] number of merged tokens, which launches add to */
    /*
     * [slot][n_kv_heads] Number of tokens that stay, with KVD_MERGE_RUNS. NULL: the budgets say how
     * many tokens stay.
     */
    int32_t *count;
    /* Scratch of steps, [batch][n_kv_heads]: index in the cache of the dropped token; -1: none. */
    int32_t *victim;
    void *near; /* scratch of steps, kvd_evict_near_bytes bytes */
} kvd_evict_merging;

/*
 * RoPE of a layer and scratch memory for KVD_EVICT_EXPECTED. All heads have the width d_head. RoPE
 * rotates dimensions i and i + dims/2 together, or 2 i and 2 i + 1 if `interleaved` is 1.
 */
typedef struct {
    int32_t dims, half; /* number of dimensions that RoPE rotates, and d_head / 2 */
    int32_t interleaved;
    /* Tables of kvd_rope_tables, device [positions][half]. NULL if the model has no RoPE. */
    const float *cosine, *sine;
    /*
     * Device [positions][half][2]: row n is for a prompt of n tokens. It has the mean cosine and
     * the mean sine of each RoPE pair over the positions n .. n + rule.future - 1.
     */
    const float *future;
    /*
     * Square of the factor that the RoPE tables (kvd_rope_tables) contain in all cosines and sines.
     */
    float square;
    float *work; /* kvd_evict_expected_bytes bytes on the device */
} kvd_evict_expected;

/* Arguments of kvd_evict_prompts: the whole prompts of a batch, in one layer. */
typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    /* If state.score is NULL, scores and positions are not stored. */
    kvd_evict_state state;
    const kvd_evict_budget *budget;
    /* 1 if the device has sm_90. */
    int32_t hopper;
    /* layer: number of the model's layer. longest: number of tokens of the longest prompt. */
    int32_t layer, batch, n_q8, max_pages, longest;
    /*
     * Device [batch]: first row in `q`, number of tokens and slot of each prompt. If the rule is
     * KVD_EVICT_REPEATED, `q` and the cache have twice as many rows of each prompt: the rows of the
     * prompt, then the rows of its copy.
     */
    const int32_t *q_start, *q_len, *slot;
    /* Device [batch][max_pages]. */
    const int32_t *page_table;
    /* Queries on the device, in layout BLOCKED (kernels/layout.h). */
    const void *q;
    void *pool; /* K and V pages of the layer, on the device */
    /*
     * Natural logarithms of the softmax denominators, device [n_heads][n_q8]. Overwritten if the
     * rule has a temperature.
     */
    float *lse;
    /*
     * Scratch, device [n_heads][n_q8]: score of every token in each query head, such as the sum or
     * the largest of the attention probabilities that it received. Not used if tokens are ranked by
     * keys alone or by position.
     */
    float *mass;
    /*
     * Scratch memory, device [n_q8], used if rule.anchor is not 0: distance of each token from the
     * anchor token.
     */
    float *distance;
    /*
     * 1: kvd_evict_sum_heads has run and its results are sums over all tensor-parallel GPUs, whose
     * query heads are n_heads together. With rule.whole_layer.
     */
    int32_t summed, n_heads;
    /* Output, device [n_kv_heads][n_q8]: score of every token. Not written with KVD_EVICT_FIRST. */
    float *score;
    /*
     * Output, device [n_kv_heads][n_q8]: indices of the tokens that stay, in rising order. If the
     * rule merges tokens, the indices of all others follow, in rising order.
     */
    int32_t *kept;
    kvd_evict_merging merging;
    kvd_evict_expected expected;
} kvd_evict_prompts_args;

/*
 * Computes the scores of the tokens of prompts, chooses the tokens that stay, and moves their K and
 * V to the front of the cache pages. Every prompt must start at position 0.
 */
cudaError_t kvd_evict_prompts(const kvd_evict_prompts_args *args, cudaStream_t stream);
/*
 * The steps of kvd_evict_prompts. kvd_evict_score and kvd_evict_score_sm90 (for sm_90 only) write
 * attention probabilities to `mass`. kvd_evict_score_keys and kvd_evict_score_expected write
 * `score`. kvd_evict_score_any runs the one of these functions that the rule and the device
 * require. kvd_evict_choose then chooses the tokens that stay and moves them.
 */
cudaError_t kvd_evict_score(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_sm90(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_keys(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_expected(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_any(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_choose(const kvd_evict_prompts_args *args, cudaStream_t stream);
/*
 * With rule.whole_layer, if several GPUs divide the heads: writes the sums of `mass` over the query
 * heads of this GPU to the first row of `mass`, and the distances to `distance`. The caller must
 * add both [n_q8] up over the GPUs before kvd_evict_choose.
 */
cudaError_t kvd_evict_sum_heads(const kvd_evict_prompts_args *args, cudaStream_t stream);
/*
 * Drop tokens by the probabilities that the last rows of a prompt give them, the same tokens in all
 * KV heads (mpcache.c). `rows` is the fraction of the prompt's queries that count as last rows.
 * kvd_evict_mark sets mass [q_start + t] to 1 if one of the last rows gives token t a probability
 * of at least `threshold`, averaged over the query heads. Otherwise it sets mass to 0.
 * kvd_evict_marked drops the tokens with mass 0, but never the newest one. It fills `kept`, writes
 * the number of tokens that stay to length [batch] and to keep_old of budget [slot] (which
 * args->budget must point to), and moves K and V of these tokens to the front of the pages.
 */
cudaError_t kvd_evict_mark(const kvd_evict_prompts_args *args, double rows, double threshold,
                           cudaStream_t stream);
cudaError_t kvd_evict_marked(const kvd_evict_prompts_args *args, int32_t *length,
                             kvd_evict_budget *budget, cudaStream_t stream);
size_t kvd_evict_expected_bytes(int n_heads, int d_head);
/*
 * Merges dropped tokens of prompts into kept ones, in the pages, before the kept tokens are moved.
 * `kept` must list the kept tokens and then all others. kvd_evict_choose calls it.
 */
cudaError_t kvd_evict_merge(const kvd_evict_prompts_args *args, cudaStream_t stream);
/*
 * With KVD_MERGE_RUNS, adjacent similar tokens form a run that is merged into one token. Finds the
 * runs from `mass`, which is overwritten. Fills `kept`, `merging.count` and the weights for
 * kvd_evict_merge.
 */
cudaError_t kvd_evict_runs(const kvd_evict_prompts_args *args, cudaStream_t stream);

/* Arguments of kvd_evict_steps: one decode step of every request of a batch, in one layer. */
typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    kvd_evict_state state;
    const kvd_evict_budget *budget;
    int32_t layer, batch, max_pages, splits;
    /*
     * Device [batch]: number of cached tokens, the newest included, and slot of each request. A row
     * of the batch without a request has a slot of n_slots or more.
     */
    const int32_t *kv_len, *slot;
    const uint32_t *at;        /* device [batch]: position of the newest token */
    const int32_t *page_table; /* device [batch][max_pages] */
    const void *q;             /* device [batch][q_pitch]: queries of the step */
    void *pool;
    /*
     * Natural logarithms of the softmax denominators, device [batch][n_heads]. Not used if the rule
     * has a temperature, or with KVD_EVICT_FIRST.
     */
    const float *lse;
    /* Scratch, kvd_evict_steps_bytes bytes; used with a temperature or KVD_EVICT_PIVOTAL. */
    float *work;
    /*
     * With rule.whole_layer, if several GPUs divide the heads: device [batch][room], else NULL.
     * kvd_evict_steps writes the sums of scores over the KV heads of this GPU and drops nothing.
     * The caller must add them up over the GPUs and call kvd_evict_steps_drop.
     */
    float *sums;
    kvd_evict_merging merging;
} kvd_evict_steps_args;

/*
 * Adds the step's attention probabilities to the scores (not with KVD_EVICT_FIRST). If a KV head
 * then has too many tokens, drops some and moves the tokens with the highest indices to the freed
 * indices. The tokens of a KV head are divided among `splits` CTAs: 1, 2, 4 or 8 on sm_90, and 1 on
 * older devices.
 */
cudaError_t kvd_evict_steps(const kvd_evict_steps_args *args, cudaStream_t stream);
cudaError_t kvd_evict_steps_drop(const kvd_evict_steps_args *args, cudaStream_t stream);
/* Writes args->sums. kvd_evict_steps calls it. */
cudaError_t kvd_evict_steps_sum(const kvd_evict_steps_args *args, cudaStream_t stream);
/* Returns the size of kvd_evict_steps_args.work for at most `room` cached tokens per KV head. */
size_t kvd_evict_steps_bytes(const kvd_attn_map *map, size_t batch, size_t room);
/*
 * Merges the token at `merging.victim` of every KV head into another token, then moves the newest
 * token to the freed place. kvd_evict_steps calls it.
 */
cudaError_t kvd_evict_merge_step(const kvd_evict_steps_args *args, cudaStream_t stream);
size_t kvd_evict_near_bytes(const kvd_attn_map *map, size_t batch);
/*
 * kvd_evict_merging_work allocates the scratch arrays of *g that prompts need, with n elements
 * each. kvd_evict_merging_slots allocates the array with the number of merged tokens of every slot,
 * all 0. *host receives an array [n_slots] of zeros in pinned memory, which the caller must free
 * with cudaFreeHost. Device memory belongs to *m.
 */
int kvd_evict_merging_work(kvd_evict_merging *g, kvd_device_memory *m, size_t n, kvd_err *err);
int kvd_evict_merging_slots(kvd_evict_merging *g, kvd_device_memory *m, size_t n_slots,
                            int32_t **host, cudaStream_t stream, kvd_err *err);
/*
 * Returns the number of CTAs per KV head (`splits`) that fills a device of n_sms multiprocessors.
 */
int32_t kvd_evict_splits(const kvd_attn_map *map, size_t batch, size_t room, int n_sms);

#ifdef __cplusplus
}
#endif

#ifndef __cplusplus
#include "methods/cuda/paged_cache.h"

/* Returns how many of the n tokens of a prompt stay in a KV head. */
static inline size_t kvd_evict_kept(const kvd_evict_budget *b, size_t n)
{
    const size_t newest = n < (size_t)b->keep_new ? n : (size_t)b->keep_new, old = n - newest;
    return newest + (old < (size_t)b->keep_old ? old : (size_t)b->keep_old);
}

/* The functions from here on are for tests. They read the state of methods of the tokens axis. */

/*
 * Copies the scores and positions of the cached tokens of one slot, layer and KV head to host
 * arrays, and sets `*n` to the number of these tokens. Only for methods that drop tokens after
 * steps by score. The arrays must have room for the largest number of tokens that a request can
 * have.
 */
int kvd_gpu_evict_read(const kvd_gpu_method *m, size_t slot, int layer, int kv_head, float *score,
                       uint32_t *position, size_t *n, kvd_err *err);

/*
 * kvd_gpu_uneven_entries returns the number of cached tokens, and kvd_gpu_uneven_pages the number
 * of pages, of one KV head of a slot. Only for methods whose KV heads may hold different numbers of
 * tokens.
 */
size_t kvd_gpu_uneven_entries(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);
size_t kvd_gpu_uneven_pages(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);

/*
 * Reads the pages that one KV head chose in decode step `step` of the latest iteration, in the last
 * layer. Copies their page indices in rising order to the host array `page`. Sets `*n` to their
 * number, and `*tokens` to the number of tokens in them. Only for methods that choose pages at
 * every step. `page` must have room for all pages of a request.
 */
int kvd_gpu_selection_read(const kvd_gpu_method *m, size_t step, int kv_head, int32_t *page,
                           size_t *n, size_t *tokens, kvd_err *err);
#endif

#endif
