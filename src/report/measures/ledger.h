/*
 * The ledger of claims: for every figure and table of the papers that these programs reproduce, the
 * claim of the paper, the printed number, the measured number, and a verdict that follows from a
 * rule. The claims and rules are lines of ledger.csv, next to the published tables; no verdict is
 * in the code.
 *
 * Columns of ledger.csv:
 *
 *   id, source, claim       "ZACK Table 4", the place of the claim, the claim in our words
 *   published_table         table of tables.csv that gives the range, or empty
 *   published_column        column of that table; "*_cv_percent" names all columns with that ending
 *   published_low, _high    the published range if no table gives it
 *   unit                    unit of all numbers of the claim
 *   measure, test, limit    a measure of measures.h, and the test of the verdict (below)
 *   trend_measure           measure of the verdict "trend holds"; trend_test and trend_limit
 *                           likewise
 *   beside                  additional measures to show, separated by blanks; NAME=UNIT if the unit
 *                           is another one
 *   null                    if the paper prints no number: the range of the measure if the claim
 *                           were false, in words; "LO:HI words" gives the range for values whose
 *                           measure does not compute one
 *   setting                 models, texts and machines of the paper
 *   rule                    the tests in words
 *   needs                   programs to run if nothing was measured
 *   cannot                  reason why the claim cannot be measured; the measure may then be empty
 *
 * figures.csv lists every figure and table of the papers in the columns figure, title and because.
 * `because` says why a figure has no claim in ledger.csv: it is a drawing, or a list of settings.
 * Every other figure must have a claim, whose id begins with the figure's name.
 */
#ifndef KVD_REPORT_MEASURES_LEDGER_H
#define KVD_REPORT_MEASURES_LEDGER_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"
#include "report/measures/measures.h"
#include "report/report.h"
#include "report/results.h"

/*
 * Verdicts on measured values: a claim of a paper holds, does not hold, or cannot be told apart
 * from its opposite.
 *
 * A test takes a limit L: a number, or "low" or "high" for that end of the published range. A
 * measured value v passes:
 *   at-most L, at-least L      if v <= L, if v >= L
 *   within L                   if low - L <= v <= high + L, the published range widened by L
 *   between A:B                if A <= v <= B
 *   loads-at-most L, loads-at-least L
 *                              likewise for curves over the load (request rate / baseline's highest
 *                              rate), at 99 % of the loads at least; undecided if it passes at all
 *                              simulated loads, but fewer were simulated
 *   above-null, below-null     if v is above (below) the range that it would have if the claim were
 *                              false
 *
 * A value with a 95 % interval passes if the whole interval does, fails if none of it does, and is
 * undecided otherwise. Without an interval the value itself counts. A claim passes if every value
 * does, and fails if any value fails.
 */

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
/*
 * Text of each verdict on the page: "reproduced", "holds", "trend holds", "cannot tell", "not
 * reproduced", ...
 */
extern const char *const kvd_verdict_name[KVD_N_VERDICTS];
/*
 * Returns the number of the colour in which the page shows a verdict: 0 good, 1 partly good, 2 bad,
 * 3 not measured.
 */
int kvd_verdict_colour(kvd_verdict v);

typedef struct {
    const char *test, *limit, *trend_test, *trend_limit;
    double low, high; /* published range; NaN if the paper prints no number */
} kvd_verdict_rule;

/*
 * Derives the verdict on a claim of a paper. `main` holds the measured values of the claim. `trend`
 * holds those of a weaker form of the claim, its trend (such as a direction instead of a number).
 *
 * If the paper prints a number, the verdict is "reproduced" if the values of the claim pass the
 * test, else "trend holds" if those of the trend pass theirs, else "cannot tell" if the test is
 * undecided, else "not reproduced". A value at which the queue of requests grows passes no test.
 *
 * If the paper prints no number, the test must be "above-null" or "below-null". It compares a value
 * with the range that is expected if the claim is false. The verdict is "holds" if every value is
 * on the claimed side of that range. It is "does not hold" if a value is on the opposite side, else
 * "cannot tell".
 *
 * Fails for an unknown test, and for a test that does not fit the published range.
 */
int kvd_verdict_judge(const kvd_verdict_rule *rule, const kvd_measured *main,
                      const kvd_measured *trend, kvd_verdict *verdict, kvd_err *err);

/*
 * Returns the fraction of the loads at which a curve is between lo and hi. A load is a request rate
 * / the highest rate that the baseline sustains; loads from 0.1 to 1 count. `v` are the n values of
 * one curve by rising load, interpolated linearly. Loads that were not measured, or at which the
 * queue of requests grows, count as outside.
 */
double kvd_share_of_loads(const kvd_measured_value *v, size_t n, double lo, double hi);

/*
 * If the rule's test is "loads-at-most" or "loads-at-least", computes, for each curve in `v`, the
 * fraction of loads (request rate / the baseline's highest rate) at which the curve passes the
 * test. Writes the smallest and the largest of these fractions to *least and *most, and returns the
 * number of curves. For other tests returns 0.
 */
size_t kvd_verdict_loads(const kvd_verdict_rule *rule, const kvd_measured *v, double *least,
                         double *most);

typedef struct {
    char *id, *source, *claim, *setting, *rule, *needs, *unit, *cannot;
    double low, high; /* published range; NaN if the paper prints no number */
    size_t n_values;
    double least, most; /* smallest and largest measured value of the claim */
    /*
     * Number of curves (measured value over the request rate) on which the claim was tested. There
     * is one for each serving setup that was simulated over a range of request rates.
     */
    size_t n_services;
    /*
     * A load is a request rate / the highest rate that the baseline sustains. Each simulated
     * serving setup gives a curve of measured values over the load. The claim holds at some
     * fraction of a curve's loads; these are the smallest and the largest such fraction over all
     * curves.
     */
    double least_loads, most_loads;
    /*
     * Measured values over the request rate, one curve per simulated serving setup, for a figure.
     * Empty if nothing was simulated over a range of rates.
     */
    kvd_measured values;
    /*
     * Measured values of the claim as text, followed by those of its additional measures (column
     * `beside` of ledger.csv).
     */
    kvd_text ours;
    kvd_verdict verdict;
} kvd_ledger_entry;

/* Counts of the papers' figures and tables, by how far the ledger measures them. */
typedef struct {
    size_t n; /* number of figures and tables listed in figures.csv */
    /*
     * Figures and tables of the papers with a claim that the result files of this report measure.
     */
    size_t measured;
    /* Figures and tables with claims, none of which the result files of this report measure. */
    size_t unmeasured;
    size_t cannot;  /* figures whose claims cannot be measured, with a reason */
    size_t nothing; /* figures that make no measurable claim */
} kvd_figure_counts;

typedef struct {
    kvd_ledger_entry *entry;
    size_t n;
    kvd_figure_counts figures;
} kvd_ledger;

/*
 * Reads the claims in PAPER/ledger.csv, the published tables that they name and PAPER/figures.csv,
 * measures every claim and derives its verdict. Fails if a figure has neither a claim nor a reason
 * for having none.
 */
int kvd_ledger_judge(const char *paper, const kvd_results *r, kvd_ledger *out, kvd_err *err);
void kvd_ledger_release(kvd_ledger *l);

/*
 * Adds the report section with the table of claims, the counts of verdicts, and the ways in which
 * all measurements differ from the papers'.
 */
int kvd_ledger_section(const kvd_ledger *l, const kvd_results *r, kvd_report *report, kvd_err *err);

/*
 * Writes a summary of the counts into `buf`: "104 figures and tables of the papers: 40 measured
 * here, ...".
 */
void kvd_figure_counts_say(const kvd_figure_counts *c, char *buf, size_t size);

/* Writes the measured range of a claim into `buf`, such as "-20 to -3 %, at 35 % of the loads". */
void kvd_ledger_ours(const kvd_ledger_entry *e, char *buf, size_t size);

/* Writes a published range into `buf`: "0.07 to 0.351 %", or "none printed" if it is NaN. */
void kvd_ledger_range(double low, double high, const char *unit, char *buf, size_t size);

/*
 * Checks of the published tables of epsilon and delta for consistency, from data/paper/tables.csv
 * alone (ZACK Tables 4 and 5, FDC Table 2). Epsilon is the mean absolute entry of a rotation, delta
 * the mean absolute difference from the rotation of a reference text. Also finds columns that
 * several tables share.
 */

enum { KVD_MOST_DATASETS = 6 };

/* A number as a paper prints it: its value, and half a unit of its last digit (rounding error). */
typedef struct {
    double value, half;
} kvd_printed;

/*
 * One model in a table of the ZACK or FDC paper, with two numbers for each of n datasets. epsilon
 * is the mean absolute element of the rotations R computed from the dataset. delta is printed as
 * the mean absolute difference between R and the rotations of a reference dataset.
 */
typedef struct {
    char model[64];
    char dataset[KVD_MOST_DATASETS][32];
    kvd_printed epsilon[KVD_MOST_DATASETS], delta[KVD_MOST_DATASETS];
    size_t n;
} kvd_published_model;

typedef struct {
    char name[64]; /* name in tables.csv, such as "zack_table04_qk_eps_delta" */
    kvd_published_model *model;
    size_t n;
} kvd_published_table;

/*
 * Reads a table of epsilon and delta from tables.csv in the folder `paper`. Entries printed as N/A
 * are left out. The caller releases `*out`, also on failure.
 */
int kvd_published_load(const char *paper, const char *name, kvd_published_table *out, kvd_err *err);
void kvd_published_release(kvd_published_table *t);

/*
 * Test if the published numbers of a model can be correct. Let R_ref be the rotations of the
 * reference dataset, epsilon_a the mean of |R_a| for dataset a, and delta_a the mean of |R_ref -
 * R_a|, as the papers define it. Then every two datasets a and b satisfy the triangle inequality
 * |epsilon_a - epsilon_b| <= delta_a + delta_b. `pairs` counts the combinations of two datasets,
 * `violated` those that violate it by more than rounding explains.
 */
typedef struct {
    size_t pairs, violated;
} kvd_published_triangle;
kvd_published_triangle kvd_published_triangle_of(const kvd_published_model *m, size_t a, size_t b);

/*
 * Tests another definition of delta than the papers give. R is the rotation of a dataset, and
 * epsilon the mean of its absolute elements |R|. The papers define delta as the mean of |R -
 * R_ref|, where R_ref is the rotation of a reference dataset. Returns true if the model's printed
 * numbers agree with delta = |epsilon - epsilon_ref| within rounding, for one unknown number
 * epsilon_ref and all datasets of the model.
 */
bool kvd_published_one_epsilon(const kvd_published_model *m);

/*
 * Result of a test of a whole published table: how many models fit the definition of delta that
 * kvd_published_one_epsilon tests, and how many would by chance. `fits` is the number of models for
 * which that function returns true. For comparison, the printed deltas of each model are assigned
 * to its datasets in every possible order. `expected` is the average number of models for which the
 * function then returns true. `probability` is the probability that it does for `fits` models or
 * more.
 */
typedef struct {
    size_t fits;
    double expected, probability;
} kvd_published_fit;
kvd_published_fit kvd_published_fit_of(const kvd_published_table *t);

/*
 * Two columns of different published tables that hold equal numbers, digit for digit, in most of
 * the lines that both tables have. A line is one model, or one model and dataset.
 */
typedef struct {
    char table[2][64], column[2][64];
    /*
     * Number of lines (models and datasets) that both tables have, and number of those in which the
     * two columns have equal digits.
     */
    size_t shared, equal;
} kvd_published_twin;

/*
 * Finds columns that two published tables in folder PAPER share: at least four lines are in both
 * tables, and in at least three of four the columns are equal digit for digit. Lines are matched by
 * their leading texts (model, and dataset if there is one). Tables whose name contains "traces" are
 * left out. The caller frees *out.
 */
int kvd_published_twins(const char *paper, kvd_published_twin **out, size_t *n, kvd_err *err);

/*
 * Two models with different names in two published tables that have equal numbers. `numbers` counts
 * the equal numbers.
 */
typedef struct {
    char table[2][64], model[2][64];
    size_t numbers;
} kvd_published_double;
int kvd_published_doubles(const char *paper, kvd_published_double **out, size_t *n, kvd_err *err);

#endif
