/*
 * One layer of any family: its weights in float32, and its arithmetic on a block of rows, before
 * and after its attention. Several threads may run the arithmetic on different blocks at once,
 * between kvd_blas_serial and kvd_blas_restore; outside such a region a call uses all threads.
 */
#ifndef KVD_MODEL_PASS_LAYER_H
#define KVD_MODEL_PASS_LAYER_H

#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/weights.h"

/*
 * Matrices, gains and biases of one layer in float32; NULL for parts that the model does not have.
 */
typedef struct {
    const float *w[KVD_N_LAYER_PARTS], *b[KVD_N_LAYER_PARTS];
} kvd_layer_weights;

/*
 * Number of weights of a layer: each part has its matrix or gain at 2 * part and its bias at 2 *
 * part + 1.
 */
enum { KVD_LAYER_WEIGHTS = 2 * KVD_N_LAYER_PARTS };

/*
 * Finds all weights of a layer in the checkpoint, checks their shapes and fills part
 * [KVD_LAYER_WEIGHTS].
 */
int kvd_layer_find(const kvd_checkpoint *c, int layer, kvd_weight *part, kvd_err *err);

/*
 * Returns the number of elements that must be converted because the file does not hold them as
 * float32.
 */
size_t kvd_layer_buffer_size(const kvd_weight *part);

/*
 * Points *w into the file for weights that can be used in place; converts the others into buffer
 * [kvd_layer_buffer_size].
 */
void kvd_layer_load(const kvd_weight *part, float *buffer, kvd_layer_weights *w);

/*
 * Lets the kernel drop from memory the pages of weights (streaming.h) that are used in place if
 * `in_place` is set, otherwise of those that were converted.
 */
void kvd_layer_drop(const kvd_weight *part, bool in_place);

/*
 * Computes y [rows][d_model] = norm(x) with the model's kind of norm; x and y may be equal. bias
 * may be NULL for a kind of norm that has none.
 */
void kvd_layer_normalise(const kvd_config *c, const float *x, const float *gain, const float *bias,
                         size_t rows, float *y);

/* Output of kvd_layer_before_attention: Q, K and V of a block of rows. */
typedef struct {
    float *q, *k, *v;     /* [rows][n_heads or n_kv_heads][d_head] */
    float *q_pre, *k_pre; /* copies of q and k before RoPE, or NULL */
    float *input;         /* copy [rows][d_model] of what W_Q, W_K and W_V multiply, or NULL */
    const float *cosine, *sine; /* kvd_rope_tables; NULL without RoPE */
    const uint32_t *rope_row;   /* [rows] row of the tables for each row */
} kvd_layer_qkv;

/* Computes Q, K and V of x [rows][d_model] into *out; scratch [rows][kvd_layer_scratch]. */
void kvd_layer_before_attention(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                                size_t rows, float *scratch, const kvd_layer_qkv *out);

/*
 * Computes y [rows][out] = x [rows][in] W^T + b with the weights of `part`. If `add` is set, adds
 * the result to y.
 */
void kvd_layer_project(const float *x, const kvd_layer_weights *w, kvd_part part, size_t rows,
                       size_t in, size_t out, float *y, int add);

/*
 * Applies the norms of Q and K, if the model has them, and RoPE to q and k [rows][heads][d_head],
 * the outputs of their products; fills q_pre and k_pre if they are not NULL.
 */
void kvd_layer_rope(const kvd_config *c, const kvd_layer_weights *w, size_t rows,
                    const kvd_layer_qkv *out);

/*
 * Adds the output of the feed-forward block for input `in` to x [rows][d_model]; gate and up are
 * scratch [rows][d_ffn].
 */
void kvd_layer_feed_forward(const kvd_config *c, const kvd_layer_weights *w, const float *in,
                            size_t rows, float *gate, float *up, float *x);

/* Returns the number of floats of scratch per row that the functions of this header need. */
size_t kvd_layer_scratch(const kvd_config *c);

/*
 * Computes y [rows][d_model] = the output projection of o [rows][n_heads][d_head], with its bias.
 * If `add` is set, adds it to y. scratch [rows][n_heads * d_value] is written only with latents.
 */
void kvd_layer_output(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                      float *scratch, float *y, int add);

/*
 * Applies the norm `part` to out [rows][d_model], the output of a branch, and adds the result to x
 * [rows][d_model]; `out` is overwritten.
 */
void kvd_layer_add_branch(const kvd_config *c, const kvd_layer_weights *w, kvd_part part,
                          size_t rows, float *out, float *x);

/*
 * Updates x [rows][d_model] from the layer's input to its output, given the attention output o
 * [rows][n_heads][d_head]; scratch [rows][kvd_layer_scratch].
 */
void kvd_layer_behind_attention(const kvd_config *c, const kvd_layer_weights *w, const float *o,
                                size_t rows, float *scratch, float *x);

/*
 * The part of a layer after its attention, in layers with routed experts (Shazeer et al. 2017,
 * arXiv:1701.06538): x += O(o), y = norm(x), x += sum over the chosen experts e of p_e F_e(y), plus
 * the output of the expert that every token uses, if the model has one.
 *
 * The router's probabilities p are the softmax of its n_experts logits. The n_chosen largest are
 * used (of equal logits the one of the lower number), as they are or divided by their sum. DeepSeek
 * models choose by groups (routing.h). F_e is the feed-forward block of expert e.
 *
 * The weights of an expert are converted to float32 when the first token of a batch needs them, one
 * expert at a time, while the next chosen one is read ahead (streaming.h). Experts that no token of
 * the batch chose are not read.
 */

typedef struct kvd_experts kvd_experts;

/*
 * Finds the experts of all layers, checks their shapes, and allocates scratch for batches of up to
 * max_tokens tokens. *out is NULL if the model has no experts. The checkpoint must stay open.
 * Returns 0, or -1 with *err.
 */
int kvd_experts_new(const kvd_checkpoint *c, size_t max_tokens, kvd_experts **out, kvd_err *err);
void kvd_experts_free(kvd_experts *e);

/*
 * Computes the bytes that kvd_experts_new allocates: *weights for weights in float32, *activations
 * for activations.
 */
void kvd_experts_bytes(const kvd_config *c, size_t max_tokens, double *weights,
                       double *activations);

/*
 * Updates x [n][d_model] from the layer's input to its output, given the attention output o
 * [n][n_heads][d_head] and the other weights of the layer. Uses all threads; the result does not
 * depend on their number.
 */
void kvd_experts_behind_attention(kvd_experts *e, const kvd_layer_weights *w, int layer,
                                  const float *o, size_t n, float *x);

/*
 * Computes the gradients of kvd_experts_behind_attention, as kvd_layer_behind_back does for other
 * layers: x [n][d_model] is the layer's input; on entry dx is the gradient with respect to the
 * layer's output, on return the part of the gradient with respect to x that does not come through
 * attention; d_o receives the gradient with respect to o. Which experts are chosen is taken as
 * constant; the factors of their outputs are not. Returns 0, or -1 with *err if memory runs out.
 */
int kvd_experts_behind_back(kvd_experts *e, const kvd_layer_weights *w, int layer, const float *x,
                            const float *o, size_t n, float *dx, float *d_o, kvd_err *err);

#endif
