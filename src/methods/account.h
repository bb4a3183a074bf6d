/*
 * Counters of a cache: the numbers, bits and bytes that it stored, and how many cached tokens its
 * methods changed. Evaluations check them to prove that the compression acted.
 */
#ifndef KVD_METHODS_ACCOUNT_H
#define KVD_METHODS_ACCOUNT_H

#include <stddef.h>

#include "methods/plan.h"

typedef enum {
    KVD_STEPWISE_PROJECT,
    KVD_STEPWISE_APPEND,
    KVD_STEPWISE_ATTEND,
    /* Time of choosing tokens and channels, and of quantising. */
    KVD_STEPWISE_COMPRESS,
    KVD_STEPWISE_PARTS
} kvd_stepwise_part;

/*
 * Counters of a cache that runs token by token. Sizes are in bits, summed over all steps. A step is
 * one token after the prompt in one KV head of one layer.
 */
typedef struct {
    size_t rows;
    /*
     * Bits of codes and of of numbers stored without compression that the cache holds after each
     * step.
     */
    double payload;
    double side; /* bits of scales, tables and indices that the cache holds after each step */
    /*
     * Bits that the cache holds after each step for scores, positions and key bounds (smallest and
     * largest key of a page) of cached tokens.
     */
    double entries;
    /*
     * Bits that attention read: those of the cached tokens that the method chose, and of the new
     * token.
     */
    double read;
    /* Bits that an uncompressed cache would hold after each step. */
    double dense;
    /* Most bits held at once, after the new token is appended and before tokens are dropped. */
    double peak;
    /*
     * Numbers of cached tokens that were dropped, stored at a lower precision level, quantised,
     * merged or pruned.
     */
    size_t dropped, lowered, coded, merged, pruned;
    size_t unread;
    /* Seconds of each kvd_stepwise_part, summed over threads. */
    double seconds[KVD_STEPWISE_PARTS];
} kvd_stepwise_account;

void kvd_stepwise_account_add(kvd_stepwise_account *sum, const kvd_stepwise_account *a);

typedef struct {
    /* Number of calls of the attention hook, one per sequence and layer. */
    size_t calls;
    /* Number of stored tokens, summed over sequences and layers. */
    size_t tokens;
    /*
     * Number of tokens held at the end, summed over sequences and layers. A layer with an attention
     * window holds its newest tokens only.
     */
    size_t tokens_held;
    /* Number of stored elements of K and V. */
    size_t elements_kept;
    size_t elements_dense;
    /* Bytes that the tokens_held tokens take in the data type of the cache. */
    size_t bytes_stored;
    /*
     * Counters of a plan that runs token by token. The elements and bytes above do not include
     * them.
     */
    kvd_stepwise_account steps;
} kvd_cache_account;

/*
 * Checks the counters of one evaluation of n_sequences sequences in layers first_layer ..
 * n_layers-1. Each sequence must have called the cache once per layer. If the plan processes whole
 * sequences, elements_kept must follow from the kept dimensions. If the plan processes one token at
 * a time, there must be n_steps steps per layer and KV head, and the steps must pass
 * kvd_cache_check_steps.
 */
int kvd_cache_check(const kvd_cache_account *a, const kvd_config *config, const kvd_plan *plan,
                    size_t n_sequences, size_t n_tokens, size_t n_steps, int first_layer,
                    kvd_err *err);

/*
 * Fails unless `a` has counted `rows` steps (tokens times KV heads times layers) and every method
 * of the plan has changed at least one cached token.
 */
int kvd_cache_check_steps(const kvd_stepwise_account *a, const kvd_plan *plan, size_t rows,
                          kvd_err *err);

void kvd_cache_account_add(kvd_cache_account *sum, const kvd_cache_account *a);

/*
 * Returns the number of tokens that one layer holds at the end. Sequence s has tokens offset[s] ..
 * offset[s+1]-1. With an attention window a layer holds the newest `window` tokens of each
 * sequence; window 0 means all tokens.
 */
size_t kvd_cache_tokens_held(const size_t *offset, size_t n_sequences, size_t window);

/*
 * Returns the number of tokens that all layers hold after a sequence of n tokens, divided by the
 * number that they would hold without attention windows.
 */
double kvd_cache_window_share(const kvd_config *c, size_t n);

/*
 * Adds to *sum the counters of an uncompressed cache. Sequence s has tokens offset[s] ..
 * offset[s+1]-1.
 */
void kvd_cache_account_whole(const kvd_config *c, const kvd_plan *plan, const size_t *offset,
                             size_t n_sequences, kvd_cache_account *sum);

/* Cache bytes per token of the whole model, if every layer holds every token. */
typedef struct {
    /* Uncompressed: 2 * n_layers * n_kv_heads * d_head * element_bytes. */
    double dense;
    /* Compressed: sum(d_qk + d_v) * element_bytes over all KV heads of all layers. */
    double nominal;
    /* As `nominal`, with dimensions rounded up to multiples of 16, as kernels store them. */
    double padded;
    /*
     * Bytes of the matrices that project Q and K, stored once for the whole model. They are 0 in a
     * model without RoPE, where the matrices are multiplied into W_Q and W_K in advance. Matrices
     * that project V are always multiplied into W_V and W_O.
     */
    double basis;
    /* Fraction of elements removed, without and with rounding up to multiples of 16. */
    double overall_p, overall_p16;
} kvd_cache_bytes;
void kvd_cache_count_bytes(const kvd_config *c, const kvd_dims *dims, size_t element_bytes,
                           kvd_cache_bytes *out);

#endif
