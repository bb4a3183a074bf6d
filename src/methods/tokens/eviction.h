/* Describes to the CUDA engine how a method drops cached tokens (entries). */
#ifndef KVD_METHODS_TOKENS_EVICTION_H
#define KVD_METHODS_TOKENS_EVICTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct kvd_parameter_values;

/*
 * Number of tokens that stay in each KV head. After a prompt, the `keep_new` newest tokens stay,
 * and `keep_old` others with the largest scores. Above `limit` tokens, a decode step drops at least
 * `drop` tokens with the smallest scores, but never the `recent` newest.
 */
typedef struct {
    int32_t keep_new, keep_old;
    int32_t limit, recent;
    int32_t drop; /* number of entries dropped at once, where 0 means one */
    /*
     * For kvd_evict_rule.fixed. at: index, by age, of the token to drop. share: if above 0, `limit`
     * is this fraction of all tokens, rounded up. place: index in the pages of the token to drop,
     * set by the engine, or -1.
     */
    int32_t at, place;
    double share;
    /* Number of prompt tokens, and of steps in which the temperature rises from tau0 to tau1. */
    int32_t prompt, steps;
    /* Part of `keep_old` that each KV head chooses by its own scores; all heads share the rest. */
    int32_t keep_own;
} kvd_evict_budget;

/* Score by which a KV head's tokens are ranked. Tokens with the largest scores stay. */
typedef enum {
    KVD_EVICT_ATTENTION, /* sum of received attention probabilities */
    /* No scores: the first limit - recent tokens stay, the newest replaces the oldest other. */
    KVD_EVICT_FIRST,
    KVD_EVICT_SHORT_KEYS, /* minus the L2 norm of the key, after prompts only */
    /* Minus (key / |key|) . m, m being the mean of normalised keys. After prompts only. */
    KVD_EVICT_ODD_KEYS,
    /* Log of expected attention probability times |v| (expectedattention.c). After prompts only. */
    KVD_EVICT_EXPECTED,
    /*
     * Mean + gamma variance of the last `window` rows' probabilities (cake.c). After prompts only.
     */
    KVD_EVICT_SPREAD,
    /*
     * Minus the number of the last `window` queries that gave the token less than the mean
     * probability (scissorhands.c).
     */
    KVD_EVICT_PIVOTAL,
    /*
     * The larger of two mean probabilities that the token received, from the last `window` queries
     * and from all, each divided by its mean over tokens. Summed over `smooth` neighbours (ems.c).
     * After prompts only.
     */
    KVD_EVICT_IMPORTANT,
    /*
     * Largest probability that the token receives from a copy of the prompt (kvzip.c). KV heads
     * share budgets. After prompts only.
     */
    KVD_EVICT_REPEATED,
    /* Output of a trained network of the token's Q, K and V (locret.c). After prompts only. */
    KVD_EVICT_TRAINED
} kvd_evict_ranking;

/* How dropped tokens merge into kept tokens of their KV head. */
typedef enum {
    KVD_MERGE_NONE,
    /*
     * Merges into the token with the largest key cosine u, if u reaches a running mean. The weights
     * are exp(u), and e for the kept token. After prompts and steps (d2o.c).
     */
    KVD_MERGE_LIKE,
    /*
     * Merges into the token with the largest key cosine outside the last `window`, if the cosine
     * reaches `cosine`. Weights are scores. Only the `most` * keep_old tokens with the largest
     * scores are merged (ems.c).
     */
    KVD_MERGE_IMPORTANT,
    /*
     * Merges into the kept token nearest by position, but not into the first `sink` or the last
     * (elasticcache.c).
     */
    KVD_MERGE_NEAREST,
    /*
     * Merges runs of tokens whose neighbouring keys have cosines above `cosine` into the token with
     * the largest score. Weights fall with key distance. The keep_old tokens with the largest
     * scores and the keep_new newest tokens are not merged (kvmerger.c).
     */
    KVD_MERGE_RUNS
} kvd_merge_kind;

/*
 * Scoring rule. If tau0 is 0, scores sum attention probabilities. Otherwise they sum the
 * probabilities softmax((x + noise) / tau), where x are attention scores.
 */
typedef struct {
    /* Softmax temperature of the prompt and of the last step. Between them it changes linearly. */
    float tau0, tau1;
    uint64_t seed;
    /* Number, in the whole model, of this GPU's first query head, which selects the noise. */
    int32_t first_head;
    int32_t window; /* number of prompt rows to sum, or 0 for all */
    int32_t smooth; /* odd number of neighbouring tokens to sum */
    /* Score by which tokens are ranked, a kvd_evict_ranking. */
    int32_t ranking;
    /*
     * 1 if the KV heads of a layer keep equal tokens, by summed scores. A step then ranks tokens
     * only by its own probabilities. Requires temperature 0.
     */
    int32_t whole_layer;
    /* Number of first tokens that always stay (KVD_EVICT_ATTENTION, KVD_EVICT_EXPECTED). */
    int32_t sink;
    /* Fraction of KV heads that keep all (taskkv.c); needs KVD_EVICT_ATTENTION and a window. */
    double whole_heads;
    /* KVD_EVICT_EXPECTED: number of positions after the prompt for which queries are predicted. */
    int32_t future;
    /* KVD_EVICT_EXPECTED: 1 uses mean and covariance of queries, 0 only the mean. */
    int32_t covariance;
    /* KVD_EVICT_EXPECTED: number added to the expected attention probability. */
    float epsilon;
    float gamma; /* KVD_EVICT_SPREAD: weight of the variance */
    /*
     * Tokens of a window, which stay or are dropped together (windowkv.c), or 0 for single tokens.
     * Requires KVD_EVICT_ATTENTION.
     */
    int32_t review;
    /* If review > 0: number of consecutive layers that keep the first one's tokens. */
    int32_t layers;
    /* If review > 0: a window's score is the mean of its better half (1) or all tokens (0). */
    int32_t largest;
    /*
     * If not 0, the fraction `crush` of `keep_old` represents the dropped tokens, ordered by
     * distance of their bits (one per query head) from an anchor. 1: the anchor is 0 1 0 1 ..., 2:
     * the majority bits (kvcrush.c). Requires whole_layer and KVD_EVICT_ATTENTION.
     */
    int32_t anchor;
    double crush;
    int32_t merge; /* a kvd_merge_kind */
    /* KVD_MERGE_LIKE: weight of the newest step in the running mean. */
    double beta;
    /* KVD_MERGE_IMPORTANT, KVD_MERGE_RUNS: smallest cosine of keys that are merged. */
    double cosine;
    double most; /* KVD_MERGE_IMPORTANT: number of merged tokens as a multiple of keep_old */
    /* 1 if every decode step drops the token at one fixed index. */
    int32_t fixed;
} kvd_evict_rule;

/* Rules by which a decode step chooses the tokens that it reads. */
typedef enum {
    KVD_READ_BOUNDS, /* pages, ranked by bounds of q k (quest.c) */
    KVD_READ_RECENT, /* tokens, ranked by attention of the last `history` rows (alisa.c) */
    /* Tokens, ranked by the product of q and the centroid nearest to their key (a2ats.c). */
    KVD_READ_CODES,
    /*
     * Scores clusters of tokens, then clusters within them, and reads the best. Prompt tokens that
     * got little attention are dropped (mpcache.c).
     */
    KVD_READ_CLUSTERS,
    /* Prompt pages, ranked by q times their mean key; keys have low rank (shadowkv.c). */
    KVD_READ_LANDMARKS
} kvd_read_ranking;

/*
 * Rule for the number of tokens that a decode step reads: `budget` (below 1: a fraction of the
 * cached tokens), rounded up to pages of `page` tokens.
 */
typedef struct {
    double budget;
    size_t page;
    int32_t ranking; /* a kvd_read_ranking */
    /* KVD_READ_RECENT: share of the budget for the newest tokens, and number of queries counted. */
    double local;
    int32_t history;
    /* KVD_READ_CODES: numbers of first and of newest tokens, read in addition to the budget. */
    int32_t sink, newest;
    /*
     * KVD_READ_CLUSTERS. page, large: number of tokens of a small and of a large cluster. first:
     * fraction of large clusters to score. alpha: weight of a cluster's largest keys. A prompt
     * token stays if one of the last fraction `rows` of queries gives it probability `threshold`.
     */
    int32_t large;
    double first, alpha, rows, threshold;
    /*
     * KVD_READ_LANDMARKS: rank of prompt keys, and numbers of pages with exact keys (outliers, and
     * last full pages). These are read in addition to `budget`, a fraction of the prompt.
     */
    int32_t rank, outliers, last;
} kvd_read_rule;

/* Centroids of keys before RoPE, for KVD_READ_CODES. Host arrays of all layers and KV heads. */
typedef struct {
    int32_t size;     /* number of centroids of a KV head */
    int32_t relative; /* RoPE position at which queries are compared with centroids */
    /* Factors L [n_layers][n_kv_heads][d][d]. The centroid c of key k minimises |k L - c L|. */
    const float *factor;
    const float *moved;    /* [n_layers][n_kv_heads][size][d] centroids times L */
    const float *centroid; /* [n_layers][n_kv_heads][size][d] */
} kvd_read_codes;

typedef struct {
    size_t prompt, whole; /* number of tokens of the prompt, and of prompt and steps */
    int layer, n_layers;
} kvd_evict_request;

typedef struct {
    size_t n;
    int n_layers;
    /* Entropy and variance of attention, or token scores summed over heads, [n_layers][each]. */
    const double *x;
    /* Number of statistics per layer: 2 with KVD_EVICT_SPREAD, otherwise n. */
    size_t each;
} kvd_evict_layers;

typedef struct {
    /*
     * Sets members of *rule. The caller has set `smooth` to 1, `seed` to that of the run, all
     * others to 0.
     */
    void (*rule)(const struct kvd_parameter_values *v, kvd_evict_rule *rule);
    kvd_evict_budget (*budget)(const struct kvd_parameter_values *v, const kvd_evict_request *r);
    /*
     * Sets budgets [n_layers] from statistics of all layers. `budget` must then return their mean.
     * NULL: `budget` alone gives the budgets.
     */
    int (*divide)(const struct kvd_parameter_values *v, const kvd_evict_layers *s,
                  kvd_evict_budget *budget, kvd_err *err);
    /* True if ranking needs keys before projection, so that no method may remove dimensions. */
    bool whole_keys;
} kvd_tokens_eviction;

#endif
