/*
 * Searches the strongest compression at which a method keeps a given share of the uncompressed
 * model's score. The search varies the parameter of the method that trades bytes for quality.
 *
 * A score on a finite text is noisy and need not fall steadily with compression (Z-18 in
 * docs/readings.md). The result therefore names three settings: those at which the share, the lower
 * end and the upper end of its 95 % interval fall below the target.
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
 * Setting at an end of the step in which the share of the score falls below the target: its
 * parameter value and its saving of bytes. Both fields are NaN if the share does not cross the
 * target.
 */
typedef struct {
    double value, saving;
} kvd_target_end;

typedef struct {
    double target;
    /* Last setting before the first one that misses the target. */
    kvd_target_end kept;
    kvd_target_end misses;
    /*
     * Last setting before the first one that may miss the target: the lower end of the 95 %
     * interval of its share is below the target.
     */
    kvd_target_end surely_kept;
    /*
     * First setting that surely misses the target: even the upper end of the 95 % interval of its
     * share is below the target.
     */
    kvd_target_end surely_lost;
    /* Strongest of all evaluated settings whose share is at least the target. */
    kvd_target_end last_kept;
    /*
     * 1 if every evaluated setting that compresses more than the setting `misses` misses the target
     * too, else 0.
     */
    int monotone;
    size_t n_points;
    bool reads; /* true: savings are of bytes that a step reads */
} kvd_target;

/*
 * Axis of a search: positions from 0 (most bytes) to `largest` (fewest bytes). Kept dimensions and
 * bits are whole numbers, so positions that are close to each other mean the same setting. The
 * function `place` sets *x to the position of the setting nearest to position `wanted`. No setting
 * is evaluated twice.
 */
typedef struct {
    void *ctx;
    double largest;
    /* Largest distance of neighbouring positions at which bisection ends. */
    double step;
    /*
     * True if position 0 is the uncompressed model. It keeps the whole score (a share of 1), so it
     * is not evaluated.
     */
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
 * Searches the settings at which the share of the score, and both ends of its 95 % interval, fall
 * below `target`. If the samples have no intervals, out->surely_kept and out->surely_lost are NaN.
 * If of_text [n_texts] is not NULL, it receives a result for each text alone, for which only the
 * share itself is searched.
 */
int kvd_target_search(const kvd_target_axis *axis, double target, kvd_target *out,
                      kvd_target *of_text, kvd_err *err);

/* Fills *out from n evaluated settings, sorted by x. They need not come from a search. */
void kvd_target_read(const kvd_target_sample *sample, size_t n, double target, kvd_target *out);

/*
 * Compares the largest removed fraction p of dimensions at which two methods still reach the
 * target. The 95 % intervals of both methods come from the same resamples of sequences, so that a
 * resample of difficult sequences lowers both p, and has little effect on their difference.
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
 * Returns the removed fraction p at which the share of the score first falls below the target.
 * Interpolates linearly between the n points (p[i], share[i]), before which p = 0 has the share 1.
 * If no point is below the target, returns the last p.
 */
double kvd_target_crossing(const double *p, const double *share, size_t n, double target);

typedef struct {
    /*
     * Largest p at which method a, and method b, reach the target (kvd_target_crossing).
     * `difference` is the p of b minus the p of a.
     */
    kvd_interval a, b, difference;
} kvd_target_difference_result;

/*
 * Computes for two methods the p at which each crosses the target (kvd_target_crossing), and the
 * difference of the two, with 95 % intervals from 2000 resamples. reference [n_sequences] has the
 * correct predictions of the uncompressed model. Text i is sequences first[i] .. first[i + 1] - 1;
 * the share is the mean over texts. Fails if a curve has no points, or if the uncompressed model
 * has no correct prediction in a text.
 */
int kvd_target_difference(const kvd_target_curve *a, const kvd_target_curve *b,
                          const double *reference, const size_t *first, size_t n_texts,
                          double target, uint64_t seed, kvd_target_difference_result *out,
                          kvd_err *err);

/* ---- search of one method, by kvdim-eval or kvdim-tasks ---- */

typedef struct {
    /*
     * Name of the search: the method and, unless it is eq6, the rule that chose its kept dimensions
     * per head. If an earlier search has the same name, "-2", "-3" and so on is appended.
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
 * Fails if --target cannot search one of the n methods m, or if all of them are the uncompressed
 * model. `text` [n] holds the methods as the user typed them. `key` is the value of --target-key,
 * or NULL.
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
 * Appends to t [*n] a search with method *m along the parameter `key`. If an earlier search has the
 * same method, with another value of this parameter at most, appends nothing. *m is borrowed.
 */
int kvd_method_target_add(kvd_method_target *t, size_t *n, const kvd_method *m, const char *key,
                          kvd_err *err);

/*
 * Searches the best setting of t->method along the parameter of t->rate, and stores it in t->found.
 * `point` is a setting of the method, or NULL if the user gave none. If the search varies a
 * parameter other than p, it tries copies of *point with other values of that parameter.
 */
int kvd_method_target_search(kvd_method_target *t, const kvd_point *point, double target,
                             size_t n_texts, kvd_target *of_text, kvd_target_evaluate *evaluate,
                             void *ctx, kvd_err *err);

/*
 * Writes the attributes of /target/<name>. `metric` is the name of the score of which a share is
 * kept. `own` is true if this score compares with the output of the uncompressed model instead of
 * the right answers.
 */
int kvd_method_target_write(kvd_h5 *f, const kvd_method_target *t, const char *metric, bool own,
                            kvd_err *err);

/* Returns true if two methods differ in nothing but the parameter that `rate` names. */
bool kvd_method_same_but_key(const kvd_method *a, const kvd_method *b,
                             const kvd_method_tradeoff *rate);

#endif
