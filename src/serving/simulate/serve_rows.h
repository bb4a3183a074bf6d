/* Turns simulations into the table kvdim/serving, and formats them. */
#ifndef KVD_SERVING_SIMULATE_SERVE_ROWS_H
#define KVD_SERVING_SIMULATE_SERVE_ROWS_H

#include "serving/simulate/serve_point.h"

/* values that are equal in all simulations of a method */
typedef struct {
    const char *method, *trace;
    const kvd_serve_setting *setting;
    /* bytes of a GPU's memory, and bytes to leave free. If `memory` is NaN, the cache is as large
     * as in the measured run. */
    double memory, reserve;
    size_t skipped;
} kvd_serve_about;

typedef struct {
    /* names of quantity and statistic, such as "TTFT" and "mean" */
    const char *quantity, *statistic;
    double measured, simulated; /* in seconds */
} kvd_serve_comparison;

/* Adds a simulation: as "point" if `bound` is NaN, else as "max-rate" within this latency bound. */
int kvd_serve_add_point(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                        double bound, kvd_err *err);
/* Adds a "validation": measured times *c against the simulation *p. */
int kvd_serve_add_comparison(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                             const kvd_serve_comparison *c, kvd_err *err);

enum { KVD_SERVE_LINE = 320 };
/* headings of the tables whose lines kvd_serve_line formats */
extern const char kvd_serve_heading[], kvd_serve_comparison_heading[];
const char *kvd_serve_line(const kvd_rows *rows, size_t row, char line[KVD_SERVE_LINE]);

#endif
