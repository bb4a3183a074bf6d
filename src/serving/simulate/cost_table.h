/*
 * Table of measured times in seconds over two coordinates u and v: one curve over v for every u.
 * Between measured points it interpolates linearly, in v first. Beyond them it extrapolates along
 * the last two points, never below 0. If a curve has one point, v makes no difference.
 */
#ifndef KVD_SERVING_SIMULATE_COST_TABLE_H
#define KVD_SERVING_SIMULATE_COST_TABLE_H

#include <stddef.h>

#include "common/err.h"

typedef struct {
    double u, v, seconds;
} kvd_cost_point;

typedef struct {
    kvd_cost_point *point; /* [n_points], by rising u, then v; the caller allocates and fills it */
    size_t n_points;
    double *u; /* [n] rising */
    /*
     * Index of the first element of each curve in `v` and `seconds`, [n + 1], where n is the number
     * of curves. Curve i ends before start[i + 1].
     */
    size_t *start, n;
    double *v, *seconds; /* [n_points] */
} kvd_cost_table;

/*
 * Sorts the measured points into curves. Fails if a point occurs twice and if there are fewer than
 * two values of u. Messages use the names of the coordinates, `first` and `second`.
 */
int kvd_cost_table_sort(kvd_cost_table *t, const char *first, const char *second, kvd_err *err);
void kvd_cost_table_release(kvd_cost_table *t);

/*
 * Returns the time in seconds at (u, v), interpolated. Sets *extrapolated to 1 if the point is
 * outside the measured ones, and does not change it otherwise.
 */
double kvd_cost_table_at(const kvd_cost_table *t, double u, double v, int *extrapolated);

#endif
