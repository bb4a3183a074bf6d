#include "report/accuracy_file.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
#include "report/measures.h"

enum { RESAMPLES = 1000 };

void kvd_accuracy_result_release(kvd_accuracy_result *a)
{
    kvd_rows_free(a->rows);
    free(a->norm);
    free(a->zdc);
    free(a->ratio);
    free(a->target);
    free(a->needle_depth);
    free(a->needle_nll);
    free(a->needle_agree);
    free(a->needle_exact);
    *a = (kvd_accuracy_result){0};
}

/* [row][layer][head] of the file to means over heads, [row][layer]; NaN rows were not measured. */
static int read_errors(kvd_accuracy_result *a, kvd_h5 *f, const char *path, double **out, kvd_err *err)
{
    hsize_t dims[3];
    if (!kvd_h5_exists(f, path))
        return 0;
    if (kvd_h5_shape(f, path, 3, dims, err))
        return -1;
    size_t n = kvd_rows_count(a->rows), layers = (size_t)dims[1], heads = (size_t)dims[2];
    if (dims[0] != n || dims[1] == 0 || dims[2] == 0 || dims[1] > 1000000 || dims[2] > 1000000)
        return kvd_fail(err, "'%s': '%s' is %llu x %llu x %llu for %zu rows", f->path, path,
                        (unsigned long long)dims[0], (unsigned long long)dims[1], (unsigned long long)dims[2],
                        n);
    double *all = calloc(n * layers * heads, sizeof *all);
    *out = calloc(n * layers, sizeof **out);
    int status = !all || !*out ? kvd_no_memory(err, path, n * layers * heads * sizeof *all)
                               : kvd_h5_read(f, path, 3, dims, H5T_NATIVE_DOUBLE, all, err);
    for (size_t i = 0; !status && i < n * layers; i++)
        for (size_t h = 0; h < heads; h++)
            (*out)[i] += all[i * heads + h] / (double)heads;
    a->n_layers = layers;
    free(all);
    return status;
}

/* exp of the mean difference of log-likelihoods, paired by sequence; the interval draws whole sequences. */
static int ratio_of_row(const double *nll, const double *none, const double *n, size_t sequences,
                        double *difference, kvd_interval *out, kvd_err *err)
{
    for (size_t s = 0; s < sequences; s++)
        difference[s] = nll[s] - none[s];
    if (kvd_bootstrap_ratio(difference, n, sequences, RESAMPLES, 1, out, err))
        return -1;
    *out = (kvd_interval){exp(out->value), exp(out->lo), exp(out->hi)};
    return 0;
}

static int read_ratios(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err)
{
    size_t rows = kvd_rows_count(a->rows), none = 0;
    hsize_t sequences;
    double *n = NULL, *nll = NULL, *difference = NULL;
    int status = -1;

    a->ratio = malloc((rows ? rows : 1) * sizeof *a->ratio);
    if (!a->ratio)
        return kvd_no_memory(err, "ratios of perplexity", rows * sizeof *a->ratio);
    for (size_t i = 0; i < rows; i++)
        a->ratio[i] = (kvd_interval){(double)NAN, (double)NAN, (double)NAN};
    while (none < rows && strcmp(kvd_row_text(a->rows, none, "method"), "none"))
        none++;
    if (none == rows || !kvd_h5_exists(f, "/sequences/nll"))
        return 0;
    if (kvd_h5_shape(f, "/sequences/n", 1, &sequences, err))
        return -1;
    const hsize_t dims[] = {rows, sequences};
    if (sequences == 0 || sequences > SIZE_MAX / sizeof *nll / rows)
        return kvd_fail(err, "'%s': %llu sequences", f->path, (unsigned long long)sequences);
    n = malloc((size_t)sequences * sizeof *n);
    difference = malloc((size_t)sequences * sizeof *difference);
    nll = malloc(rows * (size_t)sequences * sizeof *nll);
    if (!n || !nll || !difference) {
        kvd_no_memory(err, "sums of sequences", rows * sequences * sizeof *nll);
        goto done;
    }
    if (kvd_h5_read_finite(f, "/sequences/n", 1, &sequences, n, err) ||
        kvd_h5_read_finite(f, "/sequences/nll", 2, dims, nll, err))
        goto done;
    for (size_t i = 0; i < rows; i++)
        if (i != none && ratio_of_row(nll + i * sequences, nll + none * sequences, n, (size_t)sequences,
                                      difference, &a->ratio[i], err))
            goto done;
    a->ratio[none] = (kvd_interval){1, (double)NAN, (double)NAN};
    status = 0;
done:
    free(n);
    free(nll);
    free(difference);
    return status;
}

/* Needles, by which the report shows depth; rows of a search have NaN. */
static int read_needles(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err)
{
    const size_t rows = kvd_rows_count(a->rows);
    const struct {
        const char *path;
        double **to;
    } all[] = {{"/needle/needle_nll", &a->needle_nll},
               {"/needle/needle_agree", &a->needle_agree},
               {"/needle/needle_exact", &a->needle_exact}};
    hsize_t n;
    if (!kvd_h5_exists(f, "/needle/depth"))
        return 0;
    if (kvd_h5_shape(f, "/needle/depth", 1, &n, err))
        return -1;
    if (n == 0 || n > SIZE_MAX / sizeof(double) / (rows + 1))
        return kvd_fail(err, "'%s': %llu needles", f->path, (unsigned long long)n);
    if (!(a->needle_depth = malloc((size_t)n * sizeof *a->needle_depth)))
        return kvd_no_memory(err, "needles", n * sizeof *a->needle_depth);
    if (kvd_h5_read_finite(f, "/needle/depth", 1, &n, a->needle_depth, err))
        return -1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const hsize_t dims[] = {rows, n};
        if (!(*all[i].to = malloc((rows * (size_t)n + 1) * sizeof(double))))
            return kvd_no_memory(err, "needles", rows * n * sizeof(double));
        if (kvd_h5_read(f, all[i].path, 2, dims, H5T_NATIVE_DOUBLE, *all[i].to, err))
            return -1;
    }
    a->n_needles = (size_t)n;
    return 0;
}

typedef struct {
    kvd_accuracy_result *a;
    kvd_h5 *f;
    kvd_err *err;
} target_reader;

/* Four ends of a target, as they follow one another in the structure. */
static int read_ends(target_reader *x, const char *where, const char *name, double *to, kvd_err *err)
{
    static const char *const suffix[] = {"", "_misses", "_lo", "_hi"};
    for (int i = 0; i < 4; i++) {
        char attribute[40];
        snprintf(attribute, sizeof attribute, "%s%s", name, suffix[i]);
        if (kvd_h5_get_double(x->f, where, attribute, &to[i], err))
            return -1;
    }
    return 0;
}

static herr_t read_target(hid_t group, const char *name, const H5L_info_t *info, void *ctx)
{
    target_reader *x = ctx;
    char where[128], *key = NULL;
    kvd_target_result t = {0};
    int64_t monotone, points;
    kvd_err ignored;
    (void)group;
    (void)info;
    if (strlen(name) >= sizeof t.name) {
        kvd_fail(x->err, "'%s': a target has a name of %zu bytes", x->f->path, strlen(name));
        return -1;
    }
    strcpy(t.name, name);
    snprintf(where, sizeof where, "/target/%s", name);
    const bool any_key = !kvd_h5_get_text(x->f, where, "key", &key, &ignored);
    snprintf(t.key, sizeof t.key, "%s", any_key ? key : "p");
    free(key);
    if (kvd_h5_get_double(x->f, where, "target", &t.target, x->err) ||
        read_ends(x, where, any_key ? "value" : "p", &t.value, x->err) ||
        (any_key && read_ends(x, where, "saving", &t.saving, x->err)) ||
        kvd_h5_get_int(x->f, where, "monotone", &monotone, x->err) ||
        kvd_h5_get_int(x->f, where, "n_points", &points, x->err))
        return -1;
    if (!any_key)
        t.saving = t.saving_misses = t.saving_lo = t.saving_hi = (double)NAN;
    t.monotone = monotone != 0;
    t.n_points = points;
    kvd_target_result *all = realloc(x->a->target, (x->a->n_targets + 1) * sizeof *all);
    if (!all) {
        kvd_no_memory(x->err, "targets", sizeof *all);
        return -1;
    }
    x->a->target = all;
    x->a->target[x->a->n_targets++] = t;
    return 0;
}

/*
 * What no measurement gives: an infinity (but for the exp of a large nll), a negative number beyond rounding, a
 * share above 1. NaN is what was not measured.
 */
static int check_values(const kvd_accuracy_result *a, const kvd_h5 *f, kvd_err *err)
{
    static const char *const shares[] = {"top1",         "top1_lo",         "top1_hi",    "agree",
                                         "overall_p",    "overall_p16",     "p_wanted",   "removal_rate",
                                         "rouge1",       "edit_similarity", "exact",      "needle_exact",
                                         "needle_agree", "class_correct",   "class_agree"};
    for (int c = 0; c < kvd_rows_columns(a->rows); c++) {
        const kvd_column *column = kvd_rows_column(a->rows, c);
        double most = strncmp(column->name, "perplexity", strlen("perplexity")) ? DBL_MAX : (double)INFINITY;
        for (size_t k = 0; k < sizeof shares / sizeof *shares; k++)
            if (!strcmp(column->name, shares[k]))
                most = 1;
        for (size_t i = 0; column->kind != KVD_COL_TEXT && i < kvd_rows_count(a->rows); i++) {
            const double x = kvd_rows_get_real(a->rows, i, c);
            if ((x < -1e-6 && !strstr(column->name, "_change")) || x > most + 1e-9)
                return kvd_fail(err, "'%s': /rows/%s[%zu] is %g, %s", f->path, column->name, i, x,
                                x < 0      ? "below 0"
                                : most > 1 ? "infinite"
                                           : "above 1");
        }
    }
    return 0;
}

int kvd_accuracy_read(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err)
{
    target_reader x = {a, f, err};
    hsize_t from = 0;
    a->rows = kvd_rows_load(f, err);
    if (!a->rows || check_values(a, f, err) ||
        read_errors(a, f, "/attention_error/relative", &a->norm, err) ||
        read_errors(a, f, "/attention_error/zdc", &a->zdc, err) || read_ratios(a, f, err) ||
        read_needles(a, f, err))
        return -1;
    if (!kvd_h5_exists(f, "/target"))
        return 0;
    err->msg[0] = '\0';
    if (H5Literate_by_name(f->id, "/target", H5_INDEX_NAME, H5_ITER_INC, &from, read_target, &x,
                           H5P_DEFAULT) < 0)
        return err->msg[0] ? -1 : kvd_fail(err, "'%s': cannot read '/target'", f->path);
    return 0;
}
