/*
 * Searches along one parameter for the strongest compression that keeps a share of the uncompressed
 * model's score. As scores are noisy (Z-18 in docs/readings.md), results say where the share and
 * the ends of its 95 % interval fall below the target.
 */
#ifndef KVD_EVALUATE_TARGET_H
#define KVD_EVALUATE_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "common/stats.h"
#include "formats/accuracy.h"
#include "methods/points.h"

/*
 * The search ends when two tried parameter values are this close: in the removed fraction p, or in
 * the fraction of saved bytes.
 */
#define KVD_TARGET_STEP 0.005

/* Result of the searched method at one parameter value. */
typedef struct {
    /*
     * Position of the tried parameter value, from 0 (largest cache) on, and the value itself. They
     * are equal if the removed fraction p is searched.
     */
    double x, value;
    /*
     * Saved fraction of bytes, 1 - stored bytes / uncompressed bytes. For methods that select
     * tokens (kvd_method_selects), bytes read by a step count instead.
     */
    double saving;
    kvd_interval share;
} kvd_target_sample;

/*
 * Parameter value, and saved fraction of the cache, near the compression at which the kept share of
 * the score falls below the target. NaN if there is none.
 */
typedef struct {
    double value, saving;
} kvd_target_end;

typedef struct {
    double target;
    /* Strongest compression that keeps the target, before the first one that misses it. */
    kvd_target_end kept;
    kvd_target_end misses;
    /* Strongest compression before the lower end of the 95 % interval first misses the target. */
    kvd_target_end surely_kept;
    /* Weakest compression whose 95 % interval misses the target entirely. */
    kvd_target_end surely_lost;
    /* Strongest compression of all whose score reaches the target. */
    kvd_target_end last_kept;
    /* 1 if all tried compressions stronger than `misses` also miss the target. */
    int monotone;
    size_t n_points;
    bool reads; /* true if savings are of bytes that a step reads */
} kvd_target;

/*
 * Range of a method's parameter, as positions from 0 (largest cache) to `largest`. `place` sets *x
 * to the position nearest to `wanted` that can be evaluated. Each position is evaluated once.
 */
typedef struct {
    void *ctx;
    double largest;
    double step; /* bisection ends at this distance on the axis */
    /* True if position 0 is the uncompressed model, which is not evaluated. */
    bool whole;
    int (*place)(void *ctx, double wanted, double *x, kvd_err *err);
    /*
     * Evaluates the method at the position nearest to `wanted`. of_text [n_texts] receives for each
     * text the kept fraction of the uncompressed score, or is NULL.
     */
    int (*measure)(void *ctx, double wanted, kvd_target_sample *out, kvd_interval *of_text,
                   kvd_err *err);
    size_t n_texts;     /* number of texts that are also searched alone */
    const char *method; /* name of the method for messages */
} kvd_target_axis;

/*
 * Searches where the share and the ends of its interval fall below `target`. Without intervals,
 * surely_kept and surely_lost are NaN. of_text [n_texts] gets results per text, or is NULL.
 */
int kvd_target_search(const kvd_target_axis *axis, double target, kvd_target *out,
                      kvd_target *of_text, kvd_err *err);

/* Fills *out from the results at n parameter values, sorted by x. */
void kvd_target_read(const kvd_target_sample *sample, size_t n, double target, kvd_target *out);

/*
 * ---- Largest removed fractions p at which two methods keep the target, compared on the same
 * resamples ----
 */

/* Numbers of correct predictions of one method at n values of the removed fraction p. */
typedef struct {
    size_t n;
    const double *p; /* [n] removed fractions of dimensions in rising order */
    /* [n][n_sequences] Numbers of correct predictions. */
    const double *const *top1;
} kvd_target_curve;

/*
 * Returns the smallest removed fraction p at which the kept share of the uncompressed score is
 * below the target, or the last p if there is none. The share is 1 at p = 0 and is interpolated
 * linearly between measured values share[i] at p[i].
 */
double kvd_target_crossing(const double *p, const double *share, size_t n, double target);

typedef struct {
    /*
     * Largest removed fraction p at which methods a and b keep the target, and the difference b -
     * a.
     */
    kvd_interval a, b, difference;
} kvd_target_difference_result;

/*
 * Compares kvd_target_crossing of two methods on the same 2000 resamples, with 95 % intervals.
 * reference [n_sequences] are the uncompressed model's correct predictions. Texts of sequences
 * first[i] .. first[i + 1] - 1 have equal weight. Fails without measurements or correct
 * predictions.
 */
int kvd_target_difference(const kvd_target_curve *a, const kvd_target_curve *b,
                          const double *reference, const size_t *first, size_t n_texts,
                          double target, uint64_t seed, kvd_target_difference_result *out,
                          kvd_err *err);

/* ---- Search of one method, by kvdim-eval or kvdim-tasks ---- */

typedef struct {
    /*
     * Name of the method and, unless "eq6", of the rule that chose its kept dimensions; then "-2",
     * ... if repeated.
     */
    char name[80];
    const kvd_method *method;
    kvd_method_tradeoff rate;
    /* True if the removed fraction p is searched and p = 0 is the uncompressed model. */
    bool whole;
    /* Result rows first_row .. end_row - 1 belong to this search, if set. */
    size_t first_row, end_row;
    kvd_target found;
} kvd_method_target;

/*
 * Evaluates the method at one parameter value of a search. Fills out->saving, out->share and
 * of_text [n_texts] (kept fraction of the score per text, may be NULL).
 */
typedef int kvd_target_evaluate(void *ctx, const kvd_method_target *t, const kvd_point *point,
                                kvd_target_sample *out, kvd_interval *of_text, kvd_err *err);

/*
 * Fails if a method cannot be searched, or if all are uncompressed. text [n] has the methods as
 * typed. key is the value of --target-key, or NULL.
 */
int kvd_target_check_methods(const kvd_method *m, const char *const *text, size_t n,
                             const char *key, kvd_err *err);

/* Option table lines of --target and --target-key, which set members `target` and `target_key`. */
#define KVD_OPTIONS_TARGET(T, of)                                                                  \
    {"target",                                                                                     \
     .type = KVD_OPT_NUMBER,                                                                       \
     .arg = "SHARE",                                                                               \
     KVD_INTO(T, target),                                                                          \
     .high = 1,                                                                                    \
     .above_low = true,                                                                            \
     .help =                                                                                       \
         "For each method, search the setting with the fewest bytes that keeps this fraction " of  \
         ". The search varies the parameter that --list-methods names after --target: p of "       \
         "methods that remove dimensions, or else a parameter of the method named last"},          \
    {                                                                                              \
        "target-key", .type = KVD_OPT_TEXT, .arg = "[NAME.]KEY", KVD_INTO(T, target_key),          \
                      .requires = "target", .help = "Vary this parameter instead"                  \
    }

/* Option that evaluates several values of the parameter that --target would search. */
#define KVD_OPTION_SWEEP(T)                                                                        \
    {                                                                                              \
        "sweep", .type = KVD_OPT_WHOLE, KVD_INTO(T, sweep), .low = 1, .high = 64,                  \
                 .help = "Evaluate each --method at N values of the parameter that --target "      \
                         "varies, from most bytes to fewest. Without --method, sweep every "       \
                         "method that stores fewer bytes on its own"                               \
    }

/*
 * Appends a search along `key` to t [*n]. Appends none if an earlier search's method differs only
 * in the value of `key`. Borrows *m.
 */
int kvd_method_target_add(kvd_method_target *t, size_t *n, const kvd_method *m, const char *key,
                          kvd_err *err);

/*
 * Searches parameter t->rate of the method and fills t->found. `point` has the other parameters,
 * which are copied, or is NULL.
 */
int kvd_method_target_search(kvd_method_target *t, const kvd_point *point, double target,
                             size_t n_texts, kvd_target *of_text, kvd_target_evaluate *evaluate,
                             void *ctx, kvd_err *err);

/*
 * Writes a search to the file. `metric` names the score to keep. `own` is true if it compares with
 * the uncompressed model's output, not with right answers.
 */
int kvd_method_target_write(kvd_h5 *f, const kvd_method_target *t, const char *metric, bool own,
                            kvd_err *err);

/* Returns true if two methods differ only in the parameter of `rate`. */
bool kvd_method_same_but_key(const kvd_method *a, const kvd_method *b,
                             const kvd_method_tradeoff *rate);

#endif
