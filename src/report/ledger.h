/*
 * The ledger: every figure and table of the papers that these programs reproduce, what the paper claims,
 * the number it prints, ours, and a verdict that follows from a rule. Claims and rules are rows of
 * ledger.csv beside the published tables; nothing here knows a verdict.
 *
 * Columns of ledger.csv:
 *   id, source, claim       "ZACK Table 4", where the claim stands, what it says in our words
 *   published_csv           published table to take the range from, or empty
 *   published_column        its column; "*_cv_percent" stands for every column that ends so
 *   published_low, _high    the numbers, where no table has them
 *   unit                    of all numbers of the row
 *   measure, test, limit    a measure of measures.h and what makes the verdict "reproduced"
 *   trend_measure, trend_test, trend_limit   the same for "trend holds"
 *   beside                  measures that are shown beside, separated by blanks
 *   setting                 what the paper measured on
 *   rule                    the tests in words
 *   needs                   what has to be run when nothing was measured
 *
 * Tests hold when every measured value v satisfies
 *   at-most L      v <= L             at-least L     v >= L
 *   within L       low - L <= v <= high + L, the published range widened by L
 *   between A:B    A <= v <= B
 * L may be "high" or "low": that end of the published range. An empty test never holds.
 */
#ifndef KVD_REPORT_LEDGER_H
#define KVD_REPORT_LEDGER_H

#include "report/report.h"
#include "report/results.h"

typedef enum { KVD_REPRODUCED, KVD_TREND_HOLDS, KVD_NOT_REPRODUCED, KVD_NOT_MEASURED } kvd_verdict;
/* "reproduced", "trend holds", "not reproduced", "not measured" */
extern const char *const kvd_verdict_name[4];

typedef struct {
    char *id, *source, *claim, *setting, *rule, *needs, *unit;
    double low, high; /* published; NaN: the paper prints no number */
    size_t n_values;
    double least, most; /* ours */
    kvd_text ours;      /* in words, with the measures beside      */
    kvd_verdict verdict;
} kvd_ledger_entry;

typedef struct {
    kvd_ledger_entry *entry;
    size_t n;
} kvd_ledger;

/* Reads PAPER/ledger.csv and the published tables that it names, measures, judges. */
int kvd_ledger_judge(const char *paper, const kvd_results *r, kvd_ledger *out, kvd_err *err);
void kvd_ledger_release(kvd_ledger *l);

/* The section with the table, the counts, and the departures common to all entries. */
int kvd_ledger_section(const kvd_ledger *l, const kvd_results *r, kvd_report *report, kvd_err *err);

/* "0.07 to 0.351 %", "none printed" */
void kvd_ledger_range(double low, double high, const char *unit, char *buf, size_t size);

#endif
