/*
 * The forward pass of every family (family.h) on the CPU: embeddings, layers, final norm, head.
 * Weights are converted to float32 one layer at a time into a buffer of one layer, so a
 * checkpoint larger than memory runs. Batches are whole sequences, or the next rows of running ones for a door that
 * keeps what came before (batch.h).
 *
 * Between two attentions the rows of a batch go through in blocks, each on one thread. Equal batches
 * and thread counts give equal bits; how sequences are grouped into batches, and the number of
 * threads, change results by rounding only (1e-6 relative).
 */
#ifndef KVD_MODEL_FORWARD_H
#define KVD_MODEL_FORWARD_H

#include <stddef.h>
#include <stdint.h>

#include "model/attention.h"
#include "model/batch.h"
#include "model/checkpoint.h"

typedef struct kvd_forward kvd_forward;

/* Every tensor the model needs is looked up and its shape checked here. max_tokens is the
 * largest batch, max_len the longest sequence, at most the model's max_positions; buffers are
 * allocated for them. The checkpoint is borrowed and must stay open. One thread uses a
 * kvd_forward at a time; the pass makes threads of its own. */
kvd_forward *kvd_forward_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_forward_free(kvd_forward *f);

/*
 * Runs layers 0 .. n_layers-1 (or up to last_layer, -1: all) through the door. hidden, when not
 * NULL, receives [n_tokens][d_model] after the final norm, if the model has one (only with all layers).
 * Without it the last layer ends with its attention. Fails on an id beyond the vocabulary, on an empty or
 * too long sequence, and on a non-finite activation: "layer 3, row 17 (sequence 2, position 5): ...",
 * the row within the batch, the sequence within the corpus.
 */
int kvd_forward_run(kvd_forward *f, const kvd_batch *b, kvd_attention *door, int last_layer, float *hidden,
                    kvd_err *err);

/*
 * In two parts, for studies that change one layer at a time: the residual stream [n_tokens][d_model] that
 * enters `layer` (layers below it go through the door), and the run from there through layers
 * first_layer .. n_layers-1 to the final norm. Together they are kvd_forward_run bit for bit.
 */
int kvd_forward_residual(kvd_forward *f, const kvd_batch *b, kvd_attention *door, int layer, float *residual,
                         kvd_err *err);
int kvd_forward_run_from(kvd_forward *f, const kvd_batch *b, kvd_attention *door, int first_layer,
                         const float *residual, float *hidden, kvd_err *err);

/* logits [n][vocab_size] of hidden rows [n][d_model]; the caller goes through rows in pieces. Refuses
 * to hand out logits that are not finite. A head beyond 16 MiB in float32 is converted anew in
 * every call, so pieces should not be small then. */
int kvd_forward_logits(kvd_forward *f, const float *hidden, size_t n, float *logits, kvd_err *err);

/* Floating-point operations in matrix products of one token in a sequence of seq_len (for rates):
 * layers only, and the head apart. */
double kvd_forward_flop_per_token(const kvd_config *c, double seq_len);
double kvd_head_flop_per_token(const kvd_config *c);

/* Weight slices that pairs need, float32, allocated by the caller. Biases are not in them: that of V is
 * in every row of V that the door hands out, that of O does not meet the cache.
 *   w_o [n_heads][d_head][d_model]   W_O^h, rows are dimensions of head h (transposed storage)
 *   w_v [n_kv_heads][d_head][d_model] W_V^h transposed: row j is column j of the paper's W_V^h */
int kvd_forward_weights_o(kvd_forward *f, int layer, float *w_o, kvd_err *err);
int kvd_forward_weights_v(kvd_forward *f, int layer, float *w_v, kvd_err *err);

#endif
