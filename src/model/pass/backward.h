/*
 * The gradient of a model's loss with respect to the keys and values of every layer, on the CPU in
 * float32, for every family (family.h).
 *
 * The loss of a sequence is the sum of -log p(next token), in nats, over all its rows except the
 * last: the negative logarithm of the probability that the model gives the sequence. Sequences of a
 * batch do not attend to each other, so the rows of a sequence carry the gradient of its own loss,
 * regardless of how sequences are batched.
 *
 * The residual that enters each layer is kept for the whole batch: (n_layers + 1) n_tokens d_model
 * floats. The activations inside a layer are recomputed when the backward pass reaches it. A run
 * costs four to five times the work of a forward pass.
 */
#ifndef KVD_MODEL_PASS_BACKWARD_H
#define KVD_MODEL_PASS_BACKWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"
#include "model/pass/batch.h"

/*
 * The gradients of one layer of one batch. The rows of all sequences follow one another without
 * padding.
 */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    /* [n_sequences + 1] first row of each sequence, then the number of rows */
    const size_t *offset;
    size_t first_sequence, n_tokens;
    /* k, k_pre, k_raw and v: gradients [n_tokens][n_kv_heads][d_head] */
    const float *k; /* gradient with respect to keys after RoPE */
    /* gradient with respect to keys before RoPE; equal to k in a model without RoPE */
    const float *k_pre;
    /*
     * gradient of the output of the K projection, before the norm of K; equal to k_pre if the model
     * has no such norm
     */
    const float *k_raw;
    const float *v;
    /*
     * [n_tokens][n_heads][d_head]: queries after RoPE, outputs of attention, and the gradients with
     * respect to both
     */
    const float *q, *o, *dq, *d_o;
    /*
     * [n_tokens][d_model], the input of the projections. For one sequence, the gradient with
     * respect to W_K (stored [n_kv_heads d_head][d_model]) is the product k_raw^T in over its rows,
     * and the gradient with respect to W_V is v^T in.
     */
    const float *in;
} kvd_gradients;

typedef struct {
    /*
     * Callback that receives the gradients of one layer. It is called for the layers from the last
     * to the first.
     */
    int (*take)(void *ctx, const kvd_gradients *g, kvd_err *err);
    /*
     * Callback that may stop the run, called before every layer forward and backward; an error that
     * it returns ends the run. NULL: no callback.
     */
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
} kvd_gradient_sink;

typedef struct kvd_backward kvd_backward;

/*
 * Makes all later runs draw the target token of each row from the model's own probabilities instead
 * of reading it from the text. The mean over draws of products of gradients is then the Fisher
 * information of the model. Its quadratic form is, to second order, twice the KL divergence from
 * the model. A draw depends only on the seed, the sequence and the row, not on how sequences are
 * batched.
 */
void kvd_backward_draw(kvd_backward *w, uint64_t seed);

/* Returns a new backward pass; the parameters and the ownership are those of kvd_forward_new. */
kvd_backward *kvd_backward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                               kvd_err *err);
void kvd_backward_free(kvd_backward *w);

/*
 * Passes the gradients of layers n_layers - 1 .. first_layer to the sink. Adds the losses of all
 * sequences to *loss and the number of rows that predict a token to *n_predicted. A sequence of one
 * token predicts nothing, and its gradients are 0. Fails under the conditions of kvd_forward_run,
 * and on a gradient that is not finite.
 */
int kvd_backward_run(kvd_backward *w, const kvd_batch *b, int first_layer,
                     const kvd_gradient_sink *sink, double *loss, size_t *n_predicted,
                     kvd_err *err);

#endif
