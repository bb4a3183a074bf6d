/*
 * Seconds over two coordinates, of points that were measured: curves over v, one for every u. Between points it is linear, in v first; beyond
 * them it goes on along the last two, never below 0. A curve of one point takes v to make no difference.
 */
#ifndef KVD_SERVING_COST_TABLE_H
#define KVD_SERVING_COST_TABLE_H

#include <stddef.h>

#include "common/err.h"

typedef struct {
    double u, v, seconds;
} kvd_cost_point;

typedef struct {
    kvd_cost_point *point; /* [n_points], by rising u, then v; the caller allocates and fills it */
    size_t n_points;
    double *u;           /* [n] rising                                                         */
    size_t *start, n;    /* [n + 1]: curve i is v, seconds [start[i] .. start[i + 1] - 1]      */
    double *v, *seconds; /* [n_points]                                                         */
} kvd_cost_table;

/* Sorts the points into curves. Fails when a point is there twice and with fewer than two u, with the names of the coordinates. */
int kvd_cost_table_sort(kvd_cost_table *t, const char *first, const char *second, kvd_err *err);
void kvd_cost_table_release(kvd_cost_table *t);

/* *extrapolated is set to 1 beyond what was measured, and left alone otherwise. */
double kvd_cost_table_at(const kvd_cost_table *t, double u, double v, int *extrapolated);

#endif
