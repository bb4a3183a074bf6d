/* Bits and tokens of a compressed KV cache. Functions return nonzero and fill *err on failure. */
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

/* Bits, tokens and seconds of a cache filled token by token, summed over steps and KV heads. */
typedef struct {
    size_t rows;
    /* Bits of K and V, quantised or not, without scales and indices. */
    double payload;
    double side;
    /* Bits stored in addition to K and V (such as scores of tokens), summed over steps. */
    double entries;
    /* Bits that attention read, including those of the new token. */
    double read;
    /* Bits that an uncompressed cache would hold, summed over the steps counted in `rows`. */
    double dense;
    /* Most bits held at once, after a token is appended and before tokens are dropped. */
    double peak;
    /* Numbers of tokens that were dropped, stored with fewer bits or dimensions, quantised, merged
     * with another layer's, and partly set to 0. */
    size_t dropped, lowered, coded, merged, pruned;
    size_t unread;
    double seconds[KVD_STEPWISE_PARTS];
} kvd_stepwise_account;

void kvd_stepwise_account_add(kvd_stepwise_account *sum, const kvd_stepwise_account *a);

typedef struct {
    size_t calls;
    size_t tokens;
    /* Number of tokens that the cache holds at the end, summed over sequences and layers. */
    size_t tokens_held;
    size_t elements_kept;
    size_t elements_dense;
    size_t bytes_stored;
    kvd_stepwise_account steps;
} kvd_cache_account;

/* Fails unless a batch stored all tokens of all layers from first_layer on. */
int kvd_cache_check(const kvd_cache_account *a, const kvd_config *config, const kvd_plan *plan,
                    size_t n_sequences, size_t n_tokens, size_t n_steps, int first_layer,
                    kvd_err *err);

/* Fails unless *a has `rows` steps and each method dropped, changed or skipped a cached token. */
int kvd_cache_check_steps(const kvd_stepwise_account *a, const kvd_plan *plan, size_t rows,
                          kvd_err *err);

void kvd_cache_account_add(kvd_cache_account *sum, const kvd_cache_account *a);

/* Returns how many tokens one layer holds at the end of all sequences. offset [n_sequences + 1] has
 * their first tokens. A window of 0 means no attention window. */
size_t kvd_cache_tokens_held(const size_t *offset, size_t n_sequences, size_t window);

/* Returns the fraction of n tokens that the layers' attention windows leave in the cache. */
double kvd_cache_window_share(const kvd_config *c, size_t n);

/* Adds an uncompressed cache's bytes and tokens. offset [n_sequences + 1]: starts of sequences. */
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
    /* Fraction of the numbers in K and V left out, without and with rounding to multiples of 16. */
    double overall_p, overall_p16;
} kvd_cache_bytes;
void kvd_cache_count_bytes(const kvd_config *c, const kvd_dims *dims, size_t element_bytes,
                           kvd_cache_bytes *out);

#endif
