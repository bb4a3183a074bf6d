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

/*
 * Block of rows (tokens) of K or V that are coded together. All belong to one KV head of one layer
 * of one sequence.
 */
typedef struct kvdim_block {
    uint32_t struct_size;
    int32_t side; /* KVDIM_SIDE_KEYS (after RoPE, unless keys_before_rope) or KVDIM_SIDE_VALUES */
    int32_t layer, kv_head;
    int32_t prompt;           /* 1: the block holds all tokens of a prompt that are coded */
    size_t n, d;              /* number of tokens; of dimensions after the dims axis */
    const float *x;           /* [n][d], finite */
    const uint32_t *position; /* [n] positions of the tokens in their sequence */
    /*
     * Per token [n]: sum of the attention probabilities that all query heads have given to the
     * token so far, and the number of these probabilities. NULL without KVDIM_NEEDS_PROBABILITIES.
     */
    const double *mass, *seen;
} kvdim_block;

/*
 * Method of the bits axis. The argument `self` of its functions is the pointer that `open` stored.
 * If `open` is NULL, `self` is the array of the values of the method's keys, const double [n_keys].
 */
typedef struct kvdim_bits_method {
    kvdim_method method;
    int32_t keys_before_rope; /* 1: keys are coded before RoPE, which kvdim applies on every read */
    /*
     * Checks the values of the method's keys against the model and stores *self. `open` and `close`
     * may be NULL.
     */
    int (*open)(const double *value, const kvdim_model *model, void **self, char *error);
    void (*close)(void *self);
    /*
     * Sets the number of newest tokens that stay uncoded, *window (0 .. 2^24), and the number of
     * tokens that are coded together, *block (1 .. 2^20). Of the m tokens of a side, K or V, the
     * first (m - window) / block * block are coded, block by block as blocks fill up; the others
     * stay exact in the type of the cache. A prompt is coded in one call up to the same end. NULL:
     * window 0 and block 1.
     */
    void (*window)(const double *value, int32_t side, size_t *window, size_t *block);
    /*
     * Codes block `b`. Writes the values that a read of the code returns to `decoded` [n][d],
     * finite, and the size of the code in bits, 0 or more: *payload bits of codes, *side_bits bits
     * of scales, tables and indices. The function must accept constant rows, zeros and any n of at
     * least 1.
     */
    int (*code)(const void *self, const kvdim_block *b, float *decoded, double *payload,
                double *side_bits, char *error);
} kvdim_bits_method;

#ifdef __cplusplus
}
#endif
#endif
