/*
 * Turns the results of simulations into lines of the results table of schema kvdim/serving, and
 * prints them.
 */
#ifndef KVD_SERVING_SIMULATE_SERVE_ROWS_H
#define KVD_SERVING_SIMULATE_SERVE_ROWS_H

#include "serving/simulate/serve_point.h"

/* Values that are equal in all lines of one method in the results table. */
typedef struct {
    const char *method, *trace;
    const kvd_serve_setting *setting;
    /*
     * Memory of one GPU, and part of it that is not used, in bytes. If `memory` is NaN, the cache
     * has the size that it had in the measurement.
     */
    double memory, reserve;
    size_t skipped; /* number of requests of the trace that were left out */
} kvd_serve_about;

typedef struct {
    /* Name of the compared time and of its statistic: "TTFT", "mean". */
    const char *quantity, *statistic;
    double measured, simulated; /* measured and simulated value of the statistic, in seconds */
} kvd_serve_comparison;

/*
 * Adds a simulation to the results table. If `bound` is NaN, the line is of kind "point". Otherwise
 * it is of kind "max-rate", and `bound` is the greatest mean latency allowed, in seconds per output
 * token.
 */
int kvd_serve_add_point(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                        double bound, kvd_err *err);
/*
 * Adds a line of kind "validation" to the results table, which compares measured and simulated
 * times. *p is the simulation of the requests that kvdim-jct served.
 */
int kvd_serve_add_comparison(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                             const kvd_serve_comparison *c, kvd_err *err);

enum { KVD_SERVE_LINE = 320 };
/*
 * Printed table: the headings name the columns; kvd_serve_line writes one line of results to
 * `line` and returns it.
 */
extern const char kvd_serve_heading[], kvd_serve_comparison_heading[];
const char *kvd_serve_line(const kvd_rows *rows, size_t row, char line[KVD_SERVE_LINE]);

#endif
