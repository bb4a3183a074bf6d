/* Computes the forward pass of one layer, of any model family, for a block of tokens. Threads may
 * compute different blocks at once, after kvd_blas_serial has limited OpenBLAS to one thread. */
#ifndef KVD_MODEL_PASS_LAYER_H
#define KVD_MODEL_PASS_LAYER_H

#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/weights.h"

/* float32 weights of a layer: matrix or gain w[part], and bias b[part] of each part; NULL for
 * weights that the model lacks */
typedef struct {
    const float *w[KVD_N_LAYER_PARTS], *b[KVD_N_LAYER_PARTS];
} kvd_layer_weights;

/* number of weight arrays per layer: each part has a matrix (or gain) at an even index, then its
 * bias */
enum { KVD_LAYER_WEIGHTS = 2 * KVD_N_LAYER_PARTS };

/* Finds the weights of a layer in the checkpoint, and describes them in part
 * [KVD_LAYER_WEIGHTS]. */
int kvd_layer_find(const kvd_checkpoint *c, int layer, kvd_weight *part, kvd_err *err);

/* Returns the length of `buffer` in kvd_layer_load: how many numbers of the layer's weights must be
 * converted to float32. */
size_t kvd_layer_buffer_size(const kvd_weight *part);

/* Points *w to float32 weights in the mapped file, or to converted copies in `buffer`. */
void kvd_layer_load(const kvd_weight *part, float *buffer, kvd_layer_weights *w);

/* Releases pages of the mapped checkpoint file from memory. in_place: true for weights that are
 * used directly from the file, false for weights that were converted to float32 copies. */
void kvd_layer_drop(const kvd_weight *part, bool in_place);

/* Normalises each row of x (RMS norm or layer norm) and writes it to y [rows][d_model]. y may be
 * x. */
void kvd_layer_normalise(const kvd_config *c, const float *x, const float *gain, const float *bias,
                         size_t rows, float *y);

typedef struct {
    float *q, *k, *v; /* [rows][n_heads or n_kv_heads][d_head] */
    float *q_pre, *k_pre;
    float *input;               /* copy of the input of the projections, [rows][d_model], or NULL */
    const float *cosine, *sine; /* kvd_rope_tables; NULL without RoPE */
    const uint32_t *rope_row;   /* row of the RoPE tables of each token, [rows] */
} kvd_layer_qkv;

/* Computes Q, K and V of a layer from its input x [rows][d_model]. */
void kvd_layer_before_attention(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                                size_t rows, float *scratch, const kvd_layer_qkv *out);

/* Computes x [rows][in] W^T + b and writes it to y [rows][out] or, if `add`, adds it to y. */
void kvd_layer_project(const float *x, const kvd_layer_weights *w, kvd_part part, size_t rows,
                       size_t in, size_t out, float *y, int add);

/* Applies norms and RoPE to Q and K in place. If out->q_pre and out->k_pre are not NULL, they
 * receive Q and K before RoPE. */
void kvd_layer_rope(const kvd_config *c, const kvd_layer_weights *w, size_t rows,
                    const kvd_layer_qkv *out);

/* Adds the output of the feed-forward block, for its input `in` [rows][d_model], to the residual
 * stream x. gate and up are scratch memory. */
void kvd_layer_feed_forward(const kvd_config *c, const kvd_layer_weights *w, const float *in,
                            size_t rows, float *gate, float *up, float *x);

/* Returns how many floats of scratch memory per token the functions of this header need. */
size_t kvd_layer_scratch(const kvd_config *c);

/* Applies the output projection to the attention output o. Writes the result to y [rows][d_model]
 * or, if `add`, adds it to y. */
void kvd_layer_output(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                      float *scratch, float *y, int add);

/* Normalises a block's output, `out` [rows][d_model], and adds it to the residual stream x.
 * Overwrites `out`. */
void kvd_layer_add_branch(const kvd_config *c, const kvd_layer_weights *w, kvd_part part,
                          size_t rows, float *out, float *x);

/* Computes the part of a layer that follows attention, from the attention output o. On entry, x
 * [rows][d_model] is the layer's input; on return, it is the layer's output. */
void kvd_layer_behind_attention(const kvd_config *c, const kvd_layer_weights *w, const float *o,
                                size_t rows, float *scratch, float *x);

/* Routed experts (arXiv:1701.06538): x += the sum over chosen experts of p_e F_e(norm(x)).
 *
 * The p_e are the softmax of the router's logits; ties go to the lower index. Experts that no token
 * chose are not read. */

typedef struct kvd_experts kvd_experts;

/* Creates buffers for routed experts. *out is NULL if the model has no experts. The checkpoint must
 * stay open. */
int kvd_experts_new(const kvd_checkpoint *c, size_t max_tokens, kvd_experts **out, kvd_err *err);
void kvd_experts_free(kvd_experts *e);

/* Computes how many bytes kvd_experts_new allocates for weights and for activations. */
void kvd_experts_bytes(const kvd_config *c, size_t max_tokens, double *weights,
                       double *activations);

/* In a layer with experts, computes the steps after attention from the attention output `o`. x
 * [n][d_model]: input of the layer on entry, its output on return. */
void kvd_experts_behind_attention(kvd_experts *e, const kvd_layer_weights *w, int layer,
                                  const float *o, size_t n, float *x);

/* Backward pass of the steps after attention in a layer with experts.
 *
 * - dx: on entry, the gradient of the layer's output; on return, the part of the gradient of the
 *   layer's input x that does not pass through attention
 * - d_o: receives the gradient of the attention output o */
int kvd_experts_behind_back(kvd_experts *e, const kvd_layer_weights *w, int layer, const float *x,
                            const float *o, size_t n, float *dx, float *d_o, kvd_err *err);

#endif
