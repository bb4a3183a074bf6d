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

/* Verdict on a claim. A limit L is a number, or "low" or "high", an end of the published range. A
 * measured value v passes:
 *
 * - at-most L, at-least L: if v <= L, v >= L
 * - within L: if low - L <= v <= high + L
 * - between A:B: if A <= v <= B
 * - loads-at-most L, loads-at-least L: if a curve passes at 99 % of its loads (request rate /
 *   highest rate of the baseline); undecided if some loads were not simulated
 * - above-null, below-null: if v is above (below) the range expected if the claim is false
 * - loads-above-null, loads-below-null: likewise, at 99 % of a curve's loads
 *
 * A value whose 95 % interval passes only in part is undecided. A claim passes if every value
 * passes, and fails if any value fails. */

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
/* Returns 0 for good, 1 partly good, 2 bad, 3 not measured. */
int kvd_verdict_colour(kvd_verdict v);

typedef struct {
    const char *test, *limit, *trend_test, *trend_limit;
    double low, high; /* published range; NaN if the paper prints no number */
} kvd_verdict_rule;

/* Derives the verdict on a paper's claim from the measured values of the claim (`main`) and of a
 * weaker claim (`trend`). If the paper prints a number:
 *
 * - all values of `main` pass their test: reproduced
 * - otherwise, all values of `trend` pass: trend holds
 * - otherwise, no value of `main` fails but one is undecided (its 95 % interval passes only in
 *   part): cannot tell
 * - otherwise: not reproduced
 *
 * A value at which the queue of requests grows passes no test. If the paper prints no number, the
 * test must be above-null or below-null, or one of these with loads- (null: range that is expected
 * if the claim is false), and the verdict is "holds", "does not hold" or "cannot tell".
 *
 * Fails on an unknown test, or one that needs a published number where the paper prints none. */
int kvd_verdict_judge(const kvd_verdict_rule *rule, const kvd_measured *main,
                      const kvd_measured *trend, kvd_verdict *verdict, kvd_err *err);

/* Returns the fraction of loads 0.1 to 1 at which a curve is between lo and hi. A load is a request
 * rate / the baseline's highest. */
double kvd_share_of_loads(const kvd_measured_value *v, size_t n, double lo, double hi);

/* Returns the number of curves over the load (request rate), or 0 if the rule does not test loads.
 * *least, *most: smallest and largest fraction of a curve's loads at which its value passes the
 * test. */
size_t kvd_verdict_loads(const kvd_verdict_rule *rule, const kvd_measured *v, double *least,
                         double *most);

typedef struct {
    char *id, *source, *claim, *setting, *rule, *needs, *unit, *cannot;
    double low, high; /* published range; NaN if the paper prints no number */
    size_t n_values;
    double least, most; /* smallest and largest measured value of the claim */
    size_t n_services; /* number of curves over the request rate, one per simulated serving setup */
    /* smallest and largest fraction of request rates, over setups, at which the claim holds */
    double least_loads, most_loads;
    kvd_measured values; /* measured values over the request rate, one curve per serving setup */
    /* measured values as text */
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

/* Judges every claim of ledger.csv. Fails if a figure has neither claims nor a reason for none. */
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

/* Largest number of data sets in a published table. The table gives numbers epsilon and delta for
 * the rotation matrix R of each data set: mean |R| and mean |R - R_ref|. */

enum { KVD_MOST_DATASETS = 6 };

/* a printed number, and half of its last digit's place value */
typedef struct {
    double value, half;
} kvd_printed;

/* a model of a published table, with numbers for n data sets */
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

/* Reads a published table. The caller releases *out, also on failure. */
int kvd_published_load(const char *paper, const char *name, kvd_published_table *out, kvd_err *err);
void kvd_published_release(kvd_published_table *t);

/* Number of pairs of data sets, and of pairs whose printed numbers contradict each other:
 * |epsilon_a - epsilon_b| > delta_a + delta_b. epsilon: mean |R| of a rotation; delta: mean |R -
 * R_ref|. */
typedef struct {
    size_t pairs, violated;
} kvd_published_triangle;
kvd_published_triangle kvd_published_triangle_of(const kvd_published_model *m, size_t a, size_t b);

/* Returns true if one number x explains a model's published rows: within rounding, each delta is
 * |epsilon - x|, as if it were a difference of means. */
bool kvd_published_one_epsilon(const kvd_published_model *m);

/* number of models that fit, number expected to fit if deltas were in random order, and probability
 * that at least this number fits; a model fits if one number x makes each of its published deltas
 * |epsilon - x| */
typedef struct {
    size_t fits;
    double expected, probability;
} kvd_published_fit;
kvd_published_fit kvd_published_fit_of(const kvd_published_table *t);

/* two columns of published tables with mostly equal digits */
typedef struct {
    char table[2][64], column[2][64];
    /* number of rows that both tables have, and of those in which the columns print equal digits */
    size_t shared, equal;
} kvd_published_twin;

/* Finds columns of two tables that agree in most of 4 or more rows. The caller frees *out. */
int kvd_published_twins(const char *paper, kvd_published_twin **out, size_t *n, kvd_err *err);

/* two models of different names with equal numbers in published tables */
typedef struct {
    char table[2][64], model[2][64];
    size_t numbers;
} kvd_published_double;
int kvd_published_doubles(const char *paper, kvd_published_double **out, size_t *n, kvd_err *err);

#endif
