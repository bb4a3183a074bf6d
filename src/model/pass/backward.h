/*
 * Gradient of a model's loss with respect to all keys and values, on the CPU in float32.
 *
 * The loss is the sum of -log p(next token), in nats. The input of each layer is kept, (n_layers +
 * 1) n_tokens d_model floats; all other activations are recomputed.
 */
#ifndef KVD_MODEL_PASS_BACKWARD_H
#define KVD_MODEL_PASS_BACKWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"
#include "model/pass/batch.h"

/* Gradients of the loss in one layer of one batch. Row i of each array belongs to token i. */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    /* [n_sequences + 1] First token of each sequence, then n_tokens. */
    const size_t *offset;
    size_t first_sequence, n_tokens;
    /* Gradient by keys after RoPE, [n_tokens][n_kv_heads][d_head]. */
    const float *k;
    /* Gradient by keys before RoPE. Equal to `k` in models without RoPE. */
    const float *k_pre;
    /* Gradient by keys before their norm. Equal to k_pre in models that do not norm keys. */
    const float *k_raw;
    const float *v;
    /* Queries, attention outputs and their gradients: [n_tokens][n_heads][d_head]. */
    const float *q, *o, *dq, *d_o;
    /* Input X of the QKV projections, [n_tokens][d_model]. The gradient by W_K is k_raw^T X. */
    const float *in;
} kvd_gradients;

typedef struct {
    /* Callback that receives the gradients of each layer, from the last layer to the first. */
    int (*take)(void *ctx, const kvd_gradients *g, kvd_err *err);
    /* Callback before every layer. If it returns an error, the run ends. May be NULL. */
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
} kvd_gradient_sink;

typedef struct kvd_backward kvd_backward;

/*
 * Makes later runs draw target tokens from the model's probabilities.
 *
 * The mean of outer products of gradients is then the Fisher information F: if weights change by a
 * small e, the KL divergence is e^T F e / 2.
 */
void kvd_backward_draw(kvd_backward *w, uint64_t seed);

/* Opens a backward pass; the checkpoint is borrowed. On failure returns NULL and fills *err. */
kvd_backward *kvd_backward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                               kvd_err *err);
void kvd_backward_free(kvd_backward *w);

/*
 * Runs the model forward and backward. Passes the gradients of layers n_layers - 1 .. first_layer
 * to *sink, and adds the loss of the batch to *loss.
 */
int kvd_backward_run(kvd_backward *w, const kvd_batch *b, int first_layer,
                     const kvd_gradient_sink *sink, double *loss, size_t *n_predicted,
                     kvd_err *err);

#endif
