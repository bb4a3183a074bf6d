/*
 * Plugins that shorten the bits axis: they code the numbers of entries that stay in the cache.
 * kvdim/plugin.h has what all plugins share.
 *
 * `code` receives a block of rows of K or V of one KV head, writes the numbers that a later read
 * finds, and counts the bits of the code. kvdim codes an entry once, after the tokens and dims axes
 * have acted. It codes an entry again, alone, only if a method of the tokens axis lowers it.
 */
#ifndef KVDIM_PLUGIN_BITS_H
#define KVDIM_PLUGIN_BITS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of K or V of one KV head of one layer of one sequence that are coded together. */
typedef struct kvdim_block {
    uint32_t struct_size;
    int32_t side; /* KVDIM_SIDE_KEYS (after RoPE, unless keys_before_rope) or KVDIM_SIDE_VALUES */
    int32_t layer, kv_head;
    int32_t prompt;           /* 1: the block holds all tokens of a prompt that are coded */
    size_t n, d;              /* number of tokens; of dimensions after the dims axis */
    const float *x;           /* [n][d], finite */
    const uint32_t *position; /* [n] positions of the tokens in their sequence */
    /*
     * [n] sum of the probabilities that a token has received over all query heads so far, and the
     * number of these probabilities; NULL without KVDIM_NEEDS_PROBABILITIES
     */
    const double *mass, *seen;
} kvdim_block;

/*
 * `self` is the pointer that `open` stored. If `open` is NULL, it is the array of the keys' values,
 * const double [n_keys].
 */
typedef struct kvdim_bits_method {
    kvdim_method method;
    int32_t keys_before_rope; /* 1: keys are coded before RoPE, which kvdim applies on every read */
    /* Checks the values of the keys against the model. May be NULL; so may `close`. */
    int (*open)(const double *value, const kvdim_model *model, void **self, char *error);
    void (*close)(void *self);
    /*
     * Sets *window, 0 .. 2^24, and *block, 1 .. 2^20. Of m tokens of a side the first
     * (m - window) / block * block are coded, block by block as they fill up. The others stay exact
     * in the type of the cache. A prompt is coded in one call up to that end. NULL: window 0 and
     * block 1.
     */
    void (*window)(const double *value, int32_t side, size_t *window, size_t *block);
    /*
     * Writes `decoded` [n][d], finite, and the bits of the code of the whole block, 0 or more:
     * *payload of codes, *side_bits of scales, tables and indices. Constant rows, zeros and any n
     * of at least 1 occur.
     */
    int (*code)(const void *self, const kvdim_block *b, float *decoded, double *payload,
                double *side_bits, char *error);
} kvdim_bits_method;

#ifdef __cplusplus
}
#endif
#endif
