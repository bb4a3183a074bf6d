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
    /* [n] distinct u coordinates of the points in `point`, rising */
    double *u;
    /* start[i] .. start[i + 1] - 1: indices in `v` and `seconds` of the points with coordinate
     * u[i]; n: number of values in `u` */
    size_t *start, n;
    /* [n_points] second coordinate v and measured time of each point, ordered by first coordinate
     * u, then by v */
    double *v, *seconds;
} kvd_cost_table;

/* Prepares interpolation between the measured points: sorts them and fills all other fields. Fails
 * if two points are equal or if all u are equal. `first`, `second`: names of the coordinates u and
 * v in error messages. */
int kvd_cost_table_sort(kvd_cost_table *t, const char *first, const char *second, kvd_err *err);
void kvd_cost_table_release(kvd_cost_table *t);

/* Returns the seconds of an iteration, interpolated at coordinates u and v, such as new and cached
 * tokens. Outside the measured range, extrapolates and sets *extrapolated to 1. */
double kvd_cost_table_at(const kvd_cost_table *t, double u, double v, int *extrapolated);

#endif
