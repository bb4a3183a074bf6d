/*
 * Whether one method keeps a target further than another: the crossings of two curves of share against p, and their difference,
 * each with a 95 % interval from the same resamples of sequences (within texts where those weigh the same), so that what a resample does to
 * both cancels.
 */
#ifndef KVD_ANALYSIS_TARGET_DIFFERENCE_H
#define KVD_ANALYSIS_TARGET_DIFFERENCE_H

#include "common/stats.h"

/* What was evaluated of a method. */
typedef struct {
    size_t n;                  /* points                                                            */
    const double *p;           /* [n] rising, above 0                                               */
    const double *const *top1; /* [n] of [n_sequences]: predictions that are the next token         */
} kvd_target_curve;

/*
 * p where the share first falls below the target, linear between the points on both sides; 1 at p = 0 is known. The last p when no point
 * misses. share [n].
 */
double kvd_target_crossing(const double *p, const double *share, size_t n, double target);

typedef struct {
    kvd_interval a, b, difference; /* difference: of b over a */
} kvd_target_difference_result;

/*
 * reference [n_sequences]: the uncompressed model's. Texts are sequences first[i] .. first[i + 1] - 1; the share is the mean over texts
 * of each one's. Intervals are percentiles of 2000 draws. Fails on an empty curve and where a text's reference has nothing right.
 */
int kvd_target_difference(const kvd_target_curve *a, const kvd_target_curve *b, const double *reference,
                          const size_t *first, size_t n_texts, double target, uint64_t seed,
                          kvd_target_difference_result *out, kvd_err *err);

#endif
