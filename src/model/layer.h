/*
 * One layer of any family: its weights in float32, and its arithmetic on a block of rows, before and
 * behind its attention. The arithmetic is called with blocks of rows on several threads at once,
 * between kvd_blas_serial and kvd_blas_restore; alone it uses all.
 */
#ifndef KVD_MODEL_LAYER_H
#define KVD_MODEL_LAYER_H

#include <stddef.h>
#include <stdint.h>

#include "model/weights.h"

/* Matrices, gains and biases of one layer in float32; NULL where the model has none. */
typedef struct {
    const float *w[KVD_N_LAYER_PARTS], *b[KVD_N_LAYER_PARTS];
} kvd_layer_weights;

/* Every part of a layer, the matrix or gain at 2 * part and its bias at 2 * part + 1. */
enum { KVD_LAYER_WEIGHTS = 2 * KVD_N_LAYER_PARTS };

/* Finds them all and checks their shapes: part [KVD_LAYER_WEIGHTS]. */
int kvd_layer_find(const kvd_checkpoint *c, int layer, kvd_weight *part, kvd_err *err);

/* Elements that must be converted, because the file does not hold them as float32. */
size_t kvd_layer_buffer_size(const kvd_weight *part);

/* Points *w into the file where that can be, else into buffer [kvd_layer_buffer_size], which it fills. */
void kvd_layer_load(const kvd_weight *part, float *buffer, kvd_layer_weights *w);

/* Drops (streaming.h) the parts that are used in place, or those that were converted. */
void kvd_layer_drop(const kvd_weight *part, bool in_place);

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

/* y [rows][out] = x [rows][in] W^T + b of that part, or y += it. */
void kvd_layer_project(const float *x, const kvd_layer_weights *w, kvd_part part, size_t rows, size_t in,
                       size_t out, float *y, int add);

/* q and k [rows][heads][d_head] as they come out of their products: norms of Q and K where the model has them, RoPE; q_pre and
 * k_pre as above. */
void kvd_layer_turn(const kvd_config *c, const kvd_layer_weights *w, size_t rows, const kvd_layer_qkv *out);

/* x [rows][d_model] += F(in); gate and up are scratch [rows][d_ffn]. */
void kvd_layer_feed_forward(const kvd_config *c, const kvd_layer_weights *w, const float *in, size_t rows,
                            float *gate, float *up, float *x);

/* x [rows][d_model] and the attention output o [rows][n_heads][d_head] -> x behind the layer;
 * scratch [rows][d_model + 2 d_ffn]. */
void kvd_layer_behind_attention(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                                float *scratch, float *x);

#endif
