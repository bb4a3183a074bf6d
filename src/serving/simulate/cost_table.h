/* Table of seconds over (u, v), linear along v, then u; extrapolates, never below 0. */
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
    /* Values of u, rising, one per curve, [n]. */
    double *u;
    /* Curve i: elements start[i] .. start[i + 1] - 1 of `v` and `seconds`. */
    size_t *start, n;
    /* Coordinate v and time of each point, curve after curve, [n_points]. */
    double *v, *seconds;
} kvd_cost_table;

/*
 * Sorts points into curves. Fails on repeated points or less than two u. Messages name u `first`, v
 * `second`.
 */
int kvd_cost_table_sort(kvd_cost_table *t, const char *first, const char *second, kvd_err *err);
void kvd_cost_table_release(kvd_cost_table *t);

/* Returns seconds at (u, v); *extrapolated becomes 1 outside the measured range. */
double kvd_cost_table_at(const kvd_cost_table *t, double u, double v, int *extrapolated);

#endif
