/* Table of measured times over coordinates u and v; interpolates linearly along v, then u. */
#ifndef KVD_SERVING_SIMULATE_COST_TABLE_H
#define KVD_SERVING_SIMULATE_COST_TABLE_H

#include <stddef.h>

#include "common/err.h"

typedef struct {
    double u, v, seconds;
} kvd_cost_point;

typedef struct {
    /* Measured times, [n_points], filled by the caller. */
    kvd_cost_point *point;
    size_t n_points;
    /* Rising values of the first coordinate of a measured point; there is one curve for each. */
    double *u;
    /* Curve i has the elements start[i] .. start[i + 1] - 1 of v and seconds. */
    size_t *start, n;
    /* Second coordinate and time of each measured point, curve after curve, [n_points]. */
    double *v, *seconds;
} kvd_cost_table;

/* Sorts points into curves. Fails if a point occurs twice or u has fewer than two values. */
int kvd_cost_table_sort(kvd_cost_table *t, const char *first, const char *second, kvd_err *err);
void kvd_cost_table_release(kvd_cost_table *t);

/* Returns the time at (u, v) in seconds; sets *extrapolated if outside the measured range. */
double kvd_cost_table_at(const kvd_cost_table *t, double u, double v, int *extrapolated);

#endif
