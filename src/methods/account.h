/*
 * Counters of a cache: stored numbers, bits and bytes, numbers of changed tokens. Functions return
 * nonzero and fill *err on failure.
 */
#ifndef KVD_METHODS_ACCOUNT_H
#define KVD_METHODS_ACCOUNT_H

#include <stddef.h>

#include "methods/plan.h"

typedef enum {
    KVD_STEPWISE_PROJECT,
    KVD_STEPWISE_APPEND,
    KVD_STEPWISE_ATTEND,
    /* time of choosing tokens and channels, and of quantising */
    KVD_STEPWISE_COMPRESS,
    KVD_STEPWISE_PARTS
} kvd_stepwise_part;

/*
 * Counters of a token-by-token cache: bits summed over steps. A step is one token after the prompt
 * in one KV head of one layer.
 */
typedef struct {
    size_t rows;
    /* bits of codes and of unquantised numbers */
    double payload;
    double side;
    /* bits of scores, positions and summaries of keys of the cached tokens */
    double entries;
    /* bits that attention read, including the new token's */
    double read;
    /* bits of an uncompressed cache */
    double dense;
    /* Most bits held at once, after a token is appended and before tokens are dropped. */
    double peak;
    /* Numbers of cached tokens dropped, stored at KVD_LEVEL_LOW, quantised, merged, pruned. */
    size_t dropped, lowered, coded, merged, pruned;
    size_t unread;
    double seconds[KVD_STEPWISE_PARTS];
} kvd_stepwise_account;

void kvd_stepwise_account_add(kvd_stepwise_account *sum, const kvd_stepwise_account *a);

typedef struct {
    size_t calls;
    size_t tokens;
    /* Tokens held at the end, within attention windows, summed over sequences and layers. */
    size_t tokens_held;
    size_t elements_kept;
    size_t elements_dense;
    size_t bytes_stored;
    kvd_stepwise_account steps;
} kvd_cache_account;

/*
 * Fails unless the cache was called for each sequence in layers first_layer .. n_layers-1 and
 * stored all n_tokens. Also checks the number of stored elements or, if the plan is stepwise,
 * n_steps per KV head.
 */
int kvd_cache_check(const kvd_cache_account *a, const kvd_config *config, const kvd_plan *plan,
                    size_t n_sequences, size_t n_tokens, size_t n_steps, int first_layer,
                    kvd_err *err);

/* Fails unless `a` counted `rows` steps and every method of the plan changed a token. */
int kvd_cache_check_steps(const kvd_stepwise_account *a, const kvd_plan *plan, size_t rows,
                          kvd_err *err);

void kvd_cache_account_add(kvd_cache_account *sum, const kvd_cache_account *a);

/* Returns a layer's tokens at the end. offset [n_sequences + 1]: first tokens. window 0: none. */
size_t kvd_cache_tokens_held(const size_t *offset, size_t n_sequences, size_t window);

/* Returns (tokens that all layers hold after n) / (tokens held without attention windows). */
double kvd_cache_window_share(const kvd_config *c, size_t n);

/* Adds an uncompressed cache's counters. offset [n_sequences + 1]: each sequence's first token. */
void kvd_cache_account_whole(const kvd_config *c, const kvd_plan *plan, const size_t *offset,
                             size_t n_sequences, kvd_cache_account *sum);

/* Cache bytes per token of the whole model, without attention windows. */
typedef struct {
    /* uncompressed: 2 * n_layers * n_kv_heads * d_head * element_bytes */
    double dense;
    /* compressed: sum of (d_qk + d_v) * element_bytes over all KV heads of all layers */
    double nominal;
    /* `nominal` with dimensions rounded up to multiples of 16 */
    double padded;
    /* Bytes of the matrices that project Q and K; 0 if folded into the weights. */
    double basis;
    /* Fractions of elements removed, without and with rounding up to multiples of 16. */
    double overall_p, overall_p16;
} kvd_cache_bytes;
void kvd_cache_count_bytes(const kvd_config *c, const kvd_dims *dims, size_t element_bytes,
                           kvd_cache_bytes *out);

#endif
