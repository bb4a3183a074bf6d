/* Quality of next-token predictions against text and against the uncompressed model. */
#ifndef KVD_ANALYSIS_QUALITY_H
#define KVD_ANALYSIS_QUALITY_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/stats.h"

/* Sums over the predicted tokens of one sequence (n - 1 of n). Doubles, so that bootstrap can take ratios. */
typedef struct {
    double n;     /* predictions                                        */
    double nll;   /* -log p(next token), nats                            */
    double top1;  /* argmax is the next token                           */
    double kl;    /* KL(reference || this), nats                         */
    double agree; /* argmax equals the reference's argmax               */
} kvd_quality;

/*
 * Adds rows of logits to *q. logits, reference [n][vocab]; target [n]. reference may be NULL (kl, agree stay).
 * log-sum-exp in double. Of equal logits the first is the argmax. A non-finite logit is an error that names
 * row and column, a target beyond the vocabulary one that names its row: nothing is left out.
 */
int kvd_quality_add(kvd_quality *q, const float *logits, const float *reference, const uint32_t *target,
                    size_t n, size_t vocab, kvd_err *err);

/*
 * Over sequences: perplexity = exp(mean nll), top-1, KL with 95 % intervals by bootstrap over sequences
 * (2000 resamples, the same for all columns). top1_share is top1 of this / top1 of the reference, paired by
 * sequence, set by kvd_quality_compare. NaN is what does not exist: the interval of one sequence, and the
 * share when the reference (or, for the interval, a resample of it) has no prediction right.
 */
typedef struct {
    kvd_interval nll, perplexity, top1, kl, agree, top1_share;
} kvd_quality_summary;

int kvd_quality_summarise(const kvd_quality *per_sequence, size_t n, uint64_t seed, kvd_quality_summary *out,
                          kvd_err *err);
int kvd_quality_compare(const kvd_quality *per_sequence, const kvd_quality *reference, size_t n,
                        uint64_t seed, kvd_quality_summary *out, kvd_err *err);

/*
 * The same of several texts, each with the same weight: every column is the mean over texts of that text's column, perplexity
 * exp of the mean nll, and resamples draw within texts (kvd_bootstrap_strata). Sequences first[i] .. first[i + 1] - 1 are
 * text i; none is empty.
 */
int kvd_quality_compare_texts(const kvd_quality *per_sequence, const kvd_quality *reference,
                              const size_t *first, size_t n_texts, uint64_t seed, kvd_quality_summary *out,
                              kvd_err *err);

#endif
