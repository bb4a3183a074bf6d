/*
 * Adds attention statistics to a kvdim/attention file. Scores are computed again from Q and K, with
 * the product of dense attention, so that recording does not change the pass. Softmax and sums are
 * in double precision. One thread computes a head, sequence after sequence, so that numbers do not
 * depend on the schedule.
 */
#ifndef KVD_COLLECT_TALLY_H
#define KVD_COLLECT_TALLY_H

#include "formats/attention.h"
#include "model/pass/attention.h"

typedef struct {
    kvd_attention_stats *stats; /* borrowed, allocated */
    int n_threads;
    float *scores;       /* [n_threads][KVD_ATTEND_ROWS][seq_len] */
    double *row;         /* [n_threads][seq_len] */
    double *mass;        /* [n_heads][seq_len]: of the current sequence */
    double *later;       /* [n_heads][seq_len]: without the token's own row */
    double *denominator; /* [n_heads][seq_len]: logarithm of each row's denominator */
    double *query_score; /* [n_heads][seq_len]: sum of a token's scores as a query */
    double *key_score;   /* [n_heads][seq_len]: sum of a token's scores as a key */
    double seconds;      /* time spent so far */
} kvd_tally;

/* Prepares adding to `stats`. Sequences have at most stats->seq_len tokens. */
int kvd_tally_init(kvd_tally *t, kvd_attention_stats *stats, int n_threads, kvd_err *err);
void kvd_tally_release(kvd_tally *t);

/*
 * Adds one layer of a batch; a layer that the statistics do not hold is ignored. If a score or
 * value is not finite, fails with a message that names layer and head; the statistics are then
 * invalid.
 */
int kvd_tally_record(kvd_tally *t, const kvd_attention_in *in, kvd_err *err);

#endif
