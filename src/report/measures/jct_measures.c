/* Computes measures from the job completion times that result files contain, such as by how many
 * percent a job takes longer with one method than with another. */
#include "report/measures/measures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/jct.h"
#include "report/rows.h"

/* Kinds of measures of job completion times. The prefix of a measure's name, such as "jct-share-",
 * says its kind. */
typedef enum {
    SHARE,
    EXTRA,
    CHANGE,
    OF_PROMPTS,
    OF_STEPS,
    PARTS_CHANGE,
    SHARED_CHANGE,
    SHARED,
    GROWTH,
    PERPLEXITY,
    KINDS
} question_kind;
static const char *const prefix[KINDS] = {
    "jct-share-", "jct-extra-",         "jct-change-", "jct-of-prompts-", "jct-of-steps-",
    "jct-parts-", "jct-shared-change-", "jct-shared-", "jct-growth-",     "jct-perplexity-"};
static const char *const whole[KINDS] = {"jct_s", "jct_s", "jct_s", "prefill_s", "decode_s",
                                         "jct_s", "jct_s", "jct_s", "jct_s"};

typedef struct {
    question_kind kind;
    char method[48];
    /* End of a name such as "jct-share-METHOD-prefill_mlp": names of phases, or a second method. */
    char rest[96];
    char other[48];    /* method B in names that end in "-PHASES-over-B" */
    const char *sizes; /* input and output lengths such as "6300x243+204x139", or "all" */
} question;

static const char over[] = "-over-";

static bool split(question *q)
{
    char *const end = strstr(q->rest, over);
    if (!end || end == q->rest || !end[strlen(over)])
        return false;
    snprintf(q->other, sizeof q->other, "%.47s", end + strlen(over));
    *end = '\0';
    return true;
}

static bool parse(const char *name, question *q)
{
    for (int i = 0; i < KINDS; i++) {
        const size_t n = strlen(prefix[i]);
        if (strncmp(name, prefix[i], n))
            continue;
        const char *const between = i == CHANGE || i == PERPLEXITY ? over : "-", *const end =
                                                                                     strstr(
                                                                                         name + n,
                                                                                         between);
        if (!end || end == name + n || !end[strlen(between)])
            return false;
        q->kind = (question_kind)i;
        snprintf(q->method, sizeof q->method, "%.*s", (int)(end - name - (ptrdiff_t)n), name + n);
        snprintf(q->rest, sizeof q->rest, "%s", end + strlen(between));
        return (i != PARTS_CHANGE && i != SHARED_CHANGE) || split(q);
    }
    return false;
}

bool kvd_jct_measure_known(const char *name)
{
    question q;
    return parse(name, &q);
}

/* Returns true if `sizes` is "all" or contains the job size INPUTxOUTPUT, in tokens, with the given
 * input and output. Example of `sizes`: "6300x243+204x139". */
static bool among(const char *sizes, double input, double output)
{
    double in, out;
    if (!strcmp(sizes, "all"))
        return true;
    for (const char *at = sizes; at; at = strchr(at, '+') ? strchr(at, '+') + 1 : NULL)
        if (sscanf(at, "%lfx%lf", &in, &out) == 2 && fabs(in - input) < 0.5 &&
            fabs(out - output) < 0.5)
            return true;
    return false;
}

/* Returns true if `sizes` is "all" or a list of job sizes INPUTxOUTPUT, in tokens, joined by
 * '+'. */
static bool well_formed(const char *sizes)
{
    double in, out;
    int n;
    for (const char *at = sizes; strcmp(sizes, "all"); at += n + 1) {
        if (sscanf(at, "%lfx%lf%n", &in, &out, &n) != 2 || (at[n] && at[n] != '+'))
            return false;
        if (!at[n])
            break;
    }
    return true;
}

static bool asked_for(const kvd_report_row *e, const char *method, const question *q)
{
    const bool shared = q->kind == SHARED || q->kind == SHARED_CHANGE;
    return kvd_report_is_method(kvd_report_text(e, "method"), method) &&
           (!shared || !strcmp(kvd_report_text(e, "parallel"), "sequence")) &&
           kvd_report_real(e, "gpus") > 0 &&
           among(q->sizes, kvd_report_real(e, "input"), kvd_report_real(e, "output"));
}

static int seconds(const kvd_report_row *e, const char *parts, double *sum, kvd_err *err)
{
    *sum = 0;
    for (const char *p = parts; *p;) {
        const size_t n = strcspn(p, "+");
        char column[64];
        snprintf(column, sizeof column, "%.*s_s", (int)n, p);
        if (kvd_rows_find(e->file->jct, column) < 0)
            return kvd_fail(err, "no part '%.*s'", (int)n, p);
        *sum += kvd_report_real(e, column);
        p += n + (p[n] == '+');
    }
    return 0;
}

static int put(const kvd_report_row *e, double value, kvd_measured *out, kvd_err *err)
{
    const size_t first = out->n;
    if (kvd_values_put(out, value, err, "%.60s, %.0f + %.0f tokens, %.100s",
                       kvd_report_text(e, "method"), kvd_report_real(e, "input"),
                       kvd_report_real(e, "output"), e->place))
        return -1;
    kvd_values_timed_on(out, first, kvd_report_text(e, "engine"));
    return 0;
}

static size_t uncompressed(const kvd_report_row *e)
{
    for (size_t i = 0; i < kvd_rows_count(e->file->jct); i++)
        if (!strcmp(kvd_row_text(e->file->jct, i, "name"), "none") &&
            !kvd_rows_differ(e->file, e->row, e->file, i, "method"))
            return i;
    return SIZE_MAX;
}

static int of_parts(const kvd_report_row *e, const question *q, kvd_measured *out, kvd_err *err)
{
    double of, without = 0;
    if (!(kvd_report_real(e, "phases") > 0))
        return 0;
    if (seconds(e, q->rest, &of, err))
        return -1;
    if (q->kind != EXTRA && !(of > 0))
        return 0;
    if (q->kind == EXTRA) {
        kvd_report_row none = *e;
        none.row = uncompressed(e);
        if (none.row == SIZE_MAX)
            return 0;
        if (seconds(&none, q->rest, &without, err))
            return -1;
    }
    return put(e, 100 * (of - without) / kvd_report_real(e, whole[q->kind]), out, err);
}

/* Appends to *out how much longer job `e` takes than the same job with method q->rest, in
 * percent. */
static int of_change(const kvd_report_rows *all, const kvd_report_row *e, const question *q,
                     kvd_measured *out, kvd_err *err)
{
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const other = &all->item[i];
        if (other->file == e->file && asked_for(other, q->rest, q) &&
            !kvd_rows_differ(e->file, e->row, other->file, other->row, "method") &&
            put(e, 100 * (kvd_report_real(e, "jct_s") / kvd_report_real(other, "jct_s") - 1), out,
                err))
            return -1;
    }
    return 0;
}

/* Appends to *out how much longer job `e` takes than the same job with method q->other, in percent.
 * Counts only the phases in q->rest, such as "prefill_mlp+decode_mlp". */
static int of_parts_changed(const kvd_report_rows *all, const kvd_report_row *e, const question *q,
                            kvd_measured *out, kvd_err *err)
{
    double of, before;
    if (!(kvd_report_real(e, "phases") > 0))
        return 0;
    if (seconds(e, q->rest, &of, err))
        return -1;
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const other = &all->item[i];
        if (other->file != e->file || !asked_for(other, q->other, q) ||
            kvd_rows_differ(e->file, e->row, other->file, other->row, "method"))
            continue;
        if (seconds(other, q->rest, &before, err) ||
            (before > 0 && put(e, 100 * (of / before - 1), out, err)))
            return -1;
    }
    return 0;
}

/* Compares jobs of the first and the last size in q->sizes. Appends to *out by how many percentage
 * points the share of the phases q->rest in the job time grows. */
static int of_growth(const kvd_report_rows *all, const kvd_report_row *e, const question *q,
                     kvd_measured *out, kvd_err *err)
{
    const char *const last = strrchr(q->sizes, '+');
    double of, before;
    if (!last || !among(last + 1, kvd_report_real(e, "input"), kvd_report_real(e, "output")) ||
        !(kvd_report_real(e, "phases") > 0))
        return 0;
    if (seconds(e, q->rest, &of, err))
        return -1;
    char size[48];
    snprintf(size, sizeof size, "%.*s", (int)strcspn(q->sizes, "+"), q->sizes);
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const other = &all->item[i];
        if (other->file != e->file ||
            !among(size, kvd_report_real(other, "input"), kvd_report_real(other, "output")) ||
            kvd_rows_differ(e->file, e->row, other->file, other->row, "input,output"))
            continue;
        if (seconds(other, q->rest, &before, err) ||
            put(e,
                100 * (of / kvd_report_real(e, "jct_s") - before / kvd_report_real(other, "jct_s")),
                out, err))
            return -1;
    }
    return 0;
}

/* Returns the log perplexity of `method` at the job time of `e`, interpolated between a faster and
 * a slower job. Returns NaN if one of these jobs is missing.
 *
 * - slower: if all jobs of `method` are faster than `e`, returns their lowest log perplexity */
static double log_perplexity_at(const kvd_report_rows *all, const kvd_report_row *e,
                                const char *method, const kvd_result *x, size_t scored, bool slower)
{
    const kvd_rows *const rows = x->accuracy.rows;
    const char *const label = kvd_row_text(rows, scored, "label");
    const double at = kvd_report_real(e, "jct_s");
    double t[2] = {-INFINITY, INFINITY}, y[2] = {NAN, NAN}, lowest = NAN;
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const b = &all->item[i];
        const char *const setting = kvd_report_text(b, "method");
        kvd_method parsed;
        kvd_err unused;
        if (b->file != e->file || !kvd_report_is_method(setting, method) ||
            kvd_rows_differ(e->file, e->row, b->file, b->row, "method") ||
            kvd_method_parse(setting, &parsed, &unused))
            continue;
        const double jct = kvd_report_real(b, "jct_s");
        const int side = jct > at;
        for (size_t k = 0; k < kvd_rows_count(rows); k++) {
            if (strcmp(kvd_row_text(rows, k, "label"), label) ||
                !kvd_is_job_method(rows, k, &parsed) ||
                kvd_rows_differ(x, scored, x, k, "method,settings,rule,widths,bases"))
                continue;
            const double log_perplexity = log(kvd_row_real(rows, k, "perplexity"));
            lowest = fmin(lowest, log_perplexity);
            if (side ? jct < t[1] : jct > t[0]) {
                t[side] = jct;
                y[side] = log_perplexity;
            }
        }
    }
    if (slower)
        return isinf(t[1]) ? lowest : NAN;
    return t[0] >= at ? y[0] : y[0] + (y[1] - y[0]) * (at - t[0]) / (t[1] - t[0]);
}

/* Appends to *out by how many percent method A's perplexity exceeds method B's at equal job
 * completion time.
 *
 * - of_a: true to compare at the completion times of A's jobs, false for B's jobs */
static int of_text(const kvd_report_rows *all, const question *q, const kvd_result *x,
                   const char *label, bool of_a, bool slower, kvd_measured *out, kvd_err *err)
{
    const kvd_rows *const rows = x->accuracy.rows;
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const e = &all->item[i];
        const char *const method = kvd_report_text(e, "method");
        kvd_method parsed;
        kvd_err unused;
        if (strcmp(e->file->model.hash, x->model.hash) ||
            !kvd_report_is_method(method, of_a ? q->method : q->rest) ||
            !(kvd_report_real(e, "gpus") > 0) ||
            !among(q->sizes, kvd_report_real(e, "input"), kvd_report_real(e, "output")) ||
            kvd_method_parse(method, &parsed, &unused))
            continue;
        for (size_t k = 0; k < kvd_rows_count(rows); k++) {
            if (strcmp(kvd_row_text(rows, k, "label"), label) ||
                !kvd_is_job_method(rows, k, &parsed))
                continue;
            const double more = log(kvd_row_real(rows, k, "perplexity")) -
                                log_perplexity_at(all, e, of_a ? q->rest : q->method, x, k, slower);
            if (isfinite(more) && put(e, 100 * expm1(of_a ? more : -more), out, err))
                return -1;
        }
    }
    return 0;
}

/* Appends to *out, for each text, by how many percent the perplexity of method A exceeds that of
 * method B at equal job completion time. */
static int at_equal_jct(const kvd_results *r, const kvd_report_rows *all, const question *q,
                        kvd_measured *out, kvd_err *err)
{
    for (size_t i = 0; i < r->n; i++) {
        const kvd_result *const x = &r->item[i];
        const kvd_rows *const rows = x->accuracy.rows;
        if (x->kind != KVD_RESULT_ACCURACY || !rows)
            continue;
        for (size_t k = 0; k < kvd_rows_count(rows); k++) {
            const char *const label = kvd_row_text(rows, k, "label");
            bool seen = false;
            for (size_t j = 0; j < k; j++)
                seen = seen || !strcmp(kvd_row_text(rows, j, "label"), label);
            const size_t before = out->n;
            if (seen)
                continue;
            if (of_text(all, q, x, label, true, false, out, err))
                return -1;
            /* If all jobs of one method are faster, compares the lowest perplexity of this
             * method. */
            if (out->n == before && (of_text(all, q, x, label, true, true, out, err) ||
                                     of_text(all, q, x, label, false, true, out, err)))
                return -1;
        }
    }
    return 0;
}

int kvd_jct_measure(const kvd_results *r, const char *name, const char *sizes, kvd_measured *out,
                    kvd_err *err)
{
    kvd_report_rows all;
    question q;
    if (!parse(name, &q))
        return kvd_fail(err, "unknown measure '%s'", name);
    q.sizes = sizes;
    if (!well_formed(sizes))
        return kvd_fail(err, "sizes '%s' are neither INPUTxOUTPUT[+INPUTxOUTPUT]... nor all",
                        sizes);
    if (kvd_jct_collect(r, "job", &all, err))
        return -1;
    int status = q.kind == PERPLEXITY ? at_equal_jct(r, &all, &q, out, err) : 0;
    for (size_t i = 0; !status && q.kind != PERPLEXITY && i < all.n; i++)
        if (asked_for(&all.item[i], q.method, &q))
            status = q.kind == CHANGE ? of_change(&all, &all.item[i], &q, out, err)
                     : q.kind == PARTS_CHANGE || q.kind == SHARED_CHANGE
                         ? of_parts_changed(&all, &all.item[i], &q, out, err)
                     : q.kind == GROWTH ? of_growth(&all, &all.item[i], &q, out, err)
                                        : of_parts(&all.item[i], &q, out, err);
    kvd_report_rows_release(&all);
    return kvd_status(status);
}
