/*
 * Turns the results of simulations into rows of a file of schema kvdim/serving, and prints them as
 * a table.
 */
#ifndef KVD_SERVING_SIMULATE_SERVE_ROWS_H
#define KVD_SERVING_SIMULATE_SERVE_ROWS_H

#include "serving/simulate/serve_point.h"

/* Settings that all rows of one method share. */
typedef struct {
    const char *method, *trace;
    const kvd_serve_setting *setting;
    /* Memory of one GPU in bytes; NaN means the cache has its size in the measurement. */
    double memory, reserve;
    size_t skipped; /* number of requests of the trace left out */
} kvd_serve_about;

typedef struct {
    const char *quantity, *statistic; /* "TTFT", "mean" */
    double measured, simulated;       /* seconds */
} kvd_serve_comparison;

/* Adds the row of a simulated point: of kind max-rate or, if `bound` is NaN, of kind point. */
int kvd_serve_add_point(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                        double bound, kvd_err *err);
/*
 * Adds a row of kind validation, which compares measured and simulated times; *p is the simulation
 * of the measured replay.
 */
int kvd_serve_add_comparison(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                             const kvd_serve_comparison *c, kvd_err *err);

/* Printed table: headings of its columns, and one line per row. */
enum { KVD_SERVE_LINE = 320 };
extern const char kvd_serve_heading[], kvd_serve_comparison_heading[];
const char *kvd_serve_line(const kvd_rows *rows, size_t row, char line[KVD_SERVE_LINE]);

#endif
