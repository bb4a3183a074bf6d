/* Describes to the CUDA engine how a method drops cached tokens (entries). */
#ifndef KVD_METHODS_TOKENS_EVICTION_H
#define KVD_METHODS_TOKENS_EVICTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct kvd_parameter_values;

/*
 * Tokens of a request in each KV head of a layer. After the prompt, the `keep_new` newest stay, and
 * the `keep_old` older ones with the largest scores. Above `limit` entries, a step drops the
 * smallest scores, `drop` at once or more, never the `recent` newest.
 */
typedef struct {
    int32_t keep_new, keep_old;
    int32_t limit, recent;
    int32_t drop; /* entries dropped at once; 0: one */
    /*
     * For kvd_evict_rule.fixed. at: index by age that a step drops. share > 0: `limit` is this
     * fraction of the tokens so far, rounded up. place (set by the engine): page index of the next
     * drop; -1: none.
     */
    int32_t at, place;
    double share;
    /* Prompt tokens; steps in which the temperature rises from tau0 to tau1. */
    int32_t prompt, steps;
    /*
     * Part of `keep_old` that each KV head chooses by own scores; the layer's n_kv_heads *
     * (keep_old - keep_own) others are chosen from all heads together.
     */
    int32_t keep_own;
} kvd_evict_budget;

/* Score of a KV head's tokens; the largest stay. */
typedef enum {
    KVD_EVICT_ATTENTION, /* sum of received attention probabilities */
    /*
     * No scores: the first kvd_evict_budget.limit - recent tokens stay; the newest replaces the
     * oldest of the last `recent`.
     */
    KVD_EVICT_FIRST,
    KVD_EVICT_SHORT_KEYS, /* minus the key's L2 norm; after prompts only */
    /* Minus (key / |key|) . m, m the mean of the prompt's normalised keys. After prompts only. */
    KVD_EVICT_ODD_KEYS,
    /* ln of expected attention probability times |v| (expectedattention.c). After prompts only. */
    KVD_EVICT_EXPECTED,
    /*
     * Mean plus `gamma` times variance of the last `window` rows' probabilities (cake.c). After
     * prompts only.
     */
    KVD_EVICT_SPREAD,
    /*
     * Minus the number of the last `window` queries, prompt or steps, that gave less than the mean
     * probability (scissorhands.c).
     */
    KVD_EVICT_PIVOTAL,
    /*
     * Larger of the mean probabilities from the last `window` and from all queries, each relative
     * to its mean; summed over `smooth` neighbours (ems.c). After prompts only.
     */
    KVD_EVICT_IMPORTANT,
    /*
     * Largest probability from a copy of the prompt, read after it (kvzip.c). KV heads of all
     * layers share budgets. After prompts only.
     */
    KVD_EVICT_REPEATED
} kvd_evict_ranking;

/* Rules by which dropped tokens are merged into kept tokens of their KV head. */
typedef enum {
    KVD_MERGE_NONE,
    /*
     * Into the token with the largest key cosine u, if u reaches a running mean. Weights: exp(u),
     * kept token e = 2.718... After prompts and steps (d2o.c).
     */
    KVD_MERGE_LIKE,
    /*
     * Into the token with the largest key cosine, outside the last `window`, if it reaches
     * `cosine`; weights are scores. Only the `most` * keep_old largest scores are merged (ems.c).
     */
    KVD_MERGE_IMPORTANT,
    /*
     * Into the kept token nearest by position; the first `sink` and the last token receive none
     * (elasticcache.c).
     */
    KVD_MERGE_NEAREST,
    /*
     * Runs of tokens whose neighbouring keys' cosines exceed `cosine`, into the token with the
     * largest score; weights fall with key distance. `keep_old` largest scores and `keep_new`
     * newest never join. KV heads may keep different numbers (kvmerger.c).
     */
    KVD_MERGE_RUNS
} kvd_merge_kind;

/*
 * Scoring rule. Temperature tau 0: sums of attention probabilities; otherwise of softmax((x +
 * noise) / tau), x the attention scores.
 */
typedef struct {
    /* Softmax temperature for the prompt and for the last decode step, linear between. */
    float tau0, tau1;
    uint64_t seed;
    /* The model's number of this GPU's first query head, which selects the noise. */
    int32_t first_head;
    int32_t window; /* prompt rows to sum; 0: all */
    int32_t smooth; /* neighbouring tokens to sum; odd */
    /* a kvd_evict_ranking */
    int32_t ranking;
    /*
     * 1: all KV heads of a layer keep equal tokens, by summed scores; steps rank by their own
     * probabilities only. Requires temperature 0.
     */
    int32_t whole_layer;
    /* First prompt tokens that always stay (KVD_EVICT_ATTENTION, KVD_EVICT_EXPECTED). */
    int32_t sink;
    /*
     * Fraction of KV heads that keep all tokens: attention-weighted value sums farthest from their
     * mean (taskkv.c). Requires KVD_EVICT_ATTENTION and a window.
     */
    double whole_heads;
    /* KVD_EVICT_EXPECTED: positions after the prompt with predicted queries. */
    int32_t future;
    /* KVD_EVICT_EXPECTED: 1 uses mean and covariance of queries, 0 the mean. */
    int32_t covariance;
    /* KVD_EVICT_EXPECTED: added to the expected attention probability. */
    float epsilon;
    float gamma; /* KVD_EVICT_SPREAD: weight of the variance */
    /*
     * Tokens per window, kept or dropped together (windowkv.c); 0: single tokens. Requires
     * KVD_EVICT_ATTENTION.
     */
    int32_t review;
    /* With review: consecutive layers that keep the first one's tokens. */
    int32_t layers;
    /* With review: a window's score is the mean of 1: the better half, 0: all tokens. */
    int32_t largest;
    /*
     * With whole_layer and KVD_EVICT_ATTENTION: fraction `crush` of `keep_old` represents dropped
     * tokens, ordered by distance of their bits (one per query head) from 1: 0 1 0 1 ..., 2: the
     * majority bits (kvcrush.c). 0: off.
     */
    int32_t anchor;
    double crush;
    int32_t merge; /* a kvd_merge_kind */
    /* KVD_MERGE_LIKE: weight of the newest step's mean cosine in the running mean. */
    double beta;
    /* KVD_MERGE_IMPORTANT, KVD_MERGE_RUNS: smallest cosine of merged keys */
    double cosine;
    double most; /* KVD_MERGE_IMPORTANT: merged tokens / keep_old */
    /* 1: a step drops the entry at kvd_evict_budget.at, without scores (elasticcache.c). */
    int32_t fixed;
} kvd_evict_rule;

/* Rules by which a decode step chooses the pages or tokens that it reads. */
typedef enum {
    KVD_READ_BOUNDS, /* pages, by bounds of q k (quest.c) */
    KVD_READ_RECENT, /* tokens, by attention of the last `history` rows (alisa.c) */
    /* tokens, by q times the centroid nearest to their key (a2ats.c) */
    KVD_READ_CODES,
    /* clusters at two levels; unattended prompt tokens were dropped (mpcache.c) */
    KVD_READ_CLUSTERS,
    /* prompt pages, by q times their mean key; keys are low-rank (shadowkv.c) */
    KVD_READ_LANDMARKS
} kvd_read_ranking;

/*
 * Tokens that a decode step reads: `budget` (below 1: fraction of the cached ones), rounded up to
 * pages of `page` tokens.
 */
typedef struct {
    double budget;
    size_t page;
    int32_t ranking; /* a kvd_read_ranking */
    /* KVD_READ_RECENT: budget fraction for the newest tokens; recent rows that count. */
    double local;
    int32_t history;
    /* KVD_READ_CODES: first and newest tokens, read in addition to each query head's `budget`. */
    int32_t sink, newest;
    /*
     * KVD_READ_CLUSTERS: page, large: tokens of small and large clusters (large a multiple of
     * page). first: fraction of large clusters to score. alpha: weight of largest keys, 1 - alpha
     * of smallest. Prompt tokens need mean probability `threshold` from one of the last fraction
     * `rows` of queries.
     */
    int32_t large;
    double first, alpha, rows, threshold;
    /*
     * KVD_READ_LANDMARKS: rank of prompt keys; exact pages, least similar to their mean (outliers)
     * and last full (last), read in addition to `budget`, a fraction of the prompt.
     */
    int32_t rank, outliers, last;
} kvd_read_rule;

/* Centroids of keys before RoPE, for KVD_READ_CODES: host arrays of all layers and KV heads. */
typedef struct {
    int32_t size;     /* centroids of a KV head */
    int32_t relative; /* RoPE position of queries against centroids */
    /*
     * [n_layers][n_kv_heads][d][d] Matrices L: the centroid c nearest to key k has the smallest |k
     * L - c L|.
     */
    const float *factor;
    const float *moved;    /* [n_layers][n_kv_heads][size][d] centroids times L */
    const float *centroid; /* [n_layers][n_kv_heads][size][d] */
} kvd_read_codes;

typedef struct {
    size_t prompt, whole; /* tokens of the prompt; of prompt and steps */
    int layer, n_layers;
} kvd_evict_request;

typedef struct {
    size_t n;
    int n_layers;
    /*
     * [n_layers][each] Statistics of all layers: entropy and variance of attention
     * (KVD_EVICT_SPREAD, cake.c), or token scores summed over query heads.
     */
    const double *x;
    /* Statistics per layer: 2 with KVD_EVICT_SPREAD, else n. */
    size_t each;
} kvd_evict_layers;

typedef struct {
    /* Sets members of *rule, in which `smooth` is 1, `seed` the plan's, and all others 0. */
    void (*rule)(const struct kvd_parameter_values *v, kvd_evict_rule *rule);
    kvd_evict_budget (*budget)(const struct kvd_parameter_values *v, const kvd_evict_request *r);
    /*
     * Sets budgets [n_layers] of a prompt from statistics of all layers. `budget` must then return
     * the mean, for timing runs. NULL: `budget` alone.
     */
    int (*divide)(const struct kvd_parameter_values *v, const kvd_evict_layers *s,
                  kvd_evict_budget *budget, kvd_err *err);
    /*
     * True if ranking needs keys with all d_head dimensions; excludes methods that remove
     * dimensions.
     */
    bool whole_keys;
} kvd_tokens_eviction;

#endif
