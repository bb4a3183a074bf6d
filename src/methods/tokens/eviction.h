/*
 * Description, for the CUDA engine, of a method that drops cached tokens (entries): the rule that
 * computes the scores by which tokens are ranked, and the budget of a request. Every such method
 * fills it in its own file (kvd_tokens_method.eviction). Plain C: no CUDA.
 */
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
 * a head has more than `limit` entries after a step, the entry with the smallest score is dropped;
 * the `recent` newest entries are exempt.
 */
typedef struct {
    int32_t keep_new, keep_old;
    int32_t limit, recent;
    /*
     * Number of tokens of the prompt, and number of decode steps after it. The temperature
     * (kvd_evict_rule) rises over these steps.
     */
    int32_t prompt, steps;
    /*
     * Number of the `keep_old` tokens that every KV head chooses by its own scores. If it is less
     * than `keep_old`, the layer's remaining n_kv_heads (keep_old - keep_own) tokens are those with
     * the largest scores of all its KV heads.
     */
    int32_t keep_own;
} kvd_evict_budget;

/* Score by which the tokens of a KV head are ranked; the tokens with the largest scores stay. */
typedef enum {
    KVD_EVICT_ATTENTION, /* sum of the attention probabilities that the token received */
    /*
     * No scores: the first limit - recent tokens stay, and the newest token of a step replaces the
     * oldest of the other tokens.
     */
    KVD_EVICT_FIRST,
    KVD_EVICT_SHORT_KEYS, /* minus the L2 norm of the key; only at the end of prompts */
    /*
     * Minus (key / |key|) . m, where m is the mean of all keys of the prompt, each divided by its
     * norm; only at the end of prompts.
     */
    KVD_EVICT_ODD_KEYS,
    /*
     * Logarithm of the product of the attention probability that later queries are expected to give
     * to the token and the length |v| of its value (expectedattention.c); only at the end of
     * prompts.
     */
    KVD_EVICT_EXPECTED,
    /*
     * Mean plus `gamma` times the variance of the attention probabilities that the token receives
     * from the last `window` rows of the prompt (cake.c); only at the end of prompts.
     */
    KVD_EVICT_SPREAD
} kvd_evict_ranking;

/*
 * Rule that computes the scores of tokens. If the temperature tau is 0, attention probabilities are
 * summed unchanged. Otherwise each attention score x is replaced by (x + noise) / tau, and the
 * softmax of these is summed.
 */
typedef struct {
    /* Temperature tau in the prompt and at the last step; between them it is interpolated. */
    float tau0, tau1;
    uint64_t seed;
    int32_t window;  /* number of last prompt rows whose probabilities are summed; 0: all rows */
    int32_t smooth;  /* a token's score is summed over this many neighbouring tokens; odd */
    int32_t ranking; /* score of a token, a kvd_evict_ranking */
    /*
     * 1: all KV heads of a layer keep the same tokens, ranked by the sum of their probabilities
     * over the heads. A step then ranks by its own probabilities alone, without those of earlier
     * rows. Requires temperature 0. 0: every KV head chooses.
     */
    int32_t whole_layer;
    int32_t sink; /* number of first tokens of the prompt that stay whatever their scores are */
    /* With KVD_EVICT_EXPECTED: number of positions after the prompt whose queries are expected. */
    int32_t future;
    /* With KVD_EVICT_EXPECTED: 1 uses mean and covariance of the queries, 0 only their mean. */
    int32_t covariance;
    /* With KVD_EVICT_EXPECTED: number added to the expected attention probability of a token. */
    float epsilon;
    float gamma; /* with KVD_EVICT_SPREAD: weight of the variance in the score */
    /*
     * Number of tokens in a window. All tokens of a window stay or all are dropped (windowkv.c).
     * 0: tokens are chosen one by one. Requires KVD_EVICT_ATTENTION.
     */
    int32_t review;
    /* If review > 0: number of consecutive layers that keep the tokens that the first one chose. */
    int32_t layers;
    /*
     * If review > 0: 1 ranks windows by the mean of the larger half of their tokens' scores, 0 by
     * the mean of all.
     */
    int32_t largest;
} kvd_evict_rule;

/*
 * Lengths of a request and index of a layer, from which `budget` computes the request's budget in
 * that layer.
 */
typedef struct {
    size_t prompt, whole; /* tokens of the prompt, and of the prompt and all steps together */
    int layer, n_layers;
} kvd_evict_request;

/* Statistics of one prompt in all layers, from which the budgets of the layers are computed. */
typedef struct {
    size_t n; /* number of tokens of the prompt */
    int n_layers;
    /*
     * Statistics of the layers, [n_layers][each]. With KVD_EVICT_SPREAD they are the entropy and
     * the variance of a layer's attention (cake.c). Otherwise they are the scores of the tokens,
     * summed over all query heads.
     */
    const double *x;
    size_t each; /* number of statistics of a layer: 2 with KVD_EVICT_SPREAD, otherwise n */
} kvd_evict_layers;

/* Functions that describe a method that drops cached tokens to the CUDA engine. */
typedef struct {
    /*
     * Sets the members of *rule that differ from their defaults; on entry `smooth` is 1, `seed` is
     * that of the plan and all other members are 0.
     */
    void (*rule)(const struct kvd_parameter_values *v, kvd_evict_rule *rule);
    /* Returns the number of tokens that request `r` may keep in a layer. */
    kvd_evict_budget (*budget)(const struct kvd_parameter_values *v, const kvd_evict_request *r);
    /*
     * Sets the budgets [n_layers] of a prompt from the statistics of all its layers. `budget` then
     * returns the mean over the layers, for requests whose prompt was not computed. If NULL,
     * `budget` alone gives the budgets. On failure returns -1 and fills *err.
     */
    int (*divide)(const struct kvd_parameter_values *v, const kvd_evict_layers *s,
                  kvd_evict_budget *budget, kvd_err *err);
    /*
     * True if tokens are ranked by keys with all d_head dimensions. The method cannot then be
     * combined with one that removes dimensions.
     */
    bool whole_keys;
} kvd_tokens_eviction;

#endif
