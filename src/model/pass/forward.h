/*
 * The forward pass of every model family on the CPU. Weights are converted to float32 one layer at
 * a time, so a checkpoint larger than memory can run.
 *
 * Equal batches and thread counts give bitwise equal results. The grouping of sequences into
 * batches and the number of threads change results by rounding only (1e-6 relative).
 */
#ifndef KVD_MODEL_PASS_FORWARD_H
#define KVD_MODEL_PASS_FORWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"
#include "model/pass/attention.h"
#include "model/pass/batch.h"

typedef struct kvd_forward kvd_forward;

/*
 * Opens a forward pass: finds every tensor that the model needs and checks its shape. A batch may
 * have up to max_tokens tokens, a sequence up to max_len (at most max_positions). The checkpoint is
 * borrowed and must stay open. On failure returns NULL and fills *err. Only one thread may use a
 * kvd_forward at a time; it creates its own threads.
 */
kvd_forward *kvd_forward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                             kvd_err *err);
void kvd_forward_free(kvd_forward *f);

/*
 * Computes the bytes that a forward pass needs: *weights for weights in float32, *activations for
 * all other arrays with dense attention. `pre` must be true if the attention hook reads Q and K
 * before RoPE.
 */
int kvd_forward_bytes(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, bool pre,
                      double *weights, double *activations, kvd_err *err);

/*
 * Runs layers 0 .. last_layer (-1: all layers). `hidden` [n_tokens][d_model], which requires all
 * layers, receives the input of the output head, after the final norm if the model has one. If
 * `hidden` is NULL, the last layer ends after its attention.
 *
 * Fails on an invalid batch and on an activation that is not finite. The message is like "layer 3,
 * row 17 (sequence 2, position 5): ...", with the token's row in the batch and the sequence's index
 * in the corpus.
 */
int kvd_forward_run(kvd_forward *f, const kvd_batch *b, kvd_attention *hook, int last_layer,
                    float *hidden, kvd_err *err);

/*
 * Functions for studies that change one layer at a time. kvd_forward_residual writes the residual
 * stream [n_tokens][d_model] that enters `layer`, and kvd_forward_run_from continues from it.
 * Together they give the same bits as kvd_forward_run.
 */
int kvd_forward_residual(kvd_forward *f, const kvd_batch *b, kvd_attention *hook, int layer,
                         float *residual, kvd_err *err);
int kvd_forward_run_from(kvd_forward *f, const kvd_batch *b, kvd_attention *hook, int first_layer,
                         const float *residual, float *hidden, kvd_err *err);

/*
 * Writes logits [n][vocab_size] for n rows of `hidden`, the output of kvd_forward_run. Fails if a
 * logit is not finite. A large output head is converted again in every call, so n should not be
 * small.
 */
int kvd_forward_logits(kvd_forward *f, const float *hidden, size_t n, float *logits, kvd_err *err);

/*
 * Return the floating-point operations of matrix products per token. kvd_forward_flop_per_token
 * counts the products of all layers in a sequence of seq_len tokens, kvd_head_flop_per_token the
 * product with the output head.
 */
double kvd_forward_flop_per_token(const kvd_config *c, double seq_len);
double kvd_head_flop_per_token(const kvd_config *c);

/*
 * Write weights of one layer in float32, from which compression methods compute rotations of V.
 * Biases are not included.
 *
 *   w_o [n_heads][d_head][d_model]     output projection W_O of each head; rows are dimensions of
 *                                      the head
 *   w_v [n_kv_heads][d_head][d_model]  projection to V of each KV head: row j holds the weights of
 *                                      dimension j of the head's V
 */
int kvd_forward_weights_o(kvd_forward *f, int layer, float *w_o, kvd_err *err);
int kvd_forward_weights_v(kvd_forward *f, int layer, float *w_v, kvd_err *err);

/*
 * The rest of this header declares a reference implementation in double precision, for one
 * sequence, without BLAS or threads. The tests compare forward.c with it.
 */

/*
 * The outputs of kvd_forward_ref for n tokens: logits [n][vocab_size], and for all layers, if not
 * NULL,
 *   q_pre, q     queries before and after RoPE: [n_layers][n][n_heads][d_head],
 *   k_pre, k, v  keys before and after RoPE, values: [n_layers][n][n_kv_heads][d_head],
 *   o            attention output before W_O: [n_layers][n][n_heads][d_head].
 */
typedef struct {
    double *logits, *q_pre, *k_pre, *q, *k, *v, *o;
    /*
     * Callback, or NULL, that a test uses to change the keys before RoPE (k_pre) and the values (v)
     * of a layer, both [n][n_kv_heads][d_head].
     */
    void (*nudge)(void *ctx, size_t layer, double *k_pre, double *v);
    void *ctx;
} kvd_forward_ref_out;

int kvd_forward_ref(const kvd_checkpoint *c, const uint32_t *id, size_t n,
                    const kvd_forward_ref_out *out, kvd_err *err);

#endif
