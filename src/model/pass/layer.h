/*
 * One layer of any model family on a block of tokens. Between kvd_blas_serial and kvd_blas_restore,
 * threads may compute different blocks at the same time.
 */
#ifndef KVD_MODEL_PASS_LAYER_H
#define KVD_MODEL_PASS_LAYER_H

#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/weights.h"

/*
 * Weights of a layer in float32: matrix or gain w[part], and bias b[part]. NULL if the model does
 * not have it.
 */
typedef struct {
    const float *w[KVD_N_LAYER_PARTS], *b[KVD_N_LAYER_PARTS];
} kvd_layer_weights;

/*
 * Number of weights of a layer. The matrix or gain of a part is number 2 * part, its bias 2 * part
 * + 1.
 */
enum { KVD_LAYER_WEIGHTS = 2 * KVD_N_LAYER_PARTS };

/* Finds the weights of a layer, part [KVD_LAYER_WEIGHTS]. Returns 0, or -1 with *err. */
int kvd_layer_find(const kvd_checkpoint *c, int layer, kvd_weight *part, kvd_err *err);

/* Returns how many elements of the layer's weights the file does not store as float32. */
size_t kvd_layer_buffer_size(const kvd_weight *part);

/*
 * Fills *w with pointers to float32 weights: to those in the mapped file, or to converted copies in
 * `buffer`.
 */
void kvd_layer_load(const kvd_weight *part, float *buffer, kvd_layer_weights *w);

/*
 * Drops the memory pages of a layer's weights: of those used in place if in_place, otherwise of
 * those that were copied.
 */
void kvd_layer_drop(const kvd_weight *part, bool in_place);

/*
 * Computes the norm of x that the model uses (RMS or layer norm) in y [rows][d_model]; y may be x.
 */
void kvd_layer_normalise(const kvd_config *c, const float *x, const float *gain, const float *bias,
                         size_t rows, float *y);

typedef struct {
    float *q, *k, *v; /* [rows][n_heads or n_kv_heads][d_head] */
    /* Copies of q and k before RoPE, or NULL. */
    float *q_pre, *k_pre;
    float *input;               /* copy of the input of the projections, [rows][d_model], or NULL */
    const float *cosine, *sine; /* kvd_rope_tables; NULL without RoPE */
    const uint32_t *rope_row;   /* row of the RoPE tables of each token, [rows] */
} kvd_layer_qkv;

/* Computes Q, K and V of a layer from its input x [rows][d_model]. */
void kvd_layer_before_attention(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                                size_t rows, float *scratch, const kvd_layer_qkv *out);

/* Computes y [rows][out] = x [rows][in] W^T + b with the weight `part`, added to y if `add`. */
void kvd_layer_project(const float *x, const kvd_layer_weights *w, kvd_part part, size_t rows,
                       size_t in, size_t out, float *y, int add);

/*
 * Applies the norms of Q and K, and RoPE, in place. Copies Q and K before RoPE if the caller wants
 * them.
 */
void kvd_layer_rope(const kvd_config *c, const kvd_layer_weights *w, size_t rows,
                    const kvd_layer_qkv *out);

/*
 * Adds the output of the feed-forward block for `in` [rows][d_model] to x. gate and up are scratch
 * memory.
 */
void kvd_layer_feed_forward(const kvd_config *c, const kvd_layer_weights *w, const float *in,
                            size_t rows, float *gate, float *up, float *x);

/* Returns how many floats of scratch memory per token the functions of this file need. */
size_t kvd_layer_scratch(const kvd_config *c);

/* Computes y [rows][d_model], the output projection of o, added to y if `add`. */
void kvd_layer_output(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                      float *scratch, float *y, int add);

/* Adds the norm of a block's output, `out` [rows][d_model], to x. Overwrites `out`. */
void kvd_layer_add_branch(const kvd_config *c, const kvd_layer_weights *w, kvd_part part,
                          size_t rows, float *out, float *x);

/*
 * Computes a layer's steps after attention. x [rows][d_model] is the input of the layer and
 * receives its output.
 */
void kvd_layer_behind_attention(const kvd_config *c, const kvd_layer_weights *w, const float *o,
                                size_t rows, float *scratch, float *x);

/*
 * Routed experts (Shazeer et al. 2017, arXiv:1701.06538): y = norm(x), x += sum over the chosen
 * experts e of p_e F_e(y).
 *
 * The p_e are the softmax of the router's logits; the n_chosen largest are chosen, ties go to the
 * lower index. DeepSeek models first choose groups (routing.h). Experts that no token chose are not
 * read.
 */

typedef struct kvd_experts kvd_experts;

/*
 * Creates buffers for routed experts. *out is NULL if the model has none. The checkpoint must stay
 * open.
 */
int kvd_experts_new(const kvd_checkpoint *c, size_t max_tokens, kvd_experts **out, kvd_err *err);
void kvd_experts_free(kvd_experts *e);

/* Computes the bytes that kvd_experts_new allocates for weights and for scratch memory. */
void kvd_experts_bytes(const kvd_config *c, size_t max_tokens, double *weights,
                       double *activations);

/*
 * Computes the steps after attention of a layer with experts. x [n][d_model] is the input of the
 * layer and receives its output.
 */
void kvd_experts_behind_attention(kvd_experts *e, const kvd_layer_weights *w, int layer,
                                  const float *o, size_t n, float *x);

/*
 * Computes kvd_experts_behind_attention backward: on entry dx is the gradient by the layer's
 * output, on return that by x, without the part through Q, K and V. d_o is the gradient of o.
 */
int kvd_experts_behind_back(kvd_experts *e, const kvd_layer_weights *w, int layer, const float *x,
                            const float *o, size_t n, float *dx, float *d_o, kvd_err *err);

#endif
