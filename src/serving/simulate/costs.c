#include "serving/simulate/costs.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/jct.h"
#include "serving/simulate/cost_table.h"

struct kvd_costs {
    /* seconds, without attention, to process u tokens of a prompt after v earlier tokens */
    kvd_cost_table prompts;
    /* seconds, without attention, to process one or more whole prompts, by their total number of
     * tokens */
    kvd_cost_table products;
    /* seconds of a decode step of u requests with v cached tokens each */
    kvd_cost_table steps;
    double pair; /* seconds of attention per query-key product in a prompt */
    double empty;
    double bytes_per_token, weight_bytes, cache_bytes;
    int gpus;
    bool graphs, phases;
    char engine[256];
};

static bool has_columns(const kvd_rows *r, const char *names, bool texts, char name[32])
{
    for (int used; sscanf(names, "%31s%n", name, &used) == 1; names += used) {
        const int c = kvd_rows_find(r, name);
        if (c < 0 || texts != (kvd_rows_column(r, c)->kind == KVD_COL_TEXT))
            return false;
    }
    return true;
}

int kvd_costs_columns(const kvd_rows *r, const char *path, const char *texts, const char *numbers,
                      kvd_err *err)
{
    char name[32];
    return has_columns(r, texts, true, name) && has_columns(r, numbers, false, name)
               ? 0
               : kvd_fail(err, "'%s': no column '%s' of the kind that is needed", path, name);
}

static kvd_rows *read_rows(const char *path, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    kvd_rows *rows = NULL;
    if (!kvd_h5_open(&f, path, &kvd_schema_jct, err))
        rows = kvd_jct_costs_read(&f, err);
    kvd_h5_close(&f, false);
    if (rows && kvd_costs_columns(rows, path, "kind method dtype engine",
                                  "gpus graphs phases batch piece before context seconds "
                                  "bytes_per_token weight_bytes cache_bytes",
                                  err)) {
        kvd_rows_free(rows);
        rows = NULL;
    }
    return rows;
}

static bool is_kind(const kvd_rows *s, size_t row, const char *kind)
{
    return !strcmp(kvd_row_text(s, row, "kind"), kind);
}

/* Returns true if the row is of this method and this number of GPUs (-1: any number). */
static bool is_of(const kvd_rows *s, size_t row, const char *method, int gpus)
{
    const double n = kvd_row_real(s, row, "gpus");
    return !strcmp(kvd_row_text(s, row, "method"), method) &&
           (gpus < 0 || (gpus <= n && gpus >= n));
}

static int same_number(const kvd_rows *s, size_t first, size_t row, const char *column,
                       kvd_err *err)
{
    const double a = kvd_row_real(s, first, column), b = kvd_row_real(s, row, column);
    if (a <= b && a >= b)
        return 0;
    return !strcmp(column, "gpus")
               ? kvd_fail(err, "measured on %g and on %g GPUs: say which with --gpus", a, b)
               : kvd_fail(err, "rows %zu and %zu differ in %s: %g and %g", first, row, column, a,
                          b);
}

static int same_setting(const kvd_rows *s, size_t first, size_t row, kvd_err *err)
{
    if (strcmp(kvd_row_text(s, first, "dtype"), kvd_row_text(s, row, "dtype")))
        return kvd_fail(err, "rows %zu and %zu differ in dtype: %s and %s", first, row,
                        kvd_row_text(s, first, "dtype"), kvd_row_text(s, row, "dtype"));
    static const char *const numbers[] = {"gpus", "graphs", "phases", "bytes_per_token",
                                          "weight_bytes"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (same_number(s, first, row, numbers[i], err))
            return -1;
    return 0;
}

/* Adds a measured iteration to the table of its kind: part of a prompt, several whole prompts, or
 * decode step. */
static int add_point(kvd_costs *c, const kvd_rows *s, size_t row, kvd_err *err)
{
    const bool piece = kvd_row_real(s, row, "piece") > 0,
               several = piece && kvd_row_real(s, row, "batch") > 1;
    kvd_cost_table *t = several ? &c->products : piece ? &c->prompts : &c->steps;
    const double n = several ? kvd_row_real(s, row, "batch") : 1;
    const kvd_cost_point p = {.u = n * kvd_row_real(s, row, piece ? "piece" : "batch"),
                              .v = several ? n : kvd_row_real(s, row, piece ? "before" : "context"),
                              .seconds = kvd_row_real(s, row, "seconds")};
    if (!(p.u >= 1 && p.u <= 1e12 && p.v >= 0 && p.v <= 1e12 && p.seconds > 0 && p.seconds < 1e9))
        return kvd_fail(err, "row %zu: %s %g, %s %g, %g seconds", row, piece ? "piece" : "batch",
                        p.u, piece ? "before" : "context", p.v, p.seconds);
    if (!(kvd_row_real(s, row, "batch") >= 1))
        return kvd_fail(err, "row %zu: batch %g, expected at least 1", row,
                        kvd_row_real(s, row, "batch"));
    t->point[t->n_points++] = p;
    return 0;
}

static double pairs(double tokens, double before)
{
    return tokens * (before + tokens / 2);
}

/* Returns the attention time in seconds per pair of a query and a key, estimated from measured
 * prompt times. */
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

/* Subtracts the time of attention from the measured times of prompts. The rest is the time of
 * matrix products. For prompts without cached tokens, copies this rest to c->products. */
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

static int take_facts(kvd_costs *c, const kvd_rows *s, size_t row, kvd_err *err)
{
    c->bytes_per_token = kvd_row_real(s, row, "bytes_per_token");
    c->weight_bytes = kvd_row_real(s, row, "weight_bytes");
    c->cache_bytes = kvd_row_real(s, row, "cache_bytes");
    const double gpus = kvd_row_real(s, row, "gpus");
    if (!(gpus >= 0 && gpus <= 1024)) /* 0 GPUs: the model ran on the CPU */
        return kvd_fail(err, "row %zu: %g GPUs", row, gpus);
    c->gpus = (int)gpus;
    c->graphs = kvd_row_real(s, row, "graphs") > 0;
    c->phases = kvd_row_real(s, row, "phases") > 0;
    snprintf(c->engine, sizeof c->engine, "%s", kvd_row_text(s, row, "engine"));
    if (!(c->bytes_per_token > 0 && c->bytes_per_token < 1e15 && c->weight_bytes >= 0 &&
          c->weight_bytes < 1e18))
        return kvd_fail(err, "row %zu: %g bytes per token, %g bytes of weights", row,
                        c->bytes_per_token, c->weight_bytes);
    /* Allows NaN (size of the cache not recorded), because the option --memory may give the
     * size. */
    if (c->cache_bytes >= 1e18)
        return kvd_fail(err, "row %zu: a cache of %g bytes", row, c->cache_bytes);
    return 0;
}

static void take_held_bytes(kvd_costs *c, const kvd_rows *s, const char *method)
{
    double most = 0;
    for (size_t i = 0; i < kvd_rows_count(s); i++)
        if (is_kind(s, i, "job") && is_of(s, i, method, c->gpus) &&
            kvd_row_real(s, i, "bytes_per_token") < 1e15)
            most = fmax(most, kvd_row_real(s, i, "bytes_per_token"));
    if (most > 0)
        c->bytes_per_token = most;
}

static int gather(kvd_costs *c, const kvd_rows *s, const char *method, int gpus, kvd_err *err)
{
    const size_t n = kvd_rows_count(s);
    size_t first = SIZE_MAX;
    c->prompts.point = calloc(n ? n : 1, sizeof(kvd_cost_point));
    c->products.point = calloc(n ? n : 1, sizeof(kvd_cost_point));
    c->steps.point = calloc(n ? n : 1, sizeof(kvd_cost_point));
    if (!c->prompts.point || !c->products.point || !c->steps.point)
        return kvd_no_memory(err, "tables of costs", 3 * n * sizeof(kvd_cost_point));
    for (size_t i = 0; i < n; i++) {
        if (!is_kind(s, i, "iteration") || !is_of(s, i, method, gpus))
            continue;
        if ((first == SIZE_MAX && take_facts(c, s, first = i, err)) ||
            same_setting(s, first, i, err) || add_point(c, s, i, err))
            return -1;
    }
    if (first == SIZE_MAX)
        return gpus < 0 ? kvd_fail(err, "no row of kind iteration")
                        : kvd_fail(err, "no row of kind iteration on %d GPUs", gpus);
    take_held_bytes(c, s, method);
    return kvd_cost_table_sort(&c->prompts, "piece", "before", err) ||
           kvd_cost_table_sort(&c->steps, "batch", "context", err) || take_attention_out(c, err);
}

static double products(const kvd_costs *c, double tokens, int *extrapolated)
{
    const kvd_cost_table *const t = &c->products;
    const double s = kvd_cost_table_at(t, tokens, 0, extrapolated);
    return tokens < t->u[0] ? fmin(s, t->seconds[0]) : s;
}

kvd_costs *kvd_costs_load(const char *path, const char *method, int gpus, kvd_err *err)
{
    kvd_rows *const rows = read_rows(path, err);
    if (!rows)
        return NULL;
    kvd_costs *c = calloc(1, sizeof *c);
    if (!c)
        kvd_no_memory(err, "costs", sizeof *c);
    else if (gather(c, rows, method, gpus, err)) {
        kvd_in(err, "'%s': %s", path, method);
        kvd_costs_free(c);
        c = NULL;
    } else
        c->empty = products(c, 0, &(int){0});
    kvd_rows_free(rows);
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

/* Returns the seconds that n prompt tokens after `before` cached tokens take, without the time of
 * matrix products. Outside the measured range, sets *extrapolated to 1. */
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

bool kvd_costs_graphs(const kvd_costs *c)
{
    return c->graphs;
}

bool kvd_costs_phases(const kvd_costs *c)
{
    return c->phases;
}

const char *kvd_costs_engine(const kvd_costs *c)
{
    return c->engine;
}
