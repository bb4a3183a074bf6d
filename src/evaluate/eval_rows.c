/* Evaluates all methods of kvdim-eval: together in one pass over the texts or, with --resume, one
 * after the other. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/progress.h"
#include "evaluate/accuracy_text.h"
#include "evaluate/eval_run.h"
#include "evaluate/evaluate.h"

size_t kvd_saved_rows_count(const kvd_saved_rows *s)
{
    return s->from.rows ? kvd_rows_count(s->from.rows) : 0;
}

static int load(kvd_saved_rows *s, const kvd_accuracy *like, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    kvd_err why;
    char *then = NULL;
    int status = kvd_h5_open(&f, s->path, &kvd_schema_accuracy_rows, &why) ||
                 kvd_h5_get_text(&f, "/", "run_key", &then, &why);
    if (!status && kvd_run_key_resume(s->path, then, &s->key, err)) {
        free(then);
        kvd_h5_close(&f, false);
        return -1;
    }
    status = status ||
             kvd_accuracy_init(&s->from, like->config, like->label, like->n_sequences,
                               like->n_tokens, false, &why) ||
             kvd_accuracy_load(&f, &s->from, &why);
    free(then);
    kvd_h5_close(&f, false);
    if (status)
        return kvd_fail(err, "cannot resume: %s; remove '%s' or run without --resume", why.msg,
                        s->path);
    s->n_kept = kvd_saved_rows_count(s);
    return 0;
}

int kvd_saved_rows_open(kvd_saved_rows *s, const char *output, const kvd_accuracy *like,
                        kvd_err *err)
{
    s->next = 0;
    if (asprintf(&s->path, "%s.rows", output) < 0) {
        s->path = NULL;
        return kvd_no_memory(err, "a path", strlen(output) + 6);
    }
    if (kvd_output_check_derived(s->path, err))
        return -1;
    return access(s->path, F_OK) ? 0 : load(s, like, err);
}

void kvd_saved_rows_release(kvd_saved_rows *s)
{
    free(s->path);
    kvd_accuracy_release(&s->from);
    memset(s, 0, sizeof *s);
}

static bool same_text(const kvd_rows *r, size_t row, const char *column, const char *text)
{
    return !strcmp(kvd_row_text(r, row, column), text);
}

static bool same_real(const kvd_rows *r, size_t row, const char *column, double x)
{
    const double y = kvd_row_real(r, row, column);
    return isnan(x) ? isnan(y) : x <= y && x >= y;
}

/* Copies the next saved result of an interrupted run into *to, if one is left. Fails if the result
 * is for another method than `point`, or for other parameter values. */
static int take_saved(kvd_saved_rows *s, const char *purpose, const kvd_point *point,
                      kvd_accuracy *to, bool *taken, kvd_err *err)
{
    *taken = false;
    if (!s->path || s->next == kvd_saved_rows_count(s))
        return 0;
    const kvd_rows *const r = s->from.rows;
    const char *const name = kvd_method_name(point->method);
    if (!same_text(r, s->next, "method", name) ||
        !same_text(r, s->next, "settings", point->method->settings) ||
        !same_text(r, s->next, "purpose", purpose) || !same_text(r, s->next, "rule", point->rule) ||
        !same_real(r, s->next, "p_wanted", point->p_wanted) ||
        !same_real(r, s->next, "removal_rate", point->removal_rate))
        return kvd_fail(err, "'%s': row %zu is of '%s', this run comes to '%s' there", s->path,
                        s->next, kvd_row_text(r, s->next, "method"), name);
    *taken = true;
    return kvd_accuracy_take(to, &s->from, s->next++, err);
}

/* Writes all results so far to OUT.h5.rows. Writes nothing while a resumed run has still to copy
 * old results from that file, because these would be lost. */
static int save_rows(kvd_saved_rows *s, const kvd_run *run, const kvd_accuracy *rows, kvd_err *err)
{
    kvd_h5 f;
    if (!s->path || s->next < kvd_saved_rows_count(s))
        return 0;
    /* kvd_h5_create would replace the target of a symbolic link, so first checks that s->path does
     * not exist or is a regular file. */
    if (kvd_output_check_derived(s->path, err) ||
        kvd_h5_create(&f, s->path, &kvd_schema_accuracy_rows, run, err))
        return -1;
    const int status = kvd_h5_put_text(&f, "/", "run_key", s->key.text, err) ||
                       kvd_accuracy_write(&f, rows, err) || kvd_h5_finish(&f, err);
    kvd_h5_close(&f, false);
    if (status)
        return -1;
    s->n_kept = kvd_rows_count(rows->rows);
    return 0;
}

int kvd_saved_rows_remove(kvd_saved_rows *s, kvd_err *err)
{
    s->n_kept = 0;
    return s->path ? kvd_output_remove(s->path, err) : 0;
}

static void mean_quality(const kvd_choice *choice, size_t n, size_t n_sequences, kvd_choice *mean)
{
    for (size_t s = 0; s < n_sequences; s++) {
        kvd_quality *const q = &mean->per_sequence[s];
        q->n = choice->per_sequence[s].n;
        for (size_t k = 0; k < n; k++) {
            const kvd_quality *const x = &choice[k].per_sequence[s];
            q->nll += x->nll / (double)n;
            q->top1 += x->top1 / (double)n;
            q->kl += x->kl / (double)n;
            q->agree += x->agree / (double)n;
        }
    }
}

static void add_errors(const kvd_attention_error *x, kvd_attention_error *sum)
{
    const size_t heads = (size_t)x->n_layers * (size_t)x->n_heads;
    for (size_t i = 0; i < heads; i++) {
        sum->diff2[i] += x->diff2[i];
        sum->norm2[i] += x->norm2[i];
        sum->relative[i] += x->relative[i];
        sum->n[i] += x->n[i];
        sum->n_zero[i] += x->n_zero[i];
    }
}

/* Computes the mean quality of n runs of a compression method with different random seeds, and sums
 * their cache statistics, attention errors and seconds. *mean borrows the methods of choice[0]. */
static int choice_mean(const kvd_choice *choice, size_t n, const kvd_evaluator *e, kvd_choice *mean,
                       kvd_err *err)
{
    mean->method = choice->method;
    mean->overall_p = choice->overall_p;
    mean->plan = choice->plan;
    mean->weight_bytes = choice->weight_bytes;
    mean->n_seeds = n;
    snprintf(mean->engine, sizeof mean->engine, "%s", choice->engine);
    double *const seed = malloc(4 * n * sizeof *seed);
    mean->per_sequence = calloc(e->n_sequences, sizeof *mean->per_sequence);
    if (!seed || !mean->per_sequence) {
        free(seed);
        return kvd_no_memory(err, "sums per sequence", e->n_sequences * sizeof *mean->per_sequence);
    }
    mean_quality(choice, n, e->n_sequences, mean);
    for (size_t k = 0; k < n; k++) {
        kvd_quality sum = {0};
        for (size_t s = 0; s < e->n_sequences; s++) {
            const kvd_quality *const q = &choice[k].per_sequence[s];
            sum.n += q->n;
            sum.nll += q->nll;
            sum.top1 += q->top1;
            sum.kl += q->kl;
            sum.agree += q->agree;
        }
        seed[k] = sum.nll / sum.n;
        seed[n + k] = sum.top1 / sum.n;
        seed[2 * n + k] = sum.kl / sum.n;
        seed[3 * n + k] = sum.agree / sum.n;
    }
    mean->spread = (kvd_seed_spread){kvd_stddev(seed, n), kvd_stddev(seed + n, n),
                                     kvd_stddev(seed + 2 * n, n), kvd_stddev(seed + 3 * n, n)};
    int status = 0;
    if (choice->error.diff2)
        status = kvd_attention_error_init(&mean->error, NULL, e->config, err);
    for (size_t k = 0; !status && k < n; k++) {
        kvd_cache_account_add(&mean->account, &choice[k].account);
        mean->seconds += choice[k].seconds;
        if (mean->error.diff2)
            add_errors(&choice[k].error, &mean->error);
    }
    free(seed);
    return status;
}

void kvd_eval_print_new_rows(kvd_eval_run *v)
{
    const kvd_rows *const r = v->accuracy.rows;
    const bool shown = !v->cfg->in.common.quiet && !v->cfg->in.common.json;
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

/* Prepares the compression methods with the parameter values *p and the k-th random seed. Stores
 * them in c->plan. *c must not be moved afterwards. */
static int open_choice(kvd_eval_run *v, const kvd_point *p, size_t k, kvd_choice *c, kvd_err *err)
{
    *c = (kvd_choice){.method = kvd_method_name(p->method),
                      .overall_p = p->overall_p,
                      .weight_bytes = v->weight_bytes};
    return kvd_inputs_open_plan(&v->in, p, k, &c->plan, err);
}

static int add_row(kvd_eval_run *v, const char *purpose, const kvd_point *p, const kvd_choice *c,
                   double full_rank_error, kvd_err *err)
{
    kvd_quality_summary summary;
    return kvd_evaluator_compare(&v->evaluator, c, v->in.run.seed, &summary, err) ||
           kvd_accuracy_add(&v->accuracy, purpose, p, c, &summary, full_rank_error, err);
}

/* Fails if compression had no effect in one of n evaluations. The reason is then in
 * c[k].inert, which is empty otherwise. */
static int check_acted(kvd_eval_run *v, const kvd_choice *c, size_t n, kvd_err *err)
{
    for (size_t k = 0; k < n; k++)
        if (*c[k].inert.msg) {
            v->in.inert = v->in.unsuited = true;
            *err = c[k].inert;
            return -1;
        }
    return 0;
}

static int evaluate_one(kvd_eval_run *v, const char *purpose, const kvd_point *point,
                        double full_rank_error, kvd_err *err)
{
    /* Measures attention errors, which takes time, only at parameter values that the user gave
     * (purpose "point"), not at values that option --target tries. */
    const bool errors = !strcmp(purpose, "point");
    kvd_choice c;
    const int status = open_choice(v, point, 0, &c, err) ||
                       kvd_evaluate(&v->evaluator, &c, 1, 0, errors, NULL, err) ||
                       check_acted(v, &c, 1, err) ||
                       add_row(v, purpose, point, &c, full_rank_error, err);
    kvd_plan_close(&c.plan);
    kvd_choice_release(&c);
    return status ? -1 : 0;
}

int kvd_eval_one(kvd_eval_run *v, const char *purpose, const kvd_point *point,
                 double full_rank_error, size_t *row, kvd_err *err)
{
    bool taken;
    kvd_err why = {""};
    if (take_saved(&v->saved, purpose, point, &v->accuracy, &taken, err)) {
        /* A method that failed has no saved result; runs it again to get its error message. */
        if (evaluate_one(v, purpose, point, full_rank_error, &why))
            *err = why;
        return -1;
    }
    if (!taken && (evaluate_one(v, purpose, point, full_rank_error, err) ||
                   save_rows(&v->saved, &v->in.run, &v->accuracy, err)))
        return -1;
    *row = kvd_rows_count(v->accuracy.rows) - 1;
    kvd_eval_print_new_rows(v);
    return 0;
}

static size_t count_points(const kvd_eval_run *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->cfg->in.n_methods; i++)
        n += v->in.n_points[i];
    return n;
}

static int one_by_one(kvd_eval_run *v, const char *program, kvd_err *err)
{
    kvd_progress progress;
    int status = 0;
    size_t row, done = 0;
    kvd_progress_start(&progress, "eval", "points", (double)count_points(v),
                       v->cfg->in.common.quiet);
    for (size_t i = 0; !status && i < v->cfg->in.n_methods; i++)
        for (size_t j = 0; !status && j < v->in.n_points[i]; j++) {
            status =
                kvd_eval_one(v, "point", &v->in.point[i][j], v->full_rank_error[i], &row, err) &&
                kvd_inputs_leave_out(&v->in, i, program, err);
            if (!status)
                kvd_progress_step(&progress, (double)++done);
        }
    kvd_progress_end(&progress);
    return status;
}

static size_t seeds_of(const kvd_eval_run *v, size_t i)
{
    return kvd_plan_draws(&v->cfg->in.method[i].plan) ? v->cfg->in.seeds : 1;
}

static size_t choices_of(const kvd_eval_run *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->cfg->in.n_methods; i++)
        n += v->in.n_points[i] * seeds_of(v, i);
    return n;
}

/* Adds a table row for each of n runs of a compression method with different random seeds. If n >
 * 1, first adds a row with their means. */
static int add_point(kvd_eval_run *v, size_t i, size_t j, const kvd_choice *c, size_t n,
                     kvd_err *err)
{
    kvd_choice mean = {.method = NULL};
    const kvd_point *const point = &v->in.point[i][j];
    const double full_rank_error = v->full_rank_error[i];
    if (n == 1)
        return add_row(v, "point", point, c, full_rank_error, err);
    int status = choice_mean(c, n, &v->evaluator, &mean, err) ||
                 add_row(v, "point", point, &mean, full_rank_error, err);
    kvd_choice_release(&mean);
    for (size_t k = 0; !status && k < n; k++)
        status = add_row(v, "seed", point, &c[k], full_rank_error, err);
    return status ? -1 : 0;
}

/* Prepares compression method i for each of its parameter values and random seeds. On failure frees
 * everything that it prepared. */
static int open_method(kvd_eval_run *v, size_t i, kvd_choice *choice, size_t *n, kvd_err *err)
{
    *n = 0;
    for (size_t j = 0; j < v->in.n_points[i]; j++)
        for (size_t s = 0; s < seeds_of(v, i); s++)
            if (open_choice(v, &v->in.point[i][j], s, &choice[(*n)++], err)) {
                while (*n)
                    kvd_plan_close(&choice[--*n].plan);
                return -1;
            }
    return 0;
}

static int add_method(kvd_eval_run *v, size_t i, const kvd_choice *choice, size_t n, kvd_err *err)
{
    if (check_acted(v, choice, n, err))
        return -1;
    for (size_t j = 0; j < v->in.n_points[i]; j++)
        if (add_point(v, i, j, choice + j * seeds_of(v, i), seeds_of(v, i), err))
            return -1;
    return 0;
}

static int evaluate_choices(kvd_eval_run *v, kvd_choice *choice, const char *program, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_evaluator *const e = &v->evaluator;
    static size_t of_method[KVD_EVAL_METHODS];
    size_t n = 0, k = 0;
    for (size_t i = 0; i < cfg->in.n_methods; n += of_method[i++])
        if (open_method(v, i, &choice[n], &of_method[i], err) &&
            kvd_inputs_leave_out(&v->in, i, program, err))
            return -1;
    kvd_progress progress;
    kvd_progress_start(&progress, "eval", "tokens", (double)e->n_tokens * (double)n,
                       cfg->in.common.quiet);
    const int status = kvd_evaluate(e, choice, n, 0, true, &progress, err);
    kvd_progress_end(&progress);
    if (status || kvd_accuracy_init(&v->accuracy, v->in.model, v->in.label, e->n_sequences,
                                    e->n_tokens, cfg->in.seeds > 1, err))
        return -1;
    (void)snprintf(v->accuracy.calibrated, sizeof v->accuracy.calibrated, "%s",
                   v->in.files.calibration.label);
    for (size_t i = 0; i < cfg->in.n_methods; k += of_method[i++])
        if (add_method(v, i, &choice[k], of_method[i], err) &&
            kvd_inputs_leave_out(&v->in, i, program, err))
            return -1;
    return 0;
}

static int all_at_once(kvd_eval_run *v, const char *program, kvd_err *err)
{
    const size_t n = choices_of(v);
    kvd_choice *const choice = calloc(n ? n : 1, sizeof *choice);
    if (!choice)
        return kvd_no_memory(err, "points", (unsigned long long)n * sizeof *choice);
    const int status = evaluate_choices(v, choice, program, err);
    for (size_t k = 0; k < n; k++) {
        kvd_plan_close(&choice[k].plan);
        kvd_choice_release(&choice[k]);
    }
    free(choice);
    if (!status)
        kvd_eval_print_new_rows(v);
    return status;
}

int kvd_eval_points(kvd_eval_run *v, const char *program, kvd_err *err)
{
    v->evaluator.reports_inert = true;
    const int status =
        v->cfg->in.resume ? one_by_one(v, program, err) : all_at_once(v, program, err);
    v->evaluator.reports_inert = false;
    return status;
}
