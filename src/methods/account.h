/*
 * Counters of a cache: the numbers, bits and bytes that it stored, and how many cached tokens its
 * methods changed. Evaluations check them, so a run proves that its compression methods did
 * something.
 */
#ifndef KVD_METHODS_ACCOUNT_H
#define KVD_METHODS_ACCOUNT_H

#include <stddef.h>

#include "methods/plan.h"

/* Kinds of work whose time is measured separately when a plan runs token by token. */
typedef enum {
    /* Projection of Q, K and V, and of the attention output back. */
    KVD_STEPWISE_PROJECT,
    KVD_STEPWISE_APPEND,
    KVD_STEPWISE_ATTEND,
    /* Choice of tokens and channels, and quantisation of cached tokens. */
    KVD_STEPWISE_COMPRESS,
    KVD_STEPWISE_PARTS
} kvd_stepwise_part;

/*
 * Counters of a plan that runs token by token, summed over all steps (tokens after the prompts).
 * All sizes are in bits.
 */
typedef struct {
    /* Number of steps: one per token after the prompt, KV head and layer. */
    size_t rows;
    /* The next three fields sum, over all steps, the bits that the cache holds after each step. */
    double payload; /* bits of stored numbers and codes */
    double side;    /* bits of quantisation scales, tables and indices */
    /* Bits of scores, positions and bounds that token-choosing methods keep per cached token. */
    double entries;
    /*
     * Bits that the attention of each step read, summed over all steps: the cached tokens it chose
     * and the new token.
     */
    double read;
    /* Bits that an uncompressed cache would hold after each step, summed over all steps. */
    double dense;
    /*
     * Most bits held at once, counted after the new token is appended and before a method drops
     * tokens.
     */
    double peak;
    /*
     * Number of cached tokens that a method dropped, lowered in precision, quantised, merged or
     * pruned.
     */
    size_t dropped, lowered, coded, merged, pruned;
    /* Number of cached tokens that a step did not read, summed over all steps. */
    size_t unread;
    /* Time in seconds per kind of work, summed over threads. */
    double seconds[KVD_STEPWISE_PARTS];
} kvd_stepwise_account;

void kvd_stepwise_account_add(kvd_stepwise_account *sum, const kvd_stepwise_account *a);

/*
 * Counters of one run of a cache: they prove that its compression methods acted, and give the
 * stored sizes.
 */
typedef struct {
    /* Number of (sequence, layer) combinations that were stored and attended to. */
    size_t calls;
    /* Number of stored tokens, summed over sequences and layers. */
    size_t tokens;
    /*
     * Number of tokens still held at the end, summed over sequences and layers. A layer with an
     * attention window holds its newest tokens only.
     */
    size_t tokens_held;
    /* Number of elements of K and V that the compressed cache stored. */
    size_t elements_kept;
    /* Number of elements that an uncompressed cache stores. */
    size_t elements_dense;
    /* Bytes of the `tokens_held` tokens in the data type of the cache. */
    size_t bytes_stored;
    /*
     * Counters of plans that run token by token. Their sizes are not included in the elements and
     * bytes above.
     */
    kvd_stepwise_account steps;
} kvd_cache_account;

/*
 * Checks the counters of one run of n_sequences sequences, n_tokens tokens in total, through layers
 * first_layer .. n_layers-1. There must be one call per sequence and layer. For a plan (a set of
 * compression methods) that runs in blocks of tokens, the number of stored elements must be the one
 * that follows from the kept dimensions. A plan that runs token by token must have made n_steps
 * steps per layer and KV head and pass kvd_cache_check_steps.
 */
int kvd_cache_check(const kvd_cache_account *a, const kvd_config *config, const kvd_plan *plan,
                    size_t n_sequences, size_t n_tokens, size_t n_steps, int first_layer,
                    kvd_err *err);

/*
 * Fails unless `a` counts `rows` steps and the method of every axis of the plan has changed some
 * cached token: dropped, lowered, merged, pruned or quantised it.
 */
int kvd_cache_check_steps(const kvd_stepwise_account *a, const kvd_plan *plan, size_t rows,
                          kvd_err *err);

void kvd_cache_account_add(kvd_cache_account *sum, const kvd_cache_account *a);

/*
 * Returns the number of tokens that one layer holds at the end of n_sequences sequences, where
 * sequence s has tokens offset[s] .. offset[s+1]-1. With an attention window these are the newest
 * `window` tokens of each sequence; if window is 0, all tokens.
 */
size_t kvd_cache_tokens_held(const size_t *offset, size_t n_sequences, size_t window);

/*
 * Returns the number of tokens that all layers together hold at the end of a sequence of n tokens,
 * divided by the number that they would hold without attention windows.
 */
double kvd_cache_window_share(const kvd_config *c, size_t n);

/*
 * Adds to *sum the counters of an uncompressed cache that stores n_sequences sequences in all
 * layers. Sequence s has tokens offset[s] .. offset[s+1]-1.
 */
void kvd_cache_account_whole(const kvd_config *c, const kvd_plan *plan, const size_t *offset,
                             size_t n_sequences, kvd_cache_account *sum);

/*
 * Cache bytes per token of the whole model, if every layer holds every token and each stored
 * element takes element_bytes.
 */
typedef struct {
    /*
     * Bytes per token of the uncompressed cache: 2 * n_layers * n_kv_heads * d_head *
     * element_bytes.
     */
    double dense;
    /*
     * Bytes per token of the compressed cache: sum(d_qk + d_v) * element_bytes over all KV heads of
     * all layers. d_qk and d_v are the kept dimensions of a head.
     */
    double nominal;
    /*
     * Bytes per token as in `nominal`, but with kept dimensions rounded up to multiples of 16, as
     * kernels store them.
     */
    double padded;
    /*
     * Bytes of the projection matrices of Q and K of the whole model. They are stored once, not per
     * token. Projections of V fold into W_V and W_O (Z-2 of docs/readings.md) and count nothing.
     * Without RoPE those of Q and K fold into W_Q and W_K, and this is 0.
     */
    double basis;
    /*
     * Fraction of elements removed, without and with the rounding of kept dimensions up to
     * multiples of 16.
     */
    double overall_p, overall_p16;
} kvd_cache_bytes;
void kvd_cache_count_bytes(const kvd_config *c, const kvd_dims *dims, size_t element_bytes,
                           kvd_cache_bytes *out);

#endif
