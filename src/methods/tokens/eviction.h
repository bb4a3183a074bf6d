/*
 * Description of a method that drops entries, for the CUDA engine: the rule by which tokens are
 * ranked, and the budget of a request. Every such method describes itself in its own file
 * (kvd_tokens_method.eviction). Plain C: no CUDA.
 */
#ifndef KVD_METHODS_TOKENS_EVICTION_H
#define KVD_METHODS_TOKENS_EVICTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvd_parameter_values;

/*
 * Budget of a request in one layer. After the prompt, the `keep_new` newest tokens stay, and of the
 * older tokens the `keep_old` with the largest scores. If there are more than `limit` entries after
 * a step, the entry with the smallest score among all but the `recent` newest is dropped.
 */
typedef struct {
    int32_t keep_new, keep_old;
    int32_t limit, recent;
    /*
     * Number of tokens of the prompt, and number of steps after it, on which the temperature
     * depends.
     */
    int32_t prompt, steps;
    /*
     * Number of the `keep_old` tokens that every KV head keeps for itself. If it is less than
     * keep_old, n_kv_heads (keep_old - keep_own) further tokens stay in the layer, those with the
     * largest scores of all its heads.
     */
    int32_t keep_own;
} kvd_evict_budget;

/* Score by which tokens are ranked; the tokens with the largest scores stay. */
typedef enum {
    KVD_EVICT_ATTENTION, /* sum of the attention probabilities that the token received */
    /*
     * No scores: the first limit - recent tokens stay, and the entry of a step replaces the oldest
     * of the others.
     */
    KVD_EVICT_FIRST,
    KVD_EVICT_SHORT_KEYS, /* minus the L2 norm of the key; at the end of prompts only */
    /*
     * Minus the cosine of the key with the mean of all keys of the prompt, each divided by its
     * norm, times the length of that mean; at the end of prompts only.
     */
    KVD_EVICT_ODD_KEYS
} kvd_evict_ranking;

/*
 * Rule that computes scores. If the temperature is 0, attention probabilities are summed unchanged.
 * Otherwise exp((x + noise) / tau) is normalised to a new distribution, which is summed; x is an
 * attention score and tau the temperature.
 */
typedef struct {
    float tau0, tau1; /* temperature at the prompt and at the last step */
    uint64_t seed;
    int32_t window;  /* number of last rows of a prompt whose probabilities are summed; 0: all */
    int32_t smooth;  /* number of neighbouring tokens whose scores are summed; odd */
    int32_t ranking; /* kvd_evict_ranking */
    /*
     * 1: all KV heads of a layer keep the same tokens, ranked by the sum of their probabilities. A
     * step ranks by its own probabilities alone, without earlier rows. Requires temperature 0.
     */
    int32_t whole_layer;
} kvd_evict_rule;

/* Lengths of a request and index of a layer, from which the layer's budget follows. */
typedef struct {
    size_t prompt, whole; /* tokens of the prompt, and of the prompt and all steps */
    int layer, n_layers;
} kvd_evict_request;

/* Description of a method that drops entries, for the CUDA engine. */
typedef struct {
    /* Sets the members of *rule that differ from {.smooth = 1} and from the plan's seed. */
    void (*rule)(const struct kvd_parameter_values *v, kvd_evict_rule *rule);
    /* Returns the budget of a request in a layer. */
    kvd_evict_budget (*budget)(const struct kvd_parameter_values *v, const kvd_evict_request *r);
    /* True if tokens are ranked by full-width keys, so that no dims method may be combined. */
    bool whole_keys;
} kvd_tokens_eviction;

#endif
