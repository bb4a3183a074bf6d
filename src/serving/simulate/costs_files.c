#include "serving/simulate/costs_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/jct.h"
#include "formats/rows.h"

/* properties of files of measured times; the properties before SAME must be equal in all files */
enum { GPU, CPU, THREADS, DTYPE, GRAPHS, PHASES, PAGES, SAME, REVISION = SAME, DRIVER, FACTS };

typedef struct {
    const char *path;
    kvd_model_info model;
    char *fact[FACTS]; /* text of each property, allocated, or NULL */
    int gpus;
    /* [n] methods for which the file has iteration times, in the order of the file */
    char **method;
    size_t *rows, n;
} file;

struct kvd_costs_files {
    file *file;
    size_t n;
    const char **method;
    size_t n_methods;
    char apart[400];
};

/* Reads the machine and the settings with which a result file was measured. Facts that the file
 * lacks stay NULL. */
static int read_facts(file *x, kvd_h5 *f, kvd_err *err)
{
    static const char made[] = "/provenance", threads[] = "threads";
    int64_t n = 0;
    if (kvd_h5_get_text_or_none(f, made, "gpu", &x->fact[GPU], err) ||
        kvd_h5_get_text_or_none(f, made, "git_revision", &x->fact[REVISION], err) ||
        kvd_h5_get_text_or_none(f, made, "driver", &x->fact[DRIVER], err) ||
        kvd_h5_get_text_or_none(f, "/parameters", "pages", &x->fact[PAGES], err))
        return -1;
    if (x->gpus > 0) /* the type of CPU matters only without GPUs */
        return 0;
    if (kvd_h5_get_text_or_none(f, made, "cpu", &x->fact[CPU], err))
        return -1;
    if (!kvd_h5_has_attribute(f, made, threads))
        return 0;
    if (kvd_h5_get_int(f, made, threads, &n, err))
        return -1;
    if (asprintf(&x->fact[THREADS], "%lld", (long long)n) < 0)
        x->fact[THREADS] = NULL;
    return 0;
}

static int count_method(file *x, const char *name, kvd_err *err)
{
    size_t i = 0;
    while (i < x->n && strcmp(x->method[i], name))
        i++;
    if (i == x->n) {
        if (!(x->method[i] = strdup(name)))
            return kvd_no_memory(err, "the name of a method", strlen(name) + 1);
        x->n++;
    }
    x->rows[i]++;
    return 0;
}

static int take_setting(file *x, const kvd_rows *r, size_t row, kvd_err *err)
{
    x->gpus = (int)kvd_row_real(r, row, "gpus");
    x->fact[DTYPE] = strdup(kvd_row_text(r, row, "dtype"));
    x->fact[GRAPHS] = strdup(kvd_row_real(r, row, "graphs") > 0 ? "on" : "off");
    x->fact[PHASES] = strdup(kvd_row_real(r, row, "phases") > 0 ? "on" : "off");
    return x->fact[DTYPE] && x->fact[GRAPHS] && x->fact[PHASES]
               ? 0
               : kvd_no_memory(err, "a setting", 16);
}

static int count_rows(file *x, const kvd_rows *r, int gpus, kvd_err *err)
{
    const size_t n = kvd_rows_count(r);
    if (kvd_costs_columns(r, x->path, "kind method dtype", "gpus graphs phases", err))
        return -1;
    x->method = calloc(n + 1, sizeof *x->method);
    x->rows = calloc(n + 1, sizeof *x->rows);
    if (!x->method || !x->rows)
        return kvd_no_memory(err, "names of methods", n * (sizeof *x->method + sizeof *x->rows));
    for (size_t i = 0; i < n; i++) {
        if (strcmp(kvd_row_text(r, i, "kind"), "iteration") ||
            (gpus >= 0 && gpus != (int)kvd_row_real(r, i, "gpus")))
            continue;
        if ((!x->n && take_setting(x, r, i, err)) ||
            count_method(x, kvd_row_text(r, i, "method"), err))
            return -1;
    }
    if (x->n)
        return 0;
    return gpus < 0
               ? kvd_fail(err,
                          "'%s' has no row of kind iteration: kvdim-jct --iterations makes them",
                          x->path)
               : kvd_fail(err, "'%s' has no row of kind iteration on %d GPUs", x->path, gpus);
}

static int read_file(file *x, int gpus, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    kvd_rows *rows = NULL;
    int status = kvd_h5_open(&f, x->path, &kvd_schema_jct, err) ||
                 kvd_model_info_read(&f, &x->model, err) || !(rows = kvd_jct_costs_read(&f, err)) ||
                 count_rows(x, rows, gpus, err) || read_facts(x, &f, err);
    kvd_rows_free(rows);
    kvd_h5_close(&f, false);
    return status ? -1 : 0;
}

static const char *fact_of(const file *x, int i)
{
    return x->fact[i] ? x->fact[i] : "unknown";
}

static int same_file(const file *a, const file *b, kvd_err *err)
{
    static const char *const word[SAME] = {"",          "",          " threads", "--dtype ",
                                           "--graphs ", "--phases ", "--pages "};
    if (kvd_model_info_same(&a->model, a->path, &b->model, b->path, err))
        return -1;
    if (a->gpus != b->gpus)
        return kvd_fail(err, "'%s' was measured on %d and '%s' on %d GPUs: say which with --gpus",
                        a->path, a->gpus, b->path, b->gpus);
    for (int i = 0; i < SAME; i++) {
        const char *const x = fact_of(a, i), *const y = fact_of(b, i);
        if (!strcmp(x, y))
            continue;
        return i <= THREADS ? kvd_fail(err, "'%s' was measured on %s%s and '%s' on %s%s", a->path,
                                       x, word[i], b->path, y, word[i])
                            : kvd_fail(err, "'%s' was measured with %s%s and '%s' with %s%s",
                                       a->path, word[i], x, b->path, word[i], y);
    }
    return 0;
}

static void note_apart(kvd_costs_files *f, const file *a, const file *b)
{
    static const char *const word[] = {"by the revisions", "under the drivers"};
    for (int i = REVISION; i <= DRIVER && !*f->apart; i++) {
        const char *const x = fact_of(a, i), *const y = fact_of(b, i);
        if (strcmp(x, y))
            snprintf(f->apart, sizeof f->apart,
                     "'%.120s' and '%.120s' were measured %s %.60s and %.60s", a->path, b->path,
                     word[i - REVISION], x, y);
    }
}

static int list_methods(kvd_costs_files *f, kvd_err *err)
{
    size_t all = 0;
    for (size_t i = 0; i < f->n; i++)
        all += f->file[i].n;
    if (!(f->method = calloc(all + 1, sizeof *f->method)))
        return kvd_no_memory(err, "names of methods", all * sizeof *f->method);
    for (size_t i = 0; i < f->n; i++)
        for (size_t k = 0; k < f->file[i].n; k++) {
            size_t m = 0;
            while (m < f->n_methods && strcmp(f->method[m], f->file[i].method[k]))
                m++;
            f->method[m] = f->file[i].method[k];
            f->n_methods += m == f->n_methods;
        }
    return 0;
}

kvd_costs_files *kvd_costs_files_open(const char *const *path, size_t n, int gpus, kvd_err *err)
{
    kvd_costs_files *const f = calloc(1, sizeof *f);
    if (!f || !(f->file = calloc(n + 1, sizeof *f->file))) {
        kvd_no_memory(err, "files of costs", n * sizeof(file));
        kvd_costs_files_free(f);
        return NULL;
    }
    f->n = n;
    int status = 0;
    for (size_t i = 0; !status && i < n; i++) {
        f->file[i].path = path[i];
        status =
            read_file(&f->file[i], gpus, err) || (i && same_file(&f->file[0], &f->file[i], err));
        if (!status && i)
            note_apart(f, &f->file[0], &f->file[i]);
    }
    if (status || list_methods(f, err)) {
        kvd_costs_files_free(f);
        return NULL;
    }
    return f;
}

void kvd_costs_files_free(kvd_costs_files *f)
{
    for (size_t i = 0; f && f->file && i < f->n; i++) {
        file *const x = &f->file[i];
        for (int k = 0; k < FACTS; k++)
            free(x->fact[k]);
        for (size_t k = 0; k < x->n; k++)
            free(x->method[k]);
        free(x->method);
        free(x->rows);
    }
    if (f) {
        free(f->file);
        free(f->method);
    }
    free(f);
}

const kvd_model_info *kvd_costs_files_model(const kvd_costs_files *f)
{
    return &f->file[0].model;
}

const char *const *kvd_costs_files_methods(const kvd_costs_files *f, size_t *n)
{
    *n = f->n_methods;
    return f->method;
}

const char *kvd_costs_files_apart(const kvd_costs_files *f)
{
    return f->apart;
}

static void no_such_method(const kvd_costs_files *f, const char *method, kvd_err *err)
{
    char list[300] = "";
    size_t at = 0;
    for (size_t i = 0; i < f->n_methods && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? "; " : "", f->method[i]);
    if (f->n == 1)
        kvd_fail(err, "--method %s: '%s' has costs of: %s", method, f->file[0].path, list);
    else
        kvd_fail(err, "--method %s: the %zu files of --costs have: %s", method, f->n, list);
}

const char *kvd_costs_files_of(const kvd_costs_files *f, const char *method, kvd_err *err)
{
    const file *found = NULL;
    size_t rows = 0;
    for (size_t i = 0; i < f->n; i++)
        for (size_t k = 0; k < f->file[i].n; k++) {
            if (strcmp(f->file[i].method[k], method))
                continue;
            if (found) {
                kvd_fail(
                    err,
                    "'%s' has %zu iterations of %s and '%s' %zu: leave one file out, or name other "
                    "methods with --method",
                    found->path, rows, method, f->file[i].path, f->file[i].rows[k]);
                return NULL;
            }
            found = &f->file[i];
            rows = found->rows[k];
        }
    if (!found)
        no_such_method(f, method, err);
    return found ? found->path : NULL;
}
