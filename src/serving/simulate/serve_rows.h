/* Turns simulations into rows of the results table kvdim/serving, and prints them. */
#ifndef KVD_SERVING_SIMULATE_SERVE_ROWS_H
#define KVD_SERVING_SIMULATE_SERVE_ROWS_H

#include "serving/simulate/serve_point.h"

/* Values that are equal in all rows of one method in the results table. */
typedef struct {
    const char *method, *trace;
    const kvd_serve_setting *setting;
    /*
     * Bytes of a GPU's memory, and bytes of it that are not used. If `memory` is NaN, the cache has
     * the size that it had in the measurement.
     */
    double memory, reserve;
    size_t skipped;
} kvd_serve_about;

typedef struct {
    /* Name of the compared time and of its statistic, such as "TTFT" and "mean". */
    const char *quantity, *statistic;
    double measured, simulated; /* in seconds */
} kvd_serve_comparison;

/*
 * Adds the result row of a simulation. If `bound` is NaN, the kind of the row is "point". Otherwise
 * its kind is "max-rate", and `bound` is the greatest mean latency allowed, in seconds per output
 * token.
 */
int kvd_serve_add_point(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                        double bound, kvd_err *err);
/*
 * Adds a result row of kind "validation", which compares times measured by kvdim-jct (in *c) with
 * *p, the simulation of the same requests.
 */
int kvd_serve_add_comparison(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                             const kvd_serve_comparison *c, kvd_err *err);

enum { KVD_SERVE_LINE = 320 };
/*
 * The headings name the columns of the printed tables. kvd_serve_line formats one table row into
 * `line`, and returns `line`.
 */
extern const char kvd_serve_heading[], kvd_serve_comparison_heading[];
const char *kvd_serve_line(const kvd_rows *rows, size_t row, char line[KVD_SERVE_LINE]);

#endif
