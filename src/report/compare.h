/* Two sets of results side by side: rows that measure the same thing, and whether they differ. */
#ifndef KVD_REPORT_COMPARE_H
#define KVD_REPORT_COMPARE_H

#include "report/report.h"
#include "report/results.h"

/* One measured number with what it measures. */
typedef struct {
    char key[2 * KVD_LABEL + 128]; /* schema, labels, method, p ...: equal in two sets when comparable */
    char quantity[48];
    double value, lo, hi; /* lo, hi: 95 % interval, NaN without one */
} kvd_observation;

typedef struct {
    kvd_observation *item;
    size_t n;
} kvd_observations;

/* What a set of results measures, in the order of its files. */
int kvd_observe(const kvd_results *r, kvd_observations *out, kvd_err *err);
void kvd_observations_release(kvd_observations *o);

/*
 * Verdict of one pair of numbers: "inside" when each lies in the other's interval or, with one interval, in
 * that one; "outside" otherwise. Without intervals: "equal" to nine digits, else "differs".
 */
const char *kvd_compare_verdict(const kvd_observation *a, const kvd_observation *b);

/*
 * The section with the table of matching rows, and lines that say where gpu, cpu or git_revision of the two
 * sets differ. *n_outside: rows "outside" or "differs". Fails when no row of the sets matches.
 */
int kvd_compare_section(const kvd_results *a, const kvd_results *b, kvd_report *report, size_t *n_outside,
                        kvd_err *err);

#endif
