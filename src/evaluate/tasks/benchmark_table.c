#include "evaluate/tasks/benchmark_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/fields.h"
#include "common/stats.h"
#include "common/utf8.h"
#include "evaluate/accuracy_text.h"
#include "evaluate/point_columns.h"

enum { RESAMPLES = 2000 };

static const kvd_column columns[] = {
    {"path", KVD_COL_TEXT, "1", "where passes ran and the cache was (docs/tasks.md)"},
    {"metric", KVD_COL_TEXT, "1", "how answers are scored (docs/tasks.md); several: items differ"},
    {"n_items", KVD_COL_INT, "1", "items of the task"},
    {"n_answers", KVD_COL_INT, "1", "answers: several where an item has several questions"},
    {"n_cut", KVD_COL_INT, "1", "items whose prompt lost its middle"},
    {"score", KVD_COL_REAL, "1", "mean score of the items"},
    {"score_lo", KVD_COL_REAL, "1", "its 95 % interval over items, lower end"},
    {"score_hi", KVD_COL_REAL, "1", "its 95 % interval over items, upper end"},
    {"score_change", KVD_COL_REAL, "1", "score less that of the uncompressed model, paired"},
    {"score_change_lo", KVD_COL_REAL, "1", "its 95 % interval over items, lower end"},
    {"score_change_hi", KVD_COL_REAL, "1", "its 95 % interval over items, upper end"},
    {"stored_element_bytes", KVD_COL_INT, "byte", "bytes per element that this run stored"},
    {"bytes_stored", KVD_COL_REAL, "byte", "bytes of the cache at the end of a sequence, mean"},
    {"bytes_per_token_stored", KVD_COL_REAL, "byte", "these bytes over the tokens of the sequence"},
    {"free_cache_share", KVD_COL_REAL, "1",
     "bytes_stored over those of an uncompressed 16-bit cache"},
    {"free_read_share", KVD_COL_REAL, "1",
     "bytes of the cache that a step reads over those of an uncompressed 16-bit cache, mean over "
     "the steps of all tasks"},
    {"bytes_per_step_read", KVD_COL_REAL, "byte",
     "bytes of the cache of a sequence that a step reads, mean over the steps of all tasks"},
    {"prompt_tokens", KVD_COL_REAL, "token", "tokens compressed at once, mean over sequences"},
    {"prompt_s", KVD_COL_REAL, "s", "pass over the prompt of a sequence on this machine, mean"},
    {"step_s", KVD_COL_REAL, "s", "step after the prompt on this machine, mean"},
    {"free_seconds", KVD_COL_REAL, "s", "passes over prompts and steps of all sequences, summed"},
    {"seed", KVD_COL_INT, "1", "seed of the method's random choices"},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

struct kvd_benchmark_table {
    const kvd_benchmark_run *run;
    const kvd_config *config;
    char calibrated[64];
    uint64_t seed;
    kvd_column column[KVD_N_POINT_COLUMNS + N_COLUMNS];
    kvd_rows *rows;
    const char **task; /* [n_tasks] different names, in order */
    size_t *task_of;   /* [n_items] */
    size_t n_tasks;
    kvd_benchmark_result *result; /* [n_points] */
    size_t n_points;
};

static int number_tasks(kvd_benchmark_table *t, kvd_err *err)
{
    const kvd_benchmark *const b = t->run->items;
    t->task = calloc(b->n + 1, sizeof *t->task);
    t->task_of = calloc(b->n + 1, sizeof *t->task_of);
    if (!t->task || !t->task_of)
        return kvd_no_memory(err, "tasks", b->n * 16);
    for (size_t i = 0; i < b->n; i++) {
        size_t k = 0;
        while (k < t->n_tasks && strcmp(t->task[k], b->item[i].task))
            k++;
        t->task_of[i] = k;
        if (k == t->n_tasks)
            t->task[t->n_tasks++] = b->item[i].task;
    }
    return 0;
}

kvd_benchmark_table *kvd_benchmark_table_new(const kvd_benchmark_run *r, const kvd_config *config,
                                             const char *calibrated, uint64_t seed, kvd_err *err)
{
    kvd_benchmark_table *const t = kvd_new(1, sizeof *t, "a table", err);
    if (!t)
        return NULL;
    t->run = r;
    t->config = config;
    t->seed = seed;
    snprintf(t->calibrated, sizeof t->calibrated, "%s", calibrated);
    memcpy(t->column, kvd_point_columns, sizeof kvd_point_columns);
    memcpy(t->column + KVD_N_POINT_COLUMNS, columns, sizeof columns);
    if (!(t->rows = kvd_rows_new(t->column, KVD_N_POINT_COLUMNS + N_COLUMNS, err)) ||
        number_tasks(t, err)) {
        kvd_benchmark_table_free(t);
        return NULL;
    }
    return t;
}

void kvd_benchmark_table_free(kvd_benchmark_table *t)
{
    if (!t)
        return;
    for (size_t k = 0; k < t->n_points; k++)
        kvd_benchmark_result_release(t->run, &t->result[k]);
    kvd_rows_free(t->rows);
    free(t->result);
    free((void *)t->task);
    free(t->task_of);
    free(t);
}

const kvd_rows *kvd_benchmark_table_rows(const kvd_benchmark_table *t)
{
    return t->rows;
}

/* used in place of a task's index: the mean over all tasks, each with equal weight */
#define ALL_TASKS SIZE_MAX

static bool belongs(const kvd_benchmark_table *t, size_t item, size_t task)
{
    return task == ALL_TASKS || t->task_of[item] == task;
}

/* Computes the mean score of *r with a bootstrap interval. Unless `less` is NULL, first subtracts
 * the scores of *less. */
static int mean_score(const kvd_benchmark_table *t, size_t task, const kvd_benchmark_result *r,
                      const kvd_benchmark_result *less, kvd_interval *out, kvd_err *err)
{
    const size_t n = t->run->items->n;
    double *const sum = calloc(3 * n + 1, sizeof *sum), *const mine = sum + n,
                  *const one = mine + n;
    size_t *const first = calloc(t->n_tasks + 1, sizeof *first), strata = 0, items = 0;
    int status = sum && first ? 0 : kvd_no_memory(err, "scores", 3 * n * sizeof *sum);
    for (size_t k = 0; !status && k < t->run->n_answers; k++) {
        const kvd_benchmark_answer *const a = &t->run->answer[k];
        sum[a->item] += (r->score[k] - (less ? less->score[k] : 0)) /
                        (double)t->run->items->item[a->item].n_turns;
    }
    for (size_t k = 0; !status && k < t->n_tasks; k++) {
        if (task != ALL_TASKS && k != task)
            continue;
        for (size_t i = 0; i < n; i++)
            if (t->task_of[i] == k) {
                mine[items] = sum[i];
                one[items++] = 1;
            }
        first[++strata] = items;
    }
    status = status || kvd_bootstrap_strata(mine, one, first, strata, RESAMPLES, t->seed, out, err);
    free(sum);
    free(first);
    return status ? -1 : 0;
}

int kvd_benchmark_table_share(const kvd_benchmark_table *t, kvd_interval *out, kvd_err *err)
{
    const kvd_benchmark_run *const run = t->run;
    const kvd_benchmark_result *const r = &t->result[t->n_points - 1], *const none = t->result;
    const size_t n = run->items->n;
    double *const mine = calloc(2 * n + 1, sizeof *mine);
    if (!mine)
        return kvd_no_memory(err, "scores", 2 * n * sizeof *mine);
    double *const theirs = mine + n;
    for (size_t k = 0; k < run->n_answers; k++) {
        const size_t item = run->answer[k].item;
        size_t items = 0;
        for (size_t i = 0; i < n; i++)
            items += t->task_of[i] == t->task_of[item];
        const double weight = (double)(items * run->items->item[item].n_turns);
        mine[item] += r->score[k] / weight;
        theirs[item] += none->score[k] / weight;
    }
    const int status = kvd_bootstrap_ratio(mine, theirs, n, RESAMPLES, t->seed, out, err);
    free(mine);
    return status;
}

/* Returns the number of decode steps of all sequences together. */
static double all_steps(const kvd_benchmark_run *run, const kvd_benchmark_result *r)
{
    double n = 0;
    for (size_t s = 0; s < run->run.n_sequences; s++)
        n += (double)r->cost[s].steps;
    return n;
}

static void put_counts(kvd_benchmark_table *t, size_t task, const kvd_plan *plan,
                       const kvd_benchmark_result *r)
{
    const kvd_benchmark_run *const run = t->run;
    size_t items = 0, answers = 0, cut = 0, sequences = 0, steps = 0;
    double bytes = 0, dense = 0, tokens = 0, prompt = 0, prompt_s = 0, steps_s = 0;
    const char *metric = NULL;
    for (size_t i = 0; i < run->items->n; i++)
        if (belongs(t, i, task)) {
            items++;
            cut += run->cut[i];
            const char *const mine = kvd_metric_words[run->items->item[i].metric];
            metric = metric && strcmp(metric, mine) ? "several" : mine;
        }
    for (size_t k = 0; k < run->n_answers; k++) {
        const kvd_benchmark_answer *const a = &run->answer[k];
        const kvd_continued_cost *const c = &r->cost[a->sequence];
        if (!belongs(t, a->item, task))
            continue;
        answers++;
        if (!a->last)
            continue;
        const double n = (double)(run->run.offset[a->sequence + 1] - run->run.offset[a->sequence]);
        sequences++;
        bytes += c->bits / 8;
        prompt += n;
        tokens += n + (double)c->steps;
        dense += kvd_dense_bytes(t->config, n + (double)c->steps);
        steps += c->steps;
        prompt_s += c->prompt_s;
        steps_s += c->steps_s;
    }
    char why[KVD_GENERATOR_WHY];
    kvd_rows_text(t->rows, "path", kvd_generator_path(run->generator, plan, why));
    kvd_rows_text(t->rows, "metric", metric);
    kvd_rows_int(t->rows, "n_items", (int64_t)items);
    kvd_rows_int(t->rows, "n_answers", (int64_t)answers);
    kvd_rows_int(t->rows, "n_cut", (int64_t)cut);
    kvd_rows_int(t->rows, "stored_element_bytes", (int64_t)kvd_dtype_bytes(plan->type));
    kvd_rows_real(t->rows, "bytes_stored", bytes / (double)sequences);
    kvd_rows_real(t->rows, "bytes_per_token_stored", bytes / tokens);
    kvd_rows_real(t->rows, "free_cache_share", bytes / dense);
    /* Writes the bytes read per decode step as a share of an uncompressed 16-bit cache. */
    kvd_rows_real(t->rows, "free_read_share",
                  r->account.read / r->account.dense * (double)kvd_dtype_bytes(plan->type) / 2);
    kvd_rows_real(t->rows, "bytes_per_step_read", r->account.read / 8 / all_steps(run, r));
    kvd_rows_real(t->rows, "prompt_tokens", prompt / (double)sequences);
    kvd_rows_real(t->rows, "prompt_s", prompt_s / (double)sequences);
    kvd_rows_real(t->rows, "step_s", steps ? steps_s / (double)steps : (double)NAN);
    kvd_rows_real(t->rows, "free_seconds", prompt_s + steps_s);
    kvd_rows_int(t->rows, "seed", (int64_t)plan->seed);
}

int kvd_benchmark_table_add(kvd_benchmark_table *t, const char *purpose, const kvd_point *point,
                            const kvd_plan *plan, kvd_benchmark_result *result, kvd_err *err)
{
    kvd_benchmark_result *const grown = realloc(t->result, (t->n_points + 1) * sizeof *grown);
    if (!grown)
        return kvd_no_memory(err, "results", (t->n_points + 1) * sizeof *grown);
    t->result = grown;
    grown[t->n_points++] = *result;
    *result = (kvd_benchmark_result){0};
    const kvd_benchmark_result *const r = &grown[t->n_points - 1];
    for (size_t k = 0; k < t->n_tasks + (t->n_tasks > 1); k++) {
        const size_t task = k < t->n_tasks ? k : ALL_TASKS;
        kvd_interval score, change;
        char mean[40];
        snprintf(mean, sizeof mean, KVD_TASKS_MEAN_LABEL, t->n_tasks);
        if (kvd_rows_begin(t->rows, err) || mean_score(t, task, r, NULL, &score, err) ||
            mean_score(t, task, r, &grown[0], &change, err))
            return -1;
        kvd_point_columns_put(t->rows, t->config, point, plan,
                              task == ALL_TASKS ? mean : t->task[k], t->calibrated, purpose);
        kvd_rows_interval(t->rows, "score", &score);
        kvd_rows_interval(t->rows, "score_change", &change);
        put_counts(t, task, plan, r);
    }
    return 0;
}

const char kvd_benchmark_heading[] =
    "task                 method                   metric          items   cut  score %  95 %      "
    "      change  95 %             B/token  cache   read  prompt/ms  step/ms  settings";

const char kvd_benchmark_legend[] =
    "change: score less that of none\n"
    "95 %: intervals, \"-\" with fewer than 8 items\n" KVD_CACHE_LEGEND KVD_READ_LEGEND
        KVD_P_SETTINGS_LEGEND;

const char *kvd_benchmark_table_line(const kvd_benchmark_table *t, size_t i, char *line)
{
    const kvd_rows *const r = t->rows;
    char name[80], score[40], change[40];
    kvd_accuracy_method_name(r, i, name, sizeof name);
    kvd_interval_text(score, sizeof score, "[%.1f, %.1f]", 100 * kvd_row_real(r, i, "score_lo"),
                      100 * kvd_row_real(r, i, "score_hi"));
    kvd_interval_text(change, sizeof change, "[%.1f, %.1f]",
                      100 * kvd_row_real(r, i, "score_change_lo"),
                      100 * kvd_row_real(r, i, "score_change_hi"));
    snprintf(
        line, KVD_BENCHMARK_LINE,
        "%-20s %-24s %-14s %6.0f %5.0f  %7.2f  %-14s %7.2f  %-15s %8.0f  %5.3f  %5.3f  %9.1f  %7.2f",
        kvd_row_text(r, i, "label"), name, kvd_row_text(r, i, "metric"),
        kvd_row_real(r, i, "n_items"), kvd_row_real(r, i, "n_cut"),
        100 * kvd_row_real(r, i, "score"), score, 100 * kvd_row_real(r, i, "score_change"), change,
        kvd_row_real(r, i, "bytes_per_token_stored"), kvd_row_real(r, i, "free_cache_share"),
        kvd_row_real(r, i, "free_read_share"), 1e3 * kvd_row_real(r, i, "prompt_s"),
        1e3 * kvd_row_real(r, i, "step_s"));
    kvd_p_and_settings_add(r, i, line, KVD_BENCHMARK_LINE);
    return line;
}

static char *valid_text(const char *s)
{
    const size_t n = strlen(s);
    char *const out = malloc(3 * n + 1);
    size_t m = 0;
    for (size_t i = 0; out && i < n;) {
        const size_t good = kvd_utf8_first_bad(s + i, n - i);
        memcpy(out + m, s + i, good);
        m += good;
        i += good;
        if (i < n) {
            memcpy(out + m, "\xEF\xBF\xBD", 3);
            m += 3;
            i += kvd_utf8_bad_width(s + i, n - i);
        }
    }
    if (out)
        out[m] = '\0';
    return out;
}

static const struct {
    const char *name, *long_name, *units;
} numbers[] = {
    {"point",
     "number of the point: rows of /rows come in this order, one for each task, then one for their mean "
     "if there are several",
     "1"},
    {"turn", "number of the question within its item, from 0", "1"},
    {"score", "score of the answer", "1"},
    {"generated", "tokens generated", "token"},
    {"prompt_tokens", "tokens of the sequence that were compressed at once", "token"},
    {"cut", "1: the prompt lost its middle", "1"},
    {"bytes", "bytes of the cache at the end of the sequence", "byte"},
    {"bytes_dense", "bytes of an uncompressed 16-bit cache there", "byte"},
    {"prompt_s", "pass over the prompt of the sequence on this machine", "s"},
    {"steps_s", "steps of the sequence on this machine", "s"},
    {"steps", "rows of the sequence after the prompt", "1"},
};

static double number_at(const kvd_benchmark_table *t, size_t point, size_t answer, size_t k)
{
    const kvd_benchmark_answer *const a = &t->run->answer[answer];
    const kvd_benchmark_result *const r = &t->result[point];
    const kvd_continued_cost *const c = &r->cost[a->sequence];
    const size_t *const offset = t->run->run.offset;
    const double prompt = (double)(offset[a->sequence + 1] - offset[a->sequence]);
    const double all[] = {(double)point,    (double)a->turn,
                          r->score[answer], (double)r->n_tokens[answer],
                          prompt,           t->run->cut[a->item],
                          c->bits / 8,      kvd_dense_bytes(t->config, prompt + (double)c->steps),
                          c->prompt_s,      c->steps_s,
                          (double)c->steps};
    return all[k];
}

static int write_numbers(kvd_h5 *f, const kvd_benchmark_table *t, kvd_err *err)
{
    const size_t n = t->n_points * t->run->n_answers;
    double *const x = malloc((n + 1) * sizeof *x);
    int status = x ? 0 : kvd_no_memory(err, "answers", n * sizeof *x);
    for (size_t k = 0; !status && k < sizeof numbers / sizeof *numbers; k++) {
        char path[80];
        snprintf(path, sizeof path, "/answers/%s", numbers[k].name);
        for (size_t i = 0; i < n; i++)
            x[i] = number_at(t, i / t->run->n_answers, i % t->run->n_answers, k);
        const kvd_h5_spec spec = {
            path, numbers[k].long_name, numbers[k].units, H5T_IEEE_F64LE, 1, {n}, {"answer"}};
        status = kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, x, err);
    }
    free(x);
    return status;
}

static int write_texts(kvd_h5 *f, const kvd_benchmark_table *t, kvd_err *err)
{
    const size_t of_point = t->run->n_answers, n = t->n_points * of_point;
    const char **const text = calloc(n + 1, sizeof *text);
    char **const own = calloc(n + 1, sizeof *own);
    int status = text && own ? 0 : kvd_no_memory(err, "answers", n * 16);
    for (size_t i = 0; !status && i < n; i++)
        text[i] = t->task[t->task_of[t->run->answer[i % of_point].item]];
    status = status ||
             kvd_field_write_texts(f, "/answers/task", "task of the item", "answer", text, n, err);
    for (size_t i = 0; !status && i < n; i++)
        text[i] = t->run->items->item[t->run->answer[i % of_point].item].id;
    status = status || kvd_field_write_texts(f, "/answers/item", "item, as its file names it",
                                             "answer", text, n, err);
    for (size_t i = 0; !status && i < n; i++)
        if (!(text[i] = own[i] = valid_text(t->result[i / of_point].text[i % of_point])))
            status = kvd_no_memory(err, "an answer", 1);
    status = status ||
             kvd_field_write_texts(f, "/answers/text", "answer as scored", "answer", text, n, err);
    for (size_t i = 0; own && i < n; i++)
        free(own[i]);
    free(own);
    free((void *)text);
    return status ? -1 : 0;
}

void kvd_benchmark_table_warn_zeros(const kvd_benchmark_table *t, const char *program)
{
    const kvd_rows *const r = kvd_benchmark_table_rows(t);
    size_t n = 0, zeros = 0, first = 0;
    while (n < kvd_rows_count(r) && !strcmp(kvd_row_text(r, n, "method"), "none"))
        n++;
    n -= n > 1; /* without the mean of several tasks */
    for (size_t i = n; i-- > 0;)
        if (kvd_row_real(r, i, "score") <= 0) {
            zeros++;
            first = i;
        }
    char more[48] = "";
    if (zeros > 1)
        snprintf(more, sizeof more, " and %zu further task%s", zeros - 1, zeros > 2 ? "s" : "");
    if (zeros)
        fprintf(stderr,
                "%s: warning: the uncompressed model scores 0 on '%s'%s: no method can lose "
                "anything there\n",
                program, kvd_row_text(r, first, "label"), more);
}

int kvd_benchmark_table_write(kvd_h5 *f, const kvd_benchmark_table *t, kvd_err *err)
{
    return kvd_status(kvd_rows_write(f, t->rows, err) || write_numbers(f, t, err) ||
                      write_texts(f, t, err));
}
