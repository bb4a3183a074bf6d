/* Gradient of a model's loss with respect to keys and values, on the CPU in float32.
 *
 * The loss is the sum of -log p(next token), in nats. */
#ifndef KVD_MODEL_PASS_BACKWARD_H
#define KVD_MODEL_PASS_BACKWARD_H

#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"
#include "model/pass/batch.h"

/* Gradients of the loss in one layer of one batch. Row i of an array belongs to token i. */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    /* [n_sequences + 1] index of the first token of each sequence, then n_tokens */
    const size_t *offset;
    size_t first_sequence, n_tokens;
    /* gradient of keys after RoPE, [n_tokens][n_kv_heads][d_head] */
    const float *k;
    /* gradient of keys before RoPE */
    const float *k_pre;
    /* gradient of keys before RoPE and before the norm of K, if the model has one */
    const float *k_raw;
    const float *v;
    /* queries after RoPE, attention outputs before the output projection, and their gradients dq
     * and d_o: [n_tokens][n_heads][d_head] */
    const float *q, *o, *dq, *d_o;
    /* [n_tokens][d_model] input of the projections to Q, K and V */
    const float *in;
} kvd_gradients;

typedef struct {
    /* Receives the gradients of each layer, from the last to the first. */
    int (*take)(void *ctx, const kvd_gradients *g, kvd_err *err);
    /* Is called before every layer; if it fails, the backward pass ends. May be NULL. */
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
} kvd_gradient_sink;

typedef struct kvd_backward kvd_backward;

/* Makes later runs predict, in place of the text's next tokens, random tokens drawn from the
 * model's probabilities.
 *
 * The mean outer product of gradients is then the Fisher information F: a small change e of the
 * weights has KL divergence e^T F e / 2. */
void kvd_backward_draw(kvd_backward *w, uint64_t seed);

/* Creates a backward pass. The checkpoint must stay open until kvd_backward_free. */
kvd_backward *kvd_backward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                               kvd_err *err);
void kvd_backward_free(kvd_backward *w);

/* Passes the gradients of layers n_layers - 1 .. first_layer to *sink. Adds the batch's loss to
 * *loss, and the number of predicted tokens to *n_predicted. */
int kvd_backward_run(kvd_backward *w, const kvd_batch *b, int first_layer,
                     const kvd_gradient_sink *sink, double *loss, size_t *n_predicted,
                     kvd_err *err);

#endif
