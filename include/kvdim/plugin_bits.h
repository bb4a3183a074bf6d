/* Interface of plugins that store K and V with fewer bits. Read kvdim/plugin.h first.
 *
 * Each token is quantised once, after other methods have dropped tokens and dimensions. If a token
 * method later lowers the precision of a token, that token is quantised again. */
#ifndef KVDIM_PLUGIN_BITS_H
#define KVDIM_PLUGIN_BITS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Part of K or V that is quantised together: some tokens of one KV head of one layer. */
typedef struct kvdim_block {
    uint32_t struct_size;
    /* KVDIM_SIDE_KEYS if x holds keys, KVDIM_SIDE_VALUES if it holds values */
    int32_t side;
    int32_t layer, kv_head;
    /* 1 if the tokens are quantised at the end of the prompt, 0 if in a decode step */
    int32_t prompt;
    /* numbers of tokens and dimensions; d < d_head if another method removed dimensions */
    size_t n, d;
    const float *x;           /* numbers to be coded, [n][d], finite */
    const uint32_t *position; /* position of each token in its sequence, [n] */
    /* [n] mass: sum of the attention probabilities that each token has received. seen: number of
     * probabilities in this sum. NULL if the method does not set KVDIM_NEEDS_PROBABILITIES. */
    const double *mass, *seen;
} kvdim_block;

/* A quantisation method. `self` is the pointer that `open` stored. If `open` is NULL, `self` points
 * to the parameter values, const double [n_keys]. */
typedef struct kvdim_bits_method {
    kvdim_method method;
    /* If 1, keys are stored before RoPE, and kvdim applies RoPE when it reads them. */
    int32_t keys_before_rope;
    /* Checks the parameter values `value` [n_keys]. Sets *self to a pointer that kvdim passes to
     * the functions below as `self`. `open` and `close` may be NULL. */
    int (*open)(const double *value, const kvdim_model *model, void **self, char *error);
    void (*close)(void *self);
    /* Sets *window (0 .. 2^24), how many of the newest tokens stay exact, and *block (1 .. 2^20),
     * how many tokens are quantised together. If this function is NULL, *window is 0 and *block
     * is 1.
     *
     * Of m stored tokens, the oldest m - *window are quantised, rounded down to a multiple of
     * *block. */
    void (*window)(const double *value, int32_t side, size_t *window, size_t *block);
    /* Quantises block `b`. Writes the dequantised numbers, which must be finite, to `decoded`
     * [n][d]. Sets *payload to the number of bits of the codes, and *side_bits to the number of
     * bits of the scales and indices. The block has n >= 1 tokens and may be all zeros. */
    int (*code)(const void *self, const kvdim_block *b, float *decoded, double *payload,
                double *side_bits, char *error);
} kvdim_bits_method;

#ifdef __cplusplus
}
#endif
#endif
