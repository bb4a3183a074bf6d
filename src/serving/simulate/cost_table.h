/* Table of times measured at points with coordinates u and v. Interpolates along v, then along
 * u. */
#ifndef KVD_SERVING_SIMULATE_COST_TABLE_H
#define KVD_SERVING_SIMULATE_COST_TABLE_H

#include <stddef.h>

#include "common/err.h"

typedef struct {
    double u, v, seconds;
} kvd_cost_point;

typedef struct {
    /* [n_points] measured times at coordinates (u, v), filled by the caller; for example, u is the
     * number of new tokens of an iteration and v that of cached tokens */
    kvd_cost_point *point;
    size_t n_points;
    /* Values of the first coordinate u at which times were measured, rising. The points with equal
     * u form a curve over the second coordinate v. */
    double *u;
    /* start[i] .. start[i + 1] - 1: indices in `v` and `seconds` of the points of curve i; n:
     * number of curves */
    size_t *start, n;
    /* [n_points] second coordinate v and measured time of each point, curve after curve */
    double *v, *seconds;
} kvd_cost_table;

/* Sorts the points into a curve for each value of u. Fails if a point occurs twice or if all points
 * have the same u. `first`, `second`: names of the coordinates u and v in messages. */
int kvd_cost_table_sort(kvd_cost_table *t, const char *first, const char *second, kvd_err *err);
void kvd_cost_table_release(kvd_cost_table *t);

/* Returns the time at coordinates u and v in seconds. If they are outside the measured range,
 * extrapolates and sets *extrapolated to 1. */
double kvd_cost_table_at(const kvd_cost_table *t, double u, double v, int *extrapolated);

#endif
