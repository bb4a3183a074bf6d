#include "serving/simulate/cost_table.h"

#include <math.h>
#include <stdlib.h>

static double line(double x0, double y0, double x1, double y1, double x)
{
    return y0 + (y1 - y0) * ((x - x0) / (x1 - x0));
}

/* Returns the index i of the interval from at[i] to at[i + 1] that contains x. If x is outside all
 * intervals, returns the nearest interval. */
static size_t below(const double *at, size_t n, double x)
{
    size_t lo = 0, hi = n - 1;
    while (hi - lo > 1) {
        const size_t mid = (lo + hi) / 2;
        *(at[mid] <= x ? &lo : &hi) = mid;
    }
    return lo;
}

static double along(const kvd_cost_table *t, size_t curve, double x, int *extrapolated)
{
    const double *v = t->v + t->start[curve], *s = t->seconds + t->start[curve];
    const size_t n = t->start[curve + 1] - t->start[curve], i = n > 1 ? below(v, n, x) : 0;
    if (x < v[0] || x > v[n - 1])
        *extrapolated = 1;
    return n > 1 ? line(v[i], s[i], v[i + 1], s[i + 1], x) : s[0];
}

double kvd_cost_table_at(const kvd_cost_table *t, double u, double v, int *extrapolated)
{
    const size_t i = below(t->u, t->n, u);
    const double *at = t->u + i;
    if (u < t->u[0] || u > t->u[t->n - 1])
        *extrapolated = 1;
    /* If times were measured at exactly this u, interpolates only along the other coordinate, v. */
    for (size_t k = 0; k < 2; k++)
        if (u >= at[k] && u <= at[k])
            return fmax(0, along(t, i + k, v, extrapolated));
    return fmax(
        0, line(at[0], along(t, i, v, extrapolated), at[1], along(t, i + 1, v, extrapolated), u));
}

static int by_place(const void *a, const void *b)
{
    const kvd_cost_point *p = a, *q = b;
    if (p->u < q->u || p->u > q->u)
        return p->u < q->u ? -1 : 1;
    return (p->v > q->v) - (p->v < q->v);
}

int kvd_cost_table_sort(kvd_cost_table *t, const char *first, const char *second, kvd_err *err)
{
    const size_t n = t->n_points + 1;
    qsort(t->point, t->n_points, sizeof *t->point, by_place);
    t->u = calloc(n, sizeof *t->u);
    t->start = calloc(n, sizeof *t->start);
    t->v = calloc(n, sizeof *t->v);
    t->seconds = calloc(n, sizeof *t->seconds);
    if (!t->u || !t->start || !t->v || !t->seconds)
        return kvd_no_memory(err, "a table of costs", 4 * n * sizeof *t->u);
    for (size_t i = 0; i < t->n_points; i++) {
        const kvd_cost_point *p = &t->point[i];
        if (i && !by_place(p - 1, p))
            return kvd_fail(err, "two rows have %s %g, %s %g", first, p->u, second, p->v);
        if (!i || p[-1].u < p->u) {
            t->start[t->n] = i;
            t->u[t->n++] = p->u;
        }
        t->v[i] = p->v;
        t->seconds[i] = p->seconds;
    }
    t->start[t->n] = t->n_points;
    return t->n >= 2 ? 0
                     : kvd_fail(err, "two values of %s at least are needed, there %s %zu", first,
                                t->n == 1 ? "is" : "are", t->n);
}

void kvd_cost_table_release(kvd_cost_table *t)
{
    free(t->point);
    free(t->u);
    free(t->start);
    free(t->v);
    free(t->seconds);
}
