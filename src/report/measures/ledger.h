/*
 * The ledger of claims: for every figure and table of the papers, the claim, the printed number,
 * the measured number, and a verdict that follows from a rule. Claims and rules are lines of
 * ledger.csv; no verdict is in the code.
 *
 * Columns of ledger.csv:
 *
 *   id, source, claim       "ZACK Table 4", the place of the claim, the claim in our words
 *   published_table         table of tables.csv that gives the published range, or empty
 *   published_column        column of that table; "*_cv_percent" names all columns with that ending
 *   published_low, _high    published range if no table gives it
 *   unit                    unit of all numbers of the claim
 *   measure, test, limit    a measure (measures.h) and the test of its values (kvd_verdict)
 *   trend_measure, trend_test, trend_limit
 *                           likewise, for the verdict "trend holds"
 *   beside                  other measures to show, separated by blanks; NAME=UNIT changes the unit
 *   null                    if the paper prints no number: the range of the measure if the claim
 *                           were false, as words or "LO:HI words"; LO:HI is used for values whose
 *                           measure computes no range
 *   setting                 models, texts and machines of the paper
 *   rule                    the tests in words
 *   needs                   programs to run if nothing was measured
 *   cannot                  reason why the claim cannot be measured; measure may then be empty
 *
 * figures.csv lists every figure and table of the papers in the columns figure, title and because.
 * `because` is the reason why a figure has no claim in ledger.csv. Every other figure must have a
 * claim, whose id begins with the figure's name.
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
 * Verdict on a claim of a paper. A test takes a limit L: a number, or "low" or "high", which means
 * the lower or upper end of the published range. A measured value v passes:
 *
 *   at-most L, at-least L    if v <= L, if v >= L
 *   within L                 if low - L <= v <= high + L
 *   between A:B              if A <= v <= B
 *   loads-at-most L, loads-at-least L
 *                            if a curve passes at 99 % of its loads (request rate / highest rate of
 *                            the baseline); undecided if it passes at all simulated loads but
 *                            loads are missing
 *   above-null, below-null   if v is above (below) its range if the claim were false
 *
 * A value with a 95 % interval passes if the whole interval passes, and fails if none of the
 * interval passes. Otherwise the value is undecided. Without an interval the value itself counts. A
 * claim passes if every value passes, and fails if any value fails.
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
extern const char *const kvd_verdict_name[KVD_N_VERDICTS];
/* Returns the colour of a verdict: 0 good, 1 partly good, 2 bad, 3 not measured. */
int kvd_verdict_colour(kvd_verdict v);

typedef struct {
    const char *test, *limit, *trend_test, *trend_limit;
    double low, high; /* published range; NaN if the paper prints no number */
} kvd_verdict_rule;

/*
 * Derives the verdict from the values of a claim (`main`) and of a weaker form of the claim
 * (`trend`), such as a direction instead of a number. If the paper prints a number, the first true
 * line gives the verdict:
 *
 *   main passes         reproduced
 *   trend passes        trend holds
 *   main is undecided   cannot tell
 *   otherwise           not reproduced
 *
 * A value at which the queue of requests grows passes no test. A test over loads is undecided if it
 * fails at no load, but some loads were not simulated, or the queue of requests grows at a load. If
 * the paper prints no number, the test must be "above-null" or "below-null". The verdict is then
 * "holds" if every value is on the claimed side of the range, "does not hold" if a value is on the
 * opposite side, else "cannot tell".
 *
 * Fails for an unknown test, and for a test that does not fit the published range.
 */
int kvd_verdict_judge(const kvd_verdict_rule *rule, const kvd_measured *main,
                      const kvd_measured *trend, kvd_verdict *verdict, kvd_err *err);

/*
 * Returns the fraction of the loads from 0.1 to 1 at which the curve `v` is between lo and hi. A
 * load is a request rate divided by the highest rate of the baseline. The curve consists of n
 * values by rising load, between which it is a straight line. Loads that were not measured, or at
 * which the queue of requests grows, count as outside.
 */
double kvd_share_of_loads(const kvd_measured_value *v, size_t n, double lo, double hi);

/*
 * For the tests "loads-at-most" and "loads-at-least", returns the number of curves (values of a
 * measure by load) in `v`. *least and *most receive the smallest and largest fraction of the loads
 * (relative request rates) at which one of these curves passes the test. For other tests returns 0.
 */
size_t kvd_verdict_loads(const kvd_verdict_rule *rule, const kvd_measured *v, double *least,
                         double *most);

typedef struct {
    char *id, *source, *claim, *setting, *rule, *needs, *unit, *cannot;
    double low, high; /* published range; NaN if the paper prints no number */
    size_t n_values;
    double least, most; /* smallest and largest measured value of the claim */
    /*
     * Number of curves over the request rate on which the claim was tested, one for each simulated
     * serving setup.
     */
    size_t n_services;
    /*
     * Smallest and largest fraction of loads (request rate / highest rate of the baseline) at which
     * the claim holds, over all curves.
     */
    double least_loads, most_loads;
    /*
     * Measured values over the request rate, one curve per simulated serving setup; empty if there
     * are none.
     */
    kvd_measured values;
    /*
     * Measured values as text, followed by those of the measures in column `beside` of ledger.csv.
     */
    kvd_text ours;
    kvd_verdict verdict;
} kvd_ledger_entry;

typedef struct {
    size_t n;
    /* Number of figures with a claim that was measured in the result files. */
    size_t measured;
    /* Number of figures with claims, none of which was measured in the result files. */
    size_t unmeasured;
    size_t cannot;  /* number of figures whose claims cannot be measured */
    size_t nothing; /* number of figures that have no claim in ledger.csv */
} kvd_figure_counts;

typedef struct {
    kvd_ledger_entry *entry;
    size_t n;
    kvd_figure_counts figures;
} kvd_ledger;

/*
 * Reads ledger.csv, tables.csv and figures.csv of the folder `paper`, measures every claim and
 * derives its verdict. Fails if a figure has neither a claim nor a reason for having none.
 */
int kvd_ledger_judge(const char *paper, const kvd_results *r, kvd_ledger *out, kvd_err *err);
void kvd_ledger_release(kvd_ledger *l);

/*
 * Adds the section on the claims of the papers: the claims with their verdicts, the counts of
 * verdicts, and the ways in which the papers' measurements differ from all measurements made here.
 */
int kvd_ledger_section(const kvd_ledger *l, const kvd_results *r, kvd_report *report, kvd_err *err);

/* Writes a summary such as "104 figures and tables of the papers: 40 measured here, ...". */
void kvd_figure_counts_say(const kvd_figure_counts *c, char *buf, size_t size);

/* Writes the measured range, such as "-20 to -3 %, at 35 % of the loads". */
void kvd_ledger_ours(const kvd_ledger_entry *e, char *buf, size_t size);

/* Writes a range such as "0.07 to 0.351 %", or "none printed" if both ends are NaN. */
void kvd_ledger_range(double low, double high, const char *unit, char *buf, size_t size);

/*
 * Checks of the published tables for consistency (ZACK Tables 4 and 5, FDC Table 2). R is the
 * rotation computed from a dataset, R_ref that of a reference dataset. Epsilon is the mean absolute
 * element of R, and delta the mean absolute element of R - R_ref.
 */

enum { KVD_MOST_DATASETS = 6 };

/* A printed number, and half a unit of its last digit (rounding error). */
typedef struct {
    double value, half;
} kvd_printed;

/* One model in a published table, with n datasets. */
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

/*
 * Reads a table of epsilon and delta from tables.csv in the folder `paper`. Entries printed as N/A
 * are left out. The caller releases *out, also on failure.
 */
int kvd_published_load(const char *paper, const char *name, kvd_published_table *out, kvd_err *err);
void kvd_published_release(kvd_published_table *t);

/*
 * Every two datasets a and b must satisfy |epsilon_a - epsilon_b| <= delta_a + delta_b. `pairs` is
 * the number of combinations of two datasets. `violated` is the number of those that break the
 * inequality by more than the rounding of the printed numbers.
 */
typedef struct {
    size_t pairs, violated;
} kvd_published_triangle;
kvd_published_triangle kvd_published_triangle_of(const kvd_published_model *m, size_t a, size_t b);

/*
 * Returns true if there is a number x for which, within rounding, delta = |epsilon - x| for every
 * dataset. Epsilon is the mean absolute element of the dataset's rotation R. The papers define
 * delta differently, as the mean absolute element of R - R_ref.
 */
bool kvd_published_one_epsilon(const kvd_published_model *m);

/*
 * `fits` is the number of models whose printed deltas kvd_published_one_epsilon explains.
 * `expected` is the mean number of such models if the deltas of each model were put in random
 * order. `probability` is the chance that it is then at least `fits`.
 */
typedef struct {
    size_t fits;
    double expected, probability;
} kvd_published_fit;
kvd_published_fit kvd_published_fit_of(const kvd_published_table *t);

/*
 * Two columns of different published tables that hold equal numbers, digit for digit, in most of
 * the lines that both tables have.
 */
typedef struct {
    char table[2][64], column[2][64];
    /*
     * Number of lines (models and datasets) that both tables have, and number of lines with equal
     * digits.
     */
    size_t shared, equal;
} kvd_published_twin;

/*
 * Finds equal columns in two published tables. At least four lines must be in both tables, and at
 * least three quarters of these lines must be equal. Lines are matched by model and dataset. Tables
 * with "traces" in their name, which hold lengths of requests, are left out. The caller frees *out.
 */
int kvd_published_twins(const char *paper, kvd_published_twin **out, size_t *n, kvd_err *err);

/*
 * Two models that have different names in two published tables, but the same numbers. `numbers` is
 * the number of equal numbers.
 */
typedef struct {
    char table[2][64], model[2][64];
    size_t numbers;
} kvd_published_double;
int kvd_published_doubles(const char *paper, kvd_published_double **out, size_t *n, kvd_err *err);

#endif
