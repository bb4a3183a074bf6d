/* Part of the report's leaderboard: benchmark scores of methods against times of decode steps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/method.h"
#include "report/studies/leaderboard.h"

/* a method of the leaderboard, and one decode step that was timed with it */
typedef struct {
    const kvd_standing *of;
    const kvd_report_row *row;
} timed;

static double step_seconds(const timed *x)
{
    return kvd_report_real(x->row, "seconds");
}

static bool same_step(const kvd_report_row *a, const kvd_report_row *b)
{
    const double x = kvd_report_real(a, "context"), y = kvd_report_real(b, "context");
    return !strcmp(a->place, b->place) && x >= y && x <= y;
}

/* Returns true if the texts are equal, except for the number in "; batch N". */
static bool same_but_for_batch(const char *a, const char *b)
{
    const char *const x = strstr(a, "; batch "), *const y = strstr(b, "; batch ");
    return x && y && x - a == y - b && !strncmp(a, b, (size_t)(x - a)) &&
           !strcmp(x + 8 + strspn(x + 8, "0123456789"), y + 8 + strspn(y + 8, "0123456789"));
}

static bool is_largest_step(const kvd_report_rows *steps, const kvd_report_row *e)
{
    const double batch = kvd_report_real(e, "batch"), tokens = kvd_report_real(e, "context");
    bool largest = !(kvd_report_real(e, "piece") > 0);
    for (size_t i = 0; i < steps->n && largest; i++) {
        const kvd_report_row *const other = &steps->item[i];
        const double n = kvd_report_real(other, "batch");
        largest = !same_but_for_batch(other->place, e->place) ||
                  kvd_report_real(other, "piece") > 0 || n < batch ||
                  (!(n > batch) && !(kvd_report_real(other, "context") > tokens));
    }
    return largest;
}

static const kvd_report_row *uncompressed_step(const kvd_report_rows *steps,
                                               const kvd_report_row *e)
{
    for (size_t i = 0; i < steps->n; i++)
        if (steps->item[i].file == e->file && same_step(&steps->item[i], e) &&
            !strcmp(kvd_report_text(&steps->item[i], "method"), "none"))
            return &steps->item[i];
    return NULL;
}

static bool is_timed(const timed *x, const timed *all, size_t n)
{
    bool found = false;
    for (size_t i = 0; i < n && !found; i++)
        found = all[i].of == x->of && same_step(all[i].row, x->row);
    return found;
}

static bool on_step_front(const timed *x, const timed *all, size_t n)
{
    bool front = true;
    for (size_t i = 0; i < n && front; i++)
        front = !same_step(all[i].row, x->row) || step_seconds(&all[i]) > step_seconds(x) ||
                kvd_standing_score(all[i].of) < kvd_standing_score(x->of) ||
                (!(step_seconds(&all[i]) < step_seconds(x)) &&
                 !(kvd_standing_score(all[i].of) > kvd_standing_score(x->of)));
    return front;
}

static int by_step(const void *a, const void *b)
{
    const timed *const x = a, *const y = b;
    const int c = strcmp(x->row->place, y->row->place);
    return c ? c : (step_seconds(x) > step_seconds(y)) - (step_seconds(x) < step_seconds(y));
}

static void steps_table(const kvd_leaderboard *b, const timed *all, size_t n,
                        const kvd_report_rows *steps, kvd_section *s)
{
    kvd_table *const t =
        kvd_leaderboard_table(b, "leaderboard-steps", "Mean score against the time of a step", s);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "place", "step measured with");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "context", "tokens each");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "step_ms", "ms per step");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "step_share", "over uncompressed");
    kvd_table_add_interval(t, 3, "score", "score, %");
    kvd_leaderboard_byte_columns(t, 3);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "front", "front");
    kvd_table_note(
        t,
        "Scores of the leaderboard, beside the time of a decode step that kvdim-jct measured under "
        "the same method and settings: the step with most requests and tokens. The scored model "
        "and the timed one may differ. On the front: no other step is as fast with a better "
        "score, or faster with the same score. %s",
        kvd_leaderboard_bytes_note);
    for (size_t i = 0; i < n; i++) {
        const timed *const x = &all[i];
        const kvd_report_row *const none = uncompressed_step(steps, x->row);
        kvd_table_text(t, x->row->place);
        kvd_table_count(t, kvd_report_real(x->row, "context"));
        kvd_table_text(t, kvd_standing_name(x->of));
        kvd_leaderboard_put_settings(t, x->of);
        kvd_table_real(t, 1e3 * step_seconds(x));
        kvd_table_real(t, none ? step_seconds(x) / kvd_report_real(none, "seconds") : (double)NAN);
        kvd_leaderboard_put_percent(t, x->of, "score");
        kvd_table_row(t, x->of->all->rows, x->of->all->row, 2);
        kvd_table_text(t, on_step_front(x, all, n) ? "yes" : "");
    }
}

static void steps_figure(const kvd_leaderboard *b, const timed *all, size_t n, kvd_section *s)
{
    static const kvd_panel panel = {
        .title = "time of a step", .x = "step_ms", .log_x = true, .y = "score"};
    kvd_table *const t = kvd_leaderboard_table(
        b, "leaderboard-step-points", "Mean score against the time of a step, all points", s);
    t->only_files = t->no_markdown = true;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "step_ms", "ms per step");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "free_read_share", "read / 16-bit");
    kvd_leaderboard_score_columns(b, t, "1: on the front");
    for (size_t i = 0; i < n; i++) {
        kvd_table_text(t, kvd_standing_name(all[i].of));
        kvd_table_real(t, 1e3 * step_seconds(&all[i]));
        kvd_table_real(t, kvd_standing_read(all[i].of));
        kvd_leaderboard_put_score(b, t, all[i].of, on_step_front(&all[i], all, n));
    }
    kvd_leaderboard_figure(b, t, "leaderboard-steps",
                           "Mean score over the tasks against the time of a step",
                           "The step is that with most requests and tokens. Ringed points, the "
                           "front: no other step is as fast with a better score, or faster with "
                           "the same score. They are labelled with their methods; bars are their "
                           "95 % intervals.",
                           true, &panel, 1, s);
}

int kvd_leaderboard_steps(const kvd_leaderboard *b, const kvd_results *r, kvd_section *s,
                          kvd_err *err)
{
    kvd_report_rows steps = {0};
    timed *all = NULL;
    size_t n = 0;
    int status = kvd_jct_collect(r, "iteration", &steps, err);
    if (!status && !(all = calloc(steps.n * b->n + 1, sizeof *all)))
        status = kvd_no_memory(err, "a leaderboard", steps.n * b->n * sizeof *all);
    for (size_t i = 0; i < steps.n && !status; i++) {
        kvd_method method;
        kvd_err unused;
        bool candidate =
            !kvd_method_parse(kvd_report_text(&steps.item[i], "method"), &method, &unused);
        for (size_t k = 0; k < b->n && candidate; k++) {
            const timed x = {b->point[k], &steps.item[i]};
            const kvd_accuracy_entry *const e = x.of->all;
            if (!kvd_is_job_method(e->file->accuracy.rows, e->row, &method))
                continue;
            candidate = is_largest_step(&steps, x.row);
            if (candidate && !is_timed(&x, all, n))
                all[n++] = x;
        }
    }
    if (!status && n > 1) {
        qsort(all, n, sizeof *all, by_step);
        steps_figure(b, all, n, s);
        steps_table(b, all, n, &steps, s);
    }
    free(all);
    kvd_report_rows_release(&steps);
    return status;
}
