/*
 * Sums over the tokens of a run: second moments, attention statistics and squared gradients. Second
 * moments and attention statistics are added layer by layer, squared gradients batch by batch.
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
    /* Attention statistics to add to, allocated and owned by the caller. */
    kvd_attention_stats *stats;
    int n_threads;
    /* Attention scores of some query tokens, per thread, [n_threads][KVD_ATTEND_ROWS][seq_len]. */
    float *scores;
    double *row; /* attention probabilities of one query token, per thread, [n_threads][seq_len] */
    /*
     * Probability mass that each token of the current sequence receives, per head,
     * [n_heads][seq_len].
     */
    double *mass;
    /*
     * Probability mass that each token of the current sequence receives from later tokens only, per
     * head, [n_heads][seq_len].
     */
    double *later;
    /* Logarithm of the softmax denominator of each query token, [n_heads][seq_len]. */
    double *denominator;
    double *query_score; /* sum of each token's scores as a query, [n_heads][seq_len] */
    double *key_score;   /* sum of each token's scores as a key, [n_heads][seq_len] */
    double seconds;      /* seconds that kvd_tally_record has taken so far */
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
 * Adds Q, K and V of the forward pass to second moments: G += X^T X, for the rows X of each layer
 * and head.
 */

typedef struct {
    kvd_moments *sums; /* second moments to add to, allocated and owned by the caller */
    /* Scratch of kvd_gram_add for each thread, [n_threads][kvd_gram_scratch(d_head)]. */
    double *scratch;
    int n_threads;
    double seconds; /* seconds that kvd_accumulator_record has taken so far */
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
 * Adds the second moments of the weights W_O and W_V of one layer. `layer` counts from the first
 * recorded layer. w_o is [n_heads][d_head][d_model], w_v [n_kv_heads][d_head][d_model].
 */
int kvd_accumulator_weights(kvd_accumulator *a, int layer, const float *w_o, const float *w_v,
                            kvd_err *err);

/*
 * Adds the gradients of the backward pass (model/pass/backward.h) to the sums of a kvdim/fisher
 * file, and records the gradients of single tokens in that file.
 */

typedef struct kvd_information kvd_information;

/*
 * Creates an object that computes gradients and adds their squares to the sums in *f. On failure
 * returns NULL and fills *err. *f is borrowed. Either the caller has created its kvdim/fisher file,
 * or it has only zeroed sums in memory and f->n_rows is 0 (no gradients of single tokens). A batch
 * has at most max_tokens tokens, and a sequence at most max_len.
 *
 * Memory: the squared gradients of W_K and W_V take n_layers 2 n_kv_heads d_head d_model float64
 * values, for any number of tokens.
 */
kvd_information *kvd_information_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                     kvd_fisher *f, kvd_err *err);
void kvd_information_free(kvd_information *s);

/*
 * Runs a batch forward and backward and adds its gradients to the sums. first_token is the index,
 * in the corpus, of the first token of the batch. After a failure the sums are invalid.
 */
int kvd_information_run(kvd_information *s, const kvd_batch *b, size_t first_token,
                        int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err);

/*
 * Stores the squared gradients of weights in the kvd_fisher object, so that they include all
 * batches that were run.
 */
void kvd_information_flush(kvd_information *s);

#endif
