/*
 * One layer of any model family, on a block of tokens: its weights, and its arithmetic before and
 * after attention. Several threads may compute different blocks at the same time, between
 * kvd_blas_serial and kvd_blas_restore; outside such a region a call uses all threads.
 */
#ifndef KVD_MODEL_PASS_LAYER_H
#define KVD_MODEL_PASS_LAYER_H

#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/weights.h"

/*
 * Weights of a layer, indexed by kvd_part: matrix or gain w[part] and bias b[part]. NULL if the
 * model does not have the weight.
 */
typedef struct {
    const float *w[KVD_N_LAYER_PARTS], *b[KVD_N_LAYER_PARTS];
} kvd_layer_weights;

/*
 * Number of weights of a layer: each kvd_part has its matrix or gain at index 2 * part and its bias
 * at 2 * part + 1.
 */
enum { KVD_LAYER_WEIGHTS = 2 * KVD_N_LAYER_PARTS };

/*
 * Finds the weights of a layer in the checkpoint, stores them in part [KVD_LAYER_WEIGHTS], and
 * checks their shapes. Returns 0, or -1 with *err.
 */
int kvd_layer_find(const kvd_checkpoint *c, int layer, kvd_weight *part, kvd_err *err);

/* Returns how many elements of the layer's weights the file does not store as float32. */
size_t kvd_layer_buffer_size(const kvd_weight *part);

/*
 * Sets the pointers of *w: into the mapped file for weights that it stores as float32, else to
 * converted copies in buffer [kvd_layer_buffer_size].
 */
void kvd_layer_load(const kvd_weight *part, float *buffer, kvd_layer_weights *w);

/*
 * Lets the system drop the memory pages of a layer's weights in the mapped file. If in_place is
 * true, drops the pages of weights that are used directly in the file, otherwise the pages of
 * weights that kvd_layer_load has copied.
 */
void kvd_layer_drop(const kvd_weight *part, bool in_place);

/*
 * Computes y [rows][d_model] = norm(x) with the model's kind of norm; x and y may be equal. `bias`
 * may be NULL for RMS norms.
 */
void kvd_layer_normalise(const kvd_config *c, const float *x, const float *gain, const float *bias,
                         size_t rows, float *y);

typedef struct {
    float *q, *k, *v; /* [rows][n_heads or n_kv_heads][d_head] */
    /* Copies of q and k before RoPE, or NULL. */
    float *q_pre, *k_pre;
    float *input; /* copy of the input of the projections to Q, K and V, [rows][d_model]; or NULL */
    const float *cosine, *sine; /* kvd_rope_tables; NULL without RoPE */
    const uint32_t *rope_row;   /* row of the RoPE tables for each token: [rows] */
} kvd_layer_qkv;

/*
 * Computes Q, K and V of a layer. x [rows][d_model] is the layer's input; scratch
 * [rows][kvd_layer_scratch].
 */
void kvd_layer_before_attention(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                                size_t rows, float *scratch, const kvd_layer_qkv *out);

/*
 * Computes y [rows][out] = x [rows][in] W^T + b with the matrix W and bias b of the weight `part`.
 * If `add` is not 0, adds the result to y.
 */
void kvd_layer_project(const float *x, const kvd_layer_weights *w, kvd_part part, size_t rows,
                       size_t in, size_t out, float *y, int add);

/*
 * Applies the norms of Q and K (if the model has them) and RoPE to out->q and out->k
 * [rows][heads][d_head], which hold the projections. If out->q_pre and out->k_pre are not NULL,
 * copies Q and K before RoPE to them.
 */
void kvd_layer_rope(const kvd_config *c, const kvd_layer_weights *w, size_t rows,
                    const kvd_layer_qkv *out);

/* Applies an activation without gate to x [n] in place. */
void kvd_layer_activate(kvd_activation a, float *x, size_t n);

/*
 * Adds the output of the feed-forward block for input `in` [rows][d_model] to x [rows][d_model];
 * gate and up are scratch [rows][d_ffn].
 */
void kvd_layer_feed_forward(const kvd_config *c, const kvd_layer_weights *w, const float *in,
                            size_t rows, float *gate, float *up, float *x);

/* Returns the floats of scratch per token that the functions of this file need. */
size_t kvd_layer_scratch(const kvd_config *c);

/*
 * Computes y [rows][d_model], the output projection of o [rows][n_heads][d_head], with bias. If
 * `add` is not 0, adds the result to y. scratch [rows][n_heads * d_value] is used only with latent
 * attention.
 */
void kvd_layer_output(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                      float *scratch, float *y, int add);

/*
 * Adds the norm of `out` [rows][d_model], the output of attention or feed-forward block, to x
 * [rows][d_model]. Overwrites `out`.
 */
void kvd_layer_add_branch(const kvd_config *c, const kvd_layer_weights *w, kvd_part part,
                          size_t rows, float *out, float *x);

/*
 * Computes the steps of a layer after attention, up to the layer's output: x [rows][d_model] holds
 * the layer's input on entry and its output on return; o [rows][n_heads][d_head] is the attention
 * output. scratch [rows][kvd_layer_scratch].
 */
void kvd_layer_behind_attention(const kvd_config *c, const kvd_layer_weights *w, const float *o,
                                size_t rows, float *scratch, float *x);

/*
 * Layers with routed experts (Shazeer et al. 2017, arXiv:1701.06538): y = norm(x), x += sum over
 * the chosen experts e of p_e F_e(y), where F_e is the expert's feed-forward block. The shared
 * expert, if any, is added for every token.
 *
 * The p_e are the softmax of the router's logits. The n_chosen experts with the largest p_e are
 * chosen; ties go to the lower index. With chosen_add_up, the p_e of the chosen experts are divided
 * by their sum. DeepSeek models first choose groups of experts (routing.h).
 *
 * The weights of one expert at a time are converted to float32. Experts that no token of the batch
 * chose are not read.
 */

typedef struct kvd_experts kvd_experts;

/*
 * Creates the buffers for routed experts; *out is NULL if the model has none. The checkpoint must
 * stay open. Returns 0, or -1 with *err.
 */
int kvd_experts_new(const kvd_checkpoint *c, size_t max_tokens, kvd_experts **out, kvd_err *err);
void kvd_experts_free(kvd_experts *e);

/*
 * Computes the bytes that kvd_experts_new allocates: *weights for weights in float32, and
 * *activations for scratch.
 */
void kvd_experts_bytes(const kvd_config *c, size_t max_tokens, double *weights,
                       double *activations);

/*
 * Computes the steps after attention of a layer with routed experts: x [n][d_model] is its input,
 * then its output; o [n][n_heads][d_head] is the attention output. The result does not depend on
 * the number of threads.
 */
void kvd_experts_behind_attention(kvd_experts *e, const kvd_layer_weights *w, int layer,
                                  const float *o, size_t n, float *x);

/*
 * Gradient of kvd_experts_behind_attention for the layer's input x [n][d_model]. On entry dx is the
 * gradient of the layer's output; on return it is the gradient of x, without the contribution
 * through Q, K and V. d_o receives the gradient of o. The choice of experts is treated as constant;
 * the gradient flows through the factors on their outputs. Returns 0, or -1 with *err if memory
 * runs out.
 */
int kvd_experts_behind_back(kvd_experts *e, const kvd_layer_weights *w, int layer, const float *x,
                            const float *o, size_t n, float *dx, float *d_o, kvd_err *err);

#endif
