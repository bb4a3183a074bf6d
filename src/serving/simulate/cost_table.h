/*
 * Table of measured times with two coordinates u and v. Interpolates linearly along v first, then
 * along u.
 */
#ifndef KVD_SERVING_SIMULATE_COST_TABLE_H
#define KVD_SERVING_SIMULATE_COST_TABLE_H

#include <stddef.h>

#include "common/err.h"

typedef struct {
    double u, v, seconds;
} kvd_cost_point;

typedef struct {
    /* [n_points] Measured times, filled by the caller. */
    kvd_cost_point *point;
    size_t n_points;
    /*
     * The different values of the first coordinate u of the measured points, rising. The points
     * with one value of u form a curve of seconds over v.
     */
    double *u;
    /* Curve i has the elements start[i] .. start[i + 1] - 1 of v and seconds. */
    size_t *start, n;
    /* [n_points] Second coordinate and time of each measured point, curve after curve. */
    double *v, *seconds;
} kvd_cost_table;

/*
 * Sorts the measured points (u, v, seconds) into one curve of seconds over v for each value of u.
 * Fails if a point (u, v) occurs twice or if u has fewer than two values. `first` and `second` name
 * u and v in messages.
 */
int kvd_cost_table_sort(kvd_cost_table *t, const char *first, const char *second, kvd_err *err);
void kvd_cost_table_release(kvd_cost_table *t);

/*
 * Returns the time in seconds at (u, v). Sets *extrapolated if this is outside the measured range.
 */
double kvd_cost_table_at(const kvd_cost_table *t, double u, double v, int *extrapolated);

#endif
