/* Counts the bits and tokens that a compressed KV cache holds. Functions that return int return
 * nonzero on failure and fill *err. */
#ifndef KVD_METHODS_ACCOUNT_H
#define KVD_METHODS_ACCOUNT_H

#include <stddef.h>

#include "methods/plan.h"

typedef enum {
    KVD_STEPWISE_PROJECT,
    KVD_STEPWISE_APPEND,
    KVD_STEPWISE_ATTEND,
    /* Time for choosing tokens and channels, and for quantising. */
    KVD_STEPWISE_COMPRESS,
    KVD_STEPWISE_PARTS
} kvd_stepwise_part;

/* Counters of a cache filled token by token (bits, tokens, seconds), summed over steps and KV
 * heads. */
typedef struct {
    size_t rows;
    /* Number of bits of the elements of K and V, without scales and indices. */
    double payload;
    double side;
    /* Number of bits of the data that methods store in addition to K and V, for example a score per
     * token. */
    double entries;
    /* Number of bits that attention read, including the bits of the new token. */
    double read;
    /* Number of bits that an uncompressed cache would hold, summed over steps. */
    double dense;
    /* Largest number of bits held at one time: after a token is appended, and before tokens are
     * dropped. */
    double peak;
    /* Numbers of tokens that were dropped, lowered to fewer bits or dimensions, quantised, merged
     * with other tokens or layers, and pruned (some of their elements set to 0). */
    size_t dropped, lowered, coded, merged, pruned;
    size_t unread;
    double seconds[KVD_STEPWISE_PARTS];
} kvd_stepwise_account;

void kvd_stepwise_account_add(kvd_stepwise_account *sum, const kvd_stepwise_account *a);

typedef struct {
    size_t calls;
    size_t tokens;
    /* Number of tokens in the cache after each sequence's last token, summed over sequences and
     * layers. */
    size_t tokens_held;
    size_t elements_kept;
    size_t elements_dense;
    size_t bytes_stored;
    kvd_stepwise_account steps;
} kvd_cache_account;

/* Fails if the counters *a show that a batch did not store every token in every layer from
 * first_layer on. */
int kvd_cache_check(const kvd_cache_account *a, const kvd_config *config, const kvd_plan *plan,
                    size_t n_sequences, size_t n_tokens, size_t n_steps, int first_layer,
                    kvd_err *err);

/* Fails if the number of steps in *a is not `rows` (each step adds one token to the cache), or if a
 * method of the plan had no effect on any cached token. */
int kvd_cache_check_steps(const kvd_stepwise_account *a, const kvd_plan *plan, size_t rows,
                          kvd_err *err);

void kvd_cache_account_add(kvd_cache_account *sum, const kvd_cache_account *a);

/* Returns the number of tokens that one layer holds at the end of each sequence, summed over the
 * sequences. Sequence s has tokens offset[s] to offset[s + 1] - 1. `window`: attention window of
 * the layer in tokens, or 0 for none. */
size_t kvd_cache_tokens_held(const size_t *offset, size_t n_sequences, size_t window);

/* Returns the fraction of n tokens of a sequence that are still cached at the end of the sequence,
 * averaged over the layers. The other tokens are outside the layers' attention windows. */
double kvd_cache_window_share(const kvd_config *c, size_t n);

/* Adds the bytes and tokens of an uncompressed cache to the counters *sum. `offset` has n_sequences
 * + 1 elements: sequence s has tokens offset[s] to offset[s + 1] - 1. */
void kvd_cache_account_whole(const kvd_config *c, const kvd_plan *plan, const size_t *offset,
                             size_t n_sequences, kvd_cache_account *sum);

/* Bytes per token of the model's whole cache, as if no layer had a sliding attention window. */
typedef struct {
    /* Bytes of an uncompressed cache: 2 * n_layers * n_kv_heads * d_head * element_bytes. */
    double dense;
    /* Bytes of a compressed cache: sum of (d_qk + d_v) * element_bytes over all KV heads. */
    double nominal;
    /* Bytes of a compressed cache whose kept dimensions are rounded up to multiples of 16. */
    double padded;
    /* Bytes of the matrices that project Q and K; 0 if they are multiplied into the weights. */
    double basis;
    /* overall_p: fraction of the elements of K and V that are not stored. overall_p16: this
     * fraction if kept dimensions are rounded up to multiples of 16. */
    double overall_p, overall_p16;
} kvd_cache_bytes;
void kvd_cache_count_bytes(const kvd_config *c, const kvd_dims *dims, size_t element_bytes,
                           kvd_cache_bytes *out);

#endif
