/* Describes to the CUDA engine how a method drops cached tokens. */
#ifndef KVD_METHODS_TOKENS_EVICTION_H
#define KVD_METHODS_TOKENS_EVICTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct kvd_parameter_values;

/* Number of tokens that stay in each KV head. After a prompt, the `keep_new` newest tokens stay,
 * and `keep_old` older ones with the largest scores. Above `limit` tokens, a decode step drops at
 * least `drop` tokens, but never the `recent` newest. */
typedef struct {
    int32_t keep_new, keep_old;
    int32_t limit, recent;
    int32_t drop; /* number of entries dropped at once, where 0 means one */
    /* Used with kvd_evict_rule.fixed. at: decode steps never drop the first `at` tokens. place:
     * index in the pages of the token that a step drops, or -1. share: if above 0, `limit` is
     * replaced by this fraction of all tokens. */
    int32_t at, place;
    double share;
    /* Number of prompt tokens, and of decode steps in which the softmax temperature of scores rises
     * from rule.tau0 to rule.tau1 (method keyformer). */
    int32_t prompt, steps;
    /* Old tokens that each KV head keeps by its own scores. Heads share the rest of keep_old. */
    int32_t keep_own;
} kvd_evict_budget;

/* Score by which a KV head's tokens are ranked. Tokens with the largest scores stay. */
typedef enum {
    KVD_EVICT_ATTENTION, /* sum of received attention probabilities */
    /* No scores: first tokens stay, and the newest token replaces the oldest later one. */
    KVD_EVICT_FIRST,
    KVD_EVICT_SHORT_KEYS, /* minus the L2 norm of the key, only at the end of a prompt */
    /* Minus the cosine of a key and the mean of normalised keys. Only at the end of a prompt. */
    KVD_EVICT_ODD_KEYS,
    /* Log of |v| times attention expected from later queries. Only at the end of a prompt. */
    KVD_EVICT_EXPECTED,
    /* Mean + gamma * variance of the probabilities that the token received from the last queries.
     * Only at the end of a prompt, not in decode steps. */
    KVD_EVICT_SPREAD,
    /* Minus the number of recent queries whose attention to the token is below the mean. */
    KVD_EVICT_PIVOTAL,
    /* The larger of the mean probabilities from the last `window` queries and from all queries,
     * each divided by its mean over tokens. Only at the end of a prompt. */
    KVD_EVICT_IMPORTANT,
    /* Largest probability received from a copy of the prompt. Only at the end of a prompt. */
    KVD_EVICT_REPEATED,
    /* Score by a trained network from the token's Q, K and V. Only at the end of a prompt. */
    KVD_EVICT_TRAINED
} kvd_evict_ranking;

/* How dropped tokens merge into kept tokens of their KV head. */
typedef enum {
    KVD_MERGE_NONE,
    /* Merges a dropped token into the kept token with the most similar key, if their cosine reaches
     * the running mean of such cosines. */
    KVD_MERGE_LIKE,
    /* Merges a dropped token with a large score into the kept token with the most similar key, if
     * their cosine reaches kvd_evict_rule.cosine. */
    KVD_MERGE_IMPORTANT,
    /* Merges into the kept token nearest by position, but not into the first `sink` or the last. */
    KVD_MERGE_NEAREST,
    /* Merges runs of adjacent tokens with similar keys into the most attended one. */
    KVD_MERGE_RUNS
} kvd_merge_kind;

/* Scoring rule. A token's score is the attention that it received or, if tau0 > 0 (method
 * keyformer), the sum of softmax((x + noise) / tau) over queries. x are attention scores, and
 * temperature tau runs from tau0 to tau1. */
typedef struct {
    /* Softmax temperature of the prompt and of the last step, linear between them. */
    float tau0, tau1;
    uint64_t seed;
    /* Index of this GPU's first query head in the whole model, which selects the noise. */
    int32_t first_head;
    int32_t window; /* number of prompt rows to sum, or 0 for all */
    int32_t smooth; /* odd number of neighbouring tokens to sum */
    /* Score by which tokens are ranked, a kvd_evict_ranking. */
    int32_t ranking;
    /* 1 if a layer's KV heads keep the same tokens, by sums of scores. Requires tau0 = 0. */
    int32_t whole_layer;
    /* Number of first tokens that always stay (KVD_EVICT_ATTENTION, KVD_EVICT_EXPECTED). */
    int32_t sink;
    /* Fraction of KV heads that keep all tokens. Requires KVD_EVICT_ATTENTION and window > 0. */
    double whole_heads;
    /* Number of positions after the prompt for which queries are predicted (KVD_EVICT_EXPECTED). */
    int32_t future;
    /* For KVD_EVICT_EXPECTED: 1 uses mean and covariance of queries, 0 only their mean. */
    int32_t covariance;
    /* Number added to the expected attention probability (KVD_EVICT_EXPECTED). */
    float epsilon;
    float gamma; /* KVD_EVICT_SPREAD: weight of the variance */
    /* Number of adjacent tokens that stay or are dropped together, or 0 for single tokens. */
    int32_t review;
    /* If tokens stay or are dropped in groups (review > 0): number of consecutive layers that keep
     * the tokens which the first of them chooses. */
    int32_t layers;
    /* 1: a group of adjacent tokens scores the mean of its better half. 0: the mean of all. */
    int32_t largest;
    /* Method kvcrush, if not 0: part of the token budget (the fraction `crush`) goes to tokens that
     * would be dropped, evenly spaced by the Hamming distance of their bits (one per query head)
     * from an anchor.
     *
     * Anchor 1 is 0 1 0 1 ..., anchor 2 the majority of all tokens' bits. Requires whole_layer and
     * KVD_EVICT_ATTENTION. */
    int32_t anchor;
    double crush;
    int32_t merge; /* a kvd_merge_kind */
    /* For KVD_MERGE_LIKE: weight of the newest cosine in the running mean of key cosines. */
    double beta;
    /* KVD_MERGE_IMPORTANT, KVD_MERGE_RUNS: tokens whose keys have a smaller cosine never merge. */
    double cosine;
    double most; /* KVD_MERGE_IMPORTANT: number of merged tokens as a multiple of keep_old */
    /* 1 if every decode step drops the token at one fixed index. */
    int32_t fixed;
} kvd_evict_rule;

/* Rules by which a decode step chooses the tokens that it reads. */
typedef enum {
    KVD_READ_BOUNDS, /* pages, ranked by bounds of q k (quest.c) */
    KVD_READ_RECENT, /* tokens, ranked by attention of the last `history` rows (alisa.c) */
    /* Reads the tokens whose nearest centroids have the largest products with the query. */
    KVD_READ_CODES,
    /* Ranks large clusters of tokens, then reads the best small clusters in the best of them. */
    KVD_READ_CLUSTERS,
    /* Reads the prompt pages whose mean keys have the largest products with the query. */
    KVD_READ_LANDMARKS
} kvd_read_ranking;

/* Rule by which a decode step chooses the tokens it reads: `budget` tokens (a fraction of all if
 * below 1), in groups of `page` adjacent tokens, the selection pages. */
typedef struct {
    double budget;
    size_t page;
    int32_t ranking; /* a kvd_read_ranking */
    /* For KVD_READ_RECENT. local: fraction of the budget for the newest tokens. history: number of
     * recent queries whose probabilities count. */
    double local;
    int32_t history;
    /* For KVD_READ_CODES: numbers of first and newest tokens, read in addition to `budget`. */
    int32_t sink, newest;
    /* For KVD_READ_CLUSTERS, which divides large clusters of adjacent tokens into small ones.
     * large: tokens of a large cluster. first: fraction of the large clusters whose small clusters
     * are scored. alpha: weight of a cluster's largest keys in its score, 1 - alpha being that of
     * its smallest keys. threshold: a prompt token stays cached if one of the last queries (the
     * fraction `rows` of all) gives it at least this probability. */
    int32_t large;
    double first, alpha, rows, threshold;
    /* For KVD_READ_LANDMARKS, which stores prompt keys at low rank. rank: that rank. outliers:
     * number of the prompt's selection pages (groups of `page` tokens) that are also stored
     * exactly. last: number of its last pages that are only stored exactly. Steps always read both
     * kinds of pages. */
    int32_t rank, outliers, last;
} kvd_read_rule;

/* Centroids of keys before RoPE, in host arrays of all layers and KV heads. */
typedef struct {
    int32_t size;     /* number of centroids of a KV head */
    int32_t relative; /* RoPE position at which queries are compared with centroids */
    /* [n_layers][n_kv_heads][d][d] Matrices that multiply keys, for distances from centroids. */
    const float *factor;
    const float *moved;    /* [n_layers][n_kv_heads][size][d] centroids times `factor` */
    const float *centroid; /* [n_layers][n_kv_heads][size][d] */
} kvd_read_codes;

typedef struct {
    size_t prompt, whole; /* number of tokens of the prompt, and of prompt and steps */
    int layer, n_layers;
} kvd_evict_request;

typedef struct {
    size_t n;
    int n_layers;
    /* [n_layers][each] With KVD_EVICT_SPREAD: entropy and variance of a layer's attention.
     * Otherwise: score of each prompt token, summed over heads. */
    const double *x;
    /* Number of statistics per layer: 2 with KVD_EVICT_SPREAD, otherwise one per prompt token. */
    size_t each;
} kvd_evict_layers;

typedef struct {
    /* Sets the members of *rule that the method uses. Before the call, `smooth` is 1, `seed` is
     * set, and all other members are 0. */
    void (*rule)(const struct kvd_parameter_values *v, kvd_evict_rule *rule);
    kvd_evict_budget (*budget)(const struct kvd_parameter_values *v, const kvd_evict_request *r);
    /* Sets the budget of each layer from statistics of all layers. `budget` then returns only the
     * mean budget. NULL: a layer's budget does not depend on the others. */
    int (*divide)(const struct kvd_parameter_values *v, const kvd_evict_layers *s,
                  kvd_evict_budget *budget, kvd_err *err);
    /* True if ranking needs keys before projection, so that no method may remove dimensions. */
    bool whole_keys;
} kvd_tokens_eviction;

#endif
