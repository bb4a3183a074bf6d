/*
 * Searches the strongest compression at which a method keeps a share of the uncompressed model's
 * score, by varying one parameter. Scores are noisy (Z-18 in docs/readings.md), so results name
 * where the share and both ends of its 95 % interval fall below the target.
 */
#ifndef KVD_EVALUATE_TARGET_H
#define KVD_EVALUATE_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "common/stats.h"
#include "formats/accuracy.h"
#include "methods/points.h"

/* Bisection ends at this distance of settings, in p or fraction of bytes saved. */
#define KVD_TARGET_STEP 0.005

/* One evaluated setting of the method. */
typedef struct {
    /* Position on the search axis, and value of the parameter. */
    double x, value;
    /* 1 - bytes / uncompressed bytes: stored or, with kvd_method_selects, read by a step. */
    double saving;
    kvd_interval share;
} kvd_target_sample;

/* Parameter value and saved bytes at an end of the step across the target; NaN if not crossed. */
typedef struct {
    double value, saving;
} kvd_target_end;

typedef struct {
    double target;
    /* Last setting before the first one that misses the target. */
    kvd_target_end kept;
    kvd_target_end misses;
    /* Last setting before the lower end of the 95 % interval misses the target. */
    kvd_target_end surely_kept;
    /* First setting whose 95 % interval's upper end misses the target. */
    kvd_target_end surely_lost;
    /* Strongest evaluated setting whose share is at least the target. */
    kvd_target_end last_kept;
    /* 1 if every evaluated setting stronger than `misses` misses too, else 0. */
    int monotone;
    size_t n_points;
    bool reads; /* true: savings are of bytes that a step reads */
} kvd_target;

/*
 * Search axis from 0 (most bytes) to `largest` (fewest). Settings are discrete: place sets *x to
 * the nearest to `wanted`. No setting is evaluated twice.
 */
typedef struct {
    void *ctx;
    double largest;
    /* Bisection ends at this distance of positions. */
    double step;
    /* True if position 0 is the uncompressed model (share 1), not evaluated. */
    bool whole;
    int (*place)(void *ctx, double wanted, double *x, kvd_err *err);
    /*
     * Evaluates the setting nearest to `wanted`. of_text [n_texts]: share of each text; NULL if not
     * wanted.
     */
    int (*measure)(void *ctx, double wanted, kvd_target_sample *out, kvd_interval *of_text,
                   kvd_err *err);
    /* Texts that are also searched alone. */
    size_t n_texts;
    const char *method; /* for messages */
} kvd_target_axis;

/*
 * Searches where the share and both ends of its 95 % interval fall below `target`; without
 * intervals, out->surely_kept and surely_lost are NaN. of_text [n_texts], unless NULL: results per
 * text, share only.
 */
int kvd_target_search(const kvd_target_axis *axis, double target, kvd_target *out,
                      kvd_target *of_text, kvd_err *err);

/* Fills *out from n evaluated settings, sorted by x, of any origin. */
void kvd_target_read(const kvd_target_sample *sample, size_t n, double target, kvd_target *out);

/*
 * Compares two methods' largest p at the target. Shared resamples keep difficult sequences from the
 * difference.
 */

/* Correct predictions of a method at n values of the removed fraction p. */
typedef struct {
    size_t n;
    /* [n] Removed fractions of dimensions, rising, above 0. */
    const double *p;
    /* [n][n_sequences] Correct predictions. */
    const double *const *top1;
} kvd_target_curve;

/*
 * Returns the p at which the share first falls below the target, linear between points (p[i],
 * share[i]) from p = 0, share 1. If none: the last p.
 */
double kvd_target_crossing(const double *p, const double *share, size_t n, double target);

typedef struct {
    /* Largest p of methods a and b at the target; difference: b - a. */
    kvd_interval a, b, difference;
} kvd_target_difference_result;

/*
 * Computes kvd_target_crossing of two methods and their difference, with 95 % intervals from 2000
 * resamples. reference [n_sequences]: uncompressed correct predictions. Text i: sequences first[i]
 * .. first[i + 1] - 1; share: mean over texts. Fails without points, or for a text without correct
 * predictions.
 */
int kvd_target_difference(const kvd_target_curve *a, const kvd_target_curve *b,
                          const double *reference, const size_t *first, size_t n_texts,
                          double target, uint64_t seed, kvd_target_difference_result *out,
                          kvd_err *err);

/* ---- search of one method, by kvdim-eval or kvdim-tasks ---- */

typedef struct {
    /* Method and, unless eq6, width rule; "-2", "-3", ... after repeated names. */
    char name[80];
    const kvd_method *method;
    kvd_method_tradeoff rate;
    /* True if the method only removes dimensions, so p = 0 is the uncompressed model. */
    bool whole;
    /* Result lines first_row .. end_row - 1 of the search, if the program sets them. */
    size_t first_row, end_row;
    kvd_target found;
} kvd_method_target;

/* Evaluates a setting: fills out->saving, out->share and of_text [n_texts] (may be NULL). */
typedef int kvd_target_evaluate(void *ctx, const kvd_method_target *t, const kvd_point *point,
                                kvd_target_sample *out, kvd_interval *of_text, kvd_err *err);

/*
 * Fails if --target cannot search one of the n methods, or all are uncompressed. text [n]: methods
 * as typed; key: --target-key or NULL.
 */
int kvd_target_check_methods(const kvd_method *m, const char *const *text, size_t n,
                             const char *key, kvd_err *err);

/* Options --target and --target-key; the option structure must have `target` and `target_key`. */
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
 * Appends a search of *m along `key` to t [*n], unless an earlier one differs only in that value.
 * *m is borrowed.
 */
int kvd_method_target_add(kvd_method_target *t, size_t *n, const kvd_method *m, const char *key,
                          kvd_err *err);

/*
 * Searches along t->rate into t->found. point: a setting of the method, or NULL; other parameters
 * than p use copies of it.
 */
int kvd_method_target_search(kvd_method_target *t, const kvd_point *point, double target,
                             size_t n_texts, kvd_target *of_text, kvd_target_evaluate *evaluate,
                             void *ctx, kvd_err *err);

/*
 * Writes attributes of /target/<name>. metric: name of the kept score; own: it compares with the
 * uncompressed output, not right answers.
 */
int kvd_method_target_write(kvd_h5 *f, const kvd_method_target *t, const char *metric, bool own,
                            kvd_err *err);

/* Returns true if two methods differ only in the parameter of `rate`. */
bool kvd_method_same_but_key(const kvd_method *a, const kvd_method *b,
                             const kvd_method_tradeoff *rate);

#endif
