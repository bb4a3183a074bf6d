/* Turns simulations into rows of a result table (schema kvdim/serving) and formats these rows for
 * printing. */
#ifndef KVD_SERVING_SIMULATE_SERVE_ROWS_H
#define KVD_SERVING_SIMULATE_SERVE_ROWS_H

#include "serving/simulate/serve_point.h"

/* parameters that all serving simulations of one compression method share, such as the request
 * trace */
typedef struct {
    const char *method, *trace;
    const kvd_serve_setting *setting;
    /* memory: bytes per GPU; reserve: bytes per GPU that stay free. If `memory` is NaN, the cache
     * is as large as in the run of kvdim-jct that measured the iteration times. */
    double memory, reserve;
    size_t skipped;
} kvd_serve_about;

typedef struct {
    /* quantity: name of the compared time, such as "TTFT"; statistic: such as "mean" */
    const char *quantity, *statistic;
    double measured, simulated; /* in seconds */
} kvd_serve_comparison;

/* Adds a result row for simulation *p. bound: latency bound with which --max-rate searched for its
 * request rate; NaN if the user gave the rate. */
int kvd_serve_add_point(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                        double bound, kvd_err *err);
/* Adds a row of kind "validation" that compares a measured time with a simulated time. *c: the two
 * times; *p: the simulation. */
int kvd_serve_add_comparison(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                             const kvd_serve_comparison *c, kvd_err *err);

enum { KVD_SERVE_LINE = 720 };
/* printed headings of two tables: simulated times, and simulated times compared with measured
 * times */
extern const char kvd_serve_heading[], kvd_serve_comparison_heading[];
const char *kvd_serve_line(const kvd_rows *rows, size_t row, char line[KVD_SERVE_LINE]);

#endif
