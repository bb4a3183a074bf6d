/*
 * Sums over the tokens of a run: second moments, attention statistics and squared gradients. Each
 * is filled by one function per pass over a layer or a batch.
 */
#ifndef KVD_COLLECT_SUMS_H
#define KVD_COLLECT_SUMS_H

#include "formats/attention.h"
#include "formats/fisher.h"
#include "formats/moments.h"
#include "model/pass/attention.h"
#include "model/pass/backward.h"

/*
 * Adds the attention scores and probabilities of the forward pass to the sums and histograms of a
 * kvdim/attention file. Scores are computed again from Q and K, with the product of dense
 * attention, so that recording does not change the pass. Softmax and sums are in double precision.
 * One thread computes a head, sequence after sequence, so that numbers do not depend on the
 * schedule.
 */

typedef struct {
    kvd_attention_stats *stats; /* borrowed, allocated */
    int n_threads;
    float *scores; /* [n_threads][KVD_ATTEND_ROWS][seq_len] */
    double *row;   /* [n_threads][seq_len] */
    double *mass;  /* [n_heads][seq_len]: probability mass of each token of the current sequence */
    double *later; /* [n_heads][seq_len]: the mass without the token's own row */
    double *denominator; /* [n_heads][seq_len]: logarithm of each row's denominator */
    double *query_score; /* [n_heads][seq_len]: sum of a token's scores as a query */
    double *key_score;   /* [n_heads][seq_len]: sum of a token's scores as a key */
    double seconds;      /* time spent so far */
} kvd_tally;

/* Prepares *t for adding to `stats`. Sequences have at most stats->seq_len tokens. */
int kvd_tally_init(kvd_tally *t, kvd_attention_stats *stats, int n_threads, kvd_err *err);
void kvd_tally_release(kvd_tally *t);

/*
 * Adds the attention of one layer for one batch to the statistics. A layer outside the recorded
 * range is ignored. If a score or value is not finite, fails with a message that names layer and
 * head; the statistics are then invalid.
 */
int kvd_tally_record(kvd_tally *t, const kvd_attention_in *in, kvd_err *err);

/*
 * Adds Q, K and V of the forward pass to their second moments: G += X^T X for the rows X of each
 * layer and head.
 */

typedef struct {
    kvd_moments *sums; /* borrowed, allocated */
    double *scratch;   /* [n_threads][kvd_gram_scratch(d_head)] */
    int n_threads;
    double seconds; /* time spent so far */
} kvd_accumulator;

int kvd_accumulator_init(kvd_accumulator *a, kvd_moments *sums, int n_threads, kvd_err *err);
void kvd_accumulator_release(kvd_accumulator *a);

/*
 * Adds the Q, K and V of one layer for one batch to the sums. A layer outside the recorded range is
 * ignored. If a value is not finite, fails with a message that names tensor, layer and head; the
 * sums are then invalid.
 */
int kvd_accumulator_record(kvd_accumulator *a, const kvd_attention_in *in, kvd_err *err);

/*
 * Adds the second moments of the weights W_O and W_V of one layer, counted from the first recorded
 * layer: w_o [n_heads][d_head][d_model], w_v [n_kv_heads][d_head][d_model].
 */
int kvd_accumulator_weights(kvd_accumulator *a, int layer, const float *w_o, const float *w_v,
                            kvd_err *err);

/*
 * Adds the gradients of the backward pass (model/pass/backward.h) to the sums of a kvdim/fisher
 * file, and writes the gradients of single tokens to its rows.
 */

typedef struct kvd_information kvd_information;

/*
 * Creates an object that adds gradients to `f`. On failure returns NULL and fills *err. `f` is
 * borrowed; its file has been created, or `f` holds zeroed sums and no rows. A batch has at most
 * max_tokens tokens, and a sequence at most max_len.
 *
 * Memory: the squared gradients of W_K and W_V take n_layers 2 n_kv_heads d_head d_model float64
 * values, for any number of tokens.
 */
kvd_information *kvd_information_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                     kvd_fisher *f, kvd_err *err);
void kvd_information_free(kvd_information *s);

/*
 * Runs a batch forward and backward and adds its gradients to the sums. The batch's first row is
 * token first_token of the corpus. After a failure the sums are invalid.
 */
int kvd_information_run(kvd_information *s, const kvd_batch *b, size_t first_token,
                        int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err);

/*
 * Stores the sums over gradients of weights in the Fisher file's object, so that they include all
 * batches that were run.
 */
void kvd_information_flush(kvd_information *s);

#endif
