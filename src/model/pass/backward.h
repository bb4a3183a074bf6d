/*
 * The gradient of a model's loss with respect to the keys and values of every layer, on the CPU in
 * float32, for every model family (family.h).
 *
 * The loss of a sequence is the sum of -log p(next token), in nats, over all its tokens except the
 * last: the negative logarithm of the probability that the model gives the sequence. Sequences of a
 * batch do not attend to each other, so the gradients of a sequence's tokens do not depend on how
 * sequences are batched.
 *
 * The input of each layer is kept for the whole batch: (n_layers + 1) n_tokens d_model floats. The
 * activations inside a layer are recomputed when the backward pass reaches it. A run costs four to
 * five times the work of a forward pass.
 */
#ifndef KVD_MODEL_PASS_BACKWARD_H
#define KVD_MODEL_PASS_BACKWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"
#include "model/pass/batch.h"

/*
 * The gradients of one layer of one batch. Row i of each array belongs to token i of the batch. The
 * tokens of all sequences follow one another without padding.
 */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    /* First token of each of the n_sequences sequences, followed by n_tokens. */
    const size_t *offset;
    size_t first_sequence, n_tokens;
    /*
     * Gradient with respect to keys after RoPE: [n_tokens][n_kv_heads][d_head]. The gradients
     * k_pre, k_raw and v (with respect to the values) have the same shape.
     */
    const float *k;
    /* Gradient with respect to keys before RoPE; equal to k in a model without RoPE. */
    const float *k_pre;
    /*
     * Gradient with respect to the output of the K projection, before the norm of K; equal to k_pre
     * if the model has no such norm.
     */
    const float *k_raw;
    const float *v;
    /*
     * Queries after RoPE (q), outputs of attention (o), and the gradients with respect to q and o:
     * [n_tokens][n_heads][d_head] each.
     */
    const float *q, *o, *dq, *d_o;
    /*
     * Input X of the projections to Q, K and V: [n_tokens][d_model]. From X and the gradients k_raw
     * and v above (each taken as a matrix with a row per token of one sequence) follow the
     * gradients of that sequence's loss with respect to weights: k_raw^T X with respect to W_K
     * (stored as [n_kv_heads d_head][d_model]), and v^T X with respect to W_V.
     */
    const float *in;
} kvd_gradients;

typedef struct {
    /*
     * Callback that receives the gradients of one layer. It is called for layers from the last to
     * the first. An error that it returns ends the run.
     */
    int (*take)(void *ctx, const kvd_gradients *g, kvd_err *err);
    /*
     * Callback that may stop the run, or NULL. It is called before every layer of the forward and
     * of the backward pass; an error that it returns ends the run.
     */
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
} kvd_gradient_sink;

typedef struct kvd_backward kvd_backward;

/*
 * Makes all later runs draw the target token of each position from the model's own probabilities
 * instead of reading it from the text. A draw depends only on the seed, the sequence and the
 * position, not on how sequences are batched.
 *
 * The mean over draws of the outer products of gradients is then the Fisher information F of the
 * model. If the weights change by a small vector e, the KL divergence between the model's old and
 * new probabilities is e^T F e / 2, to second order in e.
 */
void kvd_backward_draw(kvd_backward *w, uint64_t seed);

/*
 * Returns a new backward pass for batches of up to max_tokens tokens and sequences of up to max_len
 * tokens. The checkpoint is borrowed, as by kvd_forward_new. On failure returns NULL and fills
 * *err.
 */
kvd_backward *kvd_backward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                               kvd_err *err);
void kvd_backward_free(kvd_backward *w);

/*
 * Passes the gradients of layers n_layers - 1 .. first_layer to the callbacks in *sink. Adds the
 * losses of all sequences to *loss, and the number of positions that predict a token to
 * *n_predicted. A sequence of one token predicts nothing, and its gradients are 0. Fails under the
 * conditions of kvd_forward_run, and if a gradient is not finite.
 */
int kvd_backward_run(kvd_backward *w, const kvd_batch *b, int first_layer,
                     const kvd_gradient_sink *sink, double *loss, size_t *n_predicted,
                     kvd_err *err);

#endif
