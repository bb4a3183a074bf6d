/*
 * Searches the strongest compression at which a method keeps a given share of the uncompressed
 * model's score. The search varies the parameter of the method that trades bytes for quality.
 *
 * A score on a finite text is noisy and need not fall steadily with compression (Z-18 in
 * docs/readings.md). The result therefore names the settings at which the share itself and both
 * ends of its 95 % interval fall below the target.
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
 * Largest distance of neighbouring settings at which bisection ends, in p or in the fraction of
 * bytes saved.
 */
#define KVD_TARGET_STEP 0.005

/* One evaluated setting of the method. */
typedef struct {
    /*
     * Position on the search axis (p itself if p is searched), and value of the searched
     * parameter.
     */
    double x, value;
    /*
     * 1 - bytes / bytes of the uncompressed cache in this number type: stored bytes or, of methods
     * that select (kvd_method_selects), bytes that a step reads.
     */
    double saving;
    kvd_interval share;
} kvd_target_sample;

/*
 * Evaluated setting next to the point where the share crosses the target. Both fields are NaN if
 * there is no crossing.
 */
typedef struct {
    double value, saving;
} kvd_target_end;

typedef struct {
    double target;
    /* Last setting before the first one that misses the target. */
    kvd_target_end kept;
    kvd_target_end misses;
    /* Last setting before the first one whose interval has its lower end below the target. */
    kvd_target_end surely_kept;
    /* First setting whose interval has its upper end below the target. */
    kvd_target_end surely_lost;
    /* Last of all evaluated settings that keeps the target. */
    kvd_target_end last_kept;
    /* 1 if no evaluated setting that compresses more than `misses` keeps the target, else 0. */
    int monotone;
    size_t n_points;
    bool reads; /* true: savings are of bytes that a step reads */
} kvd_target;

/*
 * Axis of a search: positions from 0 (most bytes) to `largest` (fewest bytes). Kept dimensions
 * and bits are whole numbers, so several positions share a setting. `place` returns the position
 * *x of the setting nearest to `wanted`. No setting is evaluated twice.
 */
typedef struct {
    void *ctx;
    double largest;
    /* Largest distance of neighbouring positions at which bisection ends. */
    double step;
    /* True if position 0 is the uncompressed model, whose share is 1 without an evaluation. */
    bool whole;
    int (*place)(void *ctx, double wanted, double *x, kvd_err *err);
    /*
     * Evaluates the setting nearest to `wanted`. of_text [n_texts] receives the share of each
     * text alone; NULL if not wanted.
     */
    int (*measure)(void *ctx, double wanted, kvd_target_sample *out, kvd_interval *of_text,
                   kvd_err *err);
    /* Number of texts that are also searched alone. */
    size_t n_texts;
    const char *method; /* name of the method, for messages */
} kvd_target_axis;

/*
 * Searches the settings at which the share, and both ends of its 95 % interval, fall below
 * `target`. Without intervals surely_kept and surely_lost are NaN. If of_text [n_texts] is not
 * NULL, it receives a result for each text alone, for which only the share itself is searched.
 */
int kvd_target_search(const kvd_target_axis *axis, double target, kvd_target *out,
                      kvd_target *of_text, kvd_err *err);

/* Fills *out from n evaluated settings, sorted by x. They need not come from a search. */
void kvd_target_read(const kvd_target_sample *sample, size_t n, double target, kvd_target *out);

/*
 * Compares the largest removed fraction p of dimensions at which two methods still reach the
 * target. The 95 % intervals of both methods come from the same resamples of sequences, so that the
 * difficulty of a resample cancels in the difference.
 */

/* Correct predictions of a method at n values of the removed fraction p. */
typedef struct {
    size_t n;
    /* Removed fractions of dimensions, rising, above 0: [n]. */
    const double *p;
    /* Correct predictions: [n][n_sequences]. */
    const double *const *top1;
} kvd_target_curve;

/*
 * Returns the p at which the share first falls below the target, by linear interpolation in
 * share [n] over p [n]; the share at p = 0 is 1. Returns the last p if none misses.
 */
double kvd_target_crossing(const double *p, const double *share, size_t n, double target);

typedef struct {
    /*
     * Largest p at which methods a and b reach the target (kvd_target_crossing); `difference` is
     * that p of b minus that p of a.
     */
    kvd_interval a, b, difference;
} kvd_target_difference_result;

/*
 * Computes the crossings of two methods and their difference, with 95 % intervals from 2000
 * resamples. reference [n_sequences] has the correct predictions of the uncompressed model. Text
 * i is sequences first[i] .. first[i + 1] - 1; the share is the mean over texts. Fails if a
 * method has no point, or if the uncompressed model has no correct prediction in a text.
 */
int kvd_target_difference(const kvd_target_curve *a, const kvd_target_curve *b,
                          const double *reference, const size_t *first, size_t n_texts,
                          double target, uint64_t seed, kvd_target_difference_result *out,
                          kvd_err *err);

/* ---- search of one method, by kvdim-eval or kvdim-tasks ---- */

typedef struct {
    /*
     * Name of the method, with the rule of its widths unless the rule is eq6. If another search has
     * that name, "-2", "-3" and so on is appended.
     */
    char name[80];
    const kvd_method *method;
    kvd_method_tradeoff rate;
    /* True if the method only removes dimensions, so that p = 0 is the uncompressed model. */
    bool whole;
    /* Results lines first_row .. end_row - 1 of the search, if the program sets them. */
    size_t first_row, end_row;
    kvd_target found;
} kvd_method_target;

/*
 * Evaluates a setting of t->method: fills out->saving and out->share and, unless NULL, of_text
 * [n_texts].
 */
typedef int kvd_target_evaluate(void *ctx, const kvd_method_target *t, const kvd_point *point,
                                kvd_target_sample *out, kvd_interval *of_text, kvd_err *err);

/*
 * Fails if --target cannot search one of n methods, named text [n] by the user, or if all are the
 * uncompressed model. `key` is that of --target-key, or NULL.
 */
int kvd_target_check_methods(const kvd_method *m, const char *const *text, size_t n,
                             const char *key, kvd_err *err);

/*
 * Options --target and --target-key of a program, whose option structure must have the fields
 * `target` and `target_key`.
 */
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

/*
 * Appends a search of *m along `key` to t [*n], unless an earlier search differs only in the value
 * of the key. *m is borrowed.
 */
int kvd_method_target_add(kvd_method_target *t, size_t *n, const kvd_method *m, const char *key,
                          kvd_err *err);

/*
 * Searches the best setting of t->method along the parameter of t->rate, and stores it in t->found.
 * `point` is a setting of the method, or NULL if the user gave none. If the search varies a
 * parameter other than p, it changes that parameter in *point.
 */
int kvd_method_target_search(kvd_method_target *t, const kvd_point *point, double target,
                             size_t n_texts, kvd_target *of_text, kvd_target_evaluate *evaluate,
                             void *ctx, kvd_err *err);

/*
 * Writes the attributes of /target/<name>. `metric` is the score of which a share is kept; `own` is
 * true if it compares with the output of the uncompressed model.
 */
int kvd_method_target_write(kvd_h5 *f, const kvd_method_target *t, const char *metric, bool own,
                            kvd_err *err);

/* Returns true if two methods differ in nothing but the parameter that `rate` names. */
bool kvd_method_same_but_key(const kvd_method *a, const kvd_method *b,
                             const kvd_method_tradeoff *rate);

#endif
