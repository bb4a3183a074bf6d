/* Description of a method that drops cached tokens (entries), for use in the CUDA engine. */
#ifndef KVD_METHODS_TOKENS_EVICTION_H
#define KVD_METHODS_TOKENS_EVICTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct kvd_parameter_values;

/*
 * Number of tokens that a request may keep in each KV head of one layer. After the prompt, the
 * `keep_new` newest tokens stay, and of the older tokens the `keep_old` with the largest scores. If
 * a head has more than `limit` entries after a step, the `drop` entries with the smallest scores
 * are dropped, or as many as are above `limit` if these are more. The `recent` newest entries are
 * exempt.
 */
typedef struct {
    int32_t keep_new, keep_old;
    int32_t limit, recent;
    int32_t drop; /* number of entries that a step drops at once; 0: one */
    /*
     * With kvd_evict_rule.fixed: index, in the order of age, of the entry that a step drops. If
     * `share` is above 0, `limit` is that fraction of the tokens so far, rounded up. `place` is set
     * by the engine: place in the pages of the entry that the next step drops, -1: none.
     */
    int32_t at, place;
    double share;
    /*
     * Number of prompt tokens, and of decode steps after the prompt. The temperature of
     * kvd_evict_rule rises over these steps.
     */
    int32_t prompt, steps;
    /*
     * Number of the `keep_old` tokens that every KV head chooses by its own scores. The layer's
     * remaining n_kv_heads (keep_old - keep_own) tokens have the largest scores of all its KV
     * heads.
     */
    int32_t keep_own;
} kvd_evict_budget;

/* Score by which the tokens of a KV head are ranked. The tokens with the largest scores stay. */
typedef enum {
    KVD_EVICT_ATTENTION, /* sum of the attention probabilities received */
    /*
     * No scores: the first limit - recent tokens always stay. In a step the newest token replaces
     * the oldest of the last `recent` ones.
     */
    KVD_EVICT_FIRST,
    KVD_EVICT_SHORT_KEYS, /* minus the L2 norm of the key; at the end of prompts only */
    /*
     * Minus (key / |key|) . m, where m is the mean of all keys of the prompt, each divided by its
     * norm. At the end of prompts only.
     */
    KVD_EVICT_ODD_KEYS,
    /*
     * Logarithm of the expected attention probability times the length |v| of the value
     * (expectedattention.c). At the end of prompts only.
     */
    KVD_EVICT_EXPECTED,
    /*
     * Mean plus `gamma` times the variance of the probabilities that the last `window` rows of the
     * prompt give to the token (cake.c). At the end of prompts only.
     */
    KVD_EVICT_SPREAD,
    /*
     * Minus the number of queries that gave the token less than their mean probability: of the last
     * `window` rows, prompt and steps together (scissorhands.c).
     */
    KVD_EVICT_PIVOTAL,
    /*
     * Larger one of two means of the probabilities that the token receives, from the last `window`
     * rows and from all rows that see it, each divided by its mean over the tokens, and summed over
     * `smooth` neighbours (ems.c). At the end of prompts only.
     */
    KVD_EVICT_IMPORTANT,
    /*
     * Largest probability that the token receives from a copy of the prompt, which the model reads
     * after the prompt (kvzip.c). The KV heads of all layers share their budgets. At the end of
     * prompts only.
     */
    KVD_EVICT_REPEATED
} kvd_evict_ranking;

/* Rule by which dropped tokens are merged into kept ones of their KV head. */
typedef enum {
    KVD_MERGE_NONE,
    /*
     * Into the token with the largest cosine u of keys, with weight exp(u), if u reaches a running
     * mean of such cosines, after prompts and steps (d2o.c). The kept token has weight e.
     */
    KVD_MERGE_LIKE,
    /*
     * Into the token before the last `window` ones with the largest cosine of keys, if it reaches
     * `cosine`, with the scores as weights: of the dropped tokens, the `most` keep_old with the
     * largest scores (ems.c).
     */
    KVD_MERGE_IMPORTANT,
    /*
     * Into the nearest token by position, but not the first `sink` ones or the last
     * (elasticcache.c).
     */
    KVD_MERGE_NEAREST,
    /*
     * Runs of consecutive tokens whose neighbours have cosines of keys above `cosine` become one
     * token each, the one with the largest score, with weights that fall with the distance of keys.
     * The `keep_old` tokens with the largest scores and the `keep_new` newest are in no run, so KV
     * heads keep different numbers of tokens (kvmerger.c).
     */
    KVD_MERGE_RUNS
} kvd_merge_kind;

/*
 * Rule that computes the scores of tokens. If the temperature tau is 0, a score is a sum of
 * attention probabilities. Otherwise the probabilities are those of a softmax over (x + noise) /
 * tau, where x are the attention scores.
 */
typedef struct {
    /*
     * Temperature tau of the prompt (tau0) and of the last step (tau1), interpolated between them.
     */
    float tau0, tau1;
    uint64_t seed;
    int32_t window; /* prompt rows whose probabilities are summed; 0: all */
    int32_t smooth; /* number of neighbouring tokens whose scores are summed; odd */
    /* A kvd_evict_ranking. */
    int32_t ranking;
    /*
     * 1: all KV heads of a layer keep the same tokens, ranked by the score summed over the heads. A
     * step then ranks by the probabilities of this step alone. Requires temperature 0.
     */
    int32_t whole_layer;
    /* Number of first prompt tokens that always stay. With KVD_EVICT_ATTENTION and EXPECTED. */
    int32_t sink;
    /*
     * Fraction of the KV heads of a layer that keep all tokens: those whose semantic vector is
     * farthest from the mean of these vectors (taskkv.c). Requires KVD_EVICT_ATTENTION and a
     * window.
     */
    double whole_heads;
    /*
     * With KVD_EVICT_EXPECTED: number of positions after the prompt, for which queries are
     * predicted.
     */
    int32_t future;
    /* With KVD_EVICT_EXPECTED: 1 uses mean and covariance of the queries, 0 only their mean. */
    int32_t covariance;
    /* With KVD_EVICT_EXPECTED: added to the expected attention probability. */
    float epsilon;
    float gamma; /* with KVD_EVICT_SPREAD: weight of the variance */
    /*
     * Number of tokens in a window; the tokens of a window stay or are dropped together
     * (windowkv.c). 0: tokens are chosen one by one. Requires KVD_EVICT_ATTENTION.
     */
    int32_t review;
    /*
     * If review > 0: number of consecutive layers that keep the tokens chosen by the first of them.
     */
    int32_t layers;
    /*
     * If review > 0: 1 ranks windows by the mean over the half of their tokens with the largest
     * scores, 0 by the mean over all tokens.
     */
    int32_t largest;
    /*
     * With `whole_layer` and KVD_EVICT_ATTENTION, if not 0: of the `keep_old` tokens of a prompt,
     * the fraction `crush` represents the tokens that would be dropped. 1: their bits are compared
     * with 0 1 0 1 ... over the query heads, 2: with the more frequent bits (kvcrush.c).
     */
    int32_t anchor;
    double crush;
    int32_t merge; /* a kvd_merge_kind */
    double beta;   /* with KVD_MERGE_LIKE: weight of the newest mean in the running mean */
    double cosine; /* with KVD_MERGE_IMPORTANT and KVD_MERGE_RUNS */
    double most;   /* with KVD_MERGE_IMPORTANT */
    /* 1: a step drops the entry at kvd_evict_budget.at, without scores (elasticcache.c). */
    int32_t fixed;
} kvd_evict_rule;

/* Score by which a decode step chooses the pages or tokens that it reads. */
typedef enum {
    KVD_READ_BOUNDS, /* pages of tokens, by bounds of the products with their keys (quest.c) */
    KVD_READ_RECENT, /* tokens, by the attention that the last `history` rows gave them (alisa.c) */
    /* tokens, by the products of a query with the centroids nearest to their keys (a2ats.c) */
    KVD_READ_CODES,
    /*
     * clusters of tokens, at two levels, of the tokens that the prompt's last rows leave
     * (mpcache.c)
     */
    KVD_READ_CLUSTERS,
    /*
     * pages of a prompt, by the products of a query with the means of their keys; keys of the
     * prompt are stored in low rank (shadowkv.c)
     */
    KVD_READ_LANDMARKS
} kvd_read_ranking;

/*
 * Selection at read time, for use in the CUDA engine. A step reads `budget` tokens (below 1: a
 * fraction of the cached ones), rounded up to whole pages of `page` tokens.
 */
typedef struct {
    double budget;
    size_t page;
    int32_t ranking; /* a kvd_read_ranking */
    /* With KVD_READ_RECENT: fraction of the budget for the newest tokens, and number of rows. */
    double local;
    int32_t history;
    /*
     * With KVD_READ_CODES: numbers of first and of newest tokens that are read in addition to the
     * `budget` tokens of every query head.
     */
    int32_t sink, newest;
    /*
     * With KVD_READ_CLUSTERS: `page` is the size of a small cluster and `large`, a multiple, that
     * of a large one. `first` is the fraction of the large clusters whose small clusters are
     * scored, and `alpha` the weight of the largest numbers of a cluster's keys. A token of the
     * prompt stays if one of its last rows, the fraction `rows`, gives it the mean probability
     * `threshold`.
     */
    int32_t large;
    double first, alpha, rows, threshold;
    /*
     * With KVD_READ_LANDMARKS: rank of the keys of a prompt, and the numbers of pages of the prompt
     * whose keys stay exact, in addition to the `budget` tokens: those with the least alike keys,
     * and the last whole ones. `budget` is a fraction of the prompt.
     */
    int32_t rank, outliers, last;
} kvd_read_rule;

/* Centroids of keys before RoPE, for KVD_READ_CODES. Host arrays of all layers and KV heads. */
typedef struct {
    int32_t size;     /* number of centroids of a KV head */
    int32_t relative; /* RoPE position at which queries are compared with centroids */
    /*
     * [n_layers][n_kv_heads][d][d] matrices L. The centroid nearest to a key k is the one whose
     * product with L is nearest to k L.
     */
    const float *factor;
    const float *moved;    /* [n_layers][n_kv_heads][size][d] centroids times L */
    const float *centroid; /* [n_layers][n_kv_heads][size][d] */
} kvd_read_codes;

typedef struct {
    size_t prompt, whole; /* number of tokens of the prompt, and of prompt and steps together */
    int layer, n_layers;
} kvd_evict_request;

typedef struct {
    /* Number of tokens of the prompt. */
    size_t n;
    int n_layers;
    /*
     * Statistics of all layers, [n_layers][each]. With KVD_EVICT_SPREAD: entropy and variance of
     * the attention (cake.c). Otherwise: scores of the tokens, summed over all query heads.
     */
    const double *x;
    /* Number of statistics of a layer: 2 with KVD_EVICT_SPREAD, else n. */
    size_t each;
} kvd_evict_layers;

typedef struct {
    /*
     * Sets the members of *rule that differ from their defaults. On entry `smooth` is 1, `seed` is
     * that of the plan and all other members are 0.
     */
    void (*rule)(const struct kvd_parameter_values *v, kvd_evict_rule *rule);
    kvd_evict_budget (*budget)(const struct kvd_parameter_values *v, const kvd_evict_request *r);
    /*
     * Sets the budgets [n_layers] of a prompt from statistics of all its layers. NULL if `budget`
     * alone gives the budgets. If not NULL, `budget` returns the mean over the layers, for timing
     * runs that compute no prompt.
     */
    int (*divide)(const struct kvd_parameter_values *v, const kvd_evict_layers *s,
                  kvd_evict_budget *budget, kvd_err *err);
    /*
     * True if ranking needs keys with all d_head dimensions. The method cannot then be combined
     * with a method that removes dimensions.
     */
    bool whole_keys;
} kvd_tokens_eviction;

#endif
