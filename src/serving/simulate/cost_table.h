/*
 * Table of measured times in seconds over two coordinates u and v: one curve over v for every
 * measured u. Between measured points the table interpolates linearly, in v first. Beyond them it
 * extrapolates along the last two points, never below 0. If a curve has one point, its time does
 * not depend on v.
 */
#ifndef KVD_SERVING_SIMULATE_COST_TABLE_H
#define KVD_SERVING_SIMULATE_COST_TABLE_H

#include <stddef.h>

#include "common/err.h"

/*
 * One measured time in seconds at two coordinates u and v, such as the number of requests and the
 * number of tokens in the cache.
 */
typedef struct {
    double u, v, seconds;
} kvd_cost_point;

typedef struct {
    /*
     * Measured times with their coordinates u and v, [n_points]. The caller allocates and fills
     * this array.
     */
    kvd_cost_point *point;
    size_t n_points;
    /*
     * The n different values of coordinate u (such as the number of requests), rising. For each
     * there is a curve of the times over coordinate v.
     */
    double *u;
    /*
     * Index, in the arrays v and `seconds`, of the first element of each curve, [n + 1]. n is the
     * number of curves. Curve i ends before start[i + 1].
     */
    size_t *start, n;
    /*
     * Coordinate v (such as the number of tokens in the cache) and seconds of each measured point,
     * one curve after the other, [n_points].
     */
    double *v, *seconds;
} kvd_cost_table;

/*
 * Sorts the measured points, which have two coordinates u and v, into one curve over v for each
 * value of u. Fails if a point occurs twice, or if there are fewer than two values of u. Messages
 * call u and v by the names `first` and `second`.
 */
int kvd_cost_table_sort(kvd_cost_table *t, const char *first, const char *second, kvd_err *err);
void kvd_cost_table_release(kvd_cost_table *t);

/*
 * Returns the time in seconds at (u, v), interpolated. Sets *extrapolated to 1 if (u, v) is
 * outside the measured range; otherwise does not change it.
 */
double kvd_cost_table_at(const kvd_cost_table *t, double u, double v, int *extrapolated);

#endif
