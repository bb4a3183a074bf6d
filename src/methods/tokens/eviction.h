/* Describes to the CUDA engine how a method drops cached tokens (entries). */
#ifndef KVD_METHODS_TOKENS_EVICTION_H
#define KVD_METHODS_TOKENS_EVICTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct kvd_parameter_values;

/*
 * Tokens in each KV head. The `keep_new` newest prompt tokens and the `keep_old` largest scores
 * stay. Above `limit`, a step drops `drop` or more of the smallest scores, never the `recent`
 * newest.
 */
typedef struct {
    int32_t keep_new, keep_old;
    int32_t limit, recent;
    int32_t drop; /* entries dropped at once; 0: one */
    /*
     * For kvd_evict_rule.fixed. at: index by age to drop. share > 0: `limit` as a fraction of all
     * tokens, rounded up. place (set by the engine): page index; -1: none.
     */
    int32_t at, place;
    double share;
    /* Prompt tokens; steps from temperature tau0 to tau1. */
    int32_t prompt, steps;
    /*
     * Part of `keep_old` by each KV head's own scores; n_kv_heads * (keep_old - keep_own) are
     * chosen over all heads.
     */
    int32_t keep_own;
} kvd_evict_budget;

/* Score of a KV head's tokens; the largest stay. */
typedef enum {
    KVD_EVICT_ATTENTION, /* sum of received attention probabilities */
    /*
     * No scores: the first kvd_evict_budget.limit - recent tokens stay; the newest replaces the
     * oldest `recent`.
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
    /* Minus the last `window` queries that gave less than the mean probability (scissorhands.c). */
    KVD_EVICT_PIVOTAL,
    /*
     * Larger of mean probabilities from the last `window` and all queries, relative to their means,
     * over `smooth` neighbours (ems.c). After prompts only.
     */
    KVD_EVICT_IMPORTANT,
    /*
     * Largest probability from a copy of the prompt, read after it; shared budgets (kvzip.c). After
     * prompts only.
     */
    KVD_EVICT_REPEATED
} kvd_evict_ranking;

/* How dropped tokens merge into kept tokens of their KV head. */
typedef enum {
    KVD_MERGE_NONE,
    /*
     * By largest key cosine u, above a running mean; weights exp(u), kept e = 2.718... After
     * prompts and steps (d2o.c).
     */
    KVD_MERGE_LIKE,
    /*
     * By largest key cosine >= `cosine`, outside the last `window`; weights: scores. Only the
     * `most` * keep_old largest scores (ems.c).
     */
    KVD_MERGE_IMPORTANT,
    /* Into the token nearest by position, except the first `sink` and the last (elasticcache.c). */
    KVD_MERGE_NEAREST,
    /*
     * Runs of neighbours with cosines above `cosine`, into the largest score; weights fall with key
     * distance. `keep_old` largest scores and `keep_new` newest never join (kvmerger.c).
     */
    KVD_MERGE_RUNS
} kvd_merge_kind;

/*
 * Scoring rule. tau 0: sums of probabilities; otherwise of softmax((x + noise) / tau), x the
 * scores.
 */
typedef struct {
    /* Softmax temperature of the prompt and of the last step, linear between. */
    float tau0, tau1;
    uint64_t seed;
    /* Model number of this GPU's first query head, for the noise. */
    int32_t first_head;
    int32_t window; /* prompt rows to sum; 0: all */
    int32_t smooth; /* neighbouring tokens to sum; odd */
    /* a kvd_evict_ranking */
    int32_t ranking;
    /*
     * 1: KV heads of a layer keep equal tokens by summed scores; steps rank by own probabilities.
     * Requires temperature 0.
     */
    int32_t whole_layer;
    /* First tokens that always stay (KVD_EVICT_ATTENTION, KVD_EVICT_EXPECTED). */
    int32_t sink;
    /*
     * Fraction of KV heads that keep all tokens (taskkv.c). Requires KVD_EVICT_ATTENTION and a
     * window.
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
     * Tokens per window, kept together (windowkv.c); 0: single tokens. Requires
     * KVD_EVICT_ATTENTION.
     */
    int32_t review;
    /* With review: consecutive layers that keep the first one's tokens. */
    int32_t layers;
    /* With review: a window scores by 1: its better half, 0: all tokens. */
    int32_t largest;
    /*
     * With whole_layer, KVD_EVICT_ATTENTION: fraction `crush` of `keep_old` represents dropped
     * tokens, by distance of bits per query head from 1: 0 1 0 1 ..., 2: majority bits (kvcrush.c).
     * 0: off.
     */
    int32_t anchor;
    double crush;
    int32_t merge; /* a kvd_merge_kind */
    /* KVD_MERGE_LIKE: weight of the newest mean cosine. */
    double beta;
    /* KVD_MERGE_IMPORTANT, KVD_MERGE_RUNS: smallest cosine of merged keys */
    double cosine;
    double most; /* KVD_MERGE_IMPORTANT: merged tokens / keep_old */
    /* 1: steps drop the entry at kvd_evict_budget.at (elasticcache.c). */
    int32_t fixed;
} kvd_evict_rule;

/* How a decode step chooses what it reads. */
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
 * Tokens to read: `budget` (below 1: fraction of cached ones), rounded up to pages of `page`
 * tokens.
 */
typedef struct {
    double budget;
    size_t page;
    int32_t ranking; /* a kvd_read_ranking */
    /* KVD_READ_RECENT: budget fraction of newest tokens; rows that count. */
    double local;
    int32_t history;
    /* KVD_READ_CODES: first and newest tokens, read in addition. */
    int32_t sink, newest;
    /*
     * KVD_READ_CLUSTERS: page, large: tokens of small, large clusters. first: fraction of large
     * clusters to score. alpha: weight of largest keys. Prompt tokens need probability `threshold`
     * from the last fraction `rows` of queries.
     */
    int32_t large;
    double first, alpha, rows, threshold;
    /*
     * KVD_READ_LANDMARKS: rank of prompt keys; exact pages: outliers, and last full ones, read in
     * addition to `budget`, a fraction of the prompt.
     */
    int32_t rank, outliers, last;
} kvd_read_rule;

/* Centroids of keys before RoPE, for KVD_READ_CODES: host arrays of all layers and KV heads. */
typedef struct {
    int32_t size;     /* centroids of a KV head */
    int32_t relative; /* RoPE position of queries against centroids */
    /* [n_layers][n_kv_heads][d][d] L: the nearest centroid c minimises |k L - c L|. */
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
     * [n_layers][each] Entropy and variance of attention (KVD_EVICT_SPREAD), or token scores over
     * query heads.
     */
    const double *x;
    /* Statistics per layer: 2 with KVD_EVICT_SPREAD, else n. */
    size_t each;
} kvd_evict_layers;

typedef struct {
    /* *rule is preset: `smooth` 1, `seed` of the plan, all else 0. */
    void (*rule)(const struct kvd_parameter_values *v, kvd_evict_rule *rule);
    kvd_evict_budget (*budget)(const struct kvd_parameter_values *v, const kvd_evict_request *r);
    /*
     * Sets budgets [n_layers] from all layers' statistics; `budget` must return the mean. NULL:
     * `budget` alone.
     */
    int (*divide)(const struct kvd_parameter_values *v, const kvd_evict_layers *s,
                  kvd_evict_budget *budget, kvd_err *err);
    /* True if ranking needs whole keys; excludes methods that remove dimensions. */
    bool whole_keys;
} kvd_tokens_eviction;

#endif
