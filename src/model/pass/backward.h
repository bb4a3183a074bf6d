/*
 * Gradient of the loss with respect to all keys and values, on the CPU in float32.
 *
 * Loss: sum of -log p(next token), in nats, independent of batching. Keeps layer inputs, (n_layers
 * + 1) n_tokens d_model floats, and recomputes all else.
 */
#ifndef KVD_MODEL_PASS_BACKWARD_H
#define KVD_MODEL_PASS_BACKWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"
#include "model/pass/batch.h"

/* Gradients of one layer of one batch; row i of each array belongs to token i. */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    /* First token of each sequence, then n_tokens: [n_sequences + 1]. */
    const size_t *offset;
    size_t first_sequence, n_tokens;
    /* Gradient of keys after RoPE, [n_tokens][n_kv_heads][d_head], as k_pre, k_raw, v. */
    const float *k;
    /* Gradient of keys before RoPE; without RoPE: k. */
    const float *k_pre;
    /* Gradient of K's projection before its norm; without norm: k_pre. */
    const float *k_raw;
    const float *v;
    /* Queries after RoPE, attention outputs and gradients: [n_tokens][n_heads][d_head]. */
    const float *q, *o, *dq, *d_o;
    /* Input X of QKV, [n_tokens][d_model]; gradients: W_K: k_raw^T X, W_V: v^T X. */
    const float *in;
} kvd_gradients;

typedef struct {
    /* Receives a layer's gradients, last layer first; an error ends the run. */
    int (*take)(void *ctx, const kvd_gradients *g, kvd_err *err);
    /* Called before every layer of both passes; an error ends the run. Or NULL. */
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
} kvd_gradient_sink;

typedef struct kvd_backward kvd_backward;

/*
 * Makes later runs draw targets from the model's probabilities, by seed, sequence and position.
 *
 * Mean outer products of gradients are then the Fisher information F: a weight change e has KL
 * divergence e^T F e / 2.
 */
void kvd_backward_draw(kvd_backward *w, uint64_t seed);

/* `c` is borrowed. On failure returns NULL and fills *err. */
kvd_backward *kvd_backward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                               kvd_err *err);
void kvd_backward_free(kvd_backward *w);

/*
 * Passes gradients of layers n_layers - 1 .. first_layer to *sink. Adds to *loss and *n_predicted
 * (predicting positions). Fails for non-finite values or invalid batches.
 */
int kvd_backward_run(kvd_backward *w, const kvd_batch *b, int first_layer,
                     const kvd_gradient_sink *sink, double *loss, size_t *n_predicted,
                     kvd_err *err);

#endif
