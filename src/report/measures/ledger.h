/* Ledger of claims: for every figure and table of the papers, the printed number, the measured
 * number and a verdict. The rules are in ledger.csv.
 *
 * Columns of ledger.csv:
 *
 * - id, source, claim: "ZACK Table 4", the place of the claim, the claim in our words
 * - published_table, published_column: table of tables.csv with the published range, and its
 *   column; "*_cv_percent" means all columns with that ending
 * - published_low, published_high: published range if no table gives it
 * - unit: unit of all numbers of the claim
 * - measure, test, limit: a measure (measures.h) and the test of its values (kvd_verdict)
 * - trend_measure, trend_test, trend_limit: likewise, for the verdict "trend holds"
 * - beside: other measures to show, separated by blanks; NAME=UNIT changes the unit
 * - null: range of the measure if the claim were false, as words or "LO:HI words"
 * - setting: models, texts and machines of the paper
 * - rule: the tests in words
 * - needs: programs to run if nothing was measured
 * - cannot: reason why the claim cannot be measured
 *
 * figures.csv lists every figure and table. Its column `because` says why a figure has no claim.
 * Every other figure has a claim, whose id begins with the figure's name.
 *
 * Both files close with the row "end" and the number of rows before it. */
#ifndef KVD_REPORT_MEASURES_LEDGER_H
#define KVD_REPORT_MEASURES_LEDGER_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "report/measures/measures.h"
#include "report/report.h"
#include "report/results.h"

/* Verdict on a claim of a paper. Tests compare a measured value v with a limit L, which is a
 * number, or "low" or "high" for an end of the range that the paper prints. v passes
 *
 * - at-most L: if v <= L; at-least L: if v >= L
 * - within L: if low - L <= v <= high + L
 * - between A:B: if A <= v <= B
 * - above-null, below-null: if v is above (below) the null range, which is expected if the claim is
 *   false
 *
 * Tests loads-at-most, loads-at-least, loads-above-null and loads-below-null are for curves of
 * values over the request rate. A curve passes if its values pass the test without "loads-" at 99 %
 * of the request rates. It is undecided if some rates were not simulated.
 *
 * A value is undecided if a part of its 95 % interval passes and a part fails. A claim passes if
 * all its values (or curves) pass, and fails if one fails. */

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

/* Derives the verdict on a paper's claim from the measured values of the claim (`main`) and of a
 * weaker claim (`trend`). If the paper prints a number:
 *
 * - all values of `main` pass their test: reproduced
 * - otherwise, all values of `trend` pass theirs: trend holds
 * - otherwise, no value of `main` fails, but one is undecided because a part of its 95 % interval
 *   passes: cannot tell
 * - otherwise: not reproduced
 *
 * A value at which the queue of requests grows passes no test.
 *
 * If the paper prints no number, the test must compare with the null range, which is expected if
 * the claim is false: above-null, below-null, loads-above-null or loads-below-null. The verdict is
 * then "holds", "does not hold" or "cannot tell".
 *
 * Fails on an unknown test, or one that needs a published number where the paper prints none. */
int kvd_verdict_judge(const kvd_verdict_rule *rule, const kvd_measured *main,
                      const kvd_measured *trend, kvd_verdict *verdict, kvd_err *err);

/* Returns the fraction of loads from 0.1 to 1 at which a curve of values is between lo and hi.
 * Load: request rate / highest request rate that the baseline method sustains. */
double kvd_share_of_loads(const kvd_measured_value *v, size_t n, double lo, double hi);

/* Tests curves of values over the request rate. *least, *most: smallest and largest fraction of a
 * curve's request rates at which its values pass the test. Returns the number of curves, or 0 if
 * the rule's test does not use request rates. */
size_t kvd_verdict_loads(const kvd_verdict_rule *rule, const kvd_measured *v, double *least,
                         double *most);

typedef struct {
    char *id, *source, *claim, *setting, *rule, *needs, *unit, *cannot;
    double low, high; /* published range; NaN if the paper prints no number */
    size_t n_values;
    double least, most; /* smallest and largest measured value of the claim */
    size_t n_services; /* number of curves over the request rate, one per simulated serving setup */
    /* Fraction of the simulated request rates at which the claim holds: smallest and largest over
     * the simulated serving setups (such as model and method). */
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

/* Judges every claim of ledger.csv, and fills *out. Fails if a figure of the papers has neither a
 * claim in ledger.csv nor a stated reason for having none. */
int kvd_ledger_judge(const char *paper, const kvd_results *r, kvd_ledger *out, kvd_err *err);
void kvd_ledger_release(kvd_ledger *l);

void kvd_ledger_section(const kvd_ledger *l, const kvd_results *r, kvd_report *report);

/* Writes a text such as "104 figures and tables of the papers: 40 measured here, ...". */
void kvd_figure_counts_say(const kvd_figure_counts *c, char *buf, size_t size);

/* Writes the range of a claim's measured values, such as "-20 to -3 %, at 35 % of the loads"
 * (request rates at which the claim holds). */
void kvd_ledger_ours(const kvd_ledger_entry *e, char *buf, size_t size);

/* Writes a published range, such as "0.07 to 0.351 %", or "none printed" for NaN. */
void kvd_ledger_range(double low, double high, const char *unit, char *buf, size_t size);

/* Largest number of data sets in a published table. For the rotation matrix R calibrated on each
 * data set, the table prints epsilon (mean |R_ij| over elements) and delta (mean |R_ij - S_ij|,
 * where S is a reference data set's rotation). */

enum { KVD_MOST_DATASETS = 6 };

/* number printed in a paper, and half a unit of its last digit, which bounds its rounding error */
typedef struct {
    double value, half;
} kvd_printed;

/* language model in a published table, with the numbers printed for n data sets */
typedef struct {
    char model[64];
    char dataset[KVD_MOST_DATASETS][32];
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

/* Number of pairs of data sets, and of pairs whose printed numbers cannot all be right, because
 * |epsilon_a - epsilon_b| > delta_a + delta_b. epsilon: mean |R_ij| of the rotation R of a data
 * set; delta: mean |R_ij - S_ij|, where S is a reference's rotation. */
typedef struct {
    size_t pairs, violated;
} kvd_published_triangle;
kvd_published_triangle kvd_published_triangle_of(const kvd_published_model *m, size_t a, size_t b);

/* For each data set of a model, a paper prints numbers epsilon and delta. Returns true if one
 * number x makes every delta |epsilon - x|, up to rounding: delta may then be a difference of
 * means, contrary to the paper's definition. */
bool kvd_published_one_epsilon(const kvd_published_model *m);

/* A table prints numbers epsilon and delta for each data set. A model fits if one number x makes
 * every delta |epsilon - x|. Models that fit, number expected to fit if deltas were randomly
 * ordered, and probability of at least as many fits. */
typedef struct {
    size_t fits;
    double expected, probability;
} kvd_published_fit;
kvd_published_fit kvd_published_fit_of(const kvd_published_table *t);

/* two columns of different published tables that have equal digits in most rows */
typedef struct {
    char table[2][64], column[2][64];
    /* number of rows of data that both tables have, and number of these rows in which both columns
     * print equal digits */
    size_t shared, equal;
} kvd_published_twin;

/* Finds pairs of columns of two published tables that print equal digits in at least 3/4 of their
 * common rows, if at least 4 rows are common. The caller frees *out. */
int kvd_published_twins(const char *paper, kvd_published_twin **out, size_t *n, kvd_err *err);

/* Two differently named models for which published tables print equal numbers. */
typedef struct {
    char table[2][64], model[2][64];
    size_t numbers;
} kvd_published_double;
int kvd_published_doubles(const char *paper, kvd_published_double **out, size_t *n, kvd_err *err);

#endif
