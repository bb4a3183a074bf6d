/*
 * Searches the strongest compression at which a method keeps a given fraction of the uncompressed
 * model's top-1 accuracy. Bisects the parameter of the method that trades bytes for quality.
 *
 * Accuracy on a finite text is noisy and need not fall steadily with compression (Z-18 in
 * docs/readings.md). The result therefore names three settings. The accuracy ratio falls below the
 * target at the first, the lower end of its 95 % confidence interval at the second, and the upper
 * end at the third. The result also says if the accuracies fall monotonically.
 */
#ifndef KVD_EVALUATE_TARGET_H
#define KVD_EVALUATE_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "common/stats.h"

/*
 * Resolution of the search: bisection ends when neighbouring settings differ by at most this, in
 * the fraction of removed dimensions p or of saved bytes. To see if accuracy falls steadily, the
 * search also evaluates settings twice this far before and after the setting it found.
 */
#define KVD_TARGET_STEP 0.005

/*
 * One evaluated setting of the method. `x` is its position on the search axis, which begins with
 * the setting that stores the most bytes (x = 0). If the removed fraction p is searched, x is p.
 */
typedef struct {
    /* Position on the search axis, and value of the searched parameter. */
    double x, value;
    double saving; /* 1 - stored bytes / bytes of the uncompressed cache in this number type */
    kvd_interval share;
} kvd_target_sample;

/*
 * Evaluated setting next to the place where the accuracy falls below the target: value of the
 * searched parameter, and fraction of bytes saved. Both are NaN if there is no such setting.
 */
typedef struct {
    double value, saving;
} kvd_target_end;

typedef struct {
    double target;
    /* Last setting before the first one that misses the target accuracy. */
    kvd_target_end kept;
    /* First setting that misses the target. */
    kvd_target_end misses;
    /*
     * Last setting before the first one whose confidence interval has its lower end below the
     * target.
     */
    kvd_target_end surely_kept;
    /* First setting whose confidence interval has its upper end below the target. */
    kvd_target_end surely_lost;
    /*
     * Last of all evaluated settings that keeps the target. If accuracy does not fall steadily, it
     * compresses more than the setting `misses`.
     */
    kvd_target_end last_kept;
    /*
     * 1 if no evaluated setting that compresses more than `misses` keeps the target accuracy; else
     * 0.
     */
    int monotone;
    /* Number of evaluated settings. */
    size_t n_points;
} kvd_target;

/*
 * Axis of a search: positions x from 0 (most bytes) to `largest` (fewest bytes), each of which
 * means a setting of the method. Settings contain whole numbers (kept dimensions, bits), so not
 * every position has a setting of its own. `place` returns the position *x of the setting nearest
 * to position `wanted`. No setting is evaluated twice.
 */
typedef struct {
    void *ctx;
    /* Last position on the search axis, whose setting stores the fewest bytes. */
    double largest;
    /*
     * Resolution of the search: bisection ends between positions that are at most this far apart.
     */
    double step;
    /*
     * True if position x = 0 of this search axis is the uncompressed model. Its accuracy ratio is 1
     * without an evaluation.
     */
    bool whole;
    int (*place)(void *ctx, double wanted, double *x, kvd_err *err);
    /*
     * Evaluates the setting nearest to position `wanted` and fills *out. of_text [n_texts] receives
     * the accuracy ratio of each text alone; NULL if not wanted.
     */
    int (*measure)(void *ctx, double wanted, kvd_target_sample *out, kvd_interval *of_text,
                   kvd_err *err);
    /* Number of texts for which a search on that text alone is done too; 0 for none. */
    size_t n_texts;
    const char *method; /* name of the method, for messages */
} kvd_target_axis;

/*
 * Searches the settings at which the accuracy ratio falls below `target`, and fills *out. The
 * search is done for the ratio itself and for both ends of its 95 % interval. A single sequence has
 * no interval: the fields surely_kept and surely_lost of *out are then NaN.
 *
 * If of_text [n_texts] is not NULL, it receives a result for each text alone. For these results
 * only the ratio is searched. Their fields surely_kept and surely_lost come from the settings that
 * happen to be evaluated.
 */
int kvd_target_search(const kvd_target_axis *axis, double target, kvd_target *out,
                      kvd_target *of_text, kvd_err *err);

/*
 * Fills *out from the accuracy ratios of n evaluated settings, sorted by position x on the search
 * axis: the settings between which the ratio falls below `target`. The settings need not come from
 * a search.
 */
void kvd_target_read(const kvd_target_sample *sample, size_t n, double target, kvd_target *out);

/*
 * Tests if one method keeps the target accuracy up to a larger removed fraction p than another.
 * Computes the p at which the accuracy ratio of each method falls below the target, and the
 * difference of the two. The 95 % intervals come from the same resamples of sequences (within texts
 * if texts have equal weight), so that effects of a resample on both methods cancel.
 */

/* Correct predictions of a method at n values of the removed fraction p. */
typedef struct {
    size_t n;
    /* Removed fractions of dimensions, rising, above 0: [n]. */
    const double *p;
    /*
     * Number of correct predictions for each of the n values of p and each sequence:
     * [n][n_sequences].
     */
    const double *const *top1;
} kvd_target_curve;

/*
 * Returns the removed fraction p at which the accuracy ratio first falls below the target, by
 * linear interpolation in share [n] over p [n]; the ratio at p = 0 is 1. If no value misses the
 * target, returns the last p.
 */
double kvd_target_crossing(const double *p, const double *share, size_t n, double target);

typedef struct {
    /*
     * Removed fractions p of methods a and b at which their accuracy falls to the target fraction
     * of the uncompressed model's; `difference` is that of b minus that of a.
     */
    kvd_interval a, b, difference;
} kvd_target_difference_result;

/*
 * Fills *out with the removed fractions p at which the accuracy of two methods falls to the
 * `target` fraction of the uncompressed model's, and with their difference. Confidence intervals
 * (95 %) come from 2000 resamples. *a and *b are the accuracies of the two methods over p.
 * reference [n_sequences] has the numbers of correct predictions of the uncompressed model.
 *
 * Sequences first[i] .. first[i + 1] - 1 are text i; the accuracy ratio is the mean of the texts'
 * ratios. Fails if *a or *b has no values, or if the uncompressed model has no correct prediction
 * in a text.
 */
int kvd_target_difference(const kvd_target_curve *a, const kvd_target_curve *b,
                          const double *reference, const size_t *first, size_t n_texts,
                          double target, uint64_t seed, kvd_target_difference_result *out,
                          kvd_err *err);

#endif
