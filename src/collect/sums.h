/* Sums over tokens: second moments of Q, K and V, attention statistics and squared gradients. */
#ifndef KVD_COLLECT_SUMS_H
#define KVD_COLLECT_SUMS_H

#include "formats/attention.h"
#include "formats/fisher.h"
#include "formats/moments.h"
#include "model/pass/attention.h"
#include "model/pass/backward.h"

/* Attention statistics of a run. Scores are computed again from Q and K. */

typedef struct {
    /* attention statistics, to which each sequence adds; owned by the caller */
    kvd_attention_stats *stats;
    int n_threads;
    float *scores; /* [n_threads][KVD_ATTEND_ROWS][seq_len] attention scores */
    double *row;   /* [n_threads][seq_len] probabilities of one query token */
    double *mass;  /* [n_heads][seq_len] attention that each token receives */
    double *later; /* [n_heads][seq_len] attention that each token receives from later tokens */
    double *denominator; /* [n_heads][seq_len] logarithm of each query's softmax denominator */
    double *query_score; /* [n_heads][seq_len] sum of each token's scores as a query */
    double *key_score;   /* [n_heads][seq_len] sum of each token's scores as a key */
    double seconds;
} kvd_tally;

/* Allocates buffers for sequences of up to stats->seq_len tokens. */
int kvd_tally_init(kvd_tally *t, kvd_attention_stats *stats, int n_threads, kvd_err *err);
void kvd_tally_release(kvd_tally *t);

/* Computes attention statistics of one layer and adds them to t->stats. Does nothing for a layer
 * that t->stats does not include. If a value is not finite, fails and makes t->stats invalid. */
int kvd_tally_record(kvd_tally *t, const kvd_attention_in *in, kvd_err *err);

/* Second moments of a run: X^T X of each head's Q, K and V. */

typedef struct {
    kvd_moments *sums; /* second moments to add to; owned by the caller */
    /* scratch memory [n_threads][kvd_gram_scratch(d_head)] */
    double *scratch;
    int n_threads;
    double seconds;
} kvd_accumulator;

int kvd_accumulator_init(kvd_accumulator *a, kvd_moments *sums, int n_threads, kvd_err *err);
void kvd_accumulator_release(kvd_accumulator *a);

/* Adds one layer's Q, K and V to the second moments, if these include the layer. Fails on a
 * non-finite value; the second moments are then invalid. */
int kvd_accumulator_record(kvd_accumulator *a, const kvd_attention_in *in, kvd_err *err);

/* Computes the second moments W W^T [d_head][d_head] of each head W of w_o and w_v, and stores them
 * in a->sums.
 *
 * - w_o: [n_heads][d_head][d_model]
 * - w_v: [n_kv_heads][d_head][d_model] */
int kvd_accumulator_weights(kvd_accumulator *a, int layer, const float *w_o, const float *w_v,
                            kvd_err *err);

/* Sums of squared gradients of the loss with respect to K, V, and the weight matrices W_K and W_V.
 * They are written to a kvdim/fisher file. */

typedef struct kvd_information kvd_information;

/* Returns an object that adds squared gradients to *f, which the caller owns. If `c` is NULL, the
 * object does not run the model, and the caller passes gradients to kvd_information_take. */
kvd_information *kvd_information_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                     kvd_fisher *f, kvd_err *err);
void kvd_information_free(kvd_information *s);

/* Runs the model forward and backward on batch *b. Adds the squared gradients of the loss, with
 * respect to K, V, W_K and W_V, to the sums in *s. After a failure these sums are invalid. */
int kvd_information_run(kvd_information *s, const kvd_batch *b, size_t first_token,
                        int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err);

/* kvd_information_begin begins a batch whose gradients the caller computes. kvd_information_take
 * squares the gradients of one layer and adds the squares to `s`, a kvd_information. */
void kvd_information_begin(kvd_information *s, const kvd_batch *b, size_t first_token);
int kvd_information_take(void *s, const kvd_gradients *g, kvd_err *err);

/* Stores the sums of squared weight gradients in the kvd_fisher that was given to
 * kvd_information_new. */
void kvd_information_flush(kvd_information *s);

#endif
