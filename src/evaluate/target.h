/*
 * Searches the fewest bytes at which a method keeps a share of the uncompressed top-1 accuracy, by
 * bisection on the key that trades bytes for quality (methods/method.h). Accuracy on a finite text
 * is noisy and need not fall steadily (Z-18). The answer therefore has three crossings from the
 * same samples: the points at which the estimate, the lower end and the upper end of the 95 %
 * interval of the paired share fall below the target. It also says if the samples fall
 * monotonically.
 */
#ifndef KVD_EVALUATE_TARGET_H
#define KVD_EVALUATE_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "common/stats.h"

/*
 * Bisection ends when the bracket is narrower than this, in p or in the share of bytes saved.
 * Neighbours at twice this distance are checked.
 */
#define KVD_TARGET_STEP 0.005

/*
 * One evaluated setting. x: its position on the axis, where 0 stores most; the overall p if p is
 * searched.
 */
typedef struct {
    double x, value; /* x, and the value of the key */
    double saving;   /* 1 - bytes stored / bytes of the uncompressed cache in this type */
    kvd_interval share;
} kvd_target_sample;

/* Value of the key and saving at an end of the bracket; both are NaN if there is none. */
typedef struct {
    double value, saving;
} kvd_target_end;

typedef struct {
    double target;
    kvd_target_end kept; /* last sample before the first sample that misses the target */
    /* the first sample that misses the target */
    kvd_target_end misses;
    kvd_target_end surely_kept; /* as `kept`, for the lower end of the interval */
    kvd_target_end surely_lost; /* first sample whose upper end misses the target */
    kvd_target_end last_kept;   /* last sample that keeps the target, which may be after `misses` */
    int monotone;               /* 1 if no sample after `misses` keeps the target */
    size_t n_points;            /* number of evaluated points */
} kvd_target;

/*
 * Axis of a search. Settings contain whole numbers (widths, bits), so `place` returns the x of the
 * setting nearest to a wanted x, and no setting is measured twice.
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
     * of_text [n_texts]: receives the shares of each text at this setting; NULL if they are not
     * wanted.
     */
    int (*measure)(void *ctx, double wanted, kvd_target_sample *out, kvd_interval *of_text,
                   kvd_err *err);
    size_t n_texts;     /* number of texts with a search of their own; 0 for none */
    const char *method; /* name for messages */
} kvd_target_axis;

/*
 * Searches the crossings of the target. surely_kept and surely_lost are NaN for a single sequence,
 * which has no interval. If of_text is not NULL, of_text [n_texts] receives the answer of each text
 * alone: its estimate is bisected too, its surely_kept and surely_lost are read from the samples
 * that exist.
 */
int kvd_target_search(const kvd_target_axis *axis, double target, kvd_target *out,
                      kvd_target *of_text, kvd_err *err);

/*
 * Computes the answer from samples that are sorted by x. Separate from the search, so that samples
 * of other origin can be used.
 */
void kvd_target_read(const kvd_target_sample *sample, size_t n, double target, kvd_target *out);

/*
 * Test whether one method keeps a target up to a larger p than another: the crossings of two curves
 * of share against p, and their difference, each with a 95 % interval from the same resamples of
 * sequences (within texts if texts have equal weight), so that effects of a resample on both curves
 * cancel.
 */

/* Evaluated points of a method. */
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
 * Compares two curves. reference [n_sequences]: top1 of the uncompressed model. Text i is sequences
 * first[i] .. first[i + 1] - 1; the share is the mean of the texts' shares. Intervals are
 * percentiles of 2000 draws. Fails on an empty curve, and if the reference has no right prediction
 * in a text.
 */
int kvd_target_difference(const kvd_target_curve *a, const kvd_target_curve *b,
                          const double *reference, const size_t *first, size_t n_texts,
                          double target, uint64_t seed, kvd_target_difference_result *out,
                          kvd_err *err);

#endif
