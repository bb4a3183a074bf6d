/*
 * The largest overall p at which a method keeps a share of the uncompressed top-1 accuracy, by bisection
 * on p. Accuracy on a finite text is noisy and need not fall steadily (Z-18), so the answer is
 * three crossings with the same samples: where the estimate, the lower and the upper end of the 95 %
 * interval of the paired share stop reaching the target; and whether what was seen is monotone.
 */
#ifndef KVD_ANALYSIS_TARGET_H
#define KVD_ANALYSIS_TARGET_H

#include "analysis/evaluate.h"
#include "analysis/points.h"

/* Bisection ends when the bracket is this narrow; neighbours twice as far away are then checked. */
#define KVD_TARGET_STEP 0.005

typedef struct {
    double target;
    double p;           /* largest evaluated p before the first that misses the target            */
    double p_misses;    /* that first one; NaN when none misses                                   */
    double p_lo;        /* the same as p for the lower end of the interval (surely kept)          */
    double p_hi;        /* first p whose upper end misses the target (surely lost)                */
    double p_last_kept; /* largest evaluated p that keeps the target at all                       */
    int monotone;       /* 1: no evaluated p beyond p_misses keeps the target                     */
    size_t n_points;    /* evaluated                                                              */
} kvd_target;

/* Called with every point as it is evaluated. */
typedef int (*kvd_target_point)(void *ctx, const kvd_point_source *s, const kvd_point *point,
                                const kvd_choice *choice, const kvd_quality_summary *summary, kvd_err *err);

/*
 * With an evaluator that knows texts the share is the mean over them, and of_text [n_texts], when not NULL, receives the answer of
 * each text alone: its estimate is bisected too, its p_lo and p_hi are read off the points that were there.
 */
/* The axes but dims are those of the method, opened with setup. p_lo and p_hi are NaN with a single sequence, which has no interval. e should keep the reference. */
int kvd_target_search(kvd_evaluator *e, const kvd_point_source *s, const kvd_method_setup *setup,
                      kvd_dtype type, double target, uint64_t seed, kvd_target_point on_point, void *ctx,
                      kvd_target *out, kvd_target *of_text, kvd_err *err);

/* The arithmetic of the answer, apart from evaluating: samples sorted by p, the first one at p = 0. */
typedef struct {
    double p;
    kvd_interval share;
} kvd_target_sample;
void kvd_target_read(const kvd_target_sample *sample, size_t n, double target, kvd_target *out);

#endif
