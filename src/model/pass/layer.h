/*
 * One layer of any model family: its weights in float32, and its arithmetic before and after
 * attention, on a block of tokens. Several threads may compute different blocks at once, between
 * kvd_blas_serial and kvd_blas_restore; outside such a region a call uses all threads.
 */
#ifndef KVD_MODEL_PASS_LAYER_H
#define KVD_MODEL_PASS_LAYER_H

#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/weights.h"

/*
 * Weights of one layer in float32: w[part] is a matrix or gain, b[part] its bias; NULL if the model
 * does not have it.
 */
typedef struct {
    const float *w[KVD_N_LAYER_PARTS], *b[KVD_N_LAYER_PARTS];
} kvd_layer_weights;

/*
 * Number of weights of a layer: for each kvd_part, its matrix or gain at index 2 * part and its
 * bias at 2 * part + 1.
 */
enum { KVD_LAYER_WEIGHTS = 2 * KVD_N_LAYER_PARTS };

/*
 * Finds all weights of a layer in the checkpoint, checks their shapes and fills part
 * [KVD_LAYER_WEIGHTS]. Returns 0, or -1 with *err.
 */
int kvd_layer_find(const kvd_checkpoint *c, int layer, kvd_weight *part, kvd_err *err);

/*
 * Returns the number of floats of the buffer for a layer's converted weights: how many of its
 * numbers the file does not store as float32.
 */
size_t kvd_layer_buffer_size(const kvd_weight *part);

/*
 * Points *w to the weights of a layer: into the mapped file if it stores them as float32, else to
 * converted copies in buffer [kvd_layer_buffer_size].
 */
void kvd_layer_load(const kvd_weight *part, float *buffer, kvd_layer_weights *w);

/*
 * Lets the operating system drop the memory pages of a layer's weights in the mapped checkpoint
 * file (streaming.h). `in_place` true: of the weights that are used directly in the file, because
 * they are float32. False: of the others, of which kvd_layer_load has made float32 copies.
 */
void kvd_layer_drop(const kvd_weight *part, bool in_place);

/*
 * Computes y [rows][d_model] = norm(x) with the model's kind of norm; x and y may be equal. bias
 * may be NULL for RMS norms.
 */
void kvd_layer_normalise(const kvd_config *c, const float *x, const float *gain, const float *bias,
                         size_t rows, float *y);

/* Output of kvd_layer_before_attention: Q, K and V of a block of tokens. */
typedef struct {
    float *q, *k, *v; /* queries, keys, values: [rows][n_heads or n_kv_heads][d_head] */
    /* Copies of q and k before RoPE, or NULL. */
    float *q_pre, *k_pre;
    float *input; /* copy of the input of the projections to Q, K and V, [rows][d_model]; or NULL */
    const float *cosine, *sine; /* tables that kvd_rope_tables fills; NULL without RoPE */
    const uint32_t *rope_row;   /* row of the RoPE tables for each token: [rows] */
} kvd_layer_qkv;

/*
 * Computes Q, K and V of a layer's input x [rows][d_model] into *out; scratch
 * [rows][kvd_layer_scratch].
 */
void kvd_layer_before_attention(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                                size_t rows, float *scratch, const kvd_layer_qkv *out);

/*
 * Computes y [rows][out] = x [rows][in] W^T + b with the matrix and bias that `part` names. If
 * `add` is not 0, adds the result to y.
 */
void kvd_layer_project(const float *x, const kvd_layer_weights *w, kvd_part part, size_t rows,
                       size_t in, size_t out, float *y, int add);

/*
 * Applies the norms of Q and K, if the model has them, and RoPE to out->q and out->k
 * [rows][heads][d_head], which hold projections. Copies them before RoPE to out->q_pre and
 * out->k_pre if these are not NULL.
 */
void kvd_layer_rope(const kvd_config *c, const kvd_layer_weights *w, size_t rows,
                    const kvd_layer_qkv *out);

/*
 * Adds the output of the feed-forward block for input `in` [rows][d_model] to x [rows][d_model];
 * gate and up are scratch [rows][d_ffn].
 */
void kvd_layer_feed_forward(const kvd_config *c, const kvd_layer_weights *w, const float *in,
                            size_t rows, float *gate, float *up, float *x);

/* Returns the number of floats of scratch per token that the functions of this header need. */
size_t kvd_layer_scratch(const kvd_config *c);

/*
 * Computes y [rows][d_model], attention's output projection of o [rows][n_heads][d_head], with its
 * bias. If `add` is not 0, adds the result to y. scratch [rows][n_heads * d_value] is used only
 * with latent attention.
 */
void kvd_layer_output(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                      float *scratch, float *y, int add);

/*
 * Applies the norm `part` to out [rows][d_model], the output of attention or feed-forward block,
 * and adds the result to the residual stream x [rows][d_model]; `out` is overwritten.
 */
void kvd_layer_add_branch(const kvd_config *c, const kvd_layer_weights *w, kvd_part part,
                          size_t rows, float *out, float *x);

/*
 * Computes everything that follows attention in a layer: replaces the layer's input x
 * [rows][d_model] by its output, given the attention output o [rows][n_heads][d_head]. scratch
 * [rows][kvd_layer_scratch].
 */
void kvd_layer_behind_attention(const kvd_config *c, const kvd_layer_weights *w, const float *o,
                                size_t rows, float *scratch, float *x);

/*
 * The steps after attention in a layer with routed experts (Shazeer et al. 2017, arXiv:1701.06538).
 * With residual stream x, attention output o and its projection O: x += O(o), y = norm(x), x += sum
 * over the chosen experts e of p_e F_e(y). The output of the shared expert, which every token uses,
 * is added if the model has one.
 *
 * F_e is the feed-forward block of expert e. The router's probabilities p are the softmax of its
 * n_experts logits. The n_chosen largest are used, as they are or divided by their sum; ties go to
 * the lower index. DeepSeek models choose by groups (routing.h).
 *
 * The weights of one expert at a time are converted to float32, while those of the next chosen
 * expert are read ahead (streaming.h). Experts that no token of the batch chose are not read.
 */

typedef struct kvd_experts kvd_experts;

/*
 * Finds the experts of all layers, checks their shapes, and allocates scratch for batches of up to
 * max_tokens tokens. *out is NULL if the model has no routed experts. The checkpoint must stay
 * open. Returns 0, or -1 with *err.
 */
int kvd_experts_new(const kvd_checkpoint *c, size_t max_tokens, kvd_experts **out, kvd_err *err);
void kvd_experts_free(kvd_experts *e);

/*
 * Computes the bytes that kvd_experts_new allocates: *weights for weights in float32, *activations
 * for scratch.
 */
void kvd_experts_bytes(const kvd_config *c, size_t max_tokens, double *weights,
                       double *activations);

/*
 * Computes everything that follows attention in a layer with routed experts: replaces the layer's
 * input x [n][d_model] by its output, given the attention output o [n][n_heads][d_head] and the
 * other weights *w of the layer. Uses all threads; the result does not depend on their number.
 */
void kvd_experts_behind_attention(kvd_experts *e, const kvd_layer_weights *w, int layer,
                                  const float *o, size_t n, float *x);

/*
 * Computes the gradients of kvd_experts_behind_attention, as kvd_layer_behind_back does for layers
 * without experts. x [n][d_model] is the layer's input. On entry dx is the gradient with respect to
 * the layer's output; on return it is the gradient with respect to x except for the contribution of
 * attention. d_o receives the gradient with respect to the attention output o. The choice of
 * experts counts as constant, but the factors on their outputs do not. Returns 0, or -1 with *err
 * if memory runs out.
 */
int kvd_experts_behind_back(kvd_experts *e, const kvd_layer_weights *w, int layer, const float *x,
                            const float *o, size_t n, float *dx, float *d_o, kvd_err *err);

#endif
