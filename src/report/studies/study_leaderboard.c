/* Section of the report: benchmark scores of methods against cache bytes and decode step time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/accuracy.h"
#include "report/measures/measures.h"
#include "report/studies/studies.h"

/* a method with its parameters, and its results from one file */
typedef struct {
    const kvd_accuracy_entry *all; /* row with the mean score over all tasks, or of the only task */
    size_t set; /* number of its set of tasks; settings are compared only within a set */
    const kvd_accuracy_entry *task[]; /* [n_tasks] row of each task; NULL if the task was not run */
} standing;

typedef struct {
    const char **task;
    size_t n_tasks;
    standing **point;
    size_t n;
    size_t n_sets; /* number of different sets of benchmark tasks */
    double link;   /* bytes per second of the modelled link; NaN without --link-bandwidth */
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
    bool same = a->file == b->file && !strcmp(a->name, b->name) &&
                !strcmp(kvd_entry_text(a, "calibration"), kvd_entry_text(b, "calibration")) &&
                !strcmp(kvd_entry_text(a, "settings"), kvd_entry_text(b, "settings"));
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        same = same && same_number(a, b, numbers[k]);
    return same;
}

static size_t task_of(const leaderboard *b, const char *label)
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

static bool same_tasks(const leaderboard *b, const standing *x, const standing *y)
{
    bool same = true;
    for (size_t k = 0; k < b->n_tasks && same; k++)
        same = !x->task[k] == !y->task[k] && (!x->task[k] || same_task(x->task[k], y->task[k]));
    return same;
}

static bool same_reference(const leaderboard *b, const standing *x, const standing *y)
{
    bool same = x->set == y->set && kvd_entry_is_none(x->all) && kvd_entry_is_none(y->all) &&
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

static double size_of(const standing *x)
{
    return isnan(was_read(x)) ? stored(x) : was_read(x);
}

static int by_method(const void *a, const void *b)
{
    const standing *const x = *(const standing *const *)a, *const y = *(const standing *const *)b;
    int c = (x->set > y->set) - (x->set < y->set);
    c = c ? c : kvd_entry_is_none(y->all) - kvd_entry_is_none(x->all);
    c = c ? c : strcmp(x->all->series, y->all->series);
    c = c ? c : (size_of(x) < size_of(y)) - (size_of(x) > size_of(y));
    return c ? c : strcmp(kvd_entry_text(x->all, "settings"), kvd_entry_text(y->all, "settings"));
}

/* Set of benchmark tasks. first: earliest result with scores of exactly these tasks; n: number of
 * such results. */
typedef struct {
    const standing *first;
    size_t n;
} task_set;

/* Groups the results by their benchmark tasks. Group 0 has the most results. */
static int number_sets(leaderboard *b, kvd_err *err)
{
    task_set *const sets = calloc(b->n + 1, sizeof *sets);
    if (!sets)
        return kvd_no_memory(err, "a leaderboard", b->n * sizeof *sets);
    for (size_t i = 0; i < b->n; i++) {
        size_t k = 0;
        while (k < b->n_sets && !same_tasks(b, sets[k].first, b->point[i]))
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
        while (!same_tasks(b, sets[b->point[i]->set].first, b->point[i]))
            b->point[i]->set++;
    free(sets);
    return 0;
}

/* Collects the benchmark results of all compression methods in *b. The caller releases *b, also
 * after a failure. */
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
        /* Searches the list from its end, because results with equal parameters follow each
         * other. */
        size_t p = b->n;
        while (p > 0 && !same_point(b->point[p - 1]->all, e))
            p--;
        if (p == 0) {
            const size_t bytes = sizeof(standing) + b->n_tasks * sizeof(kvd_accuracy_entry *);
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
    if (number_sets(b, err))
        return -1;
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

/* name of a table or figure, and its title */
typedef struct {
    char name[64];
    kvd_text title;
} titled;

/* Returns the name and title of a table or figure. If the results cover several sets of benchmark
 * tasks, the title lists the tasks of *b. */
static titled titled_of(const leaderboard *b, const char *name, const char *title, kvd_section *s)
{
    enum { MOST_NAMES = 6 };
    titled h = {.title = {0}};
    char number[24] = "", item[160];
    const size_t set = b->point[0]->set;
    if (set)
        snprintf(number, sizeof number, "-%zu", set + 1);
    snprintf(h.name, sizeof h.name, "%.39s%s", name, number);
    kvd_text_raw(&h.title, title);
    size_t n = 0, at = 0;
    for (size_t k = 0; k < b->n_tasks; k++)
        n += b->point[0]->task[k] != NULL;
    for (size_t k = 0; k < b->n_tasks && b->n_sets > 1; k++) {
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
        kvd_text_raw(&h.title, at ? "" : "; tasks: ");
        kvd_text_item(&h.title, at++, n, MOST_NAMES, item);
    }
    s->failed |= h.title.failed;
    return h;
}

static kvd_table *table_of(const leaderboard *b, const char *name, const char *title,
                           kvd_section *s)
{
    titled h = titled_of(b, name, title, s);
    kvd_table *const t = kvd_section_table(s, h.name, kvd_text_get(&h.title));
    kvd_text_release(&h.title);
    return t;
}

static const char bytes_note[] =
    "Stored: bytes of the cache at the end of a sequence. Read: bytes of the cache that a step "
    "reads, mean over the steps. Both are divided by those of an uncompressed 16-bit cache. A "
    "method that compresses only the prompt may read a smaller share than it stores, because its "
    "share grows with every generated token and is largest at the end.";

static void add_byte_columns(kvd_table *t, int digits)
{
    kvd_table_add_column(t, KVD_CELL_REAL, digits, "free_cache_share",
                         "stored at the end / 16-bit");
    kvd_table_add_column(t, KVD_CELL_REAL, digits, "free_read_share",
                         "mean read per step / 16-bit");
}

static void add_columns(const leaderboard *b, kvd_table *t)
{
    char heading[80];
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    add_byte_columns(t, 3);
    kvd_table_add_interval(t, 3, "score", "score, %");
    kvd_table_add_interval(t, 3, "score_change", "change, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "prompt_ms", "ms per prompt");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "step_ms", "ms per step");
    if (isnan(b->link))
        return;
    snprintf(heading, sizeof heading, "modelled ms per step on a link of %.4g GB/s", b->link / 1e9);
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "modelled_link_ms", heading);
}

static void put_settings(kvd_table *t, const standing *x)
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

/* Appends three cells: a score in percent and the ends of its 95 % interval. Writes rounding errors
 * next to 0 as 0. */
static void put_percent(kvd_table *t, const standing *x, const char *column)
{
    const kvd_interval share = kvd_entry_interval(x->all, column);
    const double end[] = {100 * share.value, 100 * share.lo, 100 * share.hi};
    for (int k = 0; k < 3; k++)
        kvd_table_real(t, fabs(end[k]) < 1e-9 ? 0 : end[k]);
}

static void put_columns(const leaderboard *b, kvd_table *t, const standing *x)
{
    kvd_table_text(t, x->all->series);
    put_settings(t, x);
    kvd_table_row(t, x->all->rows, x->all->row, 2);
    put_percent(t, x, "score");
    put_percent(t, x, "score_change");
    kvd_table_real(t, 1e3 * kvd_entry_real(x->all, "prompt_s"));
    kvd_table_real(t, 1e3 * kvd_entry_real(x->all, "step_s"));
    if (!isnan(b->link))
        kvd_table_real(t, 1e3 * kvd_entry_real(x->all, "bytes_per_step_read") / b->link);
}

static void whole_table(const leaderboard *b, kvd_section *s)
{
    kvd_table *const t =
        table_of(b, "leaderboard", "Every method on every task: scores in percent", s);
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
        bytes_note,
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
    const standing *const x = *(const standing *const *)a, *const y = *(const standing *const *)b;
    const int c = (score(x) < score(y)) - (score(x) > score(y));
    return c ? c : (stored(x) > stored(y)) - (stored(x) < stored(y));
}

/* Adds a table of the methods with the best scores for each of several limits on the cache size.
 * `size` returns a method's cache size as a fraction of the size of a 16-bit cache. */
static int best_table(const leaderboard *b, double (*size)(const standing *), const char *name,
                      const char *title, kvd_section *s, kvd_err *err)
{
    /* largest allowed cache sizes as fractions of a 16-bit cache: 10 % above 1/2, 1/4, 1/8 and
     * 1/16 */
    static const double shares[] = {0.55, 0.275, 0.1375, 0.06875};
    enum { MOST = 6 };
    kvd_table *const t = table_of(b, name, title, s);
    standing **const by = malloc((b->n + 1) * sizeof *by);
    if (!by)
        return kvd_no_memory(err, "a leaderboard", b->n * sizeof *by);
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "at_most", "at most");
    add_columns(b, t);
    kvd_table_note(t,
                   "The %d methods with the highest mean score at each size. The setting of a "
                   "method was chosen by the items that it is judged on. Methods whose "
                   "intervals overlap are not told apart. %s",
                   MOST, bytes_note);
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

static void figure(const leaderboard *b, kvd_section *s)
{
    static const kvd_panel panels[] = {
        {.title = "bytes stored", .x = "free_cache_share", .log_x = true, .y = "score"},
        {.title = "bytes that a step reads", .x = "free_read_share", .log_x = true, .y = "score"}};
    kvd_table *const t =
        table_of(b, "leaderboard-points", "Mean score against bytes, all points", s);
    t->only_files = t->no_markdown = true;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    add_byte_columns(t, 6);
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "score", "score, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "score_lo", "from");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "score_hi", "to");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "fronts", "bits: 1 stored, 2 read");
    for (size_t i = 0; i < b->n; i++) {
        const standing *const x = b->point[i];
        kvd_table_text(t, x->all->series);
        kvd_table_row(t, x->all->rows, x->all->row, 2);
        put_percent(t, x, "score");
        kvd_table_int(t, on_front(b, x, stored) + 2 * on_front(b, x, was_read));
    }
    titled h = titled_of(b, "leaderboard",
                         "Mean score over the tasks against the bytes that the cache stores at the "
                         "end of a sequence, and the bytes that a step reads of it, mean over the "
                         "steps; both over those of an uncompressed 16-bit cache. "
                         "Ringed points, the front, are beaten by no other in bytes and score. "
                         "They are labelled with their methods; bars are their 95 % intervals",
                         s);
    kvd_text_raw(&h.title, ".");
    kvd_section_figure(s, h.name, "leaderboard.gp", 1000,
                       kvd_height_with_key(480, 1000, 6, t, 0, SIZE_MAX), kvd_text_get(&h.title),
                       "csv='tables/%s.csv'", t->name);
    kvd_text_release(&h.title);
    kvd_section_panels(s, t, panels, sizeof panels / sizeof *panels);
}

/* a method of the leaderboard, and one decode step that was timed with it */
typedef struct {
    const standing *of;
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
                score(all[i].of) < score(x->of) ||
                (!(step_seconds(&all[i]) < step_seconds(x)) && !(score(all[i].of) > score(x->of)));
    return front;
}

static int by_step(const void *a, const void *b)
{
    const timed *const x = a, *const y = b;
    const int c = strcmp(x->row->place, y->row->place);
    return c ? c : (step_seconds(x) > step_seconds(y)) - (step_seconds(x) < step_seconds(y));
}

static void steps_table(const leaderboard *b, const timed *all, size_t n,
                        const kvd_report_rows *steps, kvd_section *s)
{
    kvd_table *const t =
        table_of(b, "leaderboard-steps", "Mean score against the time of a step", s);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "place", "step measured with");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "context", "tokens each");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "settings", "settings");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "step_ms", "ms per step");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "step_share", "over uncompressed");
    kvd_table_add_interval(t, 3, "score", "score, %");
    add_byte_columns(t, 3);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "front", "front");
    kvd_table_note(
        t,
        "Scores of the leaderboard, beside the time of a decode step that kvdim-jct measured under "
        "the same method and settings: the step with most requests and tokens. The scored model "
        "and the timed one may differ. On the front: no other step is as fast with a better "
        "score, or faster with the same score. %s",
        bytes_note);
    for (size_t i = 0; i < n; i++) {
        const timed *const x = &all[i];
        const kvd_report_row *const none = uncompressed_step(steps, x->row);
        kvd_table_text(t, x->row->place);
        kvd_table_int(t, (int64_t)kvd_report_real(x->row, "context"));
        kvd_table_text(t, x->of->all->series);
        put_settings(t, x->of);
        kvd_table_real(t, 1e3 * step_seconds(x));
        kvd_table_real(t, none ? step_seconds(x) / kvd_report_real(none, "seconds") : (double)NAN);
        put_percent(t, x->of, "score");
        kvd_table_row(t, x->of->all->rows, x->of->all->row, 2);
        kvd_table_text(t, on_step_front(x, all, n) ? "yes" : "");
    }
}

static void steps_figure(const leaderboard *b, const timed *all, size_t n, kvd_section *s)
{
    static const kvd_panel panel = {
        .title = "time of a step", .x = "step_ms", .log_x = true, .y = "score"};
    kvd_table *const t = table_of(b, "leaderboard-step-points",
                                  "Mean score against the time of a step, all points", s);
    t->only_files = t->no_markdown = true;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "step_ms", "ms per step");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "free_read_share", "read / 16-bit");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "score", "score, %");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "score_lo", "from");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "score_hi", "to");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "fronts", "1: on the front");
    for (size_t i = 0; i < n; i++) {
        kvd_table_text(t, all[i].of->all->series);
        kvd_table_real(t, 1e3 * step_seconds(&all[i]));
        kvd_table_real(t, was_read(all[i].of));
        put_percent(t, all[i].of, "score");
        kvd_table_int(t, on_step_front(&all[i], all, n));
    }
    titled h = titled_of(b, "leaderboard-steps",
                         "Mean score over the tasks against the time of the decode step with "
                         "most requests and tokens. Ringed points, the front: no other step is as "
                         "fast with a better score, or faster with the same score. They are "
                         "labelled with their methods; bars are their 95 % intervals",
                         s);
    kvd_text_raw(&h.title, ".");
    kvd_section_figure(s, h.name, "leaderboard.gp", 1000,
                       kvd_height_with_key(480, 1000, 6, t, 0, SIZE_MAX), kvd_text_get(&h.title),
                       "csv='tables/%s.csv'; steps=1", t->name);
    kvd_text_release(&h.title);
    kvd_section_panels(s, t, &panel, 1);
}

/* Adds a figure of benchmark scores against decode-step times, if at least two methods have
 * both. */
static int steps(const leaderboard *b, const kvd_results *r, kvd_section *s, kvd_err *err)
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

/* Appends a sentence on how many benchmark items had the middle of their prompt cut out. */
static void say_cut(const leaderboard *b, kvd_section *s)
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

/* Called without enough benchmark scores for a leaderboard: fails if option --link-bandwidth, which
 * needs one, was given. */
static int no_leaderboard(double link, kvd_err *err)
{
    return isnan(link) ? 0
                       : kvd_fail(err, "--link-bandwidth needs answers to benchmarks with two "
                                       "settings or more (kvdim-tasks)");
}

/* Adds figures and tables of results that were measured on the same benchmark tasks. */
static int one_set(const leaderboard *b, const kvd_results *r, kvd_section *s, kvd_err *err)
{
    int status = 0;
    if (b->n > 1) {
        figure(b, s);
        status = best_table(b, stored, "leaderboard-stored",
                            "Best methods by the bytes that the cache stores", s, err) ||
                 best_table(b, was_read, "leaderboard-read",
                            "Best methods by the bytes that a step reads", s, err) ||
                 steps(b, r, s, err);
    }
    whole_table(b, s);
    return status;
}

static int leaderboard_of(const kvd_accuracy_entries *all, const kvd_results *r, double link,
                          kvd_section *s, kvd_err *err)
{
    leaderboard b = {.link = link};
    int status = collect(all, &b, err);
    if (!status && b.n)
        say_cut(&b, s);
    if (!status && b.n_sets > 1)
        kvd_text_add(&s->words,
                     "<p>The settings ran %zu different sets of tasks, items or measures. Means "
                     "over different tasks are not compared: each set has its own figure and "
                     "tables.</p>\n",
                     b.n_sets);
    if (!status && b.n <= 1)
        status = no_leaderboard(link, err);
    for (size_t first = 0, end; b.n > 1 && first < b.n && !status; first = end) {
        for (end = first + 1; end < b.n && b.point[end]->set == b.point[first]->set;)
            end++;
        leaderboard one = b;
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
