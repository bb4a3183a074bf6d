/* Ledger of claims: compares the numbers that the papers print with measured numbers.
 *
 * Columns of ledger.csv, with one row per claim:
 *
 * - id: name of the claim, such as "ZACK Fig. 14 (arXiv)"
 * - source: place of the claim in the paper
 * - claim: the claim in our words
 * - published_table, published_column: table and column of tables.csv with the published numbers;
 *   "*_cv_percent" means all columns with that ending
 * - published_low, published_high: published range if no table gives it
 * - unit: unit of all numbers of the claim
 * - measure, test, limit: a measure and the test of its values, as in docs/definitions.md
 * - trend_measure, trend_test, trend_limit: measure and test for the verdict "trend holds"
 * - beside: further measures to show, separated by blanks; NAME=UNIT changes the unit
 * - null: range expected if the claim is false, in words or as "LO:HI words"
 * - setting: models, texts and machines of the paper
 * - rule: the tests in words
 * - needs: programs to run if nothing was measured
 * - cannot: reason why the claim cannot be measured
 *
 * figures.csv lists every figure and table. Its column `because` says why a figure has no claim.
 * Every other figure has a claim, whose id begins with the figure's name.
 *
 * ledger.csv and figures.csv end with a row of "end" and the number of rows before it. */
#ifndef KVD_REPORT_MEASURES_LEDGER_H
#define KVD_REPORT_MEASURES_LEDGER_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "report/measures/measures.h"
#include "report/report.h"
#include "report/results.h"

/* Verdict on a claim of a paper. docs/definitions.md defines the verdicts and the tests from which
 * they follow. */

typedef enum {
    KVD_REPRODUCED,
    KVD_HOLDS,
    KVD_TREND_HOLDS,
    KVD_CANNOT_TELL,
    KVD_NOT_REPRODUCED,
    KVD_DOES_NOT_HOLD,
    KVD_NOT_MEASURED,
    KVD_N_VERDICTS
} kvd_verdict;
extern const char *const kvd_verdict_name[KVD_N_VERDICTS];
/* Returns the number of the colour in which a verdict is shown: 0 for good verdicts, 1 for partly
 * good, 2 for bad, 3 for "not measured". */
int kvd_verdict_colour(kvd_verdict v);

typedef struct {
    const char *test, *limit, *trend_test, *trend_limit;
    double low, high; /* published range; NaN if the paper prints no number */
} kvd_verdict_rule;

/* Derives the verdict on a paper's claim by the rules in docs/definitions.md. `main` has the
 * measured values of the claim, `trend` the values of a weaker claim. Fails if a test is unknown,
 * or if it needs a published number and the paper prints none. */
int kvd_verdict_judge(const kvd_verdict_rule *rule, const kvd_measured *main,
                      const kvd_measured *trend, kvd_verdict *verdict, kvd_err *err);

/* Returns the fraction of the tested request rates at which a measured value is between lo and hi.
 * Tested: 0.1 to 1 times the highest request rate that the baseline method sustains. */
double kvd_share_of_loads(const kvd_measured_value *v, size_t n, double lo, double hi);

/* Tests a claim at every simulated request rate, separately for each serving setup (such as model
 * and method). Returns the number of setups, or 0 if the claim is not about request rates.
 *
 * - least, most: smallest and largest fraction of the request rates at which a setup meets the
 *   claim */
size_t kvd_verdict_loads(const kvd_verdict_rule *rule, const kvd_measured *v, double *least,
                         double *most);

typedef struct {
    char *id, *source, *claim, *setting, *rule, *needs, *unit, *cannot;
    double low, high; /* published range; NaN if the paper prints no number */
    size_t n_values;
    double least, most; /* smallest and largest measured value of the claim */
    char trend[96]; /* range of the trend measure's values; "" if the verdict does not need them */
    size_t n_services; /* number of curves over the request rate, one per simulated serving setup */
    /* fraction of the simulated range of request rates in which the paper's claim holds, in the
     * worst and in the best serving setup */
    double least_loads, most_loads;
    kvd_measured values; /* measured values over the request rate, one curve per serving setup */
    /* text that lists the values measured for the claim */
    kvd_text ours;
    kvd_verdict verdict;
} kvd_ledger_entry;

typedef struct {
    size_t n;
    size_t measured;   /* number of figures with a measured claim */
    size_t unmeasured; /* number of figures whose claims were not measured */
    size_t cannot;     /* number of figures whose claims cannot be measured */
    size_t nothing;    /* number of figures without a claim in ledger.csv */
} kvd_figure_counts;

typedef struct {
    kvd_ledger_entry *entry;
    size_t n;
    kvd_figure_counts figures;
} kvd_ledger;

/* Gives a verdict on every claim in ledger.csv, a file in folder `paper`. The caller must release
 * *out. Fails if a figure in figures.csv has neither a claim nor a reason for having none. */
int kvd_ledger_judge(const char *paper, const kvd_results *r, kvd_ledger *out, kvd_err *err);
void kvd_ledger_release(kvd_ledger *l);

void kvd_ledger_section(const kvd_ledger *l, const kvd_results *r, kvd_report *report);

/* Writes a text such as "104 figures and tables of the papers: 40 measured here, ...". */
void kvd_figure_counts_say(const kvd_figure_counts *c, char *buf, size_t size);

/* Writes the range of the values measured for a claim, such as "-20 to -3 %". May append the share
 * of request rates at which the claim holds, and the range of a second measure, such as "; trend 47
 * %". */
void kvd_ledger_ours(const kvd_ledger_entry *e, char *buf, size_t size);

/* Writes a published range, such as "0.07 to 0.351 %", or "none printed" for NaN. */
void kvd_ledger_range(double low, double high, const char *unit, char *buf, size_t size);

/* largest number of data sets in a published table */
enum { KVD_MOST_DATASETS = 6 };

/* number printed in a paper, and half a unit of its last digit, which bounds its rounding error */
typedef struct {
    double value, half;
} kvd_printed;

/* numbers in a published table about one language model: two numbers for each of n data sets */
typedef struct {
    char model[64];
    char dataset[KVD_MOST_DATASETS][32];
    /* epsilon: mean |R_ij| of the rotation matrix R calibrated on a data set. delta: mean |R_ij -
     * S_ij|, where S is the rotation calibrated on a reference data set. */
    kvd_printed epsilon[KVD_MOST_DATASETS], delta[KVD_MOST_DATASETS];
    size_t n;
} kvd_published_model;

typedef struct {
    char name[64]; /* name in tables.csv */
    kvd_published_model *model;
    size_t n;
} kvd_published_table;

/* Reads the published table `name` from the folder `paper`. The caller releases *out with
 * kvd_published_release, also on failure. */
int kvd_published_load(const char *paper, const char *name, kvd_published_table *out, kvd_err *err);
void kvd_published_release(kvd_published_table *t);

/* pairs: number of pairs of data sets. violated: number of these pairs whose printed distances
 * between rotation matrices violate the triangle inequality. */
typedef struct {
    size_t pairs, violated;
} kvd_published_triangle;
kvd_published_triangle kvd_published_triangle_of(const kvd_published_model *m, size_t a, size_t b);

/* Tests whether the numbers epsilon and delta that a paper prints for a model satisfy delta =
 * |epsilon - x|. Returns true if one number x fits all data sets, up to rounding. */
bool kvd_published_one_epsilon(const kvd_published_model *m);

/* A published table prints a pair (epsilon, delta) for each model and data set. A model fits if
 * delta = |epsilon - x| in all its pairs, for one number x.
 *
 * - fits: number of models that fit
 * - expected: mean number of models that fit if the deltas are in random order
 * - probability: probability that at least `fits` models fit if the deltas are in random order */
typedef struct {
    size_t fits;
    double expected, probability;
} kvd_published_fit;
kvd_published_fit kvd_published_fit_of(const kvd_published_table *t);

/* two columns, one in each of two published tables, with equal numbers in most rows */
typedef struct {
    char table[2][64], column[2][64];
    /* shared: number of rows that two published tables have in common. equal: number of these rows
     * whose compared columns have equal digits. */
    size_t shared, equal;
} kvd_published_twin;

/* Finds column pairs, one column in each of two published tables, whose numbers are equal in at
 * least 3/4 of the common rows. At least 4 rows must be common. The caller frees *out. */
int kvd_published_twins(const char *paper, kvd_published_twin **out, size_t *n, kvd_err *err);

/* Two differently named models for which published tables print equal numbers. */
typedef struct {
    char table[2][64], model[2][64];
    size_t numbers;
} kvd_published_double;
int kvd_published_doubles(const char *paper, kvd_published_double **out, size_t *n, kvd_err *err);

#endif
