/*
 * Turns simulations of serving into rows of the results table kvdim/serving, and formats them for
 * printing.
 */
#ifndef KVD_SERVING_SIMULATE_SERVE_ROWS_H
#define KVD_SERVING_SIMULATE_SERVE_ROWS_H

#include "serving/simulate/serve_point.h"

/* Values shared by all result rows of one method. */
typedef struct {
    const char *method, *trace;
    const kvd_serve_setting *setting;
    /*
     * Bytes of a GPU's memory, and bytes of it that stay unused. NaN if the measured cache size was
     * used.
     */
    double memory, reserve;
    size_t skipped;
} kvd_serve_about;

typedef struct {
    /* Names of the time and of the statistic that are compared, such as "TTFT" and "mean". */
    const char *quantity, *statistic;
    double measured, simulated; /* in seconds */
} kvd_serve_comparison;

/*
 * Adds the row of a simulation: of kind "point" (one request rate) if `bound` is NaN, otherwise
 * "max-rate" (the highest rate within the latency `bound`).
 */
int kvd_serve_add_point(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                        double bound, kvd_err *err);
/* Adds a row of kind "validation", which compares the measured times *c with the simulation *p. */
int kvd_serve_add_comparison(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                             const kvd_serve_comparison *c, kvd_err *err);

enum { KVD_SERVE_LINE = 320 };
/* Names of the printed columns; kvd_serve_line formats a row into `line`. */
extern const char kvd_serve_heading[], kvd_serve_comparison_heading[];
const char *kvd_serve_line(const kvd_rows *rows, size_t row, char line[KVD_SERVE_LINE]);

#endif
