/* Section of the report: benchmark scores of methods against cache bytes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/accuracy.h"
#include "report/studies/leaderboard.h"
#include "report/studies/studies.h"

static double stored(const kvd_standing *x)
{
    return kvd_entry_real(x->all, "free_cache_share");
}

double kvd_standing_read(const kvd_standing *x)
{
    return kvd_entry_real(x->all, "free_read_share");
}

double kvd_standing_score(const kvd_standing *x)
{
    return kvd_entry_real(x->all, "score");
}

const char *kvd_standing_name(const kvd_standing *x)
{
    return x->all->series + x->all->model_prefix;
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
    bool same = a->file == b->file && !strcmp(a->name, b->name) &&
                !strcmp(kvd_entry_text(a, "calibration"), kvd_entry_text(b, "calibration")) &&
                !strcmp(kvd_entry_text(a, "settings"), kvd_entry_text(b, "settings"));
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        same = same && same_number(a, b, numbers[k]);
    return same;
}

static size_t task_of(const kvd_leaderboard *b, const char *label)
{
    size_t k = 0;
    while (k < b->n_tasks && strcmp(b->task[k], label))
        k++;
    return k;
}

/* Returns true if two results of one task have equal items and metrics. Prompt lengths are compared
 * only if the models are equal, because tokenizers differ. */
static bool same_task(const kvd_accuracy_entry *a, const kvd_accuracy_entry *b)
{
    return same_number(a, b, "n_items") &&
           !strcmp(kvd_entry_text(a, "metric"), kvd_entry_text(b, "metric")) &&
           (same_number(a, b, "prompt_tokens") ||
            isnan(kvd_entry_real(a, "prompt_tokens") + kvd_entry_real(b, "prompt_tokens")) ||
            strcmp(a->file->model.hash, b->file->model.hash));
}

static bool same_tasks(const kvd_leaderboard *b, const kvd_standing *x, const kvd_standing *y)
{
    bool same = true;
    for (size_t k = 0; k < b->n_tasks && same; k++)
        same = !x->task[k] == !y->task[k] && (!x->task[k] || same_task(x->task[k], y->task[k]));
    return same;
}

static bool same_set(const kvd_leaderboard *b, const kvd_standing *x, const kvd_standing *y)
{
    return !strcmp(x->all->file->model.hash, y->all->file->model.hash) && same_tasks(b, x, y);
}

static bool same_reference(const kvd_leaderboard *b, const kvd_standing *x, const kvd_standing *y)
{
    bool same = x->set == y->set && kvd_entry_is_none(x->all) && kvd_entry_is_none(y->all) &&
                !strcmp(x->all->series, y->all->series);
    for (size_t k = 0; k < b->n_tasks && same; k++)
        same = !x->task[k] == !y->task[k] &&
               (!x->task[k] || same_number(x->task[k], y->task[k], "score"));
    return same;
}

static void leaderboard_release(kvd_leaderboard *b)
{
    for (size_t i = 0; i < b->n; i++)
        free(b->point[i]);
    free(b->point);
    free(b->task);
}

static double size_of(const kvd_standing *x)
{
    return isnan(kvd_standing_read(x)) ? stored(x) : kvd_standing_read(x);
}

static int by_method(const void *a, const void *b)
{
    const kvd_standing *const x = *(const kvd_standing *const *)a;
    const kvd_standing *const y = *(const kvd_standing *const *)b;
    int c = (x->set > y->set) - (x->set < y->set);
    c = c ? c : kvd_entry_is_none(y->all) - kvd_entry_is_none(x->all);
    c = c ? c : strcmp(x->all->series, y->all->series);
    c = c ? c : (size_of(x) < size_of(y)) - (size_of(x) > size_of(y));
    return c ? c : strcmp(kvd_entry_text(x->all, "settings"), kvd_entry_text(y->all, "settings"));
}

/* Set of benchmark tasks of one model. first: earliest result with scores of exactly these tasks;
 * n: number of such results. */
typedef struct {
    const kvd_standing *first;
    size_t n;
} task_set;

/* Groups the results by model and benchmark tasks. Group 0 has the most results. */
static int number_sets(kvd_leaderboard *b, kvd_err *err)
{
    task_set *const sets = calloc(b->n + 1, sizeof *sets);
    if (!sets)
        return kvd_no_memory(err, "a leaderboard", b->n * sizeof *sets);
    for (size_t i = 0; i < b->n; i++) {
        size_t k = 0;
        while (k < b->n_sets && !same_set(b, sets[k].first, b->point[i]))
            k++;
        if (k == b->n_sets)
            sets[b->n_sets++].first = b->point[i];
        sets[k].n++;
        for (; k > 0 && sets[k - 1].n < sets[k].n; k--) {
            const task_set moved = sets[k];
            sets[k] = sets[k - 1];
            sets[k - 1] = moved;
        }
    }
    for (size_t i = 0; i < b->n; i++)
        while (!same_set(b, sets[b->point[i]->set].first, b->point[i]))
            b->point[i]->set++;
    for (size_t i = 0; i < b->n_sets; i++) {
        size_t k = 0;
        while (k < i && !same_tasks(b, sets[k].first, sets[i].first))
            k++;
        b->n_task_sets += k == i;
    }
    free(sets);
    return 0;
}

/* Collects the benchmark results of all compression methods in *b. The caller releases *b, also
 * after a failure. */
static int collect(const kvd_accuracy_entries *all, kvd_leaderboard *b, kvd_err *err)
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
        /* Searches backwards for an entry with the method and parameters of this result. */
        size_t p = b->n;
        while (p > 0 && !same_point(b->point[p - 1]->all, e))
            p--;
        if (p == 0) {
            const size_t bytes = sizeof(kvd_standing) + b->n_tasks * sizeof(kvd_accuracy_entry *);
            if (!(b->point[b->n] = calloc(1, bytes)))
                return kvd_no_memory(err, "a leaderboard", bytes);
            b->point[b->n]->all = e;
            p = ++b->n;
        }
        const size_t k = task_of(b, kvd_entry_text(e, "label"));
        if (k < b->n_tasks)
            b->point[p - 1]->task[k] = e;
        else
            b->point[p - 1]->all = e;
    }
    b->models = all->models;
    if (number_sets(b, err))
        return -1;
    qsort(b->point, b->n, sizeof(kvd_standing *), by_method);
    for (size_t i = 0; i + 1 < b->n;)
        if (same_reference(b, b->point[i], b->point[i + 1])) {
            free(b->point[i + 1]);
            memmove(&b->point[i + 1], &b->point[i + 2], (b->n - i - 2) * sizeof(kvd_standing *));
            b->n--;
        } else {
            i++;
        }
    return 0;
}

/* name of a table or figure, and its title */
typedef struct {
    char name[64];
    kvd_text title;
} titled;

/* Returns the name and title of a table or figure. The title names the model if the report has
 * several models, and the tasks if it has several sets of tasks. */
static titled titled_of(const kvd_leaderboard *b, const char *name, const char *title,
                        kvd_section *s)
{
    enum { MOST_NAMES = 6 };
    titled h = {.title = {0}};
    char number[24] = "", item[160];
    const size_t set = b->point[0]->set;
    if (set)
        snprintf(number, sizeof number, "-%zu", set + 1);
    snprintf(h.name, sizeof h.name, "%.39s%s", name, number);
    kvd_text_raw(&h.title, title);
    if (b->models)
        kvd_text_add(&h.title, "; model %s", b->point[0]->all->file->model.name);
    size_t n = 0, at = 0;
    for (size_t k = 0; k < b->n_tasks; k++)
        n += b->point[0]->task[k] != NULL;
    for (size_t k = 0; k < b->n_tasks && b->n_task_sets > 1; k++) {
        const kvd_accuracy_entry *const e = b->point[0]->task[k];
        if (!e)
            continue;
        const double tokens = kvd_entry_real(e, "prompt_tokens");
        snprintf(item, sizeof item, "%.100s (%.0f items", b->task[k], kvd_entry_real(e, "n_items"));
        const size_t len = strlen(item);
        if (isnan(tokens))
            snprintf(item + len, sizeof item - len, ")");
        else
            snprintf(item + len, sizeof item - len, " of %.0f tokens)", tokens);
        kvd_text_raw(&h.title, at ? "" : "; tasks ");
        kvd_text_item(&h.title, at++, n, MOST_NAMES, item);
    }
    s->failed |= h.title.failed;
    return h;
}

kvd_table *kvd_leaderboard_table(const kvd_leaderboard *b, const char *name, const char *title,
                                 kvd_section *s)
{
    titled h = titled_of(b, name, title, s);
    kvd_table *const t = kvd_section_table(s, h.name, kvd_text_get(&h.title));
    kvd_text_release(&h.title);
    return t;
}

const char kvd_leaderboard_bytes_note[] =
    "Stored: bytes of the cache at the end of a sequence. Read: bytes of the cache that a step "
    "reads, mean over the steps. Both are divided by those of an uncompressed 16-bit cache. A "
    "method that compresses only the prompt may read a smaller share than it stores, because its "
    "share grows with every generated token and is largest at the end.";

void kvd_leaderboard_byte_columns(kvd_table *t, int digits)
{
    kvd_table_add_column(t, KVD_CELL_REAL, digits, "free_cache_share",
                         "stored at the end / 16-bit");
    kvd_table_add_column(t, KVD_CELL_REAL, digits, "free_read_share",
                         "mean read per step / 16-bit");
}

static void add_columns(const kvd_leaderboard *b, kvd_table *t)
{
    char heading[80];
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    kvd_leaderboard_byte_columns(t, 3);
    kvd_table_add_interval(t, 3, "score", "score, %");
    kvd_table_add_interval(t, 3, "score_change", "change, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "prompt_ms", "ms per prompt");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "step_ms", "ms per step");
    if (isnan(b->link))
        return;
    snprintf(heading, sizeof heading, "modelled ms per step on a link of %.4g GB/s", b->link / 1e9);
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "modelled_link_ms", heading);
}

void kvd_leaderboard_put_settings(kvd_table *t, const kvd_standing *x)
{
    char settings[KVD_LABEL];
    const char *const keys = kvd_entry_text(x->all, "settings");
    const double p = kvd_entry_real(x->all, "overall_p");
    if (isnan(p) || !(p > 0))
        snprintf(settings, sizeof settings, "%.190s", keys);
    else
        snprintf(settings, sizeof settings, "p=%.4g%s%.170s", p, *keys ? "," : "", keys);
    kvd_table_text(t, settings);
}

void kvd_leaderboard_put_percent(kvd_table *t, const kvd_standing *x, const char *column)
{
    const kvd_interval share = kvd_entry_interval(x->all, column);
    const double end[] = {100 * share.value, 100 * share.lo, 100 * share.hi};
    for (int k = 0; k < 3; k++)
        kvd_table_real(t, fabs(end[k]) < 1e-9 ? 0 : end[k]);
}

static void put_columns(const kvd_leaderboard *b, kvd_table *t, const kvd_standing *x)
{
    kvd_table_text(t, kvd_standing_name(x));
    kvd_leaderboard_put_settings(t, x);
    kvd_table_row(t, x->all->rows, x->all->row, 2);
    kvd_leaderboard_put_percent(t, x, "score");
    kvd_leaderboard_put_percent(t, x, "score_change");
    kvd_table_real(t, 1e3 * kvd_entry_real(x->all, "prompt_s"));
    kvd_table_real(t, 1e3 * kvd_entry_real(x->all, "step_s"));
    if (!isnan(b->link))
        kvd_table_real(t, 1e3 * kvd_entry_real(x->all, "bytes_per_step_read") / b->link);
}

static void whole_table(const kvd_leaderboard *b, kvd_section *s)
{
    kvd_table *const t =
        kvd_leaderboard_table(b, "leaderboard", "Every method on every task: scores in percent", s);
    add_columns(b, t);
    for (size_t k = 0; k < b->n_tasks; k++) {
        if (!b->point[0]->task[k])
            continue;
        kvd_table_add_column(t, KVD_CELL_REAL, 3, b->task[k], b->task[k]);
        kvd_table_shade(t, 0, 100);
    }
    kvd_table_note(
        t,
        "Score: mean over tasks, each with the same weight, with a 95 %% interval that draws "
        "items within each task. Change: less the score of the uncompressed model, paired by "
        "item. %s Milliseconds are those of the run on its machine, for one sequence: the time of "
        "a batch divided by its number of sequences.%s",
        kvd_leaderboard_bytes_note,
        isnan(b->link) ? ""
                       : " Modelled milliseconds are not measured: all bytes that a step reads of "
                         "the cache of one sequence, over the bandwidth of the link, as if the "
                         "whole cache were in a slower memory and nothing else ran.");
    for (size_t i = 0; i < b->n; i++) {
        put_columns(b, t, b->point[i]);
        for (size_t k = 0; k < b->n_tasks; k++)
            if (b->point[i]->task[k])
                kvd_table_real(t, 100 * kvd_entry_real(b->point[i]->task[k], "score"));
    }
}

static int by_score(const void *a, const void *b)
{
    const kvd_standing *const x = *(const kvd_standing *const *)a;
    const kvd_standing *const y = *(const kvd_standing *const *)b;
    const int c = (kvd_standing_score(x) < kvd_standing_score(y)) -
                  (kvd_standing_score(x) > kvd_standing_score(y));
    return c ? c : (stored(x) > stored(y)) - (stored(x) < stored(y));
}

/* Adds a table with the highest-scoring methods for each of several limits on cache size. `size`:
 * returns a method's cache size as a fraction of a 16-bit cache. */
static int best_table(const kvd_leaderboard *b, double (*size)(const kvd_standing *),
                      const char *name, const char *title, kvd_section *s, kvd_err *err)
{
    /* largest allowed cache sizes as fractions of a 16-bit cache: 10 % above 1/2, 1/4, 1/8 and
     * 1/16 */
    static const double shares[] = {0.55, 0.275, 0.1375, 0.06875};
    enum { MOST = 6 };
    kvd_table *const t = kvd_leaderboard_table(b, name, title, s);
    kvd_standing **const by = malloc((b->n + 1) * sizeof *by);
    if (!by)
        return kvd_no_memory(err, "a leaderboard", b->n * sizeof *by);
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "at_most", "at most");
    add_columns(b, t);
    kvd_table_note(t,
                   "The %d methods with the highest mean score at each size. The setting of a "
                   "method was chosen by the items that it is judged on. Methods whose "
                   "intervals overlap are not told apart. %s",
                   MOST, kvd_leaderboard_bytes_note);
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
            put_columns(b, t, by[i]);
            n++;
        }
    }
    free(by);
    return 0;
}

static bool on_front(const kvd_leaderboard *b, const kvd_standing *x,
                     double (*size)(const kvd_standing *))
{
    bool front = size(x) <= 1;
    for (size_t i = 0; i < b->n && front; i++) {
        const kvd_standing *const y = b->point[i];
        front = !(size(y) <= size(x) && kvd_standing_score(y) >= kvd_standing_score(x) &&
                  (size(y) < size(x) || kvd_standing_score(y) > kvd_standing_score(x)));
    }
    return front;
}

void kvd_leaderboard_score_columns(const kvd_leaderboard *b, kvd_table *t, const char *fronts)
{
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "score", "score, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "score_lo", "from");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "score_hi", "to");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "fronts", fronts);
    if (b->models)
        kvd_table_add_column(t, KVD_CELL_TEXT, 0, "model", "model");
}

void kvd_leaderboard_put_score(const kvd_leaderboard *b, kvd_table *t, const kvd_standing *x,
                               int fronts)
{
    kvd_leaderboard_put_percent(t, x, "score");
    kvd_table_int(t, fronts);
    if (b->models)
        kvd_table_series(t, x->all->file->model.name);
}

void kvd_leaderboard_figure(const kvd_leaderboard *b, const kvd_table *t, const char *name,
                            const char *title, const char *caption, bool steps,
                            const kvd_panel *panel, size_t n_panels, kvd_section *s)
{
    titled h = titled_of(b, name, title, s);
    kvd_text_add(&h.title, ". %s", caption);
    kvd_section_figure(s, h.name, "leaderboard.gp", 1000,
                       kvd_height_with_key(480, 1000, 6, t, 0, SIZE_MAX), kvd_text_get(&h.title),
                       "csv='tables/%s.csv'%s%s", t->name, steps ? "; steps=1" : "",
                       b->models ? "; models=1" : "");
    kvd_text_release(&h.title);
    kvd_section_panels(s, t, panel, n_panels);
}

static void figure(const kvd_leaderboard *b, kvd_section *s)
{
    static const kvd_panel panels[] = {
        {.title = "bytes stored", .x = "free_cache_share", .log_x = true, .y = "score"},
        {.title = "bytes that a step reads", .x = "free_read_share", .log_x = true, .y = "score"}};
    kvd_table *const t =
        kvd_leaderboard_table(b, "leaderboard-points", "Mean score against bytes, all points", s);
    t->only_files = t->no_markdown = true;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_leaderboard_byte_columns(t, 6);
    kvd_leaderboard_score_columns(b, t, "bits: 1 stored, 2 read");
    for (size_t i = 0; i < b->n; i++) {
        const kvd_standing *const x = b->point[i];
        kvd_table_text(t, kvd_standing_name(x));
        kvd_table_row(t, x->all->rows, x->all->row, 2);
        kvd_leaderboard_put_score(b, t, x,
                                  on_front(b, x, stored) + 2 * on_front(b, x, kvd_standing_read));
    }
    kvd_leaderboard_figure(b, t, "leaderboard", "Mean score over the tasks against bytes",
                           "Left: the bytes that the cache stores at the end of a sequence, and "
                           "right: the bytes that a step reads of it, mean over the steps; both "
                           "over those of an uncompressed 16-bit cache. "
                           "Ringed points, the front, are beaten by no other in bytes and score. "
                           "They are labelled with their methods; bars are their 95 % intervals.",
                           false, panels, sizeof panels / sizeof *panels, s);
}

/* Appends a sentence on how many benchmark items had the middle of their prompt cut out. */
static void say_cut(const kvd_leaderboard *b, kvd_section *s)
{
    size_t n = 0;
    for (size_t k = 0; k < b->n_tasks; k++) {
        const kvd_accuracy_entry *most = NULL;
        for (size_t i = 0; i < b->n; i++) {
            const kvd_accuracy_entry *const e = b->point[i]->task[k];
            if (e && kvd_entry_real(e, "n_cut") > (most ? kvd_entry_real(most, "n_cut") : 0))
                most = e;
        }
        if (!most)
            continue;
        kvd_text_add(&s->words, "%s%.0f of %.0f items of ",
                     n++ ? ", " : "<p>Prompts that lost their middle: ",
                     kvd_entry_real(most, "n_cut"), kvd_entry_real(most, "n_items"));
        kvd_text_html(&s->words, b->task[k]);
    }
    kvd_text_raw(&s->words, n ? ".</p>\n" : "<p>No prompt was cut.</p>\n");
}

/* Called if there are too few scores for a leaderboard. Fails if option --link-bandwidth, which
 * requires a leaderboard, was given. */
static int no_leaderboard(double link, kvd_err *err)
{
    return isnan(link) ? 0
                       : kvd_fail(err, "--link-bandwidth needs answers to benchmarks with two "
                                       "settings or more (kvdim-tasks)");
}

/* Adds figures and tables of results that were measured on the same benchmark tasks. */
static int one_set(const kvd_leaderboard *b, const kvd_results *r, kvd_section *s, kvd_err *err)
{
    int status = 0;
    if (b->n > 1) {
        figure(b, s);
        status = best_table(b, stored, "leaderboard-stored",
                            "Best methods by the bytes that the cache stores", s, err) ||
                 best_table(b, kvd_standing_read, "leaderboard-read",
                            "Best methods by the bytes that a step reads", s, err) ||
                 kvd_leaderboard_steps(b, r, s, err);
    }
    whole_table(b, s);
    return status;
}

static int leaderboard_of(const kvd_accuracy_entries *all, const kvd_results *r, double link,
                          kvd_section *s, kvd_err *err)
{
    kvd_leaderboard b = {.link = link};
    int status = collect(all, &b, err);
    if (!status && b.n)
        say_cut(&b, s);
    if (!status && b.n > 1 && b.n_sets > b.n_task_sets)
        kvd_text_raw(&s->words, "<p>Each model has its own figures and tables, whose titles name "
                                "it.</p>\n");
    if (!status && b.n_task_sets > 1)
        kvd_text_add(&s->words,
                     "<p>The settings ran %zu different sets of tasks, items or measures. Means "
                     "over different tasks are not compared: each set has its own figure and "
                     "tables.</p>\n",
                     b.n_task_sets);
    if (!status && b.n <= 1)
        status = no_leaderboard(link, err);
    for (size_t first = 0, end; b.n > 1 && first < b.n && !status; first = end) {
        for (end = first + 1; end < b.n && b.point[end]->set == b.point[first]->set;)
            end++;
        kvd_leaderboard one = b;
        one.point = b.point + first;
        one.n = end - first;
        status = one_set(&one, r, s, err);
    }
    leaderboard_release(&b);
    return kvd_status(status);
}

int kvd_study_tasks(const kvd_results *r, double link, kvd_report *report, kvd_err *err)
{
    kvd_accuracy_entries all = {0};
    int status = kvd_tasks_collect(r, &all, err);
    if (!status && all.n) {
        kvd_section *const s = kvd_report_section(report, "tasks", "Tasks");
        kvd_text_raw(&s->words, "<p>Answers of a model that reads its own compressed KV "
                                "cache.</p>\n");
        kvd_study_targets(r, KVD_RESULT_TASKS, &all, s);
        status = leaderboard_of(&all, r, link, s, err);
        kvd_study_free(&all, s);
    } else if (!status) {
        status = no_leaderboard(link, err);
    }
    kvd_accuracy_entries_release(&all);
    return status;
}
