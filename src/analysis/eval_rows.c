/* Points of kvdim-eval into rows: all in one pass over the texts, or with --resume one after another, each saved. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/accuracy_text.h"
#include "analysis/eval_free.h"
#include "analysis/eval_run.h"
#include "analysis/seeds.h"
#include "common/progress.h"

void kvd_eval_print_new_rows(kvd_eval_run *v)
{
    const kvd_rows *const r = v->accuracy.rows;
    const bool shown = !v->cfg->common.quiet && !v->cfg->common.json;
    char line[4 * KVD_ACCURACY_LINE];
    const size_t first = v->printed;
    for (; v->printed < kvd_rows_count(r); v->printed++) {
        if (!shown)
            continue;
        if (!v->printed)
            puts(kvd_accuracy_heading);
        puts(kvd_accuracy_line(r, v->printed, line));
    }
    for (size_t i = first; shown && v->accuracy.free_columns && i < v->printed; i++)
        if (kvd_accuracy_free_line(r, i, line))
            puts(line);
    fflush(stdout);
}

/* A point as a choice, under the k-th seed; its plan stays where it is opened. */
static int open_choice(kvd_eval_run *v, const kvd_point_source *source, const kvd_point *p, size_t k,
                       kvd_choice *c, kvd_err *err)
{
    const kvd_method *const m = source->method;
    const kvd_method_setup setup = {.config = v->model,
                                    .spectrum = source->spectrum,
                                    .calibration = v->cfg->calibration ? &v->calibration : NULL,
                                    .fisher = v->cfg->fisher ? &v->fisher : NULL,
                                    .seed = v->run.seed + k};
    *c = (kvd_choice){.method = kvd_method_name(m),
                      .overall_p = p->overall_p,
                      .weight_bytes = v->weight_bytes,
                      .plan = {.dims = p->cut ? &p->dims : NULL,
                               .dims_low = p->low.head ? &p->low : NULL,
                               .type = v->cfg->cache,
                               .prompt = v->cfg->prompt,
                               .seed = setup.seed}};
    kvd_method_plan(m, &c->plan);
    return kvd_plan_open(&c->plan, &setup, err);
}

static int add_row(kvd_eval_run *v, const char *purpose, const kvd_point_source *source, const kvd_point *p,
                   const kvd_choice *c, double full_rank_error, kvd_err *err)
{
    kvd_quality_summary summary;
    return kvd_evaluator_compare(&v->evaluator, c, v->run.seed, &summary, err) ||
                   kvd_accuracy_add(&v->accuracy, purpose, source, p, c, &summary, full_rank_error, err)
               ? -1
               : 0;
}

static int evaluate_one(kvd_eval_run *v, const char *purpose, const kvd_point_source *source,
                        const kvd_point *point, double full_rank_error, kvd_err *err)
{
    /* A search keeps its passes short; a point asked for has its attention errors. */
    const bool errors = !strcmp(purpose, "point");
    kvd_choice c;
    const int status = open_choice(v, source, point, 0, &c, err) ||
                       kvd_evaluate(&v->evaluator, &c, 1, 0, errors, NULL, err) ||
                       add_row(v, purpose, source, point, &c, full_rank_error, err);
    kvd_plan_close(&c.plan);
    kvd_choice_release(&c);
    return status ? -1 : 0;
}

int kvd_eval_one(kvd_eval_run *v, const char *purpose, const kvd_point_source *source, const kvd_point *point,
                 double full_rank_error, size_t *row, kvd_err *err)
{
    bool taken;
    if (kvd_saved_rows_take(&v->saved, purpose, source, point, &v->accuracy, &taken, err) ||
        (!taken && (evaluate_one(v, purpose, source, point, full_rank_error, err) ||
                    kvd_saved_rows_save(&v->saved, &v->run, &v->accuracy, err))))
        return -1;
    *row = v->accuracy.n - 1;
    kvd_eval_print_new_rows(v);
    return 0;
}

static size_t count_points(const kvd_eval_run *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->cfg->n_methods; i++)
        n += v->n_points[i];
    return n;
}

static int one_by_one(kvd_eval_run *v, kvd_err *err)
{
    kvd_progress progress;
    int status = 0;
    size_t row, done = 0;
    kvd_progress_start(&progress, "eval", "points", (double)count_points(v), v->cfg->common.quiet);
    for (size_t i = 0; !status && i < v->cfg->n_methods; i++)
        for (size_t j = 0; !status && j < v->n_points[i]; j++) {
            status =
                kvd_eval_one(v, "point", &v->source[i], &v->point[i][j], v->full_rank_error[i], &row, err);
            kvd_progress_step(&progress, (double)++done);
        }
    kvd_progress_end(&progress);
    return status;
}

/* ---- all at once: several seeds, and what runs free -------------------------------------------------- */

/* How many choices a point of method i has: one for every seed if it draws. */
static size_t seeds_of(const kvd_eval_run *v, size_t i)
{
    kvd_plan plan = {.dims = NULL};
    kvd_method_plan(&v->cfg->method[i], &plan);
    return kvd_plan_draws(&plan) ? v->cfg->seeds : 1;
}

static size_t choices_of(const kvd_eval_run *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->cfg->n_methods; i++)
        n += v->n_points[i] * seeds_of(v, i);
    return n;
}

/* What runs free, and the uncompressed model's part of it. */
static int start_free(kvd_eval_run *v, kvd_progress *progress, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_free_run *const f = &v->free_run;
    if (kvd_eval_free_items(cfg, v->corpus, v->tokenizer, v->run.seed, f, err))
        return -1;
    if (v->gpu[0] && !cfg->common.quiet)
        fprintf(stderr, "%s: what runs free runs on the CPU\n", v->run.program);
    kvd_progress_start(progress, "free-running", "sequences",
                       (double)kvd_free_run_sequences(f) * (double)(choices_of(v) + 1), cfg->common.quiet);
    return kvd_free_run_init(f, v->checkpoint, v->tokenizer, cfg->batch, progress, err);
}

static int run_free(kvd_eval_run *v, kvd_choice *choice, size_t n, kvd_err *err)
{
    kvd_progress progress;
    if (!kvd_eval_runs_free(v->cfg))
        return 0;
    int status = start_free(v, &progress, err);
    for (size_t k = 0; !status && k < n; k++)
        if (kvd_free_run_plan(&v->free_run, &choice[k].plan, &choice[k].free_run, &progress, err))
            status = kvd_in(err, "free-running, method '%s'", choice[k].method);
    if (v->free_run.items[0].n_items + v->free_run.items[1].n_items + v->free_run.items[2].n_items)
        kvd_progress_end(&progress);
    return status;
}

/* The rows of one point: of several seeds the mean first. */
static int add_point(kvd_eval_run *v, size_t i, size_t j, const kvd_choice *c, size_t n, kvd_err *err)
{
    kvd_choice mean = {.method = NULL};
    const kvd_point_source *const source = &v->source[i];
    const kvd_point *const point = &v->point[i][j];
    const double full_rank_error = v->full_rank_error[i];
    if (n == 1)
        return add_row(v, "point", source, point, c, full_rank_error, err);
    const kvd_free_run *const f = kvd_eval_runs_free(v->cfg) ? &v->free_run : NULL;
    int status = kvd_choice_mean(c, n, &v->evaluator, f, &mean, err) ||
                 add_row(v, "point", source, point, &mean, full_rank_error, err);
    kvd_choice_release(&mean);
    for (size_t k = 0; !status && k < n; k++)
        status = add_row(v, "seed", source, point, &c[k], full_rank_error, err);
    return status ? -1 : 0;
}

static int evaluate_choices(kvd_eval_run *v, kvd_choice *choice, size_t n, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_evaluator *const e = &v->evaluator;
    size_t k = 0;
    for (size_t i = 0; i < cfg->n_methods; i++)
        for (size_t j = 0; j < v->n_points[i]; j++)
            for (size_t s = 0; s < seeds_of(v, i); s++)
                if (open_choice(v, &v->source[i], &v->point[i][j], s, &choice[k++], err))
                    return -1;
    kvd_progress progress;
    kvd_progress_start(&progress, "eval", "tokens", (double)e->n_tokens * (double)n, cfg->common.quiet);
    const int status = kvd_evaluate(e, choice, n, 0, true, &progress, err);
    kvd_progress_end(&progress);
    if (status || run_free(v, choice, n, err) ||
        kvd_accuracy_init(&v->accuracy, v->model, v->label, e->n_sequences, e->n_tokens,
                          kvd_eval_runs_free(cfg) ? &v->free_run : NULL, cfg->seeds > 1, v->run.seed, err))
        return -1;
    (void)snprintf(v->accuracy.calibrated, sizeof v->accuracy.calibrated, "%s", v->calibration.label);
    k = 0;
    for (size_t i = 0; i < cfg->n_methods; i++)
        for (size_t j = 0; j < v->n_points[i]; j++, k += seeds_of(v, i))
            if (add_point(v, i, j, &choice[k], seeds_of(v, i), err))
                return -1;
    return 0;
}

static int all_at_once(kvd_eval_run *v, kvd_err *err)
{
    const size_t n = choices_of(v);
    kvd_choice *const choice = calloc(n ? n : 1, sizeof *choice);
    if (!choice)
        return kvd_no_memory(err, "points", (unsigned long long)n * sizeof *choice);
    const int status = evaluate_choices(v, choice, n, err);
    for (size_t k = 0; k < n; k++) {
        kvd_plan_close(&choice[k].plan);
        kvd_choice_release(&choice[k]);
    }
    free(choice);
    if (!status)
        kvd_eval_print_new_rows(v);
    return status;
}

int kvd_eval_points(kvd_eval_run *v, kvd_err *err)
{
    return v->cfg->resume ? one_by_one(v, err) : all_at_once(v, err);
}
