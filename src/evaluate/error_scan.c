/* Measures how much predictions change when a single head keeps fewer dimensions. */
#include "evaluate/eval_run.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int eighths[] = {1, 2, 3, 4, 5, 6, 8};
enum { N_WIDTHS = sizeof eighths / sizeof *eighths };

/* Fills `width` with the numbers of kept dimensions to try: 1/8 to 6/8, and 8/8, of d_head. Returns
 * how many numbers there are. */
static size_t widths_of(int d_head, int32_t *width)
{
    size_t n = 0;
    for (size_t i = 0; i < N_WIDTHS; i++) {
        const int32_t w = d_head * eighths[i] / 8;
        if (w >= 1 && (n == 0 || w > width[n - 1]))
            width[n++] = w;
    }
    return n;
}

size_t kvd_error_scan_runs(const kvd_config *c)
{
    int32_t width[N_WIDTHS] = {0};
    return 2 * (size_t)c->n_layers * (size_t)c->n_kv_heads * (widths_of(c->d_head, width) - 1);
}

static int alloc_table(kvd_error_table *t, const kvd_method *m, const kvd_model_info *model,
                       kvd_err *err)
{
    memset(t, 0, sizeof *t);
    t->model = *model;
    snprintf(t->method, sizeof t->method, "%s", m->dims->info.name);
    t->pair[0] = m->dims->pair[0];
    t->pair[1] = m->dims->pair[1];
    t->n_layers = model->n_layers;
    t->n_kv_heads = model->n_kv_heads;
    t->d_head = model->d_head;
    t->width = malloc(N_WIDTHS * sizeof *t->width);
    if (!t->width)
        return kvd_no_memory(err, "an error table", N_WIDTHS * sizeof *t->width);
    t->n_widths = widths_of(t->d_head, t->width);
    const size_t n = 2 * (size_t)t->n_layers * (size_t)t->n_kv_heads * t->n_widths;
    t->error = calloc(n, sizeof *t->error);
    if (!t->error)
        return kvd_no_memory(err, "an error table", (unsigned long long)n * sizeof *t->error);
    return 0;
}

/* State of a scan that removes dimensions from one KV head at a time. Measurement u removes them
 * from KV head u / 2: from Q and K if u is even, from V if u is odd. */
typedef struct {
    kvd_evaluator *e;
    const kvd_method *method;
    kvd_error_table *t;
    kvd_dtype type;
    size_t n;           /* numbers of dimensions tried for K or V of each head */
    size_t together;    /* measurements per pass of the model */
    kvd_dims *dims;     /* [together][n] */
    kvd_choice *choice; /* [together][n] */
} scanner;

/* Returns how many measurements fit into memory together, at least 1. A measurement concerns one
 * head: it tries all numbers of kept dimensions, either for Q and K or for V. */
static size_t units_together(const scanner *x)
{
    const kvd_model_runner *const r = x->e->runner;
    const size_t unit = x->n * r->max_tokens * (size_t)x->e->config->d_model * sizeof(float),
                 all = 2 * (size_t)x->t->n_kv_heads, fit = unit ? r->spare(r) / unit : all;
    return fit < 1 ? 1 : fit > all ? all : fit;
}

static int alloc_scanner(scanner *x, kvd_err *err)
{
    x->n = x->t->n_widths - 1;
    x->together = units_together(x);
    const size_t most = x->together * x->n;
    x->dims = calloc(most ? most : 1, sizeof *x->dims);
    x->choice = calloc(most ? most : 1, sizeof *x->choice);
    return x->dims && x->choice ? 0
                                : kvd_no_memory(err, "choices of widths",
                                                most * (sizeof *x->dims + sizeof *x->choice));
}

static int cut_unit(scanner *x, int layer, size_t unit, size_t at, kvd_err *err)
{
    kvd_error_table *const t = x->t;
    const double all = 2.0 * t->n_layers * t->n_kv_heads * t->d_head;
    for (size_t i = 0; i < x->n; i++) {
        kvd_dims *const d = &x->dims[at * x->n + i];
        if (kvd_dims_one(d, x->method->dims, x->method->spectrum, layer, (int)(unit / 2),
                         (int)(unit % 2), t->width[i], err))
            return kvd_in(err, "'%s'", x->method->spectrum_path);
        x->choice[at * x->n + i] = (kvd_choice){.method = t->method,
                                                .overall_p = (t->d_head - t->width[i]) / all,
                                                .plan = {.dims = d, .type = x->type}};
    }
    return 0;
}

static void put_errors(const scanner *x, int layer, size_t unit, size_t at)
{
    kvd_error_table *const t = x->t;
    const size_t heads = (size_t)t->n_kv_heads, side = unit % 2;
    double *const error =
        t->error + ((side * (size_t)t->n_layers + (size_t)layer) * heads + unit / 2) * t->n_widths;
    for (size_t i = 0; i < x->n; i++) {
        double kl = 0, count = 0;
        for (size_t q = 0; q < x->e->n_sequences; q++) {
            kl += x->choice[at * x->n + i].per_sequence[q].kl;
            count += x->choice[at * x->n + i].per_sequence[q].n;
        }
        error[i] = kl / count;
    }
}

static int scan_units(scanner *x, int layer, size_t first, size_t some, kvd_progress *progress,
                      kvd_err *err)
{
    int status = 0;
    for (size_t u = 0; u < some && !status; u++)
        status = cut_unit(x, layer, first + u, u, err);
    if (!status)
        status = kvd_evaluate(x->e, x->choice, some * x->n, layer, false, progress, err);
    for (size_t u = 0; u < some && !status; u++)
        put_errors(x, layer, first + u, u);
    for (size_t i = 0; i < some * x->n; i++) {
        kvd_choice_release(&x->choice[i]);
        kvd_dims_release(&x->dims[i]);
    }
    return status ? kvd_in(err, "layer %d, KV heads %zu to %zu", layer, first / 2,
                           (first + some - 1) / 2)
                  : 0;
}

int kvd_error_scan(kvd_evaluator *e, const kvd_method *m, const kvd_model_info *model,
                   kvd_dtype type, kvd_progress *progress, kvd_error_table *t, kvd_err *err)
{
    assert(m->dims);
    scanner x = {.e = e, .method = m, .t = t, .type = type};
    int status = alloc_table(t, m, model, err) || kvd_evaluator_know_reference(e, err) ||
                 alloc_scanner(&x, err);
    const size_t units = 2 * (size_t)model->n_kv_heads;
    for (int layer = 0; layer < model->n_layers && !status; layer++)
        for (size_t first = 0; first < units && !status; first += x.together)
            status =
                scan_units(&x, layer, first,
                           units - first < x.together ? units - first : x.together, progress, err);
    free(x.dims);
    free(x.choice);
    if (status)
        kvd_error_table_release(t);
    return status ? -1 : 0;
}
