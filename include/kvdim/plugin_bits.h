/*
 * Plugins that store the numbers of K and V with fewer bits. Read kvdim/plugin.h first.
 *
 * kvdim quantises each token once, after other methods have dropped tokens and removed dimensions.
 * If a token method (kvdim/plugin_tokens.h) later lowers a token's precision, the token is
 * quantised again, in a block of one token.
 */
#ifndef KVDIM_PLUGIN_BITS_H
#define KVDIM_PLUGIN_BITS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Rows (tokens) of K or V that are quantised together, of one KV head of one layer of one sequence.
 */
typedef struct kvdim_block {
    uint32_t struct_size;
    /* KVDIM_SIDE_KEYS (keys, after RoPE unless keys_before_rope is 1) or KVDIM_SIDE_VALUES. */
    int32_t side;
    int32_t layer, kv_head;
    /*
     * 1 if the block is quantised at the end of a prompt, 0 if in a decode step. Dropped tokens are
     * not in the block.
     */
    int32_t prompt;
    /* Numbers of tokens and dimensions. d < d_head if another method has removed dimensions. */
    size_t n, d;
    const float *x;           /* numbers to be coded, [n][d], finite */
    const uint32_t *position; /* position of each token in its sequence, [n] */
    /*
     * Arrays [n]. mass[i] is the sum of the attention probabilities that token i has received from
     * all query heads, seen[i] the number of probabilities in this sum. NULL without
     * KVDIM_NEEDS_PROBABILITIES.
     */
    const double *mass, *seen;
} kvdim_block;

/*
 * Method that stores K and V with fewer bits. The argument `self` of its functions is the pointer
 * that `open` stored or, if `open` is NULL, the parameter values, const double [n_keys].
 */
typedef struct kvdim_bits_method {
    kvdim_method method;
    /*
     * If 1, keys are quantised before RoPE, and kvdim applies RoPE whenever it reads a decoded key.
     */
    int32_t keys_before_rope;
    /*
     * Checks the parameter values `value` [n_keys] against the model, and stores a pointer of the
     * method in *self. `open` and `close` may be NULL.
     */
    int (*open)(const double *value, const kvdim_model *model, void **self, char *error);
    void (*close)(void *self);
    /*
     * Sets the blocks of keys or values (`side`): the newest *window tokens (0 .. 2^24) are stored
     * unchanged, *block tokens (1 .. 2^20) are quantised together. If m tokens are stored, the
     * first (m - window) / block * block are quantised (quotient rounded down); later ones stay
     * exact. A prompt is quantised in one call, later tokens as blocks fill up. NULL: window 0,
     * block 1.
     */
    void (*window)(const double *value, int32_t side, size_t *window, size_t *block);
    /*
     * Quantises block `b`. `decoded` [n][d] receives the finite numbers that replace b->x, *payload
     * the bits of the codes, *side_bits those of scales, tables and indices, both at least 0. Must
     * accept constant rows, zeros and any n >= 1.
     */
    int (*code)(const void *self, const kvdim_block *b, float *decoded, double *payload,
                double *side_bits, char *error);
} kvdim_bits_method;

#ifdef __cplusplus
}
#endif
#endif
