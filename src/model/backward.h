/*
 * The gradient of a model's loss with respect to the keys and values of every layer, on the CPU in float32,
 * for every family (family.h).
 *
 * The loss of a sequence is the sum over its rows but the last of -log p(next token), in nats: the negative
 * logarithm of the probability that the model gives the sequence. Sequences of a batch do not see each other,
 * so the rows of one have the gradient of its own loss, however they are batched.
 *
 * The residual that enters each layer is kept for the whole batch, (n_layers + 1) n_tokens d_model floats;
 * what lies inside a layer is computed again when its turn comes. That is four to five times the work of a
 * forward pass.
 */
#ifndef KVD_MODEL_BACKWARD_H
#define KVD_MODEL_BACKWARD_H

#include <stddef.h>

#include "model/batch.h"
#include "model/checkpoint.h"

/* One layer of one batch. Rows of all sequences stand one after another. */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    const size_t *offset; /* [n_sequences + 1]                                                     */
    size_t first_sequence, n_tokens;
    /* gradients [n_tokens][n_kv_heads][d_head] */
    const float *k;     /* with respect to keys after RoPE                                         */
    const float *k_pre; /* before RoPE; the same without                                           */
    const float *k_raw; /* as the projection gives them, before a norm of K; k_pre where there is none */
    const float *v;
    /* [n_tokens][d_model], what the projections read: the gradient with respect to W_K (stored [n_kv_heads d_head][d_model]) of a
     * sequence is the product k_raw^T in over its rows, that of W_V is v^T in. */
    const float *in;
} kvd_gradients;

typedef struct {
    /* Layers come from the last to the first. */
    int (*take)(void *ctx, const kvd_gradients *g, kvd_err *err);
    int (*give_up)(void *ctx, kvd_err *err); /* asked before every layer, both ways; NULL: never */
    void *ctx;
} kvd_gradient_sink;

typedef struct kvd_backward kvd_backward;

/* As kvd_forward_new. */
kvd_backward *kvd_backward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_backward_free(kvd_backward *w);

/*
 * Layers n_layers - 1 .. first_layer through the sink. *loss += the losses of all sequences, *n_predicted +=
 * the rows they come from; a sequence of one token has none, and its gradients are 0. Fails as
 * kvd_forward_run, and on a gradient that is not finite.
 */
int kvd_backward_run(kvd_backward *w, const kvd_batch *b, int first_layer, const kvd_gradient_sink *sink,
                     double *loss, size_t *n_predicted, kvd_err *err);

#endif
