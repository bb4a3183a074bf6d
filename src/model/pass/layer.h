/*
 * One layer of any model family on a block of tokens. Between kvd_blas_serial and kvd_blas_restore
 * threads may compute different blocks; otherwise a call uses all.
 */
#ifndef KVD_MODEL_PASS_LAYER_H
#define KVD_MODEL_PASS_LAYER_H

#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/weights.h"

/* Weights of a layer by kvd_part: matrix or gain w[part], bias b[part], or NULL. */
typedef struct {
    const float *w[KVD_N_LAYER_PARTS], *b[KVD_N_LAYER_PARTS];
} kvd_layer_weights;

/* Weights of a layer: matrix or gain at 2 * part, bias at 2 * part + 1. */
enum { KVD_LAYER_WEIGHTS = 2 * KVD_N_LAYER_PARTS };

/* Finds a layer's weights, part [KVD_LAYER_WEIGHTS]. Returns 0, or -1 with *err. */
int kvd_layer_find(const kvd_checkpoint *c, int layer, kvd_weight *part, kvd_err *err);

/* Returns how many elements of the layer are not stored as float32. */
size_t kvd_layer_buffer_size(const kvd_weight *part);

/* Points *w into the mapped file (float32), else to copies in buffer [kvd_layer_buffer_size]. */
void kvd_layer_load(const kvd_weight *part, float *buffer, kvd_layer_weights *w);

/* Drops file pages of weights used in place (in_place), or of those copied. */
void kvd_layer_drop(const kvd_weight *part, bool in_place);

/* y [rows][d_model] = the model's norm of x; y may be x. `bias` may be NULL for RMS norms. */
void kvd_layer_normalise(const kvd_config *c, const float *x, const float *gain, const float *bias,
                         size_t rows, float *y);

typedef struct {
    float *q, *k, *v; /* [rows][n_heads or n_kv_heads][d_head] */
    /* Copies of q and k before RoPE, or NULL. */
    float *q_pre, *k_pre;
    float *input;               /* copy of the projections' input [rows][d_model], or NULL */
    const float *cosine, *sine; /* kvd_rope_tables; NULL without RoPE */
    const uint32_t *rope_row;   /* row of the RoPE tables of each token, [rows] */
} kvd_layer_qkv;

/* Computes Q, K and V from the layer input x [rows][d_model]. scratch [rows][kvd_layer_scratch]. */
void kvd_layer_before_attention(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                                size_t rows, float *scratch, const kvd_layer_qkv *out);

/* y [rows][out] = x [rows][in] W^T + b with the weight `part`, added to y if `add`. */
void kvd_layer_project(const float *x, const kvd_layer_weights *w, kvd_part part, size_t rows,
                       size_t in, size_t out, float *y, int add);

/*
 * Applies norms and RoPE to out->q and out->k; copies them before RoPE to q_pre, k_pre (or NULL).
 */
void kvd_layer_rope(const kvd_config *c, const kvd_layer_weights *w, size_t rows,
                    const kvd_layer_qkv *out);

/* Applies an activation without gate to x [n] in place. */
void kvd_layer_activate(kvd_activation a, float *x, size_t n);

/* Adds the feed-forward block of in [rows][d_model] to x; gate, up [rows][d_ffn] are scratch. */
void kvd_layer_feed_forward(const kvd_config *c, const kvd_layer_weights *w, const float *in,
                            size_t rows, float *gate, float *up, float *x);

/* Returns the floats of scratch per token that the functions of this file need. */
size_t kvd_layer_scratch(const kvd_config *c);

/*
 * y [rows][d_model] = output projection of o, added if `add`. scratch [rows][n_heads * d_value]:
 * latent attention only.
 */
void kvd_layer_output(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                      float *scratch, float *y, int add);

/* Adds the norm of a block's output `out` [rows][d_model] to x. Overwrites `out`. */
void kvd_layer_add_branch(const kvd_config *c, const kvd_layer_weights *w, kvd_part part,
                          size_t rows, float *out, float *x);

/*
 * Turns x [rows][d_model] from the layer's input into its output. scratch
 * [rows][kvd_layer_scratch].
 */
void kvd_layer_behind_attention(const kvd_config *c, const kvd_layer_weights *w, const float *o,
                                size_t rows, float *scratch, float *x);

/*
 * Routed experts (Shazeer et al. 2017, arXiv:1701.06538): y = norm(x), x += sum over chosen e of
 * p_e F_e(y), plus the shared expert.
 *
 * p_e: softmax of router logits. The n_chosen largest are chosen, ties to the lower index;
 * chosen_add_up divides by their sum; DeepSeek first chooses groups (routing.h). Unchosen experts
 * are not read.
 */

typedef struct kvd_experts kvd_experts;

/*
 * *out is NULL without routed experts. The checkpoint must stay open. Returns 0, or -1 with *err.
 */
int kvd_experts_new(const kvd_checkpoint *c, size_t max_tokens, kvd_experts **out, kvd_err *err);
void kvd_experts_free(kvd_experts *e);

/* Computes the bytes of kvd_experts_new: *weights in float32, *activations for scratch. */
void kvd_experts_bytes(const kvd_config *c, size_t max_tokens, double *weights,
                       double *activations);

/* Turns x [n][d_model] from the layer's input into its output; independent of threads. */
void kvd_experts_behind_attention(kvd_experts *e, const kvd_layer_weights *w, int layer,
                                  const float *o, size_t n, float *x);

/*
 * Turns dx from the layer output's gradient into that of x [n][d_model], without Q, K and V; d_o:
 * gradient of o. Returns 0, or -1 with *err.
 */
int kvd_experts_behind_back(kvd_experts *e, const kvd_layer_weights *w, int layer, const float *x,
                            const float *o, size_t n, float *dx, float *d_o, kvd_err *err);

#endif
