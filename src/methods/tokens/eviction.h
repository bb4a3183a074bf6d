/* Parameters of GPU kernels that drop cached tokens, or that choose the tokens that a decode step
 * reads. */
#ifndef KVD_METHODS_TOKENS_EVICTION_H
#define KVD_METHODS_TOKENS_EVICTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct kvd_parameter_values;

/* Token budget: how many cached tokens each KV head keeps, after the prompt and after decode
 * steps */
typedef struct {
    /* numbers of newest and of older tokens that stay after a prompt */
    int32_t keep_new, keep_old;
    /* limit: number of cached tokens above which decode steps drop tokens. recent: number of newest
     * tokens that they do not drop. */
    int32_t limit, recent;
    int32_t drop; /* number of tokens dropped at once, where 0 means one */
    /* For methods that drop the oldest tokens, whatever attention they got. at: number of first
     * tokens that always stay. place: cache index of the token that the next decode step drops, or
     * -1 for none. */
    int32_t at, place;
    /* Largest number of cached tokens as a fraction of all tokens, or 0 to use `limit`. */
    double share;
    /* Number of tokens of the prompt, and number of decode steps over which the softmax temperature
     * rises from rule.tau0 to rule.tau1 (method keyformer). */
    int32_t prompt, steps;
    /* Number of older tokens that each KV head chooses by its own scores; the rest are chosen over
     * all heads. */
    int32_t keep_own;
} kvd_evict_budget;

/* Scores by which the tokens of a KV head are ranked. Tokens with the largest scores stay. */
typedef enum {
    KVD_EVICT_ATTENTION, /* sum of received attention probabilities */
    /* Tokens have no scores. The first tokens stay, and the newest token replaces the oldest of the
     * others. */
    KVD_EVICT_FIRST,
    KVD_EVICT_SHORT_KEYS, /* minus the L2 norm of the key, only at the end of a prompt */
    /* Minus the cosine between a token's key and the mean key. For the mean, all keys are scaled to
     * length 1. Tokens are dropped once, at the end of the prompt. */
    KVD_EVICT_ODD_KEYS,
    /* Log of the product of |v| and the attention that the token is expected to get from later
     * queries. Tokens are dropped once, at the end of the prompt. */
    KVD_EVICT_EXPECTED,
    /* Mean + gamma * variance of the attention probabilities that the token got from the prompt's
     * last queries. Tokens are dropped once, at the end of the prompt. */
    KVD_EVICT_SPREAD,
    /* Score: minus the number of recent queries from which the token got less attention than the
     * mean token. */
    KVD_EVICT_PIVOTAL,
    /* Attention that the token got, divided by the mean over tokens. It is computed over all
     * queries and over the last `window` queries, and the larger result counts. Tokens are dropped
     * once, at the end of the prompt. */
    KVD_EVICT_IMPORTANT,
    /* Largest attention probability that the token gets from a copy of the prompt, appended to the
     * prompt. Tokens are dropped once, at the end of the prompt. */
    KVD_EVICT_REPEATED,
    /* Score that a trained network computes from the token's Q, K and V. Tokens are dropped once,
     * at the end of the prompt. */
    KVD_EVICT_TRAINED
} kvd_evict_ranking;

/* Ways to merge dropped tokens into kept tokens of the same KV head. */
typedef enum {
    KVD_MERGE_NONE,
    /* A dropped token merges into the kept token with the most similar key if the cosine of the two
     * keys reaches the running mean of such cosines. */
    KVD_MERGE_LIKE,
    /* A dropped token with a large score merges into the kept token with the most similar key if
     * the cosine of the two keys reaches kvd_evict_rule.cosine. */
    KVD_MERGE_IMPORTANT,
    /* A dropped token merges into the kept token nearest by position, but not into the first `sink`
     * tokens or the last one. */
    KVD_MERGE_NEAREST,
    /* Each run of adjacent tokens with similar keys merges into its token with the most
     * attention. */
    KVD_MERGE_RUNS
} kvd_merge_kind;

/* Rule for scoring, dropping and merging tokens. A token's score is the attention that it received
 * or, if tau0 > 0 (method keyformer), the sum of softmax((x + noise) / tau) over queries, where x
 * are the attention logits and tau is a temperature between tau0 and tau1. */
typedef struct {
    /* Softmax temperature for the prompt (tau0) and for the last decode step (tau1). It rises
     * linearly between them. */
    float tau0, tau1;
    uint64_t seed;
    /* Index in the whole model of this GPU's first query head. The noise of method keyformer
     * depends on it. */
    int32_t first_head;
    int32_t window; /* number of prompt rows to sum, or 0 for all */
    int32_t smooth; /* odd number of neighbouring tokens to sum */
    /* Score by which tokens are ranked, a kvd_evict_ranking. */
    int32_t ranking;
    /* 1 if all KV heads of a layer keep the same tokens, the tokens with the largest scores summed
     * over heads. Must be 0 with a softmax temperature (tau0 > 0). */
    int32_t whole_layer;
    /* Number of tokens at the beginning of the prompt that always stay. Used with
     * KVD_EVICT_ATTENTION and KVD_EVICT_EXPECTED. */
    int32_t sink;
    /* Fraction of the KV heads of a layer that keep all tokens. Requires KVD_EVICT_ATTENTION and
     * window > 0. */
    double whole_heads;
    /* For KVD_EVICT_EXPECTED: number of positions after the prompt whose queries are predicted. */
    int32_t future;
    /* For KVD_EVICT_EXPECTED: 1 if queries are predicted by their mean and covariance, 0 if by
     * their mean alone. */
    int32_t covariance;
    /* For KVD_EVICT_EXPECTED: number added to the expected attention probability. */
    float epsilon;
    float gamma; /* KVD_EVICT_SPREAD: weight of the variance */
    /* Number of adjacent tokens that stay or are dropped together, or 0 for single tokens. */
    int32_t review;
    /* For methods that drop groups of tokens (review > 0): number of consecutive layers that share
     * one choice of tokens. */
    int32_t layers;
    /* Score of a group of adjacent tokens. 1: mean of the larger half of its tokens' scores. 0:
     * mean of all. */
    int32_t largest;
    /* Reference bits with which method kvcrush compares the bits of each token, one bit per query
     * head. 1: alternating bits 0, 1, 0, 1. 2: for each query head, the more frequent bit. 0:
     * another method.
     *
     * Requires whole_layer and KVD_EVICT_ATTENTION. */
    int32_t anchor;
    /* Fraction of the token budget that method kvcrush gives to representatives of dropped tokens,
     * instead of tokens with the highest scores. */
    double crush;
    int32_t merge; /* a kvd_merge_kind */
    /* For KVD_MERGE_LIKE, which uses a running mean of the cosines between dropped keys and the
     * most similar kept keys: weight of the newest cosine in this mean, 0 to 1. */
    double beta;
    /* For KVD_MERGE_IMPORTANT and KVD_MERGE_RUNS: smallest cosine of two keys whose tokens may
     * merge. */
    double cosine;
    double most; /* KVD_MERGE_IMPORTANT: number of merged tokens as a multiple of keep_old */
    /* 1 if decode steps overwrite cached tokens in turn, oldest first, and need no scores. */
    int32_t fixed;
} kvd_evict_rule;

/* Rules by which a decode step chooses the tokens that it reads. */
typedef enum {
    KVD_READ_BOUNDS, /* pages, ranked by bounds of q k (quest.c) */
    KVD_READ_RECENT, /* tokens, ranked by attention of the last `history` rows (alisa.c) */
    /* The tokens whose nearest key centroids have the largest products with the query (method
     * a2ats). */
    KVD_READ_CODES,
    /* The best small clusters of adjacent tokens in the best large clusters, by their match with
     * the query (method mpcache). */
    KVD_READ_CLUSTERS,
    /* The groups of prompt tokens whose mean keys have the largest products with the query (method
     * shadowkv). */
    KVD_READ_LANDMARKS
} kvd_read_ranking;

/* Rule by which a decode step chooses the cached tokens that it reads. */
typedef struct {
    /* number of tokens to read or, if below 1, fraction of all cached tokens to read */
    double budget;
    /* tokens are read in groups of this many adjacent tokens */
    size_t page;
    int32_t ranking; /* a kvd_read_ranking */
    /* For KVD_READ_RECENT. local: fraction of the budget that goes to the newest tokens. history:
     * number of recent queries whose attention ranks the other tokens. */
    double local;
    int32_t history;
    /* For KVD_READ_CODES: numbers of first and of newest tokens, which are read in addition to
     * `budget` tokens. */
    int32_t sink, newest;
    /* For KVD_READ_CLUSTERS: number of tokens in a large cluster of adjacent tokens. Large clusters
     * are divided into small ones. */
    int32_t large;
    /* For KVD_READ_CLUSTERS, which scores large clusters of tokens, then the small clusters in the
     * best large ones:
     *
     * - first: fraction of the large clusters that count as best
     * - alpha: in a cluster's score, weight of each key channel's maximum; its minimum has the
     *   weight 1 - alpha
     * - rows: fraction of the prompt's queries, counted from its end, that choose the tokens to
     *   cache
     * - threshold: a token stays cached if one of these queries gives it at least this
     *   probability */
    double first, alpha, rows, threshold;
    /* For KVD_READ_LANDMARKS, which stores most prompt keys as a low-rank matrix:
     *
     * - rank: rank of this matrix
     * - outliers: number of groups of `page` prompt tokens whose keys are also stored exactly
     * - last: number of groups at the prompt's end whose keys are only stored exactly */
    int32_t rank, outliers, last;
} kvd_read_rule;

/* Centroids of keys before RoPE, in host arrays of all layers and KV heads. */
typedef struct {
    int32_t size;     /* number of centroids of a KV head */
    int32_t relative; /* RoPE position at which queries are compared with centroids */
    /* [n_layers][n_kv_heads][d][d] Matrices by which keys are multiplied before their distances
     * from centroids are computed. */
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
    /* Numbers [n_layers][each] from which the budgets of layers follow. With KVD_EVICT_SPREAD:
     * entropy and variance of the layer's attention. Otherwise: score of each prompt token, summed
     * over heads. */
    const double *x;
    /* Number of elements of `x` per layer: 2 with KVD_EVICT_SPREAD, otherwise one per prompt
     * token. */
    size_t each;
} kvd_evict_layers;

typedef struct {
    /* Sets the members of *rule that the method uses. Before the call, `smooth` is 1, `seed` is
     * set, and all other members are 0. */
    void (*rule)(const struct kvd_parameter_values *v, kvd_evict_rule *rule);
    /* Returns a layer's token budget or, if `divide` is set, the mean over layers. */
    kvd_evict_budget (*budget)(const struct kvd_parameter_values *v, const kvd_evict_request *r);
    /* Sets the token budget of every layer from statistics of all layers. NULL: `budget` alone
     * decides each layer's budget. */
    int (*divide)(const struct kvd_parameter_values *v, const kvd_evict_layers *s,
                  kvd_evict_budget *budget, kvd_err *err);
    /* True if tokens are ranked by whole keys, so that the method cannot be combined with one that
     * removes dimensions. */
    bool whole_keys;
} kvd_tokens_eviction;

#endif
