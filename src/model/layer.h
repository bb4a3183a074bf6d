/*
 * One layer of any family on a block of rows, before and behind its attention. Called with blocks of
 * rows on several threads at once, between kvd_blas_serial and kvd_blas_restore; alone it uses all.
 */
#ifndef KVD_MODEL_LAYER_H
#define KVD_MODEL_LAYER_H

#include <stddef.h>
#include <stdint.h>

#include "model/config.h"
#include "model/family.h"

/* Matrices, gains and biases of one layer in float32; NULL where the model has none. */
typedef struct {
    const float *w[KVD_N_LAYER_PARTS], *b[KVD_N_LAYER_PARTS];
} kvd_layer_weights;

/* y [rows][d_model] = the model's kind of norm of x; x and y may be the same. bias as the kind wants it. */
void kvd_layer_normalise(const kvd_config *c, const float *x, const float *gain, const float *bias,
                         size_t rows, float *y);

/* Q, K and V of `rows` rows. */
typedef struct {
    float *q, *k, *v;           /* [rows][n_heads or n_kv_heads][d_head]                */
    float *q_pre, *k_pre;       /* copies before RoPE, or NULL                          */
    const float *cosine, *sine; /* kvd_rope_tables; NULL without RoPE                   */
    const uint32_t *rope_row;   /* [rows] of the tables                                 */
} kvd_layer_qkv;

/* x [rows][d_model] -> out; scratch [rows][d_model]. */
void kvd_layer_before_attention(const kvd_config *c, const kvd_layer_weights *w, const float *x, size_t rows,
                                float *scratch, const kvd_layer_qkv *out);

/* x [rows][d_model] and the attention output o [rows][n_heads][d_head] -> x behind the layer;
 * scratch [rows][d_model + 2 d_ffn]. */
void kvd_layer_behind_attention(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                                float *scratch, float *x);

#endif
