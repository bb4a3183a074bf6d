/*
 * Accounts of a cache: the numbers, bits and bytes that it stored, and how many entries its methods
 * changed. Evaluations check them, so a run proves that its method did something.
 */
#ifndef KVD_METHODS_ACCOUNT_H
#define KVD_METHODS_ACCOUNT_H

#include <stddef.h>

#include "methods/plan.h"

/* Kinds of work between which a thread that runs a plan row by row divides its time. */
typedef enum {
    KVD_STEPWISE_PROJECT, /* projection of Q, K and V, and of the output back */
    KVD_STEPWISE_APPEND,
    KVD_STEPWISE_ATTEND,
    KVD_STEPWISE_COMPRESS, /* choice of tokens and channels, and coding of entries */
    KVD_STEPWISE_PARTS
} kvd_stepwise_part;

/*
 * Account of a plan that runs row by row, summed over all rows after the prompts. Sizes are in
 * bits.
 */
typedef struct {
    size_t rows; /* number of steps: rows after the prompts */
    /* Sums over all steps of the bits that the cache holds after the step. */
    double payload; /* stored numbers and codes */
    double side;    /* quantisation scales, tables, indices */
    double entries; /* scores, positions and bounds that tokens methods keep per entry */
    /* bits of the stored entries and of the appended row that the step's attention read */
    double read;
    double dense; /* bits that an uncompressed cache would hold */
    double peak;  /* most bits held at once, including the appended row before any eviction */
    /* number of entries that a method changed this way */
    size_t dropped, lowered, coded, merged, pruned;
    size_t unread; /* number of entries that a step did not read, over all steps */
    double seconds[KVD_STEPWISE_PARTS]; /* time per kind of work, summed over threads */
} kvd_stepwise_account;

void kvd_stepwise_account_add(kvd_stepwise_account *sum, const kvd_stepwise_account *a);

/* Account of a run: numbers that prove that its method acted, and the stored sizes. */
typedef struct {
    size_t calls;  /* number of (sequence, layer) pairs that were stored and attended to */
    size_t tokens; /* number of stored tokens, summed over calls */
    /*
     * Number of tokens held at the end of each call, summed over calls. A layer with an attention
     * window holds its newest tokens only.
     */
    size_t tokens_held;
    size_t elements_kept;  /* number of stored elements of K and V */
    size_t elements_dense; /* elements of the uncompressed cache */
    /* Bytes that the elements of the `tokens_held` tokens take in the data type of the cache. */
    size_t bytes_stored;
    /*
     * Account of plans that run row by row. Its sizes are not included in the elements and bytes
     * above.
     */
    kvd_stepwise_account steps;
} kvd_cache_account;

/*
 * Checks the account of one run of n_sequences sequences, n_tokens tokens in total, through layers
 * first_layer .. n_layers-1. There must be one call per sequence and layer. A plan that runs in
 * blocks must have stored the number of elements that its widths give. A plan that runs row by row
 * must have made n_steps steps per layer and KV head and pass kvd_cache_check_steps.
 */
int kvd_cache_check(const kvd_cache_account *a, const kvd_config *config, const kvd_plan *plan,
                    size_t n_sequences, size_t n_tokens, size_t n_steps, int first_layer,
                    kvd_err *err);

/*
 * Fails unless `a` counts `rows` steps and the method of every axis of the plan has changed some
 * entry: dropped, lowered, merged, pruned or coded it.
 */
int kvd_cache_check_steps(const kvd_stepwise_account *a, const kvd_plan *plan, size_t rows,
                          kvd_err *err);

void kvd_cache_account_add(kvd_cache_account *sum, const kvd_cache_account *a);

/*
 * Returns the number of tokens that one layer holds at the end of sequences s with rows offset[s]
 * .. offset[s+1]-1. With an attention window these are the newest `window` of each sequence, or all
 * if window is 0.
 */
size_t kvd_cache_tokens_held(const size_t *offset, size_t n_sequences, size_t window);

/*
 * Returns the number of tokens that all layers hold at the end of a sequence of n tokens, divided
 * by the number that they would hold without windows.
 */
double kvd_cache_window_share(const kvd_config *c, size_t n);

/*
 * Adds to *sum the account of an uncompressed cache that stores n_sequences sequences with rows
 * offset[s] .. offset[s+1]-1 in all layers.
 */
void kvd_cache_account_whole(const kvd_config *c, const kvd_plan *plan, const size_t *offset,
                             size_t n_sequences, kvd_cache_account *sum);

/*
 * Cache bytes per token of the whole model, for stored elements of element_bytes each, if every
 * layer holds every token.
 */
typedef struct {
    double dense;   /* 2 * n_layers * n_kv_heads * d_head * element_bytes */
    double nominal; /* sum(d_qk + d_v) * element_bytes */
    double padded;  /* widths rounded up to multiples of 16, as kernels store them */
    /*
     * Bytes of the Q-K projection matrices of the whole model; they are stored once, not per token.
     * Projections of V fold into W_V and W_O (Z-2 of docs/readings.md) and count nothing. Without
     * RoPE those of Q-K fold into W_Q and W_K, and this is 0.
     */
    double basis;
    double overall_p, overall_p16;
} kvd_cache_bytes;
void kvd_cache_count_bytes(const kvd_config *c, const kvd_dims *dims, size_t element_bytes,
                           kvd_cache_bytes *out);

#endif
