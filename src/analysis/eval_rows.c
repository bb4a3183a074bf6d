/* Points of kvdim-eval into rows: all in one pass over the texts, or with --resume one after another, each saved. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/accuracy_text.h"
#include "analysis/eval_run.h"
#include "common/progress.h"

static void print_new_rows(kvd_eval_run *v)
{
    const kvd_rows *const r = v->accuracy.rows;
    const bool shown = !v->cfg->common.quiet && !v->cfg->common.json;
    char line[KVD_ACCURACY_LINE];
    for (; v->printed < kvd_rows_count(r); v->printed++) {
        if (!shown)
            continue;
        if (!v->printed)
            puts(kvd_accuracy_heading);
        puts(kvd_accuracy_line(r, v->printed, line));
    }
    fflush(stdout);
}

/* A point as a choice; its plan stays where it is opened. */
static int open_choice(kvd_eval_run *v, const kvd_point_source *source, const kvd_point *p, kvd_choice *c,
                       kvd_err *err)
{
    const kvd_method *const m = source->method;
    const kvd_method_setup setup = {.config = v->model,
                                    .spectrum = source->spectrum,
                                    .calibration = v->cfg->calibration ? &v->calibration : NULL,
                                    .seed = v->run.seed};
    *c = (kvd_choice){.method = kvd_method_name(m),
                      .overall_p = p->overall_p,
                      .plan = {.dims = p->cut ? &p->dims : NULL,
                               .dims_low = p->low.head ? &p->low : NULL,
                               .type = v->cfg->cache,
                               .prompt = v->cfg->prompt,
                               .seed = v->run.seed}};
    kvd_method_plan(m, &c->plan);
    return kvd_plan_open(&c->plan, &setup, err);
}

static int add_row(kvd_eval_run *v, const char *purpose, const kvd_point_source *source, const kvd_point *p,
                   const kvd_choice *c, double full_rank_error, kvd_err *err)
{
    const kvd_evaluator *const e = &v->evaluator;
    kvd_quality_summary summary;
    return kvd_quality_compare(c->per_sequence, e->reference, e->n_sequences, v->run.seed, &summary, err) ||
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
    const int status = open_choice(v, source, point, &c, err) ||
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
    print_new_rows(v);
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

static int all_at_once(kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_evaluator *const e = &v->evaluator;
    const size_t n = count_points(v);
    size_t k = 0;
    kvd_choice *const choice = calloc(n ? n : 1, sizeof *choice);
    if (!choice)
        return kvd_no_memory(err, "points", (unsigned long long)n * sizeof *choice);
    int status = 0;
    for (size_t i = 0; !status && i < cfg->n_methods; i++)
        for (size_t j = 0; !status && j < v->n_points[i]; j++)
            status = open_choice(v, &v->source[i], &v->point[i][j], &choice[k++], err);
    kvd_progress progress;
    kvd_progress_start(&progress, "eval", "tokens", (double)e->n_tokens * (double)n, cfg->common.quiet);
    status = status || kvd_evaluate(e, choice, n, 0, true, &progress, err);
    kvd_progress_end(&progress);
    k = 0;
    for (size_t i = 0; !status && i < cfg->n_methods; i++)
        for (size_t j = 0; !status && j < v->n_points[i]; j++, k++)
            status =
                add_row(v, "point", &v->source[i], &v->point[i][j], &choice[k], v->full_rank_error[i], err);
    for (k = 0; k < n; k++) {
        kvd_plan_close(&choice[k].plan);
        kvd_choice_release(&choice[k]);
    }
    free(choice);
    if (!status)
        print_new_rows(v);
    return status ? -1 : 0;
}

int kvd_eval_points(kvd_eval_run *v, kvd_err *err)
{
    return v->cfg->resume ? one_by_one(v, err) : all_at_once(v, err);
}
