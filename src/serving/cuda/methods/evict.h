/*
 * Eviction on the device: which entries of a KV head stay behind a prompt and behind every step (methods/tokens h2o, keyformer, snapkv).
 *
 * Pages hold the entries of a KV head side by side, in no order: RoPE is in them, so a place means nothing. Every KV head of every layer has
 * the same number of them, since budgets are numbers of tokens. Beside a head's entries stand their scores and positions. Launchers as in
 * model/cuda/blocks.h. Ties go as on the CPU: of equal scores the earlier token leaves.
 */
#ifndef KVD_SERVING_CUDA_EVICT_H
#define KVD_SERVING_CUDA_EVICT_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a slot. Of the prompt's tokens `keep_new` newest stay and of the others the keep_old with the largest scores. After a step, when there are more
 * than `limit` entries, the one with the least score of those but the `recent` newest leaves. */
typedef struct {
    int32_t keep_new, keep_old;
    int32_t limit, recent;
    int32_t prompt, steps; /* tokens of the prompt and behind it, for the temperature */
} kvd_evict_budget;

/* How scores are made. A temperature of 0: probabilities are summed as they are; else exp((x + noise) / tau), normalised anew. */
typedef struct {
    float tau0, tau1; /* at the prompt, at the last step             */
    uint64_t seed;
    int32_t window; /* last rows of a prompt that are summed; 0: all */
    int32_t smooth; /* neighbours that are summed; odd               */
} kvd_evict_rule;

/* Scores and positions: [slot][layer][kv_head][room]. */
typedef struct {
    float *score;
    uint32_t *position;
    int32_t n_slots, n_layers, room;
} kvd_evict_state;

typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    kvd_evict_state state; /* without score nothing is kept beside K and V */
    const kvd_evict_budget *budget;
    int32_t hopper;                                 /* 1: on sm_90 */
    int32_t layer, batch, n_q8, max_pages, longest; /* longest of q_len           */
    const int32_t *q_start, *q_len, *slot;          /* device [batch]             */
    const int32_t *page_table;                      /* device [batch][max_pages]  */
    const void *q;                                  /* device, blocked Q          */
    void *pool;                                     /* device, pages of the layer */
    float *
        lse; /* device [n_heads][n_q8]: natural log, of the attention kernel; with a temperature it is overwritten */
    float *mass;   /* device [n_heads][n_q8] work                                              */
    float *score;  /* device [n_kv_heads][n_q8] scores of the prompts' tokens             out  */
    int32_t *kept; /* device [n_kv_heads][n_q8] tokens that stay, rising                  out  */
} kvd_evict_prompts_args;

/*
 * Prompts behind nothing, whole. Scores of their tokens from a second product Q K^T, the choice, and what stays together at the
 * front of the pages.
 */
cudaError_t kvd_evict_prompts(const kvd_evict_prompts_args *args, cudaStream_t stream);
/* Its parts: the scores [n_heads][n_q8] in `mass`, by mma.sync or, on sm_90, wgmma; the choice and the moves. */
cudaError_t kvd_evict_score(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_score_sm90(const kvd_evict_prompts_args *args, cudaStream_t stream);
cudaError_t kvd_evict_choose(const kvd_evict_prompts_args *args, cudaStream_t stream);

typedef struct {
    kvd_attn_map map;
    kvd_evict_rule rule;
    kvd_evict_state state;
    const kvd_evict_budget *budget;
    int32_t layer, batch, max_pages, splits;
    const int32_t *kv_len,
        *slot; /* device [batch]: entries, the newest included; slots from n_slots on are idle rows */
    const uint32_t *at;        /* device [batch] position of the newest            */
    const int32_t *page_table; /* device [batch][max_pages]                        */
    const void *q;             /* device [batch][q_pitch]                          */
    void *pool;                /* device, pages of the layer                       */
    const float
        *lse; /* device [batch][n_heads] of the attention kernel, natural log; not used with a temperature */
    float *work; /* device, kvd_evict_steps_bytes; with a temperature alone */
} kvd_evict_steps_args;

/*
 * A step each: its scores are added, and where a head has an entry too many, one leaves and the newest takes its place. One launch; lengths,
 * slots and positions are read on the device. `splits` CTAs share the entries of a head: 1, 2, 4 or 8, one before sm_90.
 */
cudaError_t kvd_evict_steps(const kvd_evict_steps_args *args, cudaStream_t stream);
size_t kvd_evict_steps_bytes(const kvd_attn_map *map, size_t batch, size_t room);
int32_t kvd_evict_splits(const kvd_attn_map *map, size_t batch, size_t room, int n_sms);

#ifdef __cplusplus
}
#endif
#endif
