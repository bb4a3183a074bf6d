/*
 * The forward pass of every family (family.h) on the CPU: embeddings, layers, final norm, head.
 * Weights are converted to float32 one layer at a time into a buffer of one layer, so a checkpoint
 * larger than memory runs. A batch holds whole sequences, or the next rows of running sequences if
 * the hook keeps their earlier rows (batch.h).
 *
 * Between two attentions the rows of a batch are processed in blocks, each on one thread. Equal
 * batches and thread counts give bitwise equal results. The grouping of sequences into batches and
 * the number of threads change results by rounding only (1e-6 relative).
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
 * Returns a new forward pass after looking up every tensor that the model needs and checking its
 * shape. On failure returns NULL and fills *err. max_tokens is the largest batch, max_len the
 * longest sequence, at most the model's max_positions; buffers are allocated for them. The
 * checkpoint is borrowed and must stay open. Only one thread may use a kvd_forward at a time; the
 * pass creates its own threads.
 */
kvd_forward *kvd_forward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                             kvd_err *err);
void kvd_forward_free(kvd_forward *f);

/*
 * Computes the bytes that a forward pass allocates: *weights for weights in float32, *activations
 * for a batch of max_tokens with dense attention. Set `pre` if the hook wants Q and K before RoPE
 * as well.
 */
int kvd_forward_bytes(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, bool pre,
                      double *weights, double *activations, kvd_err *err);

/*
 * Runs layers 0 .. last_layer (-1: all layers) through the hook. If `hidden` is not NULL, it
 * receives [n_tokens][d_model] after the final norm, if the model has one; this requires all
 * layers. If `hidden` is NULL, the last layer ends with its attention. Fails on an id beyond the
 * vocabulary, on an empty or too long sequence, and on a non-finite activation: "layer 3, row 17
 * (sequence 2, position 5): ...", where the row counts within the batch and the sequence within the
 * corpus.
 */
int kvd_forward_run(kvd_forward *f, const kvd_batch *b, kvd_attention *hook, int last_layer,
                    float *hidden, kvd_err *err);

/*
 * kvd_forward_run in two parts, for studies that change one layer at a time. The first part writes
 * the residual stream [n_tokens][d_model] that enters `layer`, after the layers below ran through
 * the hook. The second runs from that residual through layers first_layer .. n_layers-1 to the
 * final norm. The two in sequence equal kvd_forward_run bit for bit.
 */
int kvd_forward_residual(kvd_forward *f, const kvd_batch *b, kvd_attention *hook, int layer,
                         float *residual, kvd_err *err);
int kvd_forward_run_from(kvd_forward *f, const kvd_batch *b, kvd_attention *hook, int first_layer,
                         const float *residual, float *hidden, kvd_err *err);

/*
 * Writes logits [n][vocab_size] of hidden rows [n][d_model]; the caller passes rows in pieces.
 * Fails if a logit is not finite. A head larger than 16 MiB in float32 is converted again in every
 * call, so its pieces should not be small.
 */
int kvd_forward_logits(kvd_forward *f, const float *hidden, size_t n, float *logits, kvd_err *err);

/*
 * Return the floating-point operations per token in matrix products, for throughput: of all layers
 * in a sequence of seq_len tokens, and of the output head.
 */
double kvd_forward_flop_per_token(const kvd_config *c, double seq_len);
double kvd_head_flop_per_token(const kvd_config *c);

/*
 * Write the weight slices that pairs need, in float32, into arrays that the caller allocates.
 * Biases are not included: the bias of V is already in every row of V that the hook receives, and
 * the bias of O never meets the cache.
 *   w_o [n_heads][d_head][d_model]   W_O^h, rows are dimensions of head h (transposed storage)
 *   w_v [n_kv_heads][d_head][d_model] W_V^h transposed: row j is column j of the paper's W_V^h
 */
int kvd_forward_weights_o(kvd_forward *f, int layer, float *w_o, kvd_err *err);
int kvd_forward_weights_v(kvd_forward *f, int layer, float *w_v, kvd_err *err);

/*
 * A reference implementation of the forward pass (forward.h) in plain double precision: loops that
 * a reader can check against the formulas, without BLAS or threads, for one sequence. The tests
 * compare forward.c with it.
 */

/*
 * The outputs for id [n]: logits [n][vocab_size], and per layer, if not NULL,
 *   q_pre, q [n_layers][n][n_heads][d_head], k_pre, k, v [n_layers][n][n_kv_heads][d_head],
 *   o [n_layers][n][n_heads][d_head] attention output before W_O.
 */
typedef struct {
    double *logits, *q_pre, *k_pre, *q, *k, *v, *o;
    /*
     * Optional callback, or NULL. It may change K before RoPE and V of a layer, both
     * [n][n_kv_heads][d_head], before they are used. Tests use it to compute gradients from
     * differences of logits.
     */
    void (*nudge)(void *ctx, size_t layer, double *k_pre, double *v);
    void *ctx;
} kvd_forward_ref_out;

int kvd_forward_ref(const kvd_checkpoint *c, const uint32_t *id, size_t n,
                    const kvd_forward_ref_out *out, kvd_err *err);

#endif
