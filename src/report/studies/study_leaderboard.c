#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/accuracy.h"
#include "report/measures/measures.h"
#include "report/studies/studies.h"

/* A method with one set of parameters, from one result file. */
typedef struct {
    /* Result row with the mean score over all tasks, or with the score of the only task. */
    const kvd_accuracy_entry *all;
    /* Result row for each task, [n_tasks]; NULL if the task was not run. */
    const kvd_accuracy_entry *task[];
} standing;

typedef struct {
    const char **task;
    size_t n_tasks;
    standing **point;
    size_t n;
} leaderboard;

static double stored(const standing *x)
{
    return kvd_entry_real(x->all, "free_cache_share");
}

static double was_read(const standing *x)
{
    return kvd_entry_real(x->all, "free_read_share");
}

static double score(const standing *x)
{
    return kvd_entry_real(x->all, "score");
}

static bool same_number(const kvd_accuracy_entry *a, const kvd_accuracy_entry *b,
                        const char *column)
{
    const double x = kvd_entry_real(a, column), y = kvd_entry_real(b, column);
    return isnan(x) ? isnan(y) : !(x < y || x > y);
}

static bool same_point(const kvd_accuracy_entry *a, const kvd_accuracy_entry *b)
{
    static const char *const numbers[] = {"overall_p_qk", "overall_p_v", "removal_rate", "seed"};
    bool same = a->file == b->file && !strcmp(a->series, b->series) &&
                !strcmp(kvd_entry_text(a, "settings"), kvd_entry_text(b, "settings"));
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        same = same && same_number(a, b, numbers[k]);
    return same;
}

/*
 * Returns the index of the task that the label names, or n_tasks if the label is a mean over tasks.
 */
static size_t task_of(const leaderboard *b, const char *label)
{
    size_t k = 0;
    while (k < b->n_tasks && strcmp(b->task[k], label))
        k++;
    return k;
}

/* Returns true if both are of the uncompressed model, with equal scores in the same tasks. */
static bool same_reference(const leaderboard *b, const standing *x, const standing *y)
{
    bool same = kvd_entry_is_none(x->all) && kvd_entry_is_none(y->all) &&
                !strcmp(x->all->series, y->all->series);
    for (size_t k = 0; k < b->n_tasks && same; k++)
        same = !x->task[k] == !y->task[k] &&
               (!x->task[k] || same_number(x->task[k], y->task[k], "score"));
    return same;
}

static void leaderboard_release(leaderboard *b)
{
    for (size_t i = 0; i < b->n; i++)
        free(b->point[i]);
    free(b->point);
    free(b->task);
}

/* Returns the bytes read per decode step or, if not known, the stored bytes. */
static double size_of(const standing *x)
{
    return isnan(was_read(x)) ? stored(x) : was_read(x);
}

/*
 * Orders the uncompressed model first, then methods by name, and results of one method by falling
 * bytes.
 */
static int by_method(const void *a, const void *b)
{
    const standing *const x = *(const standing *const *)a, *const y = *(const standing *const *)b;
    int c = kvd_entry_is_none(y->all) - kvd_entry_is_none(x->all);
    c = c ? c : strcmp(x->all->series, y->all->series);
    c = c ? c : (size_of(x) < size_of(y)) - (size_of(x) > size_of(y));
    return c ? c : strcmp(kvd_entry_text(x->all, "settings"), kvd_entry_text(y->all, "settings"));
}

/* Collects all results with benchmark scores. The caller must release *b, also after a failure. */
static int collect(const kvd_accuracy_entries *all, leaderboard *b, kvd_err *err)
{
    b->task = calloc(all->n_labels + 1, sizeof *b->task);
    b->point = calloc(all->n + 1, sizeof *b->point);
    if (!b->task || !b->point)
        return kvd_no_memory(err, "a leaderboard", all->n * sizeof *b->point);
    for (size_t i = 0; i < all->n; i++) {
        const char *const label = kvd_entry_text(&all->item[i], "label");
        if (!isnan(kvd_entry_real(&all->item[i], "score")) && !kvd_tasks_label_is_mean(label) &&
            task_of(b, label) == b->n_tasks)
            b->task[b->n_tasks++] = label;
    }
    for (size_t i = 0; i < all->n; i++) {
        const kvd_accuracy_entry *const e = &all->item[i];
        if (isnan(kvd_entry_real(e, "score")))
            continue;
        size_t p = 0;
        while (p < b->n && !same_point(b->point[p]->all, e))
            p++;
        if (p == b->n) {
            const size_t bytes = sizeof(standing) + b->n_tasks * sizeof(kvd_accuracy_entry *);
            if (!(b->point[p] = calloc(1, bytes)))
                return kvd_no_memory(err, "a leaderboard", bytes);
            b->point[b->n++]->all = e;
        }
        const size_t k = task_of(b, kvd_entry_text(e, "label"));
        if (k < b->n_tasks)
            b->point[p]->task[k] = e;
        else
            b->point[p]->all = e;
    }
    qsort(b->point, b->n, sizeof(standing *), by_method);
    for (size_t i = 0; i + 1 < b->n;)
        if (same_reference(b, b->point[i], b->point[i + 1])) {
            free(b->point[i + 1]);
            memmove(&b->point[i + 1], &b->point[i + 2], (b->n - i - 2) * sizeof(standing *));
            b->n--;
        } else {
            i++;
        }
    return 0;
}

static void add_columns(kvd_table *t)
{
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "free_cache_share", "stored / 16-bit");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "free_read_share", "read / 16-bit");
    kvd_table_add_interval(t, 3, "score", "score, %");
    kvd_table_add_interval(t, 3, "score_change", "change, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "prompt_ms", "ms per prompt");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "step_ms", "ms per step");
}

static void put_columns(kvd_table *t, const standing *x)
{
    static const char *const scores[] = {"score",        "score_lo",        "score_hi",
                                         "score_change", "score_change_lo", "score_change_hi"};
    char settings[KVD_LABEL];
    const char *const keys = kvd_entry_text(x->all, "settings");
    const double p = kvd_entry_real(x->all, "overall_p");
    if (isnan(p) || !(p > 0))
        snprintf(settings, sizeof settings, "%.190s", keys);
    else
        snprintf(settings, sizeof settings, "p=%.4g%s%.170s", p, *keys ? "," : "", keys);
    kvd_table_text(t, x->all->series);
    kvd_table_text(t, settings);
    kvd_table_real(t, stored(x));
    kvd_table_real(t, was_read(x));
    for (size_t k = 0; k < sizeof scores / sizeof *scores; k++) {
        const double percent = 100 * kvd_entry_real(x->all, scores[k]);
        /* A value that is 0 but for rounding errors is shown as 0. */
        kvd_table_real(t, fabs(percent) < 1e-9 ? 0 : percent);
    }
    kvd_table_real(t, 1e3 * kvd_entry_real(x->all, "prompt_s"));
    kvd_table_real(t, 1e3 * kvd_entry_real(x->all, "step_s"));
}

static int whole_table(const leaderboard *b, kvd_section *s, kvd_err *err)
{
    kvd_table *const t =
        kvd_section_table(s, "leaderboard", "Every method on every task: scores in percent", err);
    if (!t)
        return -1;
    add_columns(t);
    for (size_t k = 0; k < b->n_tasks; k++) {
        kvd_table_add_column(t, KVD_CELL_REAL, 3, b->task[k], b->task[k]);
        kvd_table_shade(t, 0, 100);
    }
    kvd_table_note(
        t, "Score: mean over tasks, each with the same weight, with a 95 %% interval that draws "
           "items within each task. Change: less the score of the uncompressed model, paired by "
           "item. Stored and read: bytes of the cache, and those that a step reads, over an "
           "uncompressed 16-bit cache. Milliseconds are those of the run on its machine, for one "
           "sequence: the time of a batch divided by its number of sequences.");
    for (size_t i = 0; i < b->n; i++) {
        put_columns(t, b->point[i]);
        for (size_t k = 0; k < b->n_tasks; k++)
            kvd_table_real(t, b->point[i]->task[k]
                                  ? 100 * kvd_entry_real(b->point[i]->task[k], "score")
                                  : (double)NAN);
    }
    return 0;
}

static int by_score(const void *a, const void *b)
{
    const standing *const x = *(const standing *const *)a, *const y = *(const standing *const *)b;
    const int c = (score(x) < score(y)) - (score(x) > score(y));
    return c ? c : (stored(x) > stored(y)) - (stored(x) < stored(y));
}

/*
 * Adds a table of each method's best score below each limit on the cache. `size` returns the stored
 * or the read bytes.
 */
static int best_table(const leaderboard *b, double (*size)(const standing *), const char *name,
                      const char *title, kvd_section *s, kvd_err *err)
{
    /*
     * Limits of a half, a quarter and an eighth of a 16-bit cache, each raised by a tenth for
     * scores, positions and scales.
     */
    static const double shares[] = {0.55, 0.275, 0.1375};
    enum { MOST = 6 };
    kvd_table *const t = kvd_section_table(s, name, title, err);
    standing **const by = malloc((b->n + 1) * sizeof *by);
    if (!t || !by) {
        free(by);
        return t ? kvd_no_memory(err, "a leaderboard", b->n * sizeof *by) : -1;
    }
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "at_most", "at most");
    add_columns(t);
    kvd_table_note(t,
                   "The %d methods with the highest mean score at each size. The setting of a "
                   "method was chosen by the items that it is judged on. Methods whose "
                   "intervals overlap are not told apart.",
                   MOST);
    memcpy(by, b->point, b->n * sizeof *by);
    qsort(by, b->n, sizeof *by, by_score);
    for (size_t k = 0; k < sizeof shares / sizeof *shares; k++) {
        size_t n = 0;
        for (size_t i = 0; i < b->n && n < MOST; i++) {
            bool first = size(by[i]) <= shares[k];
            for (size_t j = 0; j < i && first; j++)
                first = size(by[j]) > shares[k] || strcmp(by[j]->all->series, by[i]->all->series);
            if (!first)
                continue;
            kvd_table_real(t, shares[k]);
            put_columns(t, by[i]);
            n++;
        }
    }
    free(by);
    t->only_files = t->n_rows == 0;
    return 0;
}

/*
 * Returns true if no other result for the same model has a score and bytes at least as good as
 * those of `x`, and one of them better. Returns false if `x` has more bytes than the uncompressed
 * cache.
 */
static bool on_front(const leaderboard *b, const standing *x, double (*size)(const standing *))
{
    bool front = size(x) <= 1;
    for (size_t i = 0; i < b->n && front; i++) {
        const standing *const y = b->point[i];
        front = strcmp(x->all->file->model.hash, y->all->file->model.hash) != 0 ||
                !(size(y) <= size(x) && score(y) >= score(x) &&
                  (size(y) < size(x) || score(y) > score(x)));
    }
    return front;
}

static int figure(const leaderboard *b, kvd_section *s, kvd_err *err)
{
    static const kvd_panel panels[] = {
        {.title = "bytes stored", .x = "free_cache_share", .log_x = true, .y = "score"},
        {.title = "bytes that a step reads", .x = "free_read_share", .log_x = true, .y = "score"}};
    kvd_table *const t =
        kvd_section_table(s, "leaderboard-points", "Mean score against bytes, all points", err);
    if (!t)
        return -1;
    t->only_files = t->no_markdown = true;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "free_cache_share", "stored / 16-bit");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "free_read_share", "read / 16-bit");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "score", "score, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "score_lo", "from");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "score_hi", "to");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "fronts", "bits: 1 stored, 2 read");
    for (size_t i = 0; i < b->n; i++) {
        const standing *const x = b->point[i];
        kvd_table_text(t, x->all->series);
        kvd_table_real(t, stored(x));
        kvd_table_real(t, was_read(x));
        kvd_table_real(t, 100 * score(x));
        kvd_table_real(t, 100 * kvd_entry_real(x->all, "score_lo"));
        kvd_table_real(t, 100 * kvd_entry_real(x->all, "score_hi"));
        kvd_table_int(t, on_front(b, x, stored) + 2 * on_front(b, x, was_read));
    }
    if (kvd_section_figure(s, "leaderboard", "leaderboard.gp", 1000,
                           kvd_height_with_key(480, 1000, 6, t, 0, SIZE_MAX),
                           "Mean score over the tasks against the bytes that the cache stores, and "
                           "that a step reads of it, over those of an uncompressed 16-bit cache. "
                           "Ringed points are beaten by no other in bytes and score; bars are "
                           "their 95 % intervals.",
                           err, "csv='tables/leaderboard-points.csv'"))
        return -1;
    kvd_section_panels(s, t, panels, sizeof panels / sizeof *panels);
    return 0;
}

int kvd_study_leaderboard(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err)
{
    leaderboard b = {0};
    int status = collect(all, &b, err);
    if (!status && b.n > 1)
        status = figure(&b, s, err) ||
                 best_table(&b, stored, "leaderboard-stored",
                            "Best methods by the bytes that the cache stores", s, err) ||
                 best_table(&b, was_read, "leaderboard-read",
                            "Best methods by the bytes that a step reads", s, err) ||
                 whole_table(&b, s, err);
    leaderboard_release(&b);
    return status ? -1 : 0;
}

/* A column of results, with the columns of its confidence interval. */
typedef struct {
    const char *column, *heading;
    int digits;
} shown;

static void add_intervals(kvd_table *t, const shown *x, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        kvd_table_add_interval(t, x[k].digits, x[k].column, x[k].heading);
    }
}

static void put_intervals(kvd_table *t, const kvd_accuracy_entry *e, const shown *x, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        kvd_table_bounded(t, kvd_entry_interval(e, x[k].column));
    }
}

static void add_names(kvd_table *t)
{
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "evaluated on");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "overall_p", "overall p");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "free_cache_share", "share of a 16-bit cache");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "n_seeds", "seeds");
}

static void put_names(kvd_table *t, const kvd_accuracy_entry *e)
{
    const double seeds = kvd_entry_real(e, "n_seeds");
    kvd_table_text(t, kvd_entry_text(e, "label"));
    kvd_table_text(t, e->method);
    kvd_table_text(t, kvd_entry_text(e, "settings"));
    kvd_table_real(t, kvd_entry_real(e, "overall_p"));
    kvd_table_real(t, kvd_entry_real(e, "free_cache_share"));
    kvd_table_int(t, isnan(seeds) ? 1 : (int64_t)seeds);
}

/*
 * Adds a table. Early files of kvdim-eval have the same tables as those of kvdim-tasks, in another
 * section of the page, under names of their own.
 */
static kvd_table *free_table(const kvd_accuracy_entries *all, const char *name, const char *title,
                             kvd_section *s, kvd_err *err)
{
    char own[64];
    snprintf(own, sizeof own, "%s%s", name,
             all->item[0].file->kind == KVD_RESULT_TASKS ? "" : "-of-eval");
    return kvd_section_table(s, own, title, err);
}

/*
 * Adds a table of the columns `x` [n] and of `sd`, a column such as the standard deviation over
 * random seeds. Only result rows with a value in column x[0] have a row.
 */
static int measures_table(const kvd_accuracy_entries *all, const char *name, const char *title,
                          const char *note, const shown *x, size_t n, const shown *sd,
                          kvd_section *s, kvd_err *err)
{
    kvd_table *const t = free_table(all, name, title, s, err);
    if (!t)
        return -1;
    add_names(t);
    add_intervals(t, x, n);
    kvd_table_add_column(t, KVD_CELL_REAL, sd->digits, sd->column, sd->heading);
    kvd_table_note(t, "%s", note);
    for (size_t i = 0; i < all->n; i++) {
        const kvd_accuracy_entry *const e = &all->item[i];
        if (isnan(kvd_entry_real(e, x[0].column)))
            continue;
        put_names(t, e);
        put_intervals(t, e, x, n);
        kvd_table_real(t, kvd_entry_real(e, sd->column));
    }
    t->only_files = t->n_rows == 0;
    return 0;
}

/* Returns true if an earlier needle (fact hidden in a text) of the same file has the same depth. */
static bool seen(const kvd_accuracy_result *a, size_t needle)
{
    for (size_t j = 0; j < needle; j++)
        if (a->needle_depth[j] == a->needle_depth[needle])
            return true;
    return false;
}

static double mean_at(const kvd_accuracy_result *a, const double *value, size_t row, double depth,
                      size_t *n)
{
    double sum = 0;
    *n = 0;
    for (size_t j = 0; j < a->n_needles; j++)
        if (a->needle_depth[j] == depth) {
            sum += value[row * a->n_needles + j];
            ++*n;
        }
    return sum / (double)*n;
}

static int depth_table(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err)
{
    kvd_table *const t = free_table(all, "needle-depth", "Hidden pass keys by depth", s, err);
    if (!t)
        return -1;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "label", "hidden in");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    kvd_table_add_column(t, KVD_CELL_REAL, 1, "depth", "depth, %");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "needles", "needles");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "needle_nll", "nat per token of the number");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "needle_agree", "as the uncompressed model");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "needle_exact", "every token right");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_accuracy_entry *const e = &all->item[i];
        const kvd_accuracy_result *const a = &e->file->accuracy;
        for (size_t j = 0; j < a->n_needles; j++) {
            size_t n;
            const double nll = mean_at(a, a->needle_nll, e->row, a->needle_depth[j], &n);
            if (seen(a, j) || isnan(nll))
                continue;
            kvd_table_text(t, kvd_entry_text(e, "label"));
            kvd_table_text(t, e->method);
            kvd_table_text(t, kvd_entry_text(e, "settings"));
            kvd_table_real(t, 100 * a->needle_depth[j]);
            kvd_table_int(t, (int64_t)n);
            kvd_table_real(t, nll);
            kvd_table_real(t, mean_at(a, a->needle_agree, e->row, a->needle_depth[j], &n));
            kvd_table_real(t, mean_at(a, a->needle_exact, e->row, a->needle_depth[j], &n));
        }
    }
    t->only_files = t->n_rows == 0;
    return 0;
}

static bool any(const kvd_accuracy_entries *all, const char *column)
{
    for (size_t i = 0; i < all->n; i++)
        if (!isnan(kvd_entry_real(&all->item[i], column)))
            return true;
    return false;
}

int kvd_study_free(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err)
{
    static const shown generated[] = {{"exact", "all tokens the same", 3},
                                      {"agree_prefix", "tokens until the first difference", 1},
                                      {"rouge1", "ROUGE-1", 3},
                                      {"edit_similarity", "edit similarity", 3},
                                      {"reference_rouge1", "ROUGE-1 against references", 3},
                                      {"reference_rouge1_change", "its change", 3}};
    static const shown needles[] = {{"needle_agree", "places as the uncompressed model", 3},
                                    {"needle_exact", "every token right", 3},
                                    {"needle_nll", "nat per token of the number", 3},
                                    {"needle_nll_change", "its change", 3}};
    static const shown spread[] = {{"rouge1_sd", "sd of ROUGE-1 over seeds", 3},
                                   {"needle_nll_sd", "sd of nat over seeds", 3},
                                   {"class_correct_sd", "sd of accuracy over seeds", 3}};
    static const shown classes[] = {{"class_correct", "accuracy", 3},
                                    {"class_correct_change", "its change", 3},
                                    {"class_agree", "class as the uncompressed model's", 3}};
    static const shown scores[] = {{"score", "score", 3}, {"score_change", "its change", 3}};
    static const shown step = {"step_s", "seconds per step", 4};
    if (any(all, "score") &&
        measures_table(
            all, "benchmarks", "Scores of published benchmarks",
            "Mean score of the items of a task, by the benchmark's own measure. Change: less that "
            "of the uncompressed model, paired by item. 95 % intervals over items.",
            scores, sizeof scores / sizeof *scores, &step, s, err))
        return -1;
    if (any(all, "exact") &&
        measures_table(
            all, "free-running", "Generated text, against the uncompressed model's own",
            "Greedy, with K and V of past tokens as the cache stored them; the first token comes "
            "from the prompt's own rows. ROUGE-1: F1 over words. Edit similarity: 1 - Levenshtein "
            "distance / longer length. Change: against the references, less what the uncompressed "
            "model has there. 95 % intervals over sequences, paired.",
            generated, sizeof generated / sizeof *generated, &spread[0], s, err))
        return -1;
    if (any(all, "needle_nll") &&
        (measures_table(
             all, "needle", "Hidden pass keys",
             "A number of five digits in a text, asked for at its end. Change: less that of the "
             "uncompressed model, paired. 95 % intervals over texts.",
             needles, sizeof needles / sizeof *needles, &spread[1], s, err) ||
         depth_table(all, s, err)))
        return -1;
    if (any(all, "class_correct") &&
        measures_table(all, "classes", "Classification by label likelihood",
                       "The class whose name is likeliest after the document. 95 % intervals over "
                       "documents, paired.",
                       classes, sizeof classes / sizeof *classes, &spread[2], s, err))
        return -1;
    return 0;
}

int kvd_study_tasks(const kvd_results *r, kvd_report *report, kvd_err *err)
{
    kvd_accuracy_entries all = {0};
    int status = kvd_tasks_collect(r, &all, err);
    if (!status && all.n) {
        kvd_section *const s = kvd_report_section(report, "tasks", "Tasks", err);
        if (s)
            kvd_text_raw(&s->words, "<p>Answers of a model that reads its own compressed KV "
                                    "cache.</p>\n");
        status = !s || kvd_study_targets(r, KVD_RESULT_TASKS, &all, s, err) ||
                 kvd_study_leaderboard(&all, s, err) || kvd_study_free(&all, s, err);
    }
    kvd_accuracy_entries_release(&all);
    return status ? -1 : 0;
}
