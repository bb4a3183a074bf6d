/* The forward pass on the CPU. Weights are converted one layer at a time, so a checkpoint may
 * exceed memory. Equal batches and thread counts give equal bits. */
#ifndef KVD_MODEL_PASS_FORWARD_H
#define KVD_MODEL_PASS_FORWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"
#include "model/pass/attention.h"
#include "model/pass/batch.h"

typedef struct kvd_forward kvd_forward;

/* Creates a forward pass for batches of up to max_tokens tokens and texts of up to max_len tokens.
 * The checkpoint must stay open. Only one thread may use the pass at a time. */
kvd_forward *kvd_forward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                             kvd_err *err);
void kvd_forward_free(kvd_forward *f);

/* Computes how many bytes a forward pass with dense attention takes for float32 weights and for
 * activations. */
int kvd_forward_bytes(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, bool pre,
                      double *weights, double *activations, kvd_err *err);

/* Runs layers 0 .. last_layer, or all if -1. `hidden` [n_tokens][d_model] receives the input of the
 * output head; if NULL, the last layer ends after its attention.
 *
 * Fails on an invalid batch, or if an activation is not finite. */
int kvd_forward_run(kvd_forward *f, const kvd_batch *b, kvd_attention *hook, int last_layer,
                    float *hidden, kvd_err *err);

/* Writes the residual stream [n_tokens][d_model] at the input of layer `layer`, where
 * kvd_forward_run_from can continue. */
int kvd_forward_residual(kvd_forward *f, const kvd_batch *b, kvd_attention *hook, int layer,
                         float *residual, kvd_err *err);
int kvd_forward_run_from(kvd_forward *f, const kvd_batch *b, kvd_attention *hook, int first_layer,
                         const float *residual, float *hidden, kvd_err *err);

/* Writes logits [n][vocab_size] for n tokens; fails if one is not finite. */
int kvd_forward_logits(kvd_forward *f, const float *hidden, size_t n, float *logits, kvd_err *err);

/* Returns the number of floating-point operations per token in all layers together. */
double kvd_forward_flop_per_token(const kvd_config *c, double seq_len);
/* Returns the number of floating-point operations per token in the output head. */
double kvd_head_flop_per_token(const kvd_config *c);

/* Writes a layer's output projection in float32, without bias, to
 * w_o [n_heads][d_head][d_model]. */
int kvd_forward_weights_o(kvd_forward *f, int layer, float *w_o, kvd_err *err);
/* Writes a layer's V projection in float32, without bias, to w_v [n_kv_heads][d_head][d_model]. */
int kvd_forward_weights_v(kvd_forward *f, int layer, float *w_v, kvd_err *err);

#endif
