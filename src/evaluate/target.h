/*
 * Searches the strongest compression that keeps a share of the uncompressed score, by one
 * parameter. Scores are noisy (Z-18 in docs/readings.md): results name where the share and its 95 %
 * interval's ends fall below the target.
 */
#ifndef KVD_EVALUATE_TARGET_H
#define KVD_EVALUATE_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "common/stats.h"
#include "formats/accuracy.h"
#include "methods/points.h"

/* Bisection ends at this distance, in p or saved bytes. */
#define KVD_TARGET_STEP 0.005

/* One evaluated setting of the method. */
typedef struct {
    /* Search axis position (p itself for p); parameter value. */
    double x, value;
    /* 1 - stored bytes / uncompressed bytes (kvd_method_selects: read). */
    double saving;
    kvd_interval share;
} kvd_target_sample;

/* Parameter value and saving at an end of the crossing step; NaN: no crossing. */
typedef struct {
    double value, saving;
} kvd_target_end;

typedef struct {
    double target;
    /* Before the first setting that misses the target. */
    kvd_target_end kept;
    kvd_target_end misses;
    /* Before the 95 % interval's lower end misses the target. */
    kvd_target_end surely_kept;
    /* First setting whose 95 % upper end misses the target. */
    kvd_target_end surely_lost;
    /* Strongest setting whose share reaches the target. */
    kvd_target_end last_kept;
    /* 1 if all settings stronger than `misses` miss too. */
    int monotone;
    size_t n_points;
    bool reads; /* true: savings of bytes read by a step */
} kvd_target;

/*
 * Search axis from 0 (most bytes) to `largest`. place: sets *x to the setting nearest to `wanted`.
 * Each setting is evaluated once.
 */
typedef struct {
    void *ctx;
    double largest;
    /* Bisection ends at this distance. */
    double step;
    /* True if position 0 is the uncompressed model, not evaluated. */
    bool whole;
    int (*place)(void *ctx, double wanted, double *x, kvd_err *err);
    /* Evaluates the setting nearest to `wanted`. of_text [n_texts]: share per text, or NULL. */
    int (*measure)(void *ctx, double wanted, kvd_target_sample *out, kvd_interval *of_text,
                   kvd_err *err);
    /* Texts that are also searched alone. */
    size_t n_texts;
    const char *method; /* for messages */
} kvd_target_axis;

/*
 * Searches where the share and its interval's ends fall below `target`; without intervals
 * surely_kept and surely_lost are NaN. of_text [n_texts] or NULL: results per text.
 */
int kvd_target_search(const kvd_target_axis *axis, double target, kvd_target *out,
                      kvd_target *of_text, kvd_err *err);

/* Fills *out from n settings sorted by x. */
void kvd_target_read(const kvd_target_sample *sample, size_t n, double target, kvd_target *out);

/* Two methods' largest p at the target, compared on the same resamples. */

/* Correct predictions at n values of p. */
typedef struct {
    size_t n;
    /* [n] Removed fractions of dimensions, rising. */
    const double *p;
    /* [n][n_sequences] Correct predictions. */
    const double *const *top1;
} kvd_target_curve;

/*
 * Returns the first p with a share below the target, linear between (p[i], share[i]) from (0, 1);
 * the last p if none.
 */
double kvd_target_crossing(const double *p, const double *share, size_t n, double target);

typedef struct {
    /* Largest p at the target; difference: b - a. */
    kvd_interval a, b, difference;
} kvd_target_difference_result;

/*
 * kvd_target_crossing of two methods and its difference, 95 % intervals from 2000 resamples.
 * reference [n_sequences]: uncompressed correct predictions. Text i: sequences first[i] .. first[i
 * + 1] - 1, equal weight. Fails without points or correct predictions.
 */
int kvd_target_difference(const kvd_target_curve *a, const kvd_target_curve *b,
                          const double *reference, const size_t *first, size_t n_texts,
                          double target, uint64_t seed, kvd_target_difference_result *out,
                          kvd_err *err);

/* ---- search of one method, by kvdim-eval or kvdim-tasks ---- */

typedef struct {
    /* Method and width rule (unless eq6); repeated names get "-2", ... */
    char name[80];
    const kvd_method *method;
    kvd_method_tradeoff rate;
    /* True if p = 0 is the uncompressed model. */
    bool whole;
    /* Result lines first_row .. end_row - 1, if set. */
    size_t first_row, end_row;
    kvd_target found;
} kvd_method_target;

/* Fills out->saving, out->share and of_text [n_texts] (may be NULL). */
typedef int kvd_target_evaluate(void *ctx, const kvd_method_target *t, const kvd_point *point,
                                kvd_target_sample *out, kvd_interval *of_text, kvd_err *err);

/*
 * Fails if a method cannot be searched, or all are uncompressed. text [n]: as typed; key:
 * --target-key or NULL.
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
 * Appends a search along `key` to t [*n], unless an earlier one differs only in its value. Borrows
 * *m.
 */
int kvd_method_target_add(kvd_method_target *t, size_t *n, const kvd_method *m, const char *key,
                          kvd_err *err);

/* Searches along t->rate into t->found. point: a setting to copy, or NULL. */
int kvd_method_target_search(kvd_method_target *t, const kvd_point *point, double target,
                             size_t n_texts, kvd_target *of_text, kvd_target_evaluate *evaluate,
                             void *ctx, kvd_err *err);

/* metric: kept score; own: compares with the uncompressed output, not right answers. */
int kvd_method_target_write(kvd_h5 *f, const kvd_method_target *t, const char *metric, bool own,
                            kvd_err *err);

/* Returns true if two methods differ only in the parameter of `rate`. */
bool kvd_method_same_but_key(const kvd_method *a, const kvd_method *b,
                             const kvd_method_tradeoff *rate);

#endif
