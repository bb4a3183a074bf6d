/* Plugins that store K and V with fewer bits. Read kvdim/plugin.h first.
 *
 * Each token is quantised once, after other methods have dropped tokens and dimensions. It is
 * quantised again if a token method lowers its precision. */
#ifndef KVDIM_PLUGIN_BITS_H
#define KVDIM_PLUGIN_BITS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tokens of K or V that are quantised together, of one KV head of one layer. */
typedef struct kvdim_block {
    uint32_t struct_size;
    /* KVDIM_SIDE_KEYS or KVDIM_SIDE_VALUES */
    int32_t side;
    int32_t layer, kv_head;
    /* 1 at the end of a prompt, 0 in a decode step */
    int32_t prompt;
    /* numbers of tokens and dimensions; d < d_head if another method removed dimensions */
    size_t n, d;
    const float *x;           /* numbers to be coded, [n][d], finite */
    const uint32_t *position; /* position of each token in its sequence, [n] */
    /* [n] Sum of the attention probabilities that token i received, and their number. NULL without
     * KVDIM_NEEDS_PROBABILITIES. */
    const double *mass, *seen;
} kvdim_block;

/* `self` is `open`'s pointer or, if `open` is NULL, the parameter values, const double [n_keys]. */
typedef struct kvdim_bits_method {
    kvdim_method method;
    /* If 1, keys are quantised before RoPE, which kvdim applies on reading. */
    int32_t keys_before_rope;
    /* Checks the values [n_keys], and stores a pointer in *self. `open` and `close` may be NULL. */
    int (*open)(const double *value, const kvdim_model *model, void **self, char *error);
    void (*close)(void *self);
    /* The newest *window tokens stay exact (0 .. 2^24); *block tokens (1 .. 2^20) are quantised
     * together. NULL: window 0, block 1.
     *
     * Of m stored tokens the first (m - window) / block * block are quantised. */
    void (*window)(const double *value, int32_t side, size_t *window, size_t *block);
    /* Quantises `b`. `decoded` [n][d] receives finite numbers, *payload the bits of the codes,
     * *side_bits those of scales and indices. Must accept zeros and any n >= 1. */
    int (*code)(const void *self, const kvdim_block *b, float *decoded, double *payload,
                double *side_bits, char *error);
} kvdim_bits_method;

#ifdef __cplusplus
}
#endif
#endif
