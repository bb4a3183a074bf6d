/*
 * How few bytes a method may store and still keep a share of the uncompressed top-1 accuracy, by bisection
 * on the key that trades one for the other (methods/presets.h). Accuracy on a finite text is noisy and
 * need not fall steadily (Z-18), so the answer is three crossings with the same samples: where the
 * estimate, the lower and the upper end of the 95 % interval of the paired share stop reaching the target;
 * and whether what was seen is monotone.
 */
#ifndef KVD_ANALYSIS_TARGET_H
#define KVD_ANALYSIS_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "common/stats.h"

/*
 * Bisection ends when the bracket is this narrow, in p or in the share of bytes saved; neighbours twice as
 * far away are checked.
 */
#define KVD_TARGET_STEP 0.005

/* One evaluated setting. x: its place on the axis, 0 stores most; overall p where p is searched. */
typedef struct {
    double x, value; /* of the key                                                         */
    double saving;   /* 1 - bytes stored over those of the uncompressed cache in this type */
    kvd_interval share;
} kvd_target_sample;

/* NaN: there is none. */
typedef struct {
    double value, saving;
} kvd_target_end;

typedef struct {
    double target;
    kvd_target_end kept;        /* last sample before the first that misses the target               */
    kvd_target_end misses;      /* that first one                                                    */
    kvd_target_end surely_kept; /* the same as kept for the lower end of the interval                */
    kvd_target_end surely_lost; /* first sample whose upper end misses the target                    */
    kvd_target_end last_kept;   /* last sample that keeps the target at all                          */
    int monotone;               /* 1: no sample beyond `misses` keeps the target                     */
    size_t n_points;            /* evaluated                                                         */
} kvd_target;

/*
 * What is searched. Settings are whole numbers somewhere (widths, bits): place says where a wanted x comes
 * to lie, so that none is measured twice.
 */
typedef struct {
    void *ctx;
    double largest; /* x that stores least                                                       */
    double step;    /* in x                                                                      */
    bool whole;     /* x = 0 is the uncompressed model, with share 1: known without measuring    */
    int (*place)(void *ctx, double wanted, double *x, kvd_err *err);
    /* of_text [n_texts]: the shares of each text at this setting; NULL where nobody asked. */
    int (*measure)(void *ctx, double wanted, kvd_target_sample *out, kvd_interval *of_text, kvd_err *err);
    size_t n_texts;     /* 0: none are told apart */
    const char *method; /* for messages */
} kvd_target_axis;

/*
 * Surely kept and surely lost are NaN with a single sequence, which has no interval. of_text [n_texts], when not NULL, receives the
 * answer of each text alone: its estimate is bisected too, its surely kept and surely lost are read off the points that were there.
 */
int kvd_target_search(const kvd_target_axis *axis, double target, kvd_target *out, kvd_target *of_text,
                      kvd_err *err);

/* The arithmetic of the answer, apart from evaluating: samples sorted by x. */
void kvd_target_read(const kvd_target_sample *sample, size_t n, double target, kvd_target *out);

#endif
