/*
 * Eviction on the device: chooses the cached tokens (entries) of every KV head that stay after a
 * prompt and after every step (methods/tokens: h2o, keyformer, snapkv, streaming, tova, knorm,
 * keydiff, expectedattention).
 *
 * Pages hold the entries of a KV head in no particular order. RoPE is already applied to the keys,
 * so the index of an entry has no meaning. Every KV head of every layer has the same number of
 * entries, because budgets are numbers of tokens. If entries are dropped after steps by score, two
 * arrays next to the pages hold the score and the position of every entry. Functions that launch
 * kernels follow the conventions of model/pass/cuda/blocks.h. Ties are broken as on the CPU: among
 * equal scores the earlier token is dropped.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_EVICT_H
#define KVD_METHODS_TOKENS_CUDA_EVICT_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"
#include "methods/tokens/eviction.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scores and positions of all cached tokens, two device arrays [slot][layer][kv_head][room]. */
typedef struct {
    float *score;
    uint32_t *position;
    int32_t n_slots, n_layers, room;
} kvd_evict_state;

/*
 * RoPE of a layer, and scratch memory, for scores by expected attention (KVD_EVICT_EXPECTED).
 * All heads have the width d_head. RoPE rotates pair i of a head: dimensions i and i + dims/2, or
 * 2 i and 2 i + 1 if `interleaved` is 1.
 */
typedef struct {
    int32_t dims, half; /* number of dimensions that RoPE rotates; d_head / 2 */
    int32_t interleaved;
    /*
     * Cosines and sines of kvd_rope_tables, device [positions][half]. NULL if the model has no
     * RoPE.
     */
    const float *cosine, *sine;
    /*
     * Mean cosine and mean sine of each pair over the positions n .. n + rule.future - 1 after a
     * prompt of n tokens, device [n][half][2].
     */
    const float *future;
    /* Square of the factor by which kvd_rope_tables multiplies all cosines and sines. */
    float square;
    float *work; /* scratch, kvd_evict_expected_bytes bytes on the device */
} kvd_evict_expected;

/* Arguments for the whole prompts of a batch in one layer. */
typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    /*
     * Scores and positions of the cached tokens. If state.score is NULL, none are stored and the
     * cache holds K and V only.
     */
    kvd_evict_state state;
    const kvd_evict_budget *budget;
    /* 1: the device has sm_90, and its kernels are used. */
    int32_t hopper;
    /* longest: number of tokens of the longest prompt. */
    int32_t layer, batch, n_q8, max_pages, longest;
    /* Device [batch]: first row in `q`, number of tokens and slot of each prompt. */
    const int32_t *q_start, *q_len, *slot;
    /* Device [batch][max_pages]: pages of each prompt. */
    const int32_t *page_table;
    /* Queries of the prompts in layout BLOCKED, on the device. */
    const void *q;
    void *pool; /* K and V pages of the layer, on the device */
    /*
     * Natural logarithms of the softmax denominators from the attention kernel, device
     * [n_heads][n_q8 rows of Q]. The scoring kernels overwrite them if the rule has a temperature.
     */
    float *lse;
    /*
     * Scratch, device [n_heads][n_q8 rows of Q]: what each query head adds to the score of a token,
     * such as the attention probability that the token received. Not used if tokens are ranked by
     * keys alone or by position.
     */
    float *mass;
    /*
     * Output, device [n_kv_heads][n_q8 rows of Q]: score of every token of the prompts. Not used
     * with KVD_EVICT_FIRST.
     */
    float *score;
    /*
     * Output, device [n_kv_heads][n_q8 rows of Q]: indices of the tokens that stay in each KV head,
     * in rising order.
     */
    int32_t *kept;
    kvd_evict_expected expected; /* used with KVD_EVICT_EXPECTED only */
} kvd_evict_prompts_args;

/*
 * Compresses whole prompts, each of which starts at position 0. Computes the scores of their tokens
 * (for KVD_EVICT_ATTENTION from a second product Q K^T), chooses the tokens that stay, and moves
 * their rows to the front of the pages.
 */
cudaError_t kvd_evict_prompts(const kvd_evict_prompts_args *args, cudaStream_t stream);
/*
 * The two parts of kvd_evict_prompts: scoring and choosing.
 *
 * kvd_evict_score writes the attention probability that every token received, [n_heads][n_q8], to
 * `mass` with mma.sync. kvd_evict_score_sm90 does the same with wgmma and requires sm_90.
 * kvd_evict_score_keys writes the scores of rankings by keys to `score`, and
 * kvd_evict_score_expected those of KVD_EVICT_EXPECTED. kvd_evict_score_any runs the one of these
 * that the rule and the device require. kvd_evict_choose then chooses the tokens that stay and
 * moves them.
 */
cudaError_t kvd_evict_score(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_sm90(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_keys(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_expected(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_any(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_choose(const kvd_evict_prompts_args *args, cudaStream_t stream);
/* Returns the size in bytes of kvd_evict_expected.work for n_heads query heads of width d_head. */
size_t kvd_evict_expected_bytes(int n_heads, int d_head);

/* Arguments for one decode step of every request of a batch in one layer. */
typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    kvd_evict_state state;
    const kvd_evict_budget *budget;
    int32_t layer, batch, max_pages, splits;
    /*
     * kv_len: number of cached tokens of each request, including the newest. slot: slot of each
     * request; a row whose slot is at least n_slots is idle. Both device [batch].
     */
    const int32_t *kv_len, *slot;
    const uint32_t *at;        /* device [batch]: position of each request's newest token */
    const int32_t *page_table; /* device [batch][max_pages]: pages of each request */
    const void *q;             /* device [batch][q_pitch]: queries of the step */
    void *pool;                /* K and V pages of the layer, on the device */
    /*
     * Natural logarithms of the softmax denominators from the attention kernel, device
     * [batch][n_heads]. Not used with a temperature or with KVD_EVICT_FIRST.
     */
    const float *lse;
    float *work; /* scratch on the device, kvd_evict_steps_bytes bytes; only with a temperature */
} kvd_evict_steps_args;

/*
 * Updates the cached tokens after one decode step of every request. Adds the step's probabilities
 * to the scores (not with KVD_EVICT_FIRST). If a KV head then has one token too many, the newest
 * token replaces the one that the rule drops. This takes one kernel launch, or two with
 * `whole_layer`; lengths, slots and positions are read on the device. `splits` CTAs share the
 * tokens of a KV head: 1, 2, 4 or 8 on sm_90, and 1 on older devices.
 */
cudaError_t kvd_evict_steps(const kvd_evict_steps_args *args, cudaStream_t stream);
/*
 * Returns the size in bytes of kvd_evict_steps_args.work for `batch` requests with at most `room`
 * cached tokens per KV head.
 */
size_t kvd_evict_steps_bytes(const kvd_attn_map *map, size_t batch, size_t room);
/* Returns the number of CTAs per KV head that fills a device of n_sms multiprocessors. */
int32_t kvd_evict_splits(const kvd_attn_map *map, size_t batch, size_t room, int n_sms);

#ifdef __cplusplus
}
#endif
#endif
