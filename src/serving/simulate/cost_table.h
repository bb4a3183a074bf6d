/*
 * Table of measured times in seconds over two coordinates u and v: one curve over v for every
 * measured u. Between measured points the table interpolates linearly, first along v, then along u.
 * Outside the measured range it extrapolates along the two nearest points, never below 0. If a
 * curve has one point, its time does not depend on v.
 */
#ifndef KVD_SERVING_SIMULATE_COST_TABLE_H
#define KVD_SERVING_SIMULATE_COST_TABLE_H

#include <stddef.h>

#include "common/err.h"

typedef struct {
    double u, v, seconds;
} kvd_cost_point;

typedef struct {
    /* Measured times, [n_points]. The caller allocates and fills this array. */
    kvd_cost_point *point;
    size_t n_points;
    /* The n different values of coordinate u, rising, one for each curve. */
    double *u;
    /*
     * Number n of curves, and index in the arrays `v` and `seconds` of the first element of each
     * curve, start [n + 1]. Curve i ends before element start[i + 1].
     */
    size_t *start, n;
    /* Coordinate v and time of each measured point, one curve after the other, [n_points]. */
    double *v, *seconds;
} kvd_cost_table;

/*
 * Sorts the measured points into curves. Fails if a point occurs twice, or if there are fewer than
 * two values of u. Messages call u and v by the names `first` and `second`.
 */
int kvd_cost_table_sort(kvd_cost_table *t, const char *first, const char *second, kvd_err *err);
void kvd_cost_table_release(kvd_cost_table *t);

/*
 * Returns the interpolated time in seconds at (u, v). Sets *extrapolated to 1 if (u, v) is outside
 * the measured range; otherwise does not change it.
 */
double kvd_cost_table_at(const kvd_cost_table *t, double u, double v, int *extrapolated);

#endif
