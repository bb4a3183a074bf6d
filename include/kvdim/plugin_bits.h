/*
 * Plugins that store the numbers of K and V with fewer bits. kvdim/plugin.h has what all plugins
 * share.
 *
 * `code` receives a block of rows (tokens) of K or V of one KV head, writes the numbers that a
 * later read of the cache finds, and counts the bits of the code. kvdim codes each token once,
 * after other methods have dropped tokens and removed dimensions. It codes a token again, alone,
 * only if a method that chooses tokens (kvdim/plugin_tokens.h) later lowers the precision of that
 * token.
 */
#ifndef KVDIM_PLUGIN_BITS_H
#define KVDIM_PLUGIN_BITS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Rows (tokens) of K or V that are coded together. They all belong to one KV head of one layer of
 * one sequence.
 */
typedef struct kvdim_block {
    uint32_t struct_size;
    /* KVDIM_SIDE_KEYS (keys after RoPE, unless keys_before_rope) or KVDIM_SIDE_VALUES. */
    int32_t side;
    int32_t layer, kv_head;
    /*
     * 1 if the block holds tokens of a prompt and is coded when the prompt ends; 0 if it is coded
     * in a decode step. Tokens that another method has dropped from the cache are not in the block.
     */
    int32_t prompt;
    /*
     * Number of tokens n, and number of dimensions d of each token. d is less than d_head of the
     * model if another method has removed dimensions of the head.
     */
    size_t n, d;
    const float *x;           /* rows of K or V to be coded: n tokens of d finite numbers */
    const uint32_t *position; /* position of each token in its sequence, [n] */
    /*
     * Attention statistics, one element per token [n]: `mass` is the sum of the attention
     * probabilities that all query heads have given to the token so far, `seen` the number of
     * these probabilities. NULL unless the method sets KVDIM_NEEDS_PROBABILITIES.
     */
    const double *mass, *seen;
} kvdim_block;

/*
 * Method that codes the numbers of K and V. The argument `self` of its functions is the pointer
 * that `open` stored. If `open` is NULL, `self` is the array of the values of the method's
 * parameters, const double [n_keys].
 */
typedef struct kvdim_bits_method {
    kvdim_method method;
    /* 1: keys are coded before RoPE, which kvdim applies whenever it reads a decoded key. */
    int32_t keys_before_rope;
    /*
     * Checks `value`, the values of the method's parameters, against the model and stores *self.
     * `open` and `close` may be NULL.
     */
    int (*open)(const double *value, const kvdim_model *model, void **self, char *error);
    void (*close)(void *self);
    /*
     * Sets the number of newest tokens that stay uncoded, *window (0 .. 2^24), and the number of
     * tokens that are coded together, *block (1 .. 2^20), for K or for V (`side`). If m tokens are
     * stored, the first (m - window) / block * block are coded, block by block as blocks fill up.
     * The later ones stay exact in the type of the cache. A prompt is coded in one call up to the
     * same end. If this pointer is NULL, window is 0 and block is 1.
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
