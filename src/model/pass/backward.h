/*
 * The gradient of a model's loss with respect to the keys and values of every layer, on the CPU in
 * float32.
 *
 * The loss of a sequence is the sum of -log p(next token), in nats, over all its tokens except the
 * last. The gradients do not depend on how sequences are batched.
 *
 * The input of each layer is kept: (n_layers + 1) n_tokens d_model floats. All other activations
 * are recomputed. A run costs four to five times the work of a forward pass.
 */
#ifndef KVD_MODEL_PASS_BACKWARD_H
#define KVD_MODEL_PASS_BACKWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"
#include "model/pass/batch.h"

/*
 * The gradients of one layer of one batch. Row i of each array belongs to token i of the batch.
 * Sequences follow one another without padding.
 */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    /* First token of each sequence, then n_tokens: [n_sequences + 1]. */
    const size_t *offset;
    size_t first_sequence, n_tokens;
    /*
     * Gradient with respect to keys after RoPE: [n_tokens][n_kv_heads][d_head]. k_pre, k_raw and v
     * have the same shape.
     */
    const float *k;
    /* Gradient with respect to keys before RoPE; equal to k without RoPE. */
    const float *k_pre;
    /*
     * Gradient with respect to the output of the K projection, before the norm of K; equal to k_pre
     * without such a norm.
     */
    const float *k_raw;
    const float *v;
    /*
     * Queries after RoPE (q), outputs of attention (o), and their gradients:
     * [n_tokens][n_heads][d_head].
     */
    const float *q, *o, *dq, *d_o;
    /*
     * Input X of the projections to Q, K and V: [n_tokens][d_model]. For one sequence, the gradient
     * of W_K is k_raw^T X (with the member k_raw, the gradient of the projected keys), and that of
     * W_V is v^T X. Both are stored as [n_kv_heads d_head][d_model].
     */
    const float *in;
} kvd_gradients;

typedef struct {
    /*
     * Callback that receives the gradients of one layer; called for the last layer first. An error
     * that it returns ends the run.
     */
    int (*take)(void *ctx, const kvd_gradients *g, kvd_err *err);
    /*
     * Callback that may end the run by returning an error. It is called before every layer of the
     * forward and of the backward pass; NULL if not needed.
     */
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
} kvd_gradient_sink;

typedef struct kvd_backward kvd_backward;

/*
 * Makes later runs draw target tokens from the model's own probabilities instead of reading them
 * from the text. A draw depends only on the seed, the sequence and the position.
 *
 * The mean over draws of the outer products of gradients is then the Fisher information F of the
 * model. If the weights change by a small vector e, the KL divergence between the old and new
 * probabilities is e^T F e / 2, to second order in e.
 */
void kvd_backward_draw(kvd_backward *w, uint64_t seed);

/*
 * Allocates the buffers for batches of up to max_tokens tokens and sequences of up to max_len
 * tokens. The checkpoint is borrowed. On failure returns NULL and fills *err.
 */
kvd_backward *kvd_backward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                               kvd_err *err);
void kvd_backward_free(kvd_backward *w);

/*
 * Passes the gradients of layers n_layers - 1 .. first_layer to *sink. Adds the losses to *loss,
 * and the number of positions that predict a token to *n_predicted. A sequence of one token
 * predicts nothing, and its gradients are 0. Fails if an activation or a gradient is not finite, or
 * if the batch is invalid.
 */
int kvd_backward_run(kvd_backward *w, const kvd_batch *b, int first_layer,
                     const kvd_gradient_sink *sink, double *loss, size_t *n_predicted,
                     kvd_err *err);

#endif
