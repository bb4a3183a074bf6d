/* Sums over the tokens of a run: second moments, attention statistics and squared gradients. */
#ifndef KVD_COLLECT_SUMS_H
#define KVD_COLLECT_SUMS_H

#include "formats/attention.h"
#include "formats/fisher.h"
#include "formats/moments.h"
#include "model/pass/attention.h"
#include "model/pass/backward.h"

/*
 * Adds attention scores and probabilities to the statistics of a kvdim/attention file. Scores are
 * computed again from Q and K, so that recording does not change the forward pass. Results do not
 * depend on the number of threads.
 */

typedef struct {
    /* Statistics to which results are added; owned by the caller. */
    kvd_attention_stats *stats;
    int n_threads;
    /* Attention scores of KVD_ATTEND_ROWS query tokens, [n_threads][KVD_ATTEND_ROWS][seq_len]. */
    float *scores;
    double *row; /* probabilities of one query token, [n_threads][seq_len] */
    /* Attention probability that each token receives, [n_heads][seq_len]. */
    double *mass;
    /*
     * Attention probability that each token receives from later tokens, itself excluded,
     * [n_heads][seq_len].
     */
    double *later;
    /* Logarithm of each query's softmax denominator, [n_heads][seq_len]. */
    double *denominator;
    double *query_score; /* sum of each token's scores as a query, [n_heads][seq_len] */
    double *key_score;   /* sum of each token's scores as a key, [n_heads][seq_len] */
    double seconds;      /* seconds spent in kvd_tally_record */
} kvd_tally;

/* Allocates buffers. Sequences must have at most stats->seq_len tokens. */
int kvd_tally_init(kvd_tally *t, kvd_attention_stats *stats, int n_threads, kvd_err *err);
void kvd_tally_release(kvd_tally *t);

/*
 * Adds the statistics of one layer of one batch. Ignores a layer that is not recorded. Fails if a
 * score or value is not finite; the statistics are then invalid.
 */
int kvd_tally_record(kvd_tally *t, const kvd_attention_in *in, kvd_err *err);

/* Adds X^T X of each head's Q, K and V to second moments. */

typedef struct {
    kvd_moments *sums; /* owned by the caller */
    /* Scratch of kvd_gram_add: [n_threads][kvd_gram_scratch(d_head)]. */
    double *scratch;
    int n_threads;
    double seconds; /* seconds spent in kvd_accumulator_record */
} kvd_accumulator;

int kvd_accumulator_init(kvd_accumulator *a, kvd_moments *sums, int n_threads, kvd_err *err);
void kvd_accumulator_release(kvd_accumulator *a);

/*
 * Adds the second moments of one layer of one batch. Ignores a layer that is not recorded. Fails if
 * a value is not finite; the sums are then invalid.
 */
int kvd_accumulator_record(kvd_accumulator *a, const kvd_attention_in *in, kvd_err *err);

/*
 * Adds the second moments of W_O and W_V. `layer` is the model's layer less first_layer. w_o is
 * [n_heads][d_head][d_model], w_v [n_kv_heads][d_head][d_model].
 */
int kvd_accumulator_weights(kvd_accumulator *a, int layer, const float *w_o, const float *w_v,
                            kvd_err *err);

/* Adds the gradients of the backward pass to a kvdim/fisher file. */

typedef struct kvd_information kvd_information;

/*
 * Returns an object that adds squared gradients to the borrowed *f. *f must be made by
 * kvd_fisher_create, or else have zeroed sums in memory and f->n_rows 0. A batch may have at most
 * max_tokens tokens, a sequence at most max_len. If `c` is NULL, there is no backward pass on the
 * CPU, and the caller gives the gradients to kvd_information_take. On failure returns NULL and
 * fills *err. Allocates 2 * n_layers * n_kv_heads * d_head * d_model doubles.
 */
kvd_information *kvd_information_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                     kvd_fisher *f, kvd_err *err);
void kvd_information_free(kvd_information *s);

/*
 * Runs the model forward and backward over a batch, and adds the squared gradients. first_token is
 * the index of the batch's first token in the corpus. After a failure the sums are invalid.
 */
int kvd_information_run(kvd_information *s, const kvd_batch *b, size_t first_token,
                        int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err);

/*
 * kvd_information_begin begins a batch whose gradients the caller computes, for instance on a GPU.
 * kvd_information_take adds the gradients of one layer of this batch, from the fields k, k_pre,
 * k_raw, v and `in` of *g. Its argument `s` is a kvd_information.
 */
void kvd_information_begin(kvd_information *s, const kvd_batch *b, size_t first_token);
int kvd_information_take(void *s, const kvd_gradients *g, kvd_err *err);

/* Stores the sums of squared weight gradients in the kvd_fisher object. */
void kvd_information_flush(kvd_information *s);

#endif
