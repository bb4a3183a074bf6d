/*
 * Plugins that store the numbers of K and V with fewer bits. kvdim/plugin.h has what all plugins
 * share.
 *
 * kvdim codes each token once, after other methods have dropped tokens and removed dimensions. If a
 * method that chooses tokens (kvdim/plugin_tokens.h) later lowers the precision of a token, kvdim
 * codes this token again, in a block of one token.
 */
#ifndef KVDIM_PLUGIN_BITS_H
#define KVDIM_PLUGIN_BITS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rows (tokens) of K or V that are coded together, of one KV head of one layer of one sequence. */
typedef struct kvdim_block {
    uint32_t struct_size;
    /*
     * KVDIM_SIDE_KEYS or KVDIM_SIDE_VALUES. Keys are after RoPE, unless the method sets
     * kvdim_bits_method.keys_before_rope to 1.
     */
    int32_t side;
    int32_t layer, kv_head;
    /*
     * 1 if the block is coded at the end of a prompt, 0 if it is coded in a decode step. Tokens
     * that another method has dropped from the cache are not in the block.
     */
    int32_t prompt;
    /*
     * Number n of tokens, and number d of dimensions of each token. d is less than the model's
     * d_head if another method has removed dimensions of the head.
     */
    size_t n, d;
    const float *x;           /* numbers to be coded, [n][d], finite */
    const uint32_t *position; /* position of each token in its sequence, [n] */
    /*
     * Attention statistics per token, [n]. `mass` is the sum of the attention probabilities that
     * the token has received so far, from all query heads. `seen` is the number of probabilities in
     * this sum. NULL unless the method sets KVDIM_NEEDS_PROBABILITIES.
     */
    const double *mass, *seen;
} kvdim_block;

/*
 * The argument `self` of the functions is the pointer that `open` stored. If `open` is NULL, `self`
 * is the array of the values of the method's parameters, const double [n_keys].
 */
typedef struct kvdim_bits_method {
    kvdim_method method;
    /* If 1, keys are coded before RoPE. kvdim applies RoPE whenever it reads a decoded key. */
    int32_t keys_before_rope;
    /*
     * Checks the parameter values `value` [n_keys] against the model and stores *self. `open` and
     * `close` may be NULL.
     */
    int (*open)(const double *value, const kvdim_model *model, void **self, char *error);
    void (*close)(void *self);
    /*
     * Sets how keys or values (`side`) are divided into blocks. *window is the number of newest
     * tokens that are not coded (0 .. 2^24), and *block the number of tokens that are coded
     * together (1 .. 2^20). If m tokens are stored, the first (m - window) / block * block are
     * coded, with the quotient rounded down. The tokens after them stay exact in the type of the
     * cache. The coded tokens of a prompt are coded in one call. Tokens after the prompt are coded
     * block by block as blocks fill up. If this pointer is NULL, window is 0 and block is 1.
     */
    void (*window)(const double *value, int32_t side, size_t *window, size_t *block);
    /*
     * Codes block `b`. Writes to `decoded` [n][d] the finite numbers that kvdim uses in place of
     * b->x. Sets *payload to the number of bits of the codes, and *side_bits to the number of bits
     * of scales, tables and indices. Both are at least 0. Must accept constant rows, zeros and any
     * n of at least 1.
     */
    int (*code)(const void *self, const kvdim_block *b, float *decoded, double *payload,
                double *side_bits, char *error);
} kvdim_bits_method;

#ifdef __cplusplus
}
#endif
#endif
