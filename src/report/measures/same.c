/* Decides if two results were measured under equal conditions, such as model, text and device. */
#include "report/rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* column of a result table that holds a condition of the measurement, such as the device */
typedef struct {
    const char *column;
    /* Name of a group of columns that callers can exclude from the comparison: "widths" (kept
     * dimensions), "sample" (evaluated texts) or "bases" (rotation matrices). NULL if the column is
     * in no group. */
    const char *group;
    bool text;
} condition;

static const condition accuracy_conditions[] = {{"label", NULL, true},
                                                {"calibration", "bases", true},
                                                {"method", NULL, true},
                                                {"settings", NULL, true},
                                                {"rule", NULL, true},
                                                {"pair_qk", "bases", true},
                                                {"pair_v", "bases", true},
                                                {"cache", NULL, true},
                                                {"overall_p", "widths", false},
                                                {"overall_p_qk", "widths", false},
                                                {"overall_p_v", "widths", false},
                                                {"low_p_qk", "widths", false},
                                                {"low_p_v", "widths", false},
                                                {"prompt", NULL, false},
                                                {"n_tokens", "sample", false},
                                                {"n_sequences", "sample", false},
                                                {"n_predictions", "sample", false},
                                                {"n_items", "sample", false},
                                                {"prompt_tokens", "sample", false},
                                                {"metric", NULL, true},
                                                {"n_seeds", NULL, false},
                                                {NULL, NULL, false}};

static const condition serving_conditions[] = {{"kind", NULL, true},
                                               {"method", NULL, true},
                                               {"engine", NULL, true},
                                               {"trace", NULL, true},
                                               {"route", NULL, true},
                                               {"attention", NULL, true},
                                               {"admission", NULL, true},
                                               {"gpus", NULL, false},
                                               {"graphs", NULL, false},
                                               {"phases", NULL, false},
                                               {"replicas", NULL, false},
                                               {"chunk", NULL, false},
                                               {"max_batch", NULL, false},
                                               {"max_tokens", NULL, false},
                                               {"memory_bytes", NULL, false},
                                               {"reserve_bytes", NULL, false},
                                               {"slo_ttft_s", NULL, false},
                                               {"slo_tbt_s", NULL, false},
                                               {"requests", NULL, false},
                                               {"refused", NULL, false},
                                               {"rate", NULL, false},
                                               {"latency_bound_s", NULL, false},
                                               {NULL, NULL, false}};

static const condition jct_conditions[] = {
    {"kind", NULL, true},      {"method", NULL, true},   {"dtype", NULL, true},
    {"engine", NULL, true},    {"parallel", NULL, true}, {"attention", NULL, true},
    {"admission", NULL, true}, {"gpus", NULL, false},    {"graphs", NULL, false},
    {"phases", NULL, false},   {"chunk", NULL, false},   {"batch", NULL, false},
    {"input", NULL, false},    {"output", NULL, false},  {NULL, NULL, false}};

static bool listed(const char *list, const char *word)
{
    const size_t n = word ? strlen(word) : 0;
    for (const char *at = list; n && *at;) {
        const size_t len = strcspn(at, ",");
        if (len == n && !strncmp(at, word, n))
            return true;
        at += len + (at[len] == ',');
    }
    return false;
}

static bool equal(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    return isinf(a) || isinf(b) ? a <= b && b <= a : fabs(a - b) < 1e-9;
}

/* Returns true if two numbers of a column are equal. Older files lack the columns "graphs",
 * "phases" and "prompt_tokens"; a missing number equals every number. */
static bool same_number(const char *column, double a, double b)
{
    return ((isnan(a) || isnan(b)) && (!strcmp(column, "graphs") || !strcmp(column, "phases") ||
                                       !strcmp(column, "prompt_tokens"))) ||
           equal(a, b);
}

/* Returns true if two texts of a column are equal. In column "engine", only device and number type
 * are compared. In column "admission", an empty text means "whole". */
static bool same_text(const char *column, const char *a, const char *b)
{
    if (!strcmp(column, "admission"))
        return !strcmp(*a ? a : "whole", *b ? b : "whole");
    if (strcmp(column, "engine"))
        return !strcmp(a, b);
    size_t n = strcspn(a, ",;");
    n += a[n] ? 1 + strcspn(a + n + 1, ",;") : 0;
    return !strncmp(a, b, n) && (!b[n] || strchr(",;", b[n]));
}

/* Moves *at to the next "key=value" of a comma-separated list, and skips keys listed in `but`.
 * Returns the length of this "key=value", or 0 at the end of the list. */
static size_t next_setting(const char **at, const char *but)
{
    while (**at) {
        char key[64];
        const size_t n = strcspn(*at, ",");
        snprintf(key, sizeof key, "%.*s", (int)strcspn(*at, "=,"), *at);
        if (n && !listed(but, key))
            return n;
        *at += n + ((*at)[n] == ',');
    }
    return 0;
}

static bool same_settings(const char *a, const char *b, const char *but)
{
    for (;;) {
        const size_t n = next_setting(&a, but), m = next_setting(&b, but);
        if (n != m || strncmp(a, b, n))
            return false;
        if (n == 0)
            return true;
        a += n + (a[n] == ',');
        b += n + (b[n] == ',');
    }
}

static const kvd_rows *rows_of(const kvd_result *x)
{
    return x->kind == KVD_RESULT_ACCURACY || x->kind == KVD_RESULT_TASKS ? x->accuracy.rows
           : x->kind == KVD_RESULT_SERVING                               ? x->serving
           : x->kind == KVD_RESULT_JCT                                   ? x->jct
                                                                         : NULL;
}

static double number(const kvd_rows *rows, size_t row, const char *column)
{
    const double x = kvd_row_real(rows, row, column);
    return isnan(x) && !strcmp(column, "prompt") ? 0 : x;
}

const char *kvd_rows_differ(const kvd_result *x, size_t a, const kvd_result *y, size_t b,
                            const char *but)
{
    const kvd_rows *const p = rows_of(x), *const q = rows_of(y);
    if (x->kind != y->kind || !p || !q)
        return "schema";
    if (!listed(but, "model") && strcmp(x->model.hash, y->model.hash))
        return "model";
    const condition *c = p == x->accuracy.rows ? accuracy_conditions
                         : p == x->serving     ? serving_conditions
                                               : jct_conditions;
    for (; c->column; c++) {
        if (listed(but, c->column))
            continue;
        const char *const s = c->text ? kvd_row_text(p, a, c->column) : "",
                          *const t = c->text ? kvd_row_text(q, b, c->column) : "";
        if (listed(but, c->group) && (!*s || !*t))
            continue;
        if (!strcmp(c->column, "settings") ? !same_settings(s, t, but)
            : c->text                      ? !same_text(c->column, s, t)
                      : !same_number(c->column, number(p, a, c->column), number(q, b, c->column)))
            return c->column;
    }
    return NULL;
}

static size_t n_texts(const kvd_result *x)
{
    switch (x->kind) {
    case KVD_RESULT_SIMILARITY:
        return x->similarity.hash ? x->similarity.n_files : 0;
    case KVD_RESULT_SPECTRUM:
    case KVD_RESULT_TOKENS:
        return 1;
    case KVD_RESULT_ACCURACY:
    case KVD_RESULT_TASKS:
    case KVD_RESULT_ERROR_TABLE:
        return x->corpus_hash ? 1 : 0;
    default:
        return 0;
    }
}

static kvd_named_text text_of(const kvd_result *x, size_t i)
{
    kvd_named_text t = {.path = x->path};
    if (x->kind == KVD_RESULT_SIMILARITY) {
        t.label = x->similarity.label[i];
        t.hash = x->similarity.hash[i];
        t.n_tokens = x->similarity.n_tokens[i];
    } else if (x->kind == KVD_RESULT_SPECTRUM) {
        t = kvd_spectrum_text(&x->spectrum, x->path);
    } else if (x->kind == KVD_RESULT_TOKENS) {
        t.label = x->tokens.label;
        t.hash = x->tokens.corpus_hash;
        t.n_tokens = x->tokens.n_tokens;
        t.seq_len = x->tokens.seq_len;
    } else {
        t.label = x->corpus_label;
        t.hash = x->corpus_hash;
        t.n_tokens = x->corpus_tokens;
        t.seq_len = x->corpus_seq_len;
    }
    return t;
}

/* file of requests or of benchmark items that a result was measured with, and the name that results
 * use for this file */
typedef struct {
    const char *name, *path, *hash;
} named_file;

/* Returns true if any row has the label of file `path`: the file name without folder and ending,
 * such as `gsm8k` for "data/gsm8k.jsonl". Sets *label to this label. */
static bool is_benchmark(const kvd_rows *rows, const char *path, const char **label)
{
    const char *const slash = strrchr(path, '/'), *const base = slash ? slash + 1 : path,
                      *const dot = strrchr(base, '.');
    const size_t n = dot && dot != base ? (size_t)(dot - base) : strlen(base);
    for (size_t i = 0; i < kvd_rows_count(rows); i++) {
        *label = kvd_row_text(rows, i, "label");
        if (strlen(*label) == n && !strncmp(*label, base, n))
            return true;
    }
    return false;
}

/* Fills *f for input file k of result *x. Returns false if it is neither a file of requests nor of
 * benchmark items. */
static bool file_of(const kvd_result *x, size_t k, named_file *f)
{
    f->path = kvd_fact_get(&x->input[k], "path");
    f->hash = kvd_fact_get(&x->input[k], "hash");
    if (*kvd_fact_get(&x->input[k], "schema") || !*f->hash)
        return false;
    if (x->kind == KVD_RESULT_SERVING && kvd_rows_count(x->serving)) {
        f->name = kvd_row_text(x->serving, 0, "trace");
        return true;
    }
    return x->kind == KVD_RESULT_TASKS && !x->corpus_hash &&
           is_benchmark(x->accuracy.rows, f->path, &f->name);
}

/* Fails if two results refer by the same name to input files with different contents. */
static int same_files(const kvd_result *x, const kvd_result *y, kvd_err *err)
{
    named_file a, b;
    if (x->kind != y->kind || strcmp(x->model.hash, y->model.hash))
        return 0;
    for (size_t i = 0; i < x->n_inputs; i++)
        for (size_t k = 0; file_of(x, i, &a) && k < y->n_inputs; k++)
            if (file_of(y, k, &b) && !strcmp(a.name, b.name) && strcmp(a.hash, b.hash))
                return kvd_fail(err,
                                "'%s' names two contents: %s of '%s' in '%s' and %s of '%s' in "
                                "'%s'; rename one of the files and run again",
                                a.name, b.hash, b.path, y->path, a.hash, a.path, x->path);
    return 0;
}

int kvd_results_same_texts(const kvd_results *r, const kvd_results *also, kvd_err *err)
{
    const size_t n = r->n + (also ? also->n : 0);
    for (size_t i = 0; i < n; i++) {
        const kvd_result *const x = i < r->n ? &r->item[i] : &also->item[i - r->n];
        for (size_t j = 0; j < i; j++)
            if (same_files(x, j < r->n ? &r->item[j] : &also->item[j - r->n], err))
                return -1;
        for (size_t k = 0; k < n_texts(x); k++) {
            const kvd_named_text a = text_of(x, k);
            for (size_t j = 0; j <= i; j++) {
                const kvd_result *const y = j < r->n ? &r->item[j] : &also->item[j - r->n];
                if (strcmp(x->model.hash, y->model.hash))
                    continue;
                for (size_t m = 0; m < (j == i ? k : n_texts(y)); m++) {
                    const kvd_named_text b = text_of(y, m);
                    if (kvd_named_texts_agree(&b, &a, err))
                        return -1;
                }
            }
        }
    }
    return 0;
}
