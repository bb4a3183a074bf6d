/* Finds the strongest compression that keeps a target share of the uncompressed model's score.
 * Because scores are noisy, also finds it for each end of the score's 95 % confidence interval. */
#ifndef KVD_EVALUATE_TARGET_H
#define KVD_EVALUATE_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "common/stats.h"
#include "formats/accuracy.h"
#include "methods/points.h"

/* A search for the strongest compression is precise to this fraction of all dimensions, or of the
 * bytes of the cache. */
#define KVD_TARGET_STEP 0.005

/* score and cache size at one of the compression strengths that option --target tries */
typedef struct {
    /* x: compression strength, 0 for the largest cache. value: value of the varied parameter. */
    double x, value;
    /* saved fraction of stored bytes or, for methods that select tokens to read, of bytes read per
     * decode step */
    double saving;
    kvd_interval share;
    /* true if compression had no effect; the search then assumes the uncompressed model's score,
     * and never reports this sample */
    bool inert;
} kvd_target_sample;

/* a compression found by a search: parameter value and saved fraction of bytes; NaN if none */
typedef struct {
    double value, saving;
} kvd_target_end;

typedef struct {
    double target;
    /* strongest evaluated compression such that it and all weaker ones meet the target */
    kvd_target_end kept;
    kvd_target_end misses;
    /* strongest evaluated compression such that it and all weaker ones meet the target even at the
     * lower end of the score's 95 % interval */
    kvd_target_end surely_kept;
    /* weakest evaluated compression at which even the upper end of the score's 95 % interval is
     * below the target */
    kvd_target_end surely_lost;
    /* strongest evaluated compression whose score meets the target, even if a weaker one misses
     * it */
    kvd_target_end last_kept;
    /* 0 if an evaluated compression meets the target although a weaker one misses it, else 1 */
    int monotone;
    size_t n_points; /* evaluated compressions that had an effect */
    bool reads;      /* true if savings are of bytes that a step reads */
} kvd_target;

/* parameter that option --target varies to find the strongest compression, as a number from 0
 * (weakest compression) to `largest` (strongest compression) */
typedef struct {
    void *ctx;
    double largest;
    double step; /* bisection ends at this difference of compression strengths */
    /* true if strength 0 means no compression, for which the score is known */
    bool whole;
    /* Sets *x to the possible compression strength nearest to `wanted`. */
    int (*place)(void *ctx, double wanted, double *x, kvd_err *err);
    /* Evaluates the method at the possible compression strength nearest to `wanted`. of_text
     * [n_texts], unless NULL, receives the score on each text as a share of the uncompressed
     * model's score. */
    int (*measure)(void *ctx, double wanted, kvd_target_sample *out, kvd_interval *of_text,
                   kvd_err *err);
    size_t n_texts;     /* number of texts for which a compression is also found alone */
    const char *method; /* name of the method for messages */
} kvd_target_axis;

/* Searches for the strongest compression that keeps the share `target` of the uncompressed score.
 * of_text [n_texts], unless NULL, receives the result for each text alone. Results that need the
 * 95 % interval of the score are NaN if there is no interval. */
int kvd_target_search(const kvd_target_axis *axis, double target, kvd_target *out,
                      kvd_target *of_text, kvd_err *err);

/* Finds the strongest of n evaluated compressions that keeps the share `target` of the uncompressed
 * score. sample [n]: evaluated compressions, weakest first. Fills *out. */
void kvd_target_read(const kvd_target_sample *sample, size_t n, double target, kvd_target *out);

/* numbers of correct predictions of one method, at several removed fractions of the dimensions */
typedef struct {
    size_t n;
    const double *p; /* [n] removed fractions of dimensions in rising order */
    /* [n][n_sequences] number of correct predictions in each sequence, at each removed fraction of
     * dimensions */
    const double *const *top1;
} kvd_target_curve;

/* Returns the removed fraction of dimensions at which the score falls below the target,
 * interpolated between measurements. If no score is below the target, returns the last fraction.
 * `p` has the n removed fractions, and `share` the scores divided by the uncompressed model's
 * score. */
double kvd_target_crossing(const double *p, const double *share, size_t n, double target);

typedef struct {
    /* a, b: largest removed fraction of dimensions at which method a or b meets the target.
     * difference: b minus a. */
    kvd_interval a, b, difference;
} kvd_target_difference_result;

/* Compares methods a and b. Finds at which removed fraction of dimensions the score of each method
 * falls below the share `target` of the uncompressed model's score. *out receives these two
 * fractions and their difference, with 95 % intervals from 2000 bootstrap resamples. Texts have
 * equal weight.
 *
 * - reference [n_sequences]: number of correct predictions of the uncompressed model
 * - first [n_texts + 1]: index of each text's first sequence, then the number of all sequences */
int kvd_target_difference(const kvd_target_curve *a, const kvd_target_curve *b,
                          const double *reference, const size_t *first, size_t n_texts,
                          double target, uint64_t seed, kvd_target_difference_result *out,
                          kvd_err *err);

typedef struct {
    /* unique name of this search: name of the method, with a suffix if needed, such as "zack-2" */
    char name[80];
    const kvd_method *method;
    kvd_method_tradeoff rate;
    /* true if the weakest compression of the search is the uncompressed model */
    bool whole;
    /* The results of this search are rows first_row to end_row - 1 of the result table. Before the
     * search both numbers are equal. */
    size_t first_row, end_row;
    kvd_target found;
    bool failed; /* true if the compression method has no value to search, and `found` is not set */
} kvd_method_target;

/* Evaluates a method with the parameter values `point`.
 *
 * - out->saving receives the saved fraction of bytes.
 * - out->share receives the score divided by the uncompressed score.
 * - of_text [n_texts], unless NULL, receives this quotient for each text alone.
 * - out->inert receives true if compression had no effect. The caller then ignores out->saving,
 *   out->share and of_text. */
typedef int kvd_target_evaluate(void *ctx, const kvd_method_target *t, const kvd_point *point,
                                kvd_target_sample *out, kvd_interval *of_text, kvd_err *err);

/* Fails if a method has no parameter that option --target can vary to find the strongest
 * compression. text [n]: methods as the user wrote them. `key`: parameter named by --target-key, or
 * NULL for the usual one. */
int kvd_target_check_methods(const kvd_method *m, const char *const *text, size_t n,
                             const char *key, kvd_err *err);

/* Tests a search of --target for method *m before it starts: calls `check` with parameter values
 * that the search could try. Fails if `check` fails. Also fails if the search varies another
 * parameter than p (removed fraction of dimensions), and *m does not give the value of p that it
 * needs. */
int kvd_target_check_value(const kvd_method *m, const char *key,
                           int (*check)(void *ctx, const kvd_point *point, kvd_err *err), void *ctx,
                           kvd_err *err);

/* Defines the options --target (share of the score to keep) and --target-key (parameter to vary),
 * stored in `target` and `target_key` of type T. */
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

/* Defines option --sweep, stored in field `sweep` of structure T. The option evaluates each method
 * at several values of one parameter, for example the removed fraction of dimensions. */
#define KVD_OPTION_SWEEP(T)                                                                        \
    {                                                                                              \
        "sweep", .type = KVD_OPT_WHOLE, KVD_INTO(T, sweep), .low = 1, .high = 64,                  \
                 .help = "Evaluate each --method at N values of the parameter that --target "      \
                         "varies, from most bytes to fewest. Without --method, sweep every "       \
                         "method that stores fewer bytes on its own"                               \
    }

/* Adds a search for method *m to the list t [*n], unless the list has it already. To find the
 * strongest compression, the search varies parameter `key` or, if `key` is NULL, the usual
 * parameter. Borrows *m. */
int kvd_method_target_add(kvd_method_target *t, size_t *n, const kvd_method *m, const char *key,
                          kvd_err *err);

/* Searches for the strongest compression by t->method that keeps the share `target` of the
 * uncompressed score. Stores the result in t->found. `point`: values of all other parameters; may
 * be NULL if the search varies p, the removed fraction of dimensions. */
int kvd_method_target_search(kvd_method_target *t, const kvd_point *point, double target,
                             size_t n_texts, kvd_target *of_text, kvd_target_evaluate *evaluate,
                             void *ctx, kvd_err *err);

/* Writes the strongest compression that a search found to HDF5 group /target/<name>. `metric`: name
 * of the score. `own`: true if the score compares with the uncompressed model's output, false if
 * with right answers. */
int kvd_method_target_write(kvd_h5 *f, const kvd_method_target *t, const char *metric, bool own,
                            kvd_err *err);

/* Returns true if methods a and b are equal, apart from the value of parameter rate->name. */
bool kvd_method_same_but_key(const kvd_method *a, const kvd_method *b,
                             const kvd_method_tradeoff *rate);

#endif
