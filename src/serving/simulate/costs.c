#include "serving/simulate/costs.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/jct.h"
#include "serving/simulate/cost_table.h"

struct kvd_costs {
    /* Seconds of prompts without attention, by tokens (u) and earlier tokens (v). */
    kvd_cost_table prompts;
    /* Seconds of the matrix products of a number of tokens. */
    kvd_cost_table products;
    kvd_cost_table steps;
    double pair; /* seconds of attention per query-key product in a prompt */
    double empty;
    double bytes_per_token, weight_bytes, cache_bytes;
    int gpus;
    char engine[256];
};

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
        s->rows = kvd_jct_costs_read(&f, err);
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

/* Returns true if the row is of `method` on `gpus` GPUs; -1 means any number. */
static bool is_of(const source *s, size_t row, const char *method, int gpus)
{
    const double n = real(s, row, GPUS);
    return !strcmp(text(s, row, METHOD), method) && (gpus < 0 || (gpus <= n && gpus >= n));
}

static int same_number(const source *s, size_t first, size_t row, int column, kvd_err *err)
{
    const double a = real(s, first, column), b = real(s, row, column);
    if (a <= b && a >= b)
        return 0;
    return column == GPUS
               ? kvd_fail(err, "measured on %g and on %g GPUs: say which with --gpus", a, b)
               : kvd_fail(err, "rows %zu and %zu differ in %s: %g and %g", first, row,
                          column_name[column], a, b);
}

static int same_setting(const source *s, size_t first, size_t row, kvd_err *err)
{
    if (strcmp(text(s, first, DTYPE), text(s, row, DTYPE)))
        return kvd_fail(err, "rows %zu and %zu differ in dtype: %s and %s", first, row,
                        text(s, first, DTYPE), text(s, row, DTYPE));
    static const int numbers[] = {GPUS, GRAPHS, PHASES, PER_TOKEN, WEIGHTS};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (same_number(s, first, row, numbers[i], err))
            return -1;
    return 0;
}

/*
 * Adds a measured iteration to one of three tables:
 *
 *   c->prompts    part of one prompt; u: its tokens, v: earlier tokens
 *   c->products   several prompts; u: tokens of all prompts, v: number of prompts
 *   c->steps      decode step; u: requests, v: cached tokens of each
 */
static int add_point(kvd_costs *c, const source *s, size_t row, kvd_err *err)
{
    const bool piece = real(s, row, PIECE) > 0, several = piece && real(s, row, BATCH) > 1;
    kvd_cost_table *t = several ? &c->products : piece ? &c->prompts : &c->steps;
    const double n = several ? real(s, row, BATCH) : 1;
    const kvd_cost_point p = {.u = n * real(s, row, piece ? PIECE : BATCH),
                              .v = several ? n : real(s, row, piece ? BEFORE : CONTEXT),
                              .seconds = real(s, row, SECONDS)};
    if (!(p.u >= 1 && p.u <= 1e12 && p.v >= 0 && p.v <= 1e12 && p.seconds > 0 && p.seconds < 1e9))
        return kvd_fail(err, "row %zu: %s %g, %s %g, %g seconds", row, piece ? "piece" : "batch",
                        p.u, piece ? "before" : "context", p.v, p.seconds);
    if (!(real(s, row, BATCH) >= 1))
        return kvd_fail(err, "row %zu: batch %g, expected at least 1", row, real(s, row, BATCH));
    t->point[t->n_points++] = p;
    return 0;
}

static double pairs(double tokens, double before)
{
    return tokens * (before + tokens / 2);
}

/*
 * Returns the seconds of attention per query-key product: the least growth of the time per prompt
 * token with each earlier token.
 *
 * If only whole prompts were measured, fits a u + c u^2 / 2 to the two longest and returns c.
 */
static double pair_seconds(const kvd_cost_table *t)
{
    double least = HUGE_VAL;
    for (size_t i = 0; i < t->n; i++) {
        const size_t first = t->start[i], last = t->start[i + 1] - 1;
        if (last > first)
            least = fmin(least, (t->seconds[last] - t->seconds[first]) /
                                    (t->u[i] * (t->v[last] - t->v[first])));
    }
    if (!(least < HUGE_VAL)) {
        const size_t a = t->n - 2, b = t->n - 1;
        least = 2 * (t->seconds[t->start[b]] / t->u[b] - t->seconds[t->start[a]] / t->u[a]) /
                (t->u[b] - t->u[a]);
    }
    return fmax(0, least);
}

/* Subtracts attention's time from prompts. Adds prompts without earlier tokens to c->products. */
static int take_attention_out(kvd_costs *c, kvd_err *err)
{
    kvd_cost_table *const p = &c->prompts, *const t = &c->products;
    c->pair = pair_seconds(p);
    for (size_t i = 0; i < t->n_points; i++) {
        kvd_cost_point *const x = &t->point[i];
        x->seconds -= c->pair * x->v * pairs(x->u / x->v, 0);
        x->v = 0;
    }
    for (size_t i = 0; i < p->n; i++)
        for (size_t k = p->start[i]; k < p->start[i + 1]; k++) {
            p->seconds[k] -= c->pair * pairs(p->u[i], p->v[k]);
            if (k == p->start[i])
                t->point[t->n_points++] = (kvd_cost_point){p->u[i], 0, p->seconds[k]};
        }
    return kvd_cost_table_sort(t, "tokens", "before", err);
}

static int take_facts(kvd_costs *c, const source *s, size_t row, kvd_err *err)
{
    c->bytes_per_token = real(s, row, PER_TOKEN);
    c->weight_bytes = real(s, row, WEIGHTS);
    c->cache_bytes = real(s, row, CACHE);
    const double gpus = real(s, row, GPUS);
    if (!(gpus >= 0 && gpus <= 1024)) /* 0 GPUs: the model ran on the CPU */
        return kvd_fail(err, "row %zu: %g GPUs", row, gpus);
    c->gpus = (int)gpus;
    snprintf(c->engine, sizeof c->engine, "%s", text(s, row, ENGINE));
    if (!(c->bytes_per_token > 0 && c->bytes_per_token < 1e15 && c->weight_bytes >= 0 &&
          c->weight_bytes < 1e18))
        return kvd_fail(err, "row %zu: %g bytes per token, %g bytes of weights", row,
                        c->bytes_per_token, c->weight_bytes);
    /* NaN is accepted, since --memory may replace the cache size. */
    if (c->cache_bytes >= 1e18)
        return kvd_fail(err, "row %zu: a cache of %g bytes", row, c->cache_bytes);
    return 0;
}

/* Sets c->bytes_per_token to the largest value of a measured job. */
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
    c->prompts.point = calloc(n ? n : 1, sizeof(kvd_cost_point));
    c->products.point = calloc(n ? n : 1, sizeof(kvd_cost_point));
    c->steps.point = calloc(n ? n : 1, sizeof(kvd_cost_point));
    if (!c->prompts.point || !c->products.point || !c->steps.point)
        return kvd_no_memory(err, "tables of costs", 3 * n * sizeof(kvd_cost_point));
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
    return kvd_cost_table_sort(&c->prompts, "piece", "before", err) ||
                   kvd_cost_table_sort(&c->steps, "batch", "context", err) ||
                   take_attention_out(c, err)
               ? -1
               : 0;
}

/* Returns the seconds of the matrix products for a number of tokens. */
static double products(const kvd_costs *c, double tokens, int *extrapolated)
{
    const kvd_cost_table *const t = &c->products;
    const double s = kvd_cost_table_at(t, tokens, 0, extrapolated);
    return tokens < t->u[0] ? fmin(s, t->seconds[0]) : s;
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
        c->empty = products(c, 0, &(int){0});
    kvd_rows_free(s.rows);
    return c;
}

void kvd_costs_free(kvd_costs *c)
{
    if (!c)
        return;
    kvd_cost_table_release(&c->prompts);
    kvd_cost_table_release(&c->products);
    kvd_cost_table_release(&c->steps);
    free(c);
}

/* Returns the seconds that n prompt tokens take in addition to matrix products. */
static double own_seconds(const kvd_costs *c, double n, double before, int *extrapolated)
{
    const double there = kvd_cost_table_at(&c->prompts, n, before, extrapolated),
                 begun = kvd_cost_table_at(&c->prompts, n, 0, &(int){0});
    return fmax(0, there - begun + c->pair * pairs(n, before));
}

double kvd_costs_of(const kvd_costs *c, const kvd_iteration *it, int *extrapolated)
{
    const double n_steps = (double)it->n_steps;
    double held = 0, tokens = 0, seconds = 0;
    *extrapolated = 0;
    for (size_t i = 0; i < it->n_steps; i++)
        held += it->slice[i].before;
    for (size_t i = it->n_steps; i < it->n_slices; i++) {
        tokens += it->slice[i].n;
        seconds += own_seconds(c, it->slice[i].n, it->slice[i].before, extrapolated);
    }
    if (!it->n_steps)
        return seconds + fmax(c->empty, products(c, tokens, extrapolated));
    seconds += kvd_cost_table_at(&c->steps, n_steps, held / n_steps, extrapolated);
    return tokens > 0 ? seconds + fmax(0, products(c, n_steps + tokens, extrapolated) -
                                              products(c, n_steps, &(int){0}))
                      : seconds;
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
