#include "serving/costs.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serving/jct_file.h"

typedef struct {
    double u, v, seconds;
} point;

/* Curves, one for every u that was measured, of seconds over v. */
typedef struct {
    point *point; /* [n_points], by rising u, then v */
    size_t n_points;
    double *u;           /* [n] rising                                            */
    size_t *start, n;    /* [n + 1]: curve i is v, seconds [start[i] .. start[i + 1] - 1] */
    double *v, *seconds; /* [n_points] */
} table;

struct kvd_costs {
    table prompts, steps;
    double empty; /* seconds of an iteration that does nothing */
    double bytes_per_token, weight_bytes, cache_bytes;
    int gpus;
    char engine[256];
};

/* ---- tables ---------------------------------------------------------------------------------------- */

static double line(double x0, double y0, double x1, double y1, double x)
{
    return y0 + (y1 - y0) * ((x - x0) / (x1 - x0));
}

/* The lower of the two neighbours of x among rising at [n], or of those nearest to it: at most n - 2, and
 * 0 with n = 1. */
static size_t below(const double *at, size_t n, double x)
{
    size_t lo = 0, hi = n - 1;
    while (hi - lo > 1) {
        const size_t mid = (lo + hi) / 2;
        *(at[mid] <= x ? &lo : &hi) = mid;
    }
    return lo;
}

static double along(const table *t, size_t curve, double x, int *extrapolated)
{
    const double *v = t->v + t->start[curve], *s = t->seconds + t->start[curve];
    const size_t n = t->start[curve + 1] - t->start[curve], i = n > 1 ? below(v, n, x) : 0;
    if (x < v[0] || x > v[n - 1])
        *extrapolated = 1;
    return n > 1 ? line(v[i], s[i], v[i + 1], s[i + 1], x) : s[0];
}

static double look_up(const table *t, double u, double v, int *extrapolated)
{
    const size_t i = below(t->u, t->n, u);
    const double *at = t->u + i;
    if (u < t->u[0] || u > t->u[t->n - 1])
        *extrapolated = 1;
    /* On a curve its neighbour has no say, nor has a gap in its neighbour's points. */
    for (size_t k = 0; k < 2; k++)
        if (u >= at[k] && u <= at[k])
            return fmax(0, along(t, i + k, v, extrapolated));
    return fmax(0, line(at[0], along(t, i, v, extrapolated), at[1], along(t, i + 1, v, extrapolated), u));
}

static int by_place(const void *a, const void *b)
{
    const point *p = a, *q = b;
    if (p->u < q->u || p->u > q->u)
        return p->u < q->u ? -1 : 1;
    return (p->v > q->v) - (p->v < q->v);
}

/* Sorts the points into curves. */
static int settle(table *t, const char *first, const char *second, kvd_err *err)
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
        const point *p = &t->point[i];
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

static void release(table *t)
{
    free(t->point);
    free(t->u);
    free(t->start);
    free(t->v);
    free(t->seconds);
}

/* ---- rows ------------------------------------------------------------------------------------------ */

enum {
    KIND,
    METHOD,
    DTYPE,
    ENGINE,
    GPUS,
    GRAPHS,
    PHASES,
    BATCH,
    PIECE,
    BEFORE,
    CONTEXT,
    SECONDS,
    PER_TOKEN,
    WEIGHTS,
    CACHE,
    COLUMNS
};
static const char *const column_name[COLUMNS] = {
    "kind",    "method",  "dtype",           "engine",       "gpus",
    "graphs",  "phases",  "batch",           "piece",        "before",
    "context", "seconds", "bytes_per_token", "weight_bytes", "cache_bytes"};

typedef struct {
    kvd_rows *rows;
    int column[COLUMNS];
} source;

static int open_source(source *s, const char *path, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    memset(s, 0, sizeof *s);
    if (!kvd_h5_open(&f, path, &kvd_schema_jct, err))
        s->rows = kvd_rows_load(&f, err);
    kvd_h5_close(&f, false);
    for (int i = 0; s->rows && i < COLUMNS; i++) {
        s->column[i] = kvd_rows_find(s->rows, column_name[i]);
        if (s->column[i] < 0 ||
            (i <= ENGINE) != (kvd_rows_column(s->rows, s->column[i])->kind == KVD_COL_TEXT)) {
            kvd_fail(err, "'%s': no column '%s' of the kind that is needed", path, column_name[i]);
            kvd_rows_free(s->rows);
            s->rows = NULL;
        }
    }
    return s->rows ? 0 : -1;
}

static double real(const source *s, size_t row, int column)
{
    return kvd_rows_get_real(s->rows, row, s->column[column]);
}

static const char *text(const source *s, size_t row, int column)
{
    return kvd_rows_get_text(s->rows, row, s->column[column]);
}

static bool is_kind(const source *s, size_t row, const char *kind)
{
    return !strcmp(text(s, row, KIND), kind);
}

/* Rows of one method on so many GPUs, -1: any number. */
static bool is_of(const source *s, size_t row, const char *method, int gpus)
{
    const double n = real(s, row, GPUS);
    return !strcmp(text(s, row, METHOD), method) && (gpus < 0 || (gpus <= n && gpus >= n));
}

static int same_number(const source *s, size_t first, size_t row, int column, kvd_err *err)
{
    const double a = real(s, first, column), b = real(s, row, column);
    if (!(a < b) && !(a > b))
        return 0;
    return column == GPUS ? kvd_fail(err, "measured on %g and on %g GPUs: say which with --gpus", a, b)
                          : kvd_fail(err, "rows %zu and %zu differ in %s: %g and %g", first, row,
                                     column_name[column], a, b);
}

static int same_setting(const source *s, size_t first, size_t row, kvd_err *err)
{
    if (strcmp(text(s, first, DTYPE), text(s, row, DTYPE)))
        return kvd_fail(err, "rows %zu and %zu differ in dtype: %s and %s", first, row, text(s, first, DTYPE),
                        text(s, row, DTYPE));
    static const int numbers[] = {GPUS, GRAPHS, PHASES, PER_TOKEN, WEIGHTS};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (same_number(s, first, row, numbers[i], err))
            return -1;
    return 0;
}

static int add_point(kvd_costs *c, const source *s, size_t row, kvd_err *err)
{
    const bool piece = real(s, row, PIECE) > 0;
    table *t = piece ? &c->prompts : &c->steps;
    const point p = {.u = real(s, row, piece ? PIECE : BATCH),
                     .v = real(s, row, piece ? BEFORE : CONTEXT),
                     .seconds = real(s, row, SECONDS)};
    if (!(p.u >= 1 && p.u <= 1e12 && p.v >= 0 && p.v <= 1e12 && p.seconds > 0 && p.seconds < 1e9))
        return kvd_fail(err, "row %zu: %s %g, %s %g, %g seconds", row, piece ? "piece" : "batch", p.u,
                        piece ? "before" : "context", p.v, p.seconds);
    t->point[t->n_points++] = p;
    return 0;
}

static int take_facts(kvd_costs *c, const source *s, size_t row, kvd_err *err)
{
    c->bytes_per_token = real(s, row, PER_TOKEN);
    c->weight_bytes = real(s, row, WEIGHTS);
    c->cache_bytes = real(s, row, CACHE);
    c->gpus = (int)real(s, row, GPUS);
    snprintf(c->engine, sizeof c->engine, "%s", text(s, row, ENGINE));
    if (!(c->bytes_per_token > 0 && c->bytes_per_token < 1e15 && c->weight_bytes >= 0 &&
          c->weight_bytes < 1e18))
        return kvd_fail(err, "row %zu: %g bytes per token, %g bytes of weights", row, c->bytes_per_token,
                        c->weight_bytes);
    return 0;
}

/* Jobs say what the cache held by its own count, where iterations know only what was reserved. */
static void take_held_bytes(kvd_costs *c, const source *s, const char *method)
{
    double most = 0;
    for (size_t i = 0; i < kvd_rows_count(s->rows); i++)
        if (is_kind(s, i, "job") && is_of(s, i, method, c->gpus) && real(s, i, PER_TOKEN) < 1e15)
            most = fmax(most, real(s, i, PER_TOKEN));
    if (most > 0)
        c->bytes_per_token = most;
}

static int gather(kvd_costs *c, const source *s, const char *method, int gpus, kvd_err *err)
{
    const size_t n = kvd_rows_count(s->rows);
    size_t first = SIZE_MAX;
    c->prompts.point = calloc(n ? n : 1, sizeof(point));
    c->steps.point = calloc(n ? n : 1, sizeof(point));
    if (!c->prompts.point || !c->steps.point)
        return kvd_no_memory(err, "tables of costs", 2 * n * sizeof(point));
    for (size_t i = 0; i < n; i++) {
        if (!is_kind(s, i, "iteration") || !is_of(s, i, method, gpus))
            continue;
        if (first == SIZE_MAX && take_facts(c, s, first = i, err))
            return -1;
        if (same_setting(s, first, i, err) || add_point(c, s, i, err))
            return -1;
    }
    if (first == SIZE_MAX)
        return gpus < 0 ? kvd_fail(err, "no row of kind iteration")
                        : kvd_fail(err, "no row of kind iteration on %d GPUs", gpus);
    take_held_bytes(c, s, method);
    return settle(&c->prompts, "piece", "before", err) || settle(&c->steps, "batch", "context", err) ? -1 : 0;
}

/* P continued to a piece of no tokens: within 0 and the least that was measured. */
static double empty_iteration(const table *prompts)
{
    int beyond = 0;
    const double least = look_up(prompts, prompts->u[0], 0, &beyond);
    return fmin(least, look_up(prompts, 0, 0, &beyond));
}

kvd_costs *kvd_costs_load(const char *path, const char *method, int gpus, kvd_err *err)
{
    source s;
    if (open_source(&s, path, err))
        return NULL;
    kvd_costs *c = calloc(1, sizeof *c);
    if (!c)
        kvd_no_memory(err, "costs", sizeof *c);
    else if (gather(c, &s, method, gpus, err)) {
        kvd_in(err, "'%s': %s", path, method);
        kvd_costs_free(c);
        c = NULL;
    } else
        c->empty = empty_iteration(&c->prompts);
    kvd_rows_free(s.rows);
    return c;
}

void kvd_costs_free(kvd_costs *c)
{
    if (!c)
        return;
    release(&c->prompts);
    release(&c->steps);
    free(c);
}

/* ---- costs ----------------------------------------------------------------------------------------- */

double kvd_costs_of(const kvd_costs *c, const kvd_iteration *it, int *extrapolated)
{
    double tokens = 0, seconds = c->empty;
    *extrapolated = 0;
    for (size_t i = 0; i < it->n_steps; i++)
        tokens += it->slice[i].before;
    if (it->n_steps)
        seconds = look_up(&c->steps, (double)it->n_steps, tokens / (double)it->n_steps, extrapolated);
    for (size_t i = it->n_steps; i < it->n_slices; i++)
        seconds +=
            fmax(0, look_up(&c->prompts, it->slice[i].n, it->slice[i].before, extrapolated) - c->empty);
    return seconds;
}

double kvd_costs_bytes_per_token(const kvd_costs *c)
{
    return c->bytes_per_token;
}

double kvd_costs_weight_bytes(const kvd_costs *c)
{
    return c->weight_bytes;
}

double kvd_costs_cache_bytes(const kvd_costs *c)
{
    return c->cache_bytes;
}

int kvd_costs_gpus(const kvd_costs *c)
{
    return c->gpus;
}

const char *kvd_costs_engine(const kvd_costs *c)
{
    return c->engine;
}
