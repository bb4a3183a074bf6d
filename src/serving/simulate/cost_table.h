/* Measured times over two coordinates u and v, interpolated along v, then along u. */
#ifndef KVD_SERVING_SIMULATE_COST_TABLE_H
#define KVD_SERVING_SIMULATE_COST_TABLE_H

#include <stddef.h>

#include "common/err.h"

typedef struct {
    double u, v, seconds;
} kvd_cost_point;

typedef struct {
    /* [n_points] measured times at coordinates (u, v), such as tokens and cached tokens of an
     * iteration; filled by the caller */
    kvd_cost_point *point;
    size_t n_points;
    /* Values of the first coordinate u at which times were measured, rising. Points of equal u form
     * a curve over the second coordinate v. */
    double *u;
    /* curve i has elements start[i] .. start[i + 1] - 1 of v and seconds */
    size_t *start, n;
    /* [n_points] second coordinate v and measured time of each point, curve after curve */
    double *v, *seconds;
} kvd_cost_table;

/* Sorts the points into a curve for each value of coordinate u. Fails if a point occurs twice or u
 * has one value. `first`, `second`: names of the coordinates u and v. */
int kvd_cost_table_sort(kvd_cost_table *t, const char *first, const char *second, kvd_err *err);
void kvd_cost_table_release(kvd_cost_table *t);

/* Returns the time of an iteration at coordinates u and v, in seconds. Sets *extrapolated to 1 if
 * it is outside the measured range. */
double kvd_cost_table_at(const kvd_cost_table *t, double u, double v, int *extrapolated);

#endif
