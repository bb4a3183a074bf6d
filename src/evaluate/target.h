/*
 * Searches the fewest bytes at which a method keeps a share of the uncompressed top-1 accuracy. It
 * bisects the parameter of the method that trades bytes for quality (its key, methods/method.h).
 * Accuracy on a finite text is noisy and need not fall steadily (Z-18). The answer therefore has
 * three crossings from the same samples: the points at which the estimate, the lower end and the
 * upper end of the 95 % interval of the paired share fall below the target. It also says if the
 * samples fall monotonically.
 */
#ifndef KVD_EVALUATE_TARGET_H
#define KVD_EVALUATE_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "common/stats.h"

/*
 * Width of a bracket at which bisection ends, in p or in the share of bytes saved. Neighbours at
 * twice this distance are measured too.
 */
#define KVD_TARGET_STEP 0.005

/*
 * One evaluated setting of the method. `x` is its position on the search axis, where 0 stores most.
 * If p is searched, x is the overall p.
 */
typedef struct {
    double x, value; /* position on the axis; value of the searched parameter */
    double saving;   /* 1 - bytes stored / bytes of the uncompressed cache in this type */
    kvd_interval share;
} kvd_target_sample;

/*
 * Sample at one end of the bracket around a crossing: value of the searched parameter, and saving.
 * Both are NaN if there is no such sample.
 */
typedef struct {
    double value, saving;
} kvd_target_end;

typedef struct {
    double target;
    kvd_target_end kept; /* last sample before the first sample that misses the target */
    /* the first sample that misses the target */
    kvd_target_end misses;
    /* last sample before the first one whose interval has its lower end below the target */
    kvd_target_end surely_kept;
    /* first sample whose interval has its upper end below the target */
    kvd_target_end surely_lost;
    kvd_target_end last_kept; /* last sample that keeps the target, which may be after `misses` */
    int monotone;             /* 1 if no sample after `misses` keeps the target */
    size_t n_points;          /* number of evaluated points */
} kvd_target;

/*
 * Axis of a search. Settings contain whole numbers (widths, bits), so `place` returns the x of the
 * setting nearest to a wanted x. No setting is measured twice.
 */
typedef struct {
    void *ctx;
    /* Largest x, which stores least. */
    double largest;
    double step; /* resolution of the search in x */
    /* True if x = 0 is the uncompressed model, whose share is 1 without measuring. */
    bool whole;
    int (*place)(void *ctx, double wanted, double *x, kvd_err *err);
    /*
     * Measures the setting nearest to `wanted` and fills *out. of_text [n_texts] receives the
     * shares of each text; NULL if they are not wanted.
     */
    int (*measure)(void *ctx, double wanted, kvd_target_sample *out, kvd_interval *of_text,
                   kvd_err *err);
    size_t n_texts;     /* number of texts with a search of their own; 0 for none */
    const char *method; /* name for messages */
} kvd_target_axis;

/*
 * Searches the settings at which the share falls below the target, and fills *out. surely_kept and
 * surely_lost are NaN for a single sequence, which has no interval. If of_text [n_texts] is not
 * NULL, it receives the answer for each text alone. The estimate of a text is bisected too; its
 * surely_kept and surely_lost are read from the samples that exist.
 */
int kvd_target_search(const kvd_target_axis *axis, double target, kvd_target *out,
                      kvd_target *of_text, kvd_err *err);

/*
 * Fills *out from n samples that are sorted by x. It is separate from the search, so that samples
 * of other origin can be used.
 */
void kvd_target_read(const kvd_target_sample *sample, size_t n, double target, kvd_target *out);

/*
 * Test of whether one method keeps a target up to a larger p than another. It computes the p at
 * which the share of each method falls below the target, and the difference of the two. Their 95 %
 * intervals come from the same resamples of sequences (within texts if texts have equal weight), so
 * that effects of a resample on both curves cancel.
 */

/* Curve of a method: its correct predictions at every evaluated p. */
typedef struct {
    size_t n;                  /* number of points */
    const double *p;           /* [n], rising, above 0 */
    const double *const *top1; /* [n][n_sequences]: number of predictions that are the next token */
} kvd_target_curve;

/*
 * Returns the p at which the share [n] first falls below the target, linear between the points on
 * both sides; the share at p = 0 is 1. If no point misses the target, returns the last p.
 */
double kvd_target_crossing(const double *p, const double *share, size_t n, double target);

typedef struct {
    kvd_interval a, b, difference; /* `difference` is b - a */
} kvd_target_difference_result;

/*
 * Fills *out with the crossings of two curves, their difference, and 95 % intervals from 2000
 * resamples. reference [n_sequences] is `top1` of the uncompressed model. Text i is sequences
 * first[i] .. first[i + 1] - 1, and the share is the mean of the shares of the texts. Fails if a
 * curve is empty, or if the uncompressed model has no correct prediction in a text.
 */
int kvd_target_difference(const kvd_target_curve *a, const kvd_target_curve *b,
                          const double *reference, const size_t *first, size_t n_texts,
                          double target, uint64_t seed, kvd_target_difference_result *out,
                          kvd_err *err);

#endif
