#include "report/measures/ledger.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/files/csv.h"
#include "model/checkpoint/shards.h"
#include "report/measures/measures.h"

enum {
    ID,
    SOURCE,
    CLAIM,
    PUBLISHED_TABLE,
    PUBLISHED_COLUMN,
    LOW,
    HIGH,
    UNIT,
    MEASURE,
    TEST,
    LIMIT,
    TREND_MEASURE,
    TREND_TEST,
    TREND_LIMIT,
    BESIDE,
    NULL_RANGE,
    SETTING,
    RULE,
    NEEDS,
    CANNOT,
    N_COLUMNS
};
static const char *const column_name[N_COLUMNS] = {"id",
                                                   "source",
                                                   "claim",
                                                   "published_table",
                                                   "published_column",
                                                   "published_low",
                                                   "published_high",
                                                   "unit",
                                                   "measure",
                                                   "test",
                                                   "limit",
                                                   "trend_measure",
                                                   "trend_test",
                                                   "trend_limit",
                                                   "beside",
                                                   "null",
                                                   "setting",
                                                   "rule",
                                                   "needs",
                                                   "cannot"};

typedef struct {
    /* name of the table column to read, or "*SUFFIX" for all columns whose names end in SUFFIX */
    const char *want;
    bool *use;
    size_t n_columns, n_values;
    double low, high;
} published;

static bool wanted(const char *column, const char *want)
{
    size_t n = strlen(column), m;
    if (want[0] != '*')
        return strcmp(column, want) == 0;
    m = strlen(++want);
    return n >= m && strcmp(column + n - m, want) == 0;
}

static int published_row(void *ctx, size_t line, char *const *field, const size_t *len,
                         size_t n_fields, kvd_err *err)
{
    published *p = ctx;
    (void)len;
    if (line == 1) {
        p->use = calloc(n_fields + 1, sizeof *p->use);
        if (!p->use)
            return kvd_no_memory(err, "columns", n_fields);
        p->n_columns = n_fields;
        for (size_t j = 0; j < n_fields; j++)
            p->use[j] = wanted(field[j], p->want);
        return 0;
    }
    if (n_fields != p->n_columns)
        return kvd_fail(err, "%zu fields, the heading has %zu", n_fields, p->n_columns);
    for (size_t j = 0; j < n_fields; j++) {
        double v;
        if (!p->use[j] || strcmp(field[j], "N/A") == 0)
            continue;
        if (kvd_arg_double(p->want, field[j], -1e300, 1e300, &v, err))
            return -1;
        p->low = p->n_values == 0 || v < p->low ? v : p->low;
        p->high = p->n_values == 0 || v > p->high ? v : p->high;
        p->n_values++;
    }
    return 0;
}

static int published_range(const char *paper, const char *table, const char *column, double *low,
                           double *high, kvd_err *err)
{
    published p = {.want = column};
    char *const path = kvd_path_in_folder(paper, "tables.csv", err);
    int status = path ? kvd_csv_read_table(path, table, published_row, &p, err) : -1;
    if (!status && p.n_values == 0)
        status = kvd_fail(err, "'%s' has no number in a column '%s' of the table '%s'", path,
                          column, table);
    *low = p.low;
    *high = p.high;
    free(p.use);
    free(path);
    return status;
}

void kvd_ledger_range(double low, double high, const char *unit, char *buf, size_t size)
{
    const char *gap = *unit ? " " : "";
    if (isnan(low) && isnan(high))
        snprintf(buf, size, "none printed");
    else if (isnan(low))
        snprintf(buf, size, "at most %.4g%s%s", high, gap, unit);
    else if (isnan(high))
        snprintf(buf, size, "at least %.4g%s%s", low, gap, unit);
    else if (low == high)
        snprintf(buf, size, "%.4g%s%s", low, gap, unit);
    else
        snprintf(buf, size, "%.4g to %.4g%s%s", low, high, gap, unit);
}

static void range_of(const kvd_measured *v, double *least, double *most)
{
    *least = *most = v->n ? v->value[0].value : (double)NAN;
    for (size_t i = 1; i < v->n; i++) {
        *least = v->value[i].value < *least ? v->value[i].value : *least;
        *most = v->value[i].value > *most ? v->value[i].value : *most;
    }
}

static void say_names(kvd_text *t, const kvd_measured *v, size_t offset, const char *before)
{
    for (size_t i = 0; i < v->n; i++) {
        const char *const name = (const char *)&v->value[i] + offset;
        size_t k = 0;
        while (k < i && strcmp((const char *)&v->value[k] + offset, name))
            k++;
        if (k < i || !*name)
            continue;
        kvd_text_add(t, "%s%s", before, name);
        before = " and ";
    }
}

static void say_queues(kvd_text *t, const kvd_measured *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n; i++)
        n += v->value[i].grows;
    if (n && n < v->n)
        kvd_text_add(t, ", %zu of them", n);
    if (n)
        kvd_text_add(t, " while the queue grows");
}

static void say_intervals(kvd_text *t, const kvd_measured *v)
{
    double least = INFINITY, most = -INFINITY;
    size_t n = 0;
    for (size_t i = 0; i < v->n; i++) {
        const kvd_measured_value *const x = &v->value[i];
        if (isnan(x->lo) || isnan(x->hi))
            continue;
        least = fmin(least, x->lo);
        most = fmax(most, x->hi);
        n++;
    }
    if (n && n < v->n)
        kvd_text_add(t, ", intervals of %zu of them %.3g to %.3g", n, least, most);
    else if (n)
        kvd_text_add(t, ", intervals %.3g to %.3g", least, most);
}

/* Appends to *t the range of measured values, such as "1.29 to 1.41 % (12 values) on NVIDIA
 * H200". */
static void say(kvd_text *t, const char *name, const kvd_measured *v, const char *unit)
{
    char range[96];
    double least, most;
    range_of(v, &least, &most);
    kvd_ledger_range(least, most, unit, range, sizeof range);
    if (name)
        kvd_text_add(t, "; %s ", name);
    kvd_text_add(t, "%s", v->n ? range : "not measured");
    if (v->n > 1) {
        kvd_text_add(t, " (%zu values", v->n);
        say_intervals(t, v);
        kvd_text_add(t, ")");
    } else if (v->n && !isnan(v->value[0].lo))
        kvd_text_add(t, " [%.3g, %.3g]", v->value[0].lo, v->value[0].hi);
    say_names(t, v, offsetof(kvd_measured_value, metric), " by ");
    say_names(t, v, offsetof(kvd_measured_value, device), " on ");
    say_queues(t, v);
}

static void plain_name(const char *measure, char *buf, size_t size)
{
    static const struct {
        const char *name, *words;
    } known[] = {
        {"means-ratio", "difference of the mean absolute entries"},
        {"random-means-ratio", "difference of the mean absolute entries"},
        {"degradation-half", "of D as printed"},
        {"degradation", "on other texts"},
        {"critical-requests", "deviation over requests"},
        {"mirror-kl-high", "K4V8 over K8V4"},
        {"cv-per-query", "per query head"},
        {"cv", "per KV head"},
        {"trailing-share-per-query", "per query head"},
        {"trailing-share", "per KV head"},
        {"prune-spectrum-rows", "rows without K-means"},
        {"prune-spectrum-weighted", "weighted centroids"},
        {"prune-rise-rows", "rows without K-means"},
        {"prune-rise-weighted", "weighted centroids"},
        {"centroids-fall-weighted", "weighted"},
        {"near-unimportant-as-key", "by score as a key"},
        {"near-important-as-key", "by score as a key"},
        {"near-unimportant-denominator", "by denominators"},
        {"near-important-denominator", "by denominators"},
        {"rise-unimportant", "more than the first and the last layer share"},
        {"rise-important", "more than the first and the last layer share"},
        {"aligned-ratio", "with signs aligned"},
        {"random-aligned-ratio", "with signs aligned"},
        {"overlap-half", "overlap of the leading halves"},
        {"random-overlap-half", "overlap of the leading halves"},
        {"energy-ratio", "energy kept at half width, of what the own basis keeps"},
        {"random-energy-ratio", "energy kept at half width, of what the own basis keeps"},
        {"below-one-normalised", "per square root of rows"},
        {"degradation-norm", "as a ratio of norms"},
        {"tokens-delta", "at every token count"},
        {"tokens-delta-random", "at every token count"},
        {"tokens-fall", "at the most tokens over at the fewest"},
        {"tokens-fall-random", "at the most tokens over at the fewest"},
        {"more-decades", "more than value norms"},
        {"value-decades", "of value norms"},
    };
    const char *colon = strchr(measure, ':');
    size_t n = colon ? (size_t)(colon - measure) : strlen(measure);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i].name) == n && strncmp(known[i].name, measure, n) == 0) {
            snprintf(buf, size, "%s", known[i].words);
            return;
        }
    if (strncmp(measure, "serving-top-", 12) == 0)
        snprintf(buf, size, "highest rates under the bound");
    else if (strncmp(measure, "serving-running-", 16) == 0)
        snprintf(buf, size, "requests that run at once");
    else if (strncmp(measure, "p99-", 4) == 0) {
        const char *const by = strstr(measure, "-by-");
        snprintf(buf, size, "%.*s", by ? (int)(by - measure) - 4 : (int)strcspn(measure + 4, ":"),
                 measure + 4);
        for (char *at = buf; (at = strchr(at, '-'));)
            *at = ' ';
    } else
        snprintf(buf, size, "%s", measure);
}

/* Parses a range and its description, such as "0.9:1.1 equal rates" for 0.9 to 1.1. The range holds
 * the values expected if a claim is false. Returns the description. If the text has no range, *lo
 * and *hi become NaN. */
static const char *null_of(const char *text, double *lo, double *hi)
{
    int n = 0;
    *lo = *hi = (double)NAN;
    if (sscanf(text, "%lf:%lf%n", lo, hi, &n) == 2)
        return text + n + strspn(text + n, " ");
    *lo = *hi = (double)NAN;
    return text;
}

/* Returns the source of the null range (values expected if the paper's claim is false), or `words`
 * if *v has none. */
static const char *null_name(const kvd_measured_value *v, const char *words)
{
    return v->null_name ? v->null_name : words;
}

/* Appends to *t the range of values expected if the paper's claim is false, such as "; null: 46.9
 * to 50 %". */
static void say_null(kvd_text *t, const kvd_measured *v, const char *words, const char *unit)
{
    char range[96];
    double lo = INFINITY, hi = -INFINITY;
    for (size_t i = 0; i < v->n; i++) {
        lo = fmin(lo, v->value[i].null_lo);
        hi = fmax(hi, v->value[i].null_hi);
    }
    if (!*words || v->n == 0)
        return;
    if (lo <= hi)
        kvd_ledger_range(lo, hi, unit, range, sizeof range);
    else
        snprintf(range, sizeof range, "unknown");
    kvd_text_add(t, "; null: %s", range);
    for (size_t i = 0; i < v->n; i++) {
        const char *const name = null_name(&v->value[i], words);
        size_t k = 0;
        while (strcmp(null_name(&v->value[k], words), name))
            k++;
        if (k == i)
            kvd_text_add(t, "%s%s", i ? ", or " : " (", name);
    }
    kvd_text_add(t, ")");
}

static void say_loads(kvd_text *t, const kvd_ledger_entry *e)
{
    char range[96];
    if (e->n_services == 0)
        return;
    kvd_ledger_range(100 * e->least_loads, 100 * e->most_loads, "%", range, sizeof range);
    kvd_text_add(t, "; holds at %s of the loads", range);
    if (e->n_services > 1)
        kvd_text_add(t, " (%zu services)", e->n_services);
}

/* Computes measures and appends their values to the text e->ours. measures: names separated by
 * blanks. trend: name of the measure that is labelled "trend" in the text. */
static int say_beside(const kvd_results *r, char *measures, const char *trend, kvd_ledger_entry *e,
                      kvd_err *err)
{
    char name[128], says[144];
    double least, most;
    for (char *save = NULL, *m = strtok_r(measures, " ", &save); m;
         m = strtok_r(NULL, " ", &save)) {
        kvd_measured v = {0};
        char *const unit = strrchr(m, '=');
        const bool own = unit && strchr(m, ':') && unit > strchr(m, ':');
        if (own)
            *unit = '\0';
        if (kvd_measure(r, m, &v, err))
            return -1;
        plain_name(m, name, sizeof name);
        snprintf(says, sizeof says, strcmp(m, trend) ? "%s" : "trend (%s):", name);
        if (v.n)
            say(&e->ours, says, &v, own ? unit + 1 : e->unit);
        if (v.n && !strcmp(m, trend) && e->verdict != KVD_REPRODUCED) {
            range_of(&v, &least, &most);
            kvd_ledger_range(least, most, own ? unit + 1 : e->unit, e->trend, sizeof e->trend);
        }
        kvd_values_release(&v);
    }
    return 0;
}

static int judge(const kvd_results *r, char *const *field, kvd_ledger_entry *e, kvd_err *err)
{
    const kvd_verdict_rule rule = {field[TEST],        field[LIMIT], field[TREND_TEST],
                                   field[TREND_LIMIT], e->low,       e->high};
    kvd_measured main = {0}, trend = {0};
    double lo, hi;
    int status = -1;
    const char *const words = null_of(field[NULL_RANGE], &lo, &hi);
    e->least = e->most = e->least_loads = e->most_loads = (double)NAN;
    e->verdict = KVD_NOT_MEASURED;
    if (!field[MEASURE][0] && !e->cannot[0])
        return kvd_fail(err, "neither a measure nor a reason why there is none");
    if (field[MEASURE][0]) {
        if (kvd_measure(r, field[MEASURE], &main, err) ||
            (field[TREND_MEASURE][0] && kvd_measure(r, field[TREND_MEASURE], &trend, err)))
            goto done;
        for (size_t i = 0; i < main.n; i++)
            if (isnan(main.value[i].null_lo) && !isnan(lo)) {
                main.value[i].null_lo = lo;
                main.value[i].null_hi = hi;
            }
        if (kvd_verdict_judge(&rule, &main, &trend, &e->verdict, err))
            goto done;
        e->n_services = kvd_verdict_loads(&rule, &main, &e->least_loads, &e->most_loads);
    }
    e->n_values = main.n;
    range_of(&main, &e->least, &e->most);
    say(&e->ours, NULL, &main, e->unit);
    say_loads(&e->ours, e);
    say_null(&e->ours, &main, words, e->unit);
    if (main.n == 0)
        kvd_text_add(&e->ours, e->cannot[0] ? ": %s" : ": needs %s",
                     e->cannot[0] ? e->cannot : e->needs);
    if (say_beside(r, field[BESIDE], field[TREND_MEASURE], e, err))
        goto done;
    if (e->n_services) {
        e->values = main;
        main = (kvd_measured){0};
    }
    status = kvd_text_check(&e->ours, err);
done:
    kvd_values_release(&main);
    kvd_values_release(&trend);
    return status;
}

void kvd_ledger_ours(const kvd_ledger_entry *e, char *buf, size_t size)
{
    char loads[96];
    kvd_ledger_range(e->least, e->most, e->unit, buf, size);
    size_t at = strlen(buf);
    if (e->n_services) {
        kvd_ledger_range(100 * e->least_loads, 100 * e->most_loads, "%", loads, sizeof loads);
        snprintf(buf + at, size - at, ", at %s of the loads", loads);
    }
    at = strlen(buf);
    if (e->trend[0])
        snprintf(buf + at, size - at, "; trend %s", e->trend);
}

typedef struct {
    const char *paper;
    const kvd_results *r;
    kvd_ledger *ledger;
} reader;

static int number_or_none(const char *text, double *out, kvd_err *err)
{
    *out = (double)NAN;
    return *text ? kvd_arg_double("published number", text, -1e300, 1e300, out, err) : 0;
}

static int ledger_row(void *ctx, size_t line, char *const *field, const size_t *len,
                      size_t n_fields, kvd_err *err)
{
    reader *x = ctx;
    (void)len;
    if (n_fields != N_COLUMNS)
        return kvd_fail(err, "%zu fields, wanted %d", n_fields, N_COLUMNS);
    if (line == 1) {
        for (int j = 0; j < N_COLUMNS; j++)
            if (strcmp(field[j], column_name[j]))
                return kvd_fail(err, "column %d is called '%s', wanted '%s'", j + 1, field[j],
                                column_name[j]);
        return 0;
    }
    kvd_ledger_entry *all = realloc(x->ledger->entry, (x->ledger->n + 1) * sizeof *all);
    if (!all)
        return kvd_no_memory(err, "the ledger", (x->ledger->n + 1) * sizeof *all);
    x->ledger->entry = all;
    kvd_ledger_entry *e = &all[x->ledger->n++];
    *e = (kvd_ledger_entry){.id = strdup(field[ID]),
                            .source = strdup(field[SOURCE]),
                            .claim = strdup(field[CLAIM]),
                            .setting = strdup(field[SETTING]),
                            .rule = strdup(field[RULE]),
                            .needs = strdup(field[NEEDS]),
                            .unit = strdup(field[UNIT]),
                            .cannot = strdup(field[CANNOT])};
    if (!e->id || !e->source || !e->claim || !e->setting || !e->rule || !e->needs || !e->unit ||
        !e->cannot)
        return kvd_no_memory(err, "the ledger", 0);
    if (field[PUBLISHED_TABLE][0] ? published_range(x->paper, field[PUBLISHED_TABLE],
                                                    field[PUBLISHED_COLUMN], &e->low, &e->high, err)
                                  : number_or_none(field[LOW], &e->low, err) ||
                                        number_or_none(field[HIGH], &e->high, err))
        return kvd_in(err, "'%s'", e->id);
    return judge(x->r, field, e, err) ? kvd_in(err, "'%s'", e->id) : 0;
}

static bool is_about(const kvd_ledger_entry *e, const char *figure)
{
    const size_t n = strlen(figure);
    return strncmp(e->id, figure, n) == 0 && strchr(" ,(", e->id[n]) != NULL;
}

static int figure_row(void *ctx, size_t line, char *const *field, const size_t *len,
                      size_t n_fields, kvd_err *err)
{
    static const char *const columns[] = {"figure", "title", "because"};
    kvd_ledger *const l = ((reader *)ctx)->ledger;
    size_t rows = 0, measured = 0, cannot = 0;
    (void)len;
    if (n_fields != 3)
        return kvd_fail(err, "%zu fields, wanted 3", n_fields);
    for (int j = 0; line == 1 && j < 3; j++)
        if (strcmp(field[j], columns[j]))
            return kvd_fail(err, "column %d is called '%s', wanted '%s'", j + 1, field[j],
                            columns[j]);
    if (line == 1)
        return 0;
    for (size_t i = 0; i < l->n; i++) {
        if (!is_about(&l->entry[i], field[0]))
            continue;
        rows++;
        measured += l->entry[i].verdict != KVD_NOT_MEASURED;
        cannot += l->entry[i].verdict == KVD_NOT_MEASURED && l->entry[i].cannot[0];
    }
    if (rows == 0 && !field[2][0])
        return kvd_fail(err, "'%s' has neither a row of the ledger nor a reason for none",
                        field[0]);
    if (rows > 0 && field[2][0])
        return kvd_fail(err, "'%s' has a row of the ledger and a reason for none", field[0]);
    l->figures.n++;
    if (rows == 0)
        l->figures.nothing++;
    else if (measured)
        l->figures.measured++;
    else if (cannot == rows)
        l->figures.cannot++;
    else
        l->figures.unmeasured++;
    return 0;
}

void kvd_figure_counts_say(const kvd_figure_counts *c, char *buf, size_t size)
{
    snprintf(buf, size,
             "%zu figures and tables of the papers: %zu measured by these files, %zu that other "
             "files would measure, %zu that cannot be measured here, %zu without a claim",
             c->n, c->measured, c->unmeasured, c->cannot, c->nothing);
}

int kvd_ledger_judge(const char *paper, const kvd_results *r, kvd_ledger *out, kvd_err *err)
{
    reader x = {paper, r, out};
    char *const path = kvd_path_in_folder(paper, "ledger.csv", err),
                *const figures = path ? kvd_path_in_folder(paper, "figures.csv", err) : NULL;
    *out = (kvd_ledger){0};
    int status = figures ? kvd_csv_read_table(path, NULL, ledger_row, &x, err) : -1;
    if (!status && out->n == 0)
        status = kvd_fail(err, "'%s' has no entry", path);
    if (!status)
        status = kvd_csv_read_table(figures, NULL, figure_row, &x, err);
    free(path);
    free(figures);
    if (status)
        kvd_ledger_release(out);
    return status;
}

void kvd_ledger_release(kvd_ledger *l)
{
    for (size_t i = 0; i < l->n; i++) {
        kvd_ledger_entry *e = &l->entry[i];
        free(e->id);
        free(e->source);
        free(e->claim);
        free(e->setting);
        free(e->rule);
        free(e->needs);
        free(e->unit);
        free(e->cannot);
        kvd_values_release(&e->values);
        kvd_text_release(&e->ours);
    }
    free(l->entry);
    *l = (kvd_ledger){0};
}
