/*
 * Eviction on the device: chooses the cache entries of every KV head that stay after a prompt and
 * after every step (methods/tokens: h2o, keyformer, snapkv, streaming, tova, knorm, keydiff).
 *
 * Pages hold the entries of a KV head in no particular order. RoPE is already applied to the keys,
 * so the place of an entry has no meaning. Every KV head of every layer has the same number of
 * entries, because budgets are numbers of tokens. Two arrays next to the pages hold the score and
 * the position of every entry, if steps choose by scores. Launchers follow the conventions of
 * model/pass/cuda/blocks.h. Ties are broken as on the CPU: among equal scores the earlier token
 * leaves.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_EVICT_H
#define KVD_METHODS_TOKENS_CUDA_EVICT_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"
#include "methods/tokens/eviction.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scores and positions of all entries, each an array [slot][layer][kv_head][room] on the device. */
typedef struct {
    float *score;
    uint32_t *position;
    int32_t n_slots, n_layers, room;
} kvd_evict_state;

/* Arguments for whole prompts of a layer. */
typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    /* Scores and positions of the entries. If `score` is NULL, the cache holds K and V only. */
    kvd_evict_state state;
    const kvd_evict_budget *budget;
    int32_t hopper;                                 /* 1: on sm_90 */
    int32_t layer, batch, n_q8, max_pages, longest; /* longest: the largest q_len */
    const int32_t *q_start, *q_len, *slot;          /* device [batch] */
    const int32_t *page_table;                      /* device [batch][max_pages] */
    /* device, queries of the prompts in blocked layout */
    const void *q;
    void *pool; /* device, pages of the layer */
    /*
     * Natural logarithms of the softmax denominators from the attention kernel, device
     * [n_heads][n_q8]. Overwritten if there is a temperature.
     */
    float *lse;
    float *mass; /* device [n_heads][n_q8], scratch; used with KVD_EVICT_ATTENTION only */
    /*
     * Output, device [n_kv_heads][n_q8]: scores of the prompts' tokens; not used with
     * KVD_EVICT_FIRST.
     */
    float *score;
    /* Output, device [n_kv_heads][n_q8]: indices of the tokens that stay, in rising order. */
    int32_t *kept;
} kvd_evict_prompts_args;

/*
 * Compresses whole prompts, each of which starts at position 0. Computes the scores of their tokens
 * (for KVD_EVICT_ATTENTION from a second product Q K^T), chooses the tokens that stay, and moves
 * their rows to the front of the pages.
 */
cudaError_t kvd_evict_prompts(const kvd_evict_prompts_args *args, cudaStream_t stream);
/*
 * The two parts of kvd_evict_prompts. kvd_evict_score writes the scores [n_heads][n_q8] to `mass`
 * with mma.sync; kvd_evict_score_sm90 does the same with wgmma and requires sm_90.
 * kvd_evict_score_keys writes the scores of rankings by keys to `score`. kvd_evict_score_any runs
 * the one of these that the rule and the device ask for. kvd_evict_choose chooses the tokens and
 * moves them.
 */
cudaError_t kvd_evict_score(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_sm90(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_keys(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_any(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_choose(const kvd_evict_prompts_args *args, cudaStream_t stream);

/* Arguments for one decode step of every request of a layer. */
typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    kvd_evict_state state;
    const kvd_evict_budget *budget;
    int32_t layer, batch, max_pages, splits;
    /*
     * Device [batch] each. kv_len: number of entries, including the newest. slot: rows whose slot
     * is at least n_slots are idle.
     */
    const int32_t *kv_len, *slot;
    const uint32_t *at;        /* device [batch]: position of the newest token */
    const int32_t *page_table; /* device [batch][max_pages] */
    const void *q;             /* device [batch][q_pitch] */
    void *pool;                /* device, pages of the layer */
    /*
     * Natural logarithms of the softmax denominators from the attention kernel, device
     * [batch][n_heads]. Not used with a temperature or with KVD_EVICT_FIRST.
     */
    const float *lse;
    float *work; /* device, kvd_evict_steps_bytes bytes; used with a temperature only */
} kvd_evict_steps_args;

/*
 * Updates the entries after one decode step of every request: adds the step's probabilities to the
 * scores (not with KVD_EVICT_FIRST). If a head then has one entry too many, the newest replaces the
 * one that the rule drops. One kernel launch, or two with `whole_layer`; lengths, slots and
 * positions are read on the device. `splits` CTAs share the entries of a head: 1, 2, 4 or 8 on
 * sm_90, and 1 on older devices.
 */
cudaError_t kvd_evict_steps(const kvd_evict_steps_args *args, cudaStream_t stream);
/*
 * Returns the bytes of kvd_evict_steps_args.work for `batch` rows with at most `room` entries per
 * head.
 */
size_t kvd_evict_steps_bytes(const kvd_attn_map *map, size_t batch, size_t room);
/* Returns the number of CTAs per head that fills a device of n_sms multiprocessors. */
int32_t kvd_evict_splits(const kvd_attn_map *map, size_t batch, size_t room, int n_sms);

#ifdef __cplusplus
}
#endif
#endif
