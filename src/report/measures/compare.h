/*
 * Compares two sets of results: finds rows that measure the same quantity, and judges whether they
 * differ.
 */
#ifndef KVD_REPORT_MEASURES_COMPARE_H
#define KVD_REPORT_MEASURES_COMPARE_H

#include "report/report.h"
#include "report/results.h"

/* One measured number with what it measures. */
typedef struct {
    /* schema, labels, method, p, ...; two numbers are comparable if their keys are equal */
    char key[2 * KVD_LABEL + 128];
    char quantity[48];
    double value, lo, hi; /* lo, hi: 95 % interval, NaN without one */
} kvd_observation;

typedef struct {
    kvd_observation *item;
    size_t n;
} kvd_observations;

/*
 * Returns the verdict on two numbers. "inside": each is in the interval of the other, or, if only
 * one number has an interval, the other number is in it; "outside" otherwise. Without intervals:
 * "equal" to nine digits, else "differs".
 */
const char *kvd_compare_verdict(const kvd_observation *a, const kvd_observation *b);

/*
 * Adds the section with the table of matching rows and with lines that name differences in gpu, cpu
 * or git_revision between the sets. *n_outside is the number of rows with the verdict "outside" or
 * "differs". Fails if no row of one set matches a row of the other.
 */
int kvd_compare_section(const kvd_results *a, const kvd_results *b, kvd_report *report,
                        size_t *n_outside, kvd_err *err);

#endif
