#include "evaluate/tasks/task_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "evaluate/accuracy_text.h"
#include "evaluate/point_columns.h"

static const char *const group[KVD_N_FREE_TASKS] = {"generated", "needle", "classified"};
static const char *const item_axis[KVD_N_FREE_TASKS] = {"sequence", "needle", "document"};

typedef struct {
    char name[48], long_name[160];
} column_text;

struct kvd_task_table {
    const kvd_task_run *run;
    const kvd_config *config;
    char label[64], calibrated[64];
    bool seeds;
    uint64_t seed;
    kvd_rows *rows;
    kvd_column *column;
    column_text *text;
    int n;
    size_t n_rows, capacity;
    /* for each measure, an array [rows][items] of its values; each row is a tested compression */
    double *value[KVD_N_FREE_MEASURES];
    /* [rows][n_items][n_new] tokens that the row's method generated; -1 in a row with means over
     * random seeds */
    int32_t *token;
};

static size_t items_of(const kvd_task_table *c, int measure)
{
    return c->run->items[kvd_task_measures[measure].task].n_items;
}

static size_t places_of(const kvd_task_table *c)
{
    const kvd_task_items *const items = &c->run->items[KVD_TASK_GENERATE];
    return items->n_items ? items->run.end[items->n_items] : 0;
}

static void add_column(kvd_task_table *c, const char *name, const char *end, const char *units,
                       const char *what)
{
    column_text *const t = &c->text[c->n];
    snprintf(t->name, sizeof t->name, "%s%s", name, end);
    snprintf(t->long_name, sizeof t->long_name, "%s", what);
    c->column[c->n++] = (kvd_column){t->name, KVD_COL_REAL, units, t->long_name};
}

static void add_measure(kvd_task_table *c, const kvd_task_measure_info *m)
{
    add_column(c, m->name, "", m->units, m->long_name);
    add_column(c, m->name, "_lo", m->units, "its 95 % interval, lower end");
    add_column(c, m->name, "_hi", m->units, "its 95 % interval, upper end");
    if (!m->own) {
        add_column(c, m->name, "_change", m->units, "less that of the uncompressed model, paired");
        add_column(c, m->name, "_change_lo", m->units, "its 95 % interval, lower end");
        add_column(c, m->name, "_change_hi", m->units, "its 95 % interval, upper end");
    }
    if (c->seeds)
        add_column(c, m->name, "_sd", m->units, "its sample standard deviation over seeds");
}

static const kvd_column common_columns[] = {
    {"path", KVD_COL_TEXT, "1", "where passes ran and the cache was (docs/tasks.md)"},
    {"prompt", KVD_COL_INT, "token", "--prompt: rows of a sequence before the first step"},
    {"n_seeds", KVD_COL_INT, "1", "number of seeds of which the row is the mean; 1: a single seed"},
    {"seed", KVD_COL_INT, "1",
     "seed of the random numbers of the method; for a mean, the first seed"},
};
enum { N_COMMON = sizeof common_columns / sizeof *common_columns };

static int make_columns(kvd_task_table *c, kvd_err *err)
{
    enum { MOST = KVD_N_POINT_COLUMNS + N_COMMON + 7 * KVD_N_FREE_MEASURES + 3 };
    c->column = calloc(MOST, sizeof *c->column);
    c->text = calloc(MOST, sizeof *c->text);
    if (!c->column || !c->text)
        return kvd_no_memory(err, "columns", MOST * sizeof(column_text));
    memcpy(c->column, kvd_point_columns, sizeof kvd_point_columns);
    memcpy(c->column + KVD_N_POINT_COLUMNS, common_columns, sizeof common_columns);
    c->n = KVD_N_POINT_COLUMNS + N_COMMON;
    for (int m = 0; m < KVD_N_FREE_MEASURES; m++)
        if (items_of(c, m))
            add_measure(c, &kvd_task_measures[m]);
    add_column(
        c, "free_cache_share", "", "1",
        "bytes of the cache over those of an uncompressed 16-bit cache, free-running, mean over "
        "steps");
    add_column(c, "free_read_share", "", "1",
               "bytes of the cache that a step reads over those of an uncompressed 16-bit cache, "
               "mean over steps");
    add_column(c, "free_seconds", "", "s", "free-running evaluation of this point on this machine");
    return (c->rows = kvd_rows_new(c->column, c->n, err)) ? 0 : -1;
}

kvd_task_table *kvd_task_table_new(const kvd_task_run *f, const kvd_config *config,
                                   const char *label, const char *calibrated, bool seeds,
                                   uint64_t seed, kvd_err *err)
{
    kvd_task_table *const c = kvd_new(1, sizeof *c, "a table", err);
    if (!c)
        return NULL;
    c->run = f;
    c->config = config;
    c->seeds = seeds;
    c->seed = seed;
    snprintf(c->label, sizeof c->label, "%s", label);
    snprintf(c->calibrated, sizeof c->calibrated, "%s", calibrated);
    if (make_columns(c, err)) {
        kvd_task_table_free(c);
        return NULL;
    }
    return c;
}

void kvd_task_table_free(kvd_task_table *c)
{
    if (!c)
        return;
    for (int m = 0; m < KVD_N_FREE_MEASURES; m++)
        free(c->value[m]);
    kvd_rows_free(c->rows);
    free(c->token);
    free(c->column);
    free(c->text);
    free(c);
}

const kvd_rows *kvd_task_table_rows(const kvd_task_table *c)
{
    return c->rows;
}

static int grow(kvd_task_table *c, kvd_err *err)
{
    if (c->n_rows < c->capacity)
        return 0;
    const size_t rows = c->capacity ? 2 * c->capacity : 16;
    for (int m = 0; m < KVD_N_FREE_MEASURES; m++) {
        double *const grown = realloc(c->value[m], (rows * items_of(c, m) + 1) * sizeof *grown);
        if (!grown)
            return kvd_no_memory(err, "scores of all points",
                                 rows * items_of(c, m) * sizeof *grown);
        c->value[m] = grown;
    }
    int32_t *const token = realloc(c->token, (rows * places_of(c) + 1) * sizeof *token);
    if (!token)
        return kvd_no_memory(err, "generated tokens of all points",
                             rows * places_of(c) * sizeof *token);
    c->token = token;
    c->capacity = rows;
    return 0;
}

static int put_measure(kvd_task_table *c, int m, const kvd_task_result *r, const double *spread,
                       kvd_err *err)
{
    kvd_rows *const rows = c->rows;
    const uint64_t seed = c->seed;
    const kvd_task_measure_info *const info = &kvd_task_measures[m];
    kvd_interval x;
    char name[48];
    if (kvd_task_interval(c->run, (kvd_task_measure)m, r, NULL, seed, &x, err))
        return -1;
    kvd_rows_interval(rows, info->name, &x);
    if (!info->own) {
        snprintf(name, sizeof name, "%s_change", info->name);
        if (kvd_task_interval(c->run, (kvd_task_measure)m, r, &c->run->reference, seed, &x, err))
            return -1;
        kvd_rows_interval(rows, name, &x);
    }
    if (c->seeds && spread) {
        snprintf(name, sizeof name, "%s_sd", info->name);
        kvd_rows_real(rows, name, spread[m]);
    }
    return 0;
}

int kvd_task_table_add(kvd_task_table *c, const char *purpose, const kvd_point *point,
                       const kvd_plan *plan, const kvd_task_result *r, size_t n_seeds,
                       const double *spread, kvd_err *err)
{
    if (grow(c, err) || kvd_rows_begin(c->rows, err))
        return -1;
    kvd_point_columns_put(c->rows, c->config, point, plan, c->label, c->calibrated, purpose);
    char why[KVD_GENERATOR_WHY];
    kvd_rows_text(c->rows, "path", kvd_generator_path(c->run->generator, plan, why));
    kvd_rows_int(c->rows, "prompt",
                 plan->prompt == KVD_PROMPT_OF_SEQUENCE ? 0 : (int64_t)plan->prompt);
    kvd_rows_int(c->rows, "n_seeds", (int64_t)n_seeds);
    kvd_rows_int(c->rows, "seed", (int64_t)plan->seed);
    for (int m = 0; m < KVD_N_FREE_MEASURES; m++) {
        const size_t n = items_of(c, m);
        if (r->value[m] && put_measure(c, m, r, n_seeds > 1 ? spread : NULL, err))
            return -1;
        for (size_t i = 0; i < n; i++)
            c->value[m][c->n_rows * n + i] = r->value[m] ? r->value[m][i] : (double)NAN;
    }
    for (size_t i = 0, n = places_of(c); i < n; i++)
        c->token[c->n_rows * n + i] = r->token ? (int32_t)r->token[i] : -1;
    kvd_rows_real(c->rows, "free_cache_share", r->cache_share);
    kvd_rows_real(c->rows, "free_read_share", r->read_share);
    kvd_rows_real(c->rows, "free_seconds", r->seconds);
    c->n_rows++;
    return 0;
}

int kvd_task_table_share(const kvd_task_table *c, size_t row, kvd_task_measure m, kvd_interval *out,
                         kvd_err *err)
{
    kvd_task_result one = {0};
    one.value[m] = c->value[m] + row * items_of(c, (int)m);
    return kvd_task_share(c->run, m, &one, c->seed, out, err);
}

const char kvd_task_heading[] =
    "task      method                   metric            items     score  95 %            change  "
    "95 %             B/token  cache   read  settings";

const char kvd_task_legend[] =
    "score: in percent, agree_prefix in tokens; change: score less that of none\n"
    "95 %: intervals, \"-\" with fewer than 8 sequences\n" KVD_CACHE_LEGEND KVD_READ_LEGEND
        KVD_P_SETTINGS_LEGEND;

/* Returns the mean number of bytes that an uncompressed 16-bit cache of the complete sequences
 * takes per token. */
static double dense_per_token(const kvd_task_table *c)
{
    double bytes = 0, tokens = 0;
    for (int t = 0; t < KVD_N_FREE_TASKS; t++) {
        const kvd_continuations *const x = &c->run->items[t].run;
        for (size_t s = 0; s < x->n_sequences; s++) {
            const double n = (double)(x->offset[s + 1] - x->offset[s] + x->end[s + 1] - x->end[s]);
            bytes += kvd_dense_bytes(c->config, n);
            tokens += n;
        }
    }
    return bytes / tokens;
}

/* Writes the value of column `name` in row i to `text` and its 95 % interval to `range`, both
 * multiplied by `scale`. */
static void put_cells(const kvd_rows *r, size_t i, const char *name, double scale, char text[40],
                      char range[40])
{
    char end[2][48];
    snprintf(end[0], sizeof end[0], "%s_lo", name);
    snprintf(end[1], sizeof end[1], "%s_hi", name);
    kvd_real_text(text, 40, "%.2f", scale * kvd_row_real(r, i, name));
    kvd_interval_text(range, 40, "[%.1f, %.1f]", scale * kvd_row_real(r, i, end[0]),
                      scale * kvd_row_real(r, i, end[1]));
}

const char *kvd_task_table_line(const kvd_task_table *c, size_t i, kvd_task_measure m, char *line)
{
    static const bool shown[KVD_N_FREE_MEASURES] = {[KVD_TASK_ROUGE1] = true,
                                                    [KVD_TASK_EDIT_SIMILARITY] = true,
                                                    [KVD_TASK_EXACT] = true,
                                                    [KVD_TASK_AGREE_PREFIX] = true,
                                                    [KVD_TASK_REFERENCE_ROUGE1] = true,
                                                    [KVD_TASK_NEEDLE_EXACT] = true,
                                                    [KVD_TASK_NEEDLE_AGREE] = true,
                                                    [KVD_TASK_CLASS_CORRECT] = true,
                                                    [KVD_TASK_CLASS_AGREE] = true};
    static const char *const task[KVD_N_FREE_TASKS] = {"generate", "needle", "classify"};
    const kvd_task_measure_info *const info = &kvd_task_measures[m];
    const kvd_rows *const r = c->rows;
    char method[80], change[48], cell[4][40] = {"", "", "-", "-"};
    if (!shown[m] || !items_of(c, (int)m) || isnan(kvd_row_real(r, i, info->name)))
        return NULL;
    const double scale = strcmp(info->units, "1") ? 1 : 100,
                 share = kvd_row_real(r, i, "free_cache_share");
    kvd_accuracy_method_name(r, i, method, sizeof method);
    put_cells(r, i, info->name, scale, cell[0], cell[1]);
    snprintf(change, sizeof change, "%s_change", info->name);
    if (!info->own)
        put_cells(r, i, change, scale, cell[2], cell[3]);
    snprintf(line, KVD_TASK_LINE,
             "%-9s %-24s %-17s %5zu  %8s  %-14s %7s  %-15s %8.0f  %5.3f  %5.3f", task[info->task],
             method, info->name, items_of(c, (int)m), cell[0], cell[1], cell[2], cell[3],
             share * dense_per_token(c), share, kvd_row_real(r, i, "free_read_share"));
    kvd_p_and_settings_add(r, i, line, KVD_TASK_LINE);
    return line;
}

static int write_measure(kvd_h5 *f, const kvd_task_table *c, int m, kvd_err *err)
{
    const kvd_task_measure_info *const info = &kvd_task_measures[m];
    const char *const axis = item_axis[info->task];
    const hsize_t n = items_of(c, m);
    char path[80], long_name[200];
    snprintf(path, sizeof path, "/%s/%s", group[info->task], info->name);
    const kvd_h5_spec spec = {path, info->long_name, info->units,  H5T_IEEE_F64LE,
                              2,    {c->n_rows, n},  {"row", axis}};
    if (kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, c->value[m], err))
        return -1;
    if (info->own)
        return 0;
    snprintf(path, sizeof path, "/%s/uncompressed_%s", group[info->task], info->name);
    snprintf(long_name, sizeof long_name, "%s, of the uncompressed model", info->long_name);
    const kvd_h5_spec own = {path, long_name, info->units, H5T_IEEE_F64LE, 1, {n}, {axis}};
    return kvd_h5_write(f, &own, H5T_NATIVE_DOUBLE, c->run->reference.value[m], err);
}

static int write_generated(kvd_h5 *f, const kvd_task_table *c, kvd_err *err)
{
    const kvd_task_items *const items = &c->run->items[KVD_TASK_GENERATE];
    const hsize_t n = items->n_items, n_new = n ? places_of(c) / n : 0;
    if (!n)
        return 0;
    int64_t *const length = malloc(n * sizeof *length);
    if (!length)
        return kvd_no_memory(err, "lengths of prompts", n * sizeof *length);
    for (size_t i = 0; i < n; i++)
        length[i] = (int64_t)(items->run.offset[i + 1] - items->run.offset[i]);
    const kvd_h5_spec all = {"/generated/token",
                             "generated token ids; -1: the row is of several seeds, or was not run",
                             "1",
                             H5T_STD_I32LE,
                             3,
                             {c->n_rows, n, n_new},
                             {"row", "sequence", "place"}},
                      own = {"/generated/uncompressed",
                             "token ids that the uncompressed model generated",
                             "1",
                             H5T_STD_I32LE,
                             2,
                             {n, n_new},
                             {"sequence", "place"}},
                      prompts = {
                          "/generated/prompt", "tokens of the prompt", "1", H5T_STD_I64LE, 1, {n},
                          {"sequence"}};
    const int status = kvd_h5_write(f, &all, H5T_NATIVE_INT32, c->token, err) ||
                       kvd_h5_write(f, &own, H5T_NATIVE_UINT32, c->run->reference.token, err) ||
                       kvd_h5_write(f, &prompts, H5T_NATIVE_INT64, length, err) ||
                       kvd_h5_put_int(f, "/generated", "n_new", (int64_t)n_new, err);
    free(length);
    return status ? -1 : 0;
}

static int write_needles(kvd_h5 *f, const kvd_task_table *c, kvd_err *err)
{
    const kvd_task_items *const items = &c->run->items[KVD_TASK_NEEDLE];
    const kvd_h5_spec depth = {"/needle/depth",
                               "position of the needle: 0 first, 1 last",
                               "1",
                               H5T_IEEE_F64LE,
                               1,
                               {items->n_items},
                               {"needle"}};
    return items->n_items ? kvd_h5_write(f, &depth, H5T_NATIVE_DOUBLE, items->depth, err) : 0;
}

static int write_classes(kvd_h5 *f, const kvd_task_table *c, kvd_err *err)
{
    const kvd_task_items *const items = &c->run->items[KVD_TASK_CLASSIFY];
    const size_t n = items->n_items;
    char names[1024] = "";
    if (!n)
        return 0;
    int64_t *const label = malloc(n * sizeof *label);
    if (!label)
        return kvd_no_memory(err, "labels", n * sizeof *label);
    for (size_t i = 0; i < n; i++)
        label[i] = (int64_t)items->label[i];
    for (size_t k = 0; k < items->n_classes; k++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", k ? "," : "", items->class_name[k]);
    }
    const kvd_h5_spec spec = {
        "/classified/label", "index of the document's class", "1", H5T_STD_I64LE, 1, {n},
        {"document"}};
    const int status = kvd_h5_write(f, &spec, H5T_NATIVE_INT64, label, err) ||
                       kvd_h5_put_text(f, "/classified", "classes", names, err);
    free(label);
    return status ? -1 : 0;
}

int kvd_task_table_write(kvd_h5 *f, const kvd_task_table *c, kvd_err *err)
{
    if (kvd_rows_write(f, c->rows, err))
        return -1;
    for (int m = 0; m < KVD_N_FREE_MEASURES; m++)
        if (items_of(c, m) && write_measure(f, c, m, err))
            return -1;
    if (write_generated(f, c, err) || write_needles(f, c, err) || write_classes(f, c, err))
        return -1;
    return 0;
}
