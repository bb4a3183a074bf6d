#include "report/ledger.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/csv.h"
#include "report/measures.h"

const char *const kvd_verdict_name[4] = {"reproduced", "trend holds", "not reproduced", "not measured"};

enum {
    ID,
    SOURCE,
    CLAIM,
    PUBLISHED_CSV,
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
    SETTING,
    RULE,
    NEEDS,
    N_COLUMNS
};
static const char *const column_name[N_COLUMNS] = {
    "id",     "source",  "claim", "published_csv", "published_column", "published_low", "published_high",
    "unit",   "measure", "test",  "limit",         "trend_measure",    "trend_test",    "trend_limit",
    "beside", "setting", "rule",  "needs"};

/* ---- the published numbers ----------------------------------------------------------------------- */

typedef struct {
    const char *want; /* column, or "*SUFFIX" */
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

static int published_row(void *ctx, size_t line, char *const *field, const size_t *len, size_t n_fields,
                         kvd_err *err)
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

/* The range that a published table spans in the wanted columns. */
static int published_range(const char *paper, const char *csv, const char *column, double *low, double *high,
                           kvd_err *err)
{
    published p = {.want = column};
    char *path = NULL;
    int status = -1;
    if (strchr(csv, '/'))
        return kvd_fail(err, "published table '%s' is not a file name", csv);
    if (asprintf(&path, "%s/%s", paper, csv) < 0) {
        path = NULL;
        kvd_no_memory(err, "a path", 0);
        goto done;
    }
    if (kvd_csv_read(path, published_row, &p, err))
        goto done;
    if (p.n_values == 0) {
        kvd_fail(err, "'%s' has no number in a column '%s'", path, column);
        goto done;
    }
    *low = p.low;
    *high = p.high;
    status = 0;
done:
    free(p.use);
    free(path);
    return status;
}

/* ---- tests --------------------------------------------------------------------------------------- */

/* A limit: a number, "low" or "high". */
static int limit_of(const char *text, const kvd_ledger_entry *e, double *limit, kvd_err *err)
{
    bool low = strcmp(text, "low") == 0, high = strcmp(text, "high") == 0;
    if (low || high) {
        *limit = low ? e->low : e->high;
        return isnan(*limit) ? kvd_fail(err, "limit '%s' without a published number", text) : 0;
    }
    return kvd_arg_double("limit", text, -1e300, 1e300, limit, err);
}

static int holds(const char *test, const char *limit, const kvd_ledger_entry *e, const kvd_values *v,
                 bool *yes, kvd_err *err)
{
    double lo = -INFINITY, hi = INFINITY, l;
    *yes = false;
    if (!*test)
        return 0;
    if (strcmp(test, "at-most") == 0) {
        if (limit_of(limit, e, &hi, err))
            return -1;
    } else if (strcmp(test, "at-least") == 0) {
        if (limit_of(limit, e, &lo, err))
            return -1;
    } else if (strcmp(test, "within") == 0) {
        if (limit_of(limit, e, &l, err))
            return -1;
        if (isnan(e->low))
            return kvd_fail(err, "test 'within' without a published number");
        lo = e->low - l;
        hi = e->high + l;
    } else if (strcmp(test, "between") == 0) {
        char first[32];
        const char *colon = strchr(limit, ':');
        if (!colon || (size_t)(colon - limit) >= sizeof first)
            return kvd_fail(err, "limit '%s' of test 'between' is not A:B", limit);
        memcpy(first, limit, (size_t)(colon - limit));
        first[colon - limit] = '\0';
        if (limit_of(first, e, &lo, err) || limit_of(colon + 1, e, &hi, err))
            return -1;
    } else {
        return kvd_fail(err, "unknown test '%s'", test);
    }
    *yes = v->n > 0;
    for (size_t i = 0; i < v->n; i++)
        *yes = *yes && v->value[i].value >= lo && v->value[i].value <= hi;
    return 0;
}

/* ---- one entry ----------------------------------------------------------------------------------- */

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

static void range_of(const kvd_values *v, double *least, double *most)
{
    *least = *most = v->n ? v->value[0].value : (double)NAN;
    for (size_t i = 1; i < v->n; i++) {
        *least = v->value[i].value < *least ? v->value[i].value : *least;
        *most = v->value[i].value > *most ? v->value[i].value : *most;
    }
}

/* Devices that the values are times of, each once. */
static void say_devices(kvd_text *t, const kvd_values *v)
{
    const char *before = " on ";
    for (size_t i = 0; i < v->n; i++) {
        size_t k = 0;
        while (k < i && strcmp(v->value[k].device, v->value[i].device))
            k++;
        if (k < i || !v->value[i].device[0])
            continue;
        kvd_text_add(t, "%s%s", before, v->value[i].device);
        before = " and ";
    }
}

static void say_queues(kvd_text *t, const kvd_values *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n; i++)
        n += v->value[i].grows;
    if (n && n < v->n)
        kvd_text_add(t, ", %zu of them", n);
    if (n)
        kvd_text_add(t, " while the queue grows");
}

/* "1.29 to 1.41 % (12 values) on NVIDIA H200", "4.3 times on NVIDIA H200 while the queue grows" */
static void say(kvd_text *t, const char *name, const kvd_values *v, const char *unit)
{
    char range[96];
    double least, most;
    range_of(v, &least, &most);
    kvd_ledger_range(least, most, unit, range, sizeof range);
    if (name)
        kvd_text_add(t, "; %s ", name);
    kvd_text_add(t, "%s", v->n ? range : "not measured");
    if (v->n > 1)
        kvd_text_add(t, " (%zu values)", v->n);
    say_devices(t, v);
    say_queues(t, v);
}

/* Words for a measure's name: what stands beside the main number. */
static void plain_name(const char *measure, char *buf, size_t size)
{
    static const struct {
        const char *name, *words;
    } known[] = {
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
    };
    const char *colon = strchr(measure, ':');
    size_t n = colon ? (size_t)(colon - measure) : strlen(measure);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i].name) == n && strncmp(known[i].name, measure, n) == 0) {
            snprintf(buf, size, "%s", known[i].words);
            return;
        }
    snprintf(buf, size, "%s", measure);
}

static int judge(const kvd_results *r, char *const *field, kvd_ledger_entry *e, kvd_err *err)
{
    kvd_values main = {0}, trend = {0}, beside = {0};
    bool yes, trend_yes;
    int status = -1;
    char name[128];

    if (kvd_measure(r, field[MEASURE], &main, err))
        goto done;
    if (field[TREND_MEASURE][0] && kvd_measure(r, field[TREND_MEASURE], &trend, err))
        goto done;
    if (holds(field[TEST], field[LIMIT], e, &main, &yes, err) ||
        holds(field[TREND_TEST], field[TREND_LIMIT], e, &trend, &trend_yes, err))
        goto done;
    e->n_values = main.n;
    range_of(&main, &e->least, &e->most);
    e->verdict = main.n == 0 ? KVD_NOT_MEASURED
                 : yes       ? KVD_REPRODUCED
                 : trend_yes ? KVD_TREND_HOLDS
                             : KVD_NOT_REPRODUCED;
    say(&e->ours, NULL, &main, e->unit);
    if (main.n == 0)
        kvd_text_add(&e->ours, ": needs %s", e->needs);
    for (char *save = NULL, *m = strtok_r(field[BESIDE], " ", &save); m; m = strtok_r(NULL, " ", &save)) {
        kvd_values_release(&beside);
        if (kvd_measure(r, m, &beside, err))
            goto done;
        plain_name(m, name, sizeof name);
        if (beside.n)
            say(&e->ours, name, &beside, e->unit);
    }
    status = kvd_text_check(&e->ours, err);
done:
    kvd_values_release(&main);
    kvd_values_release(&trend);
    kvd_values_release(&beside);
    return status;
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

static int ledger_row(void *ctx, size_t line, char *const *field, const size_t *len, size_t n_fields,
                      kvd_err *err)
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
                            .unit = strdup(field[UNIT])};
    if (!e->id || !e->source || !e->claim || !e->setting || !e->rule || !e->needs || !e->unit)
        return kvd_no_memory(err, "the ledger", 0);
    if (field[PUBLISHED_CSV][0]
            ? published_range(x->paper, field[PUBLISHED_CSV], field[PUBLISHED_COLUMN], &e->low, &e->high, err)
            : number_or_none(field[LOW], &e->low, err) || number_or_none(field[HIGH], &e->high, err))
        return kvd_in(err, "'%s'", e->id);
    return judge(x->r, field, e, err) ? kvd_in(err, "'%s'", e->id) : 0;
}

int kvd_ledger_judge(const char *paper, const kvd_results *r, kvd_ledger *out, kvd_err *err)
{
    reader x = {paper, r, out};
    char *path = NULL;
    *out = (kvd_ledger){0};
    if (asprintf(&path, "%s/ledger.csv", paper) < 0)
        return kvd_no_memory(err, "a path", 0);
    int status = kvd_csv_read(path, ledger_row, &x, err);
    if (!status && out->n == 0)
        status = kvd_fail(err, "'%s' has no entry", path);
    free(path);
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
        kvd_text_release(&e->ours);
    }
    free(l->entry);
    *l = (kvd_ledger){0};
}

/* ---- the section --------------------------------------------------------------------------------- */

/* Two rows of the page's table: what was found, and below it by which rule and on what. */
static void html_entry(const kvd_ledger_entry *e, kvd_text *t)
{
    char range[96];
    kvd_ledger_range(e->low, e->high, e->unit, range, sizeof range);
    kvd_text_raw(t, "<tr><td>");
    kvd_text_html(t, e->id);
    kvd_text_raw(t, "</td><td>");
    kvd_text_html(t, e->claim);
    kvd_text_raw(t, "</td><td>");
    kvd_text_html(t, range);
    kvd_text_raw(t, "</td><td>");
    kvd_text_html(t, kvd_text_get(&e->ours));
    kvd_text_add(
        t, "</td><td class=\"v v%d\">%s</td></tr>\n<tr class=\"sub\"><td></td><td colspan=\"4\"><b>Rule</b> ",
        (int)e->verdict, kvd_verdict_name[e->verdict]);
    kvd_text_html(t, e->rule);
    kvd_text_raw(t, " <b>The paper measured</b> ");
    kvd_text_html(t, e->setting);
    kvd_text_raw(t, " (");
    kvd_text_html(t, e->source);
    kvd_text_raw(t, ").</td></tr>\n");
}

static void html_table(const kvd_ledger *l, const char *ours, kvd_text *t)
{
    kvd_text_raw(t, "<p class=\"note\">");
    kvd_text_html(t, ours);
    kvd_text_raw(t, "</p>\n<div class=\"wide\"><table class=\"ledger\"><thead><tr><th scope=\"col\">what</th>"
                    "<th scope=\"col\">claim</th><th scope=\"col\">published</th><th scope=\"col\">ours</th>"
                    "<th scope=\"col\">verdict</th></tr></thead>\n<tbody>\n");
    for (size_t i = 0; i < l->n; i++)
        html_entry(&l->entry[i], t);
    kvd_text_raw(t, "</tbody></table></div>\n<p class=\"files\">ledger.csv, ledger.md in tables/</p>\n");
}

/* What our numbers were measured on: models, texts and token counts of the files. */
static void measured_on(const kvd_results *r, kvd_text *t)
{
    size_t n = 0, at = 0, least = 0, most = 0;
    const char *seen = "";
    for (size_t i = 0; i < r->n; i++) {
        const kvd_result *x = &r->item[i];
        bool again = false;
        for (size_t j = 0; j < i; j++)
            again = again || (r->item[j].has_model && x->has_model &&
                              strcmp(r->item[j].model.hash, x->model.hash) == 0);
        if (!x->has_model || again)
            continue;
        kvd_text_add(t, "%s%s (%s, %d layers, %d query heads and %d KV heads of width %d)", seen,
                     x->model.name, x->model.family, x->model.n_layers, x->model.n_heads, x->model.n_kv_heads,
                     x->model.d_head);
        seen = ", ";
    }
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].kind == KVD_RESULT_SPECTRUM) {
            size_t k = r->item[i].spectrum.n_tokens;
            least = n == 0 || k < least ? k : least;
            most = k > most ? k : most;
            n++;
        }
    if (n == 0)
        return;
    kvd_text_raw(t, "; calibrated on ");
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].kind == KVD_RESULT_SPECTRUM)
            kvd_text_item(t, at++, n, 8, r->item[i].name);
    if (least == most)
        kvd_text_add(t, ", %zu tokens each", most);
    else
        kvd_text_add(t, ", %zu to %zu tokens", least, most);
}

/* Facts that set our measurement apart from every paper's, where the files show them. */
static void other_departures(const kvd_results *r, kvd_text *t)
{
    bool shared = false, small = false;
    for (size_t i = 0; i < r->n; i++) {
        const kvd_result *x = &r->item[i];
        shared = shared || (x->kind == KVD_RESULT_SPECTRUM && x->spectrum.pairing == KVD_SHARED &&
                            x->model.n_heads != x->model.n_kv_heads);
        small = small || (x->has_model && x->model.d_head != 128);
    }
    if (shared)
        kvd_text_raw(t, " Query heads that read one KV head share its rotation (Z-1); the papers name one "
                        "rotation per head.");
    if (small)
        kvd_text_raw(t, " The papers' heads have 128 dimensions.");
}

int kvd_ledger_section(const kvd_ledger *l, const kvd_results *r, kvd_report *report, kvd_err *err)
{
    size_t count[4] = {0};
    char range[96];
    kvd_text on = {0}, more = {0}, departures = {0};
    int status = -1;
    kvd_section *s = kvd_report_section(report, "ledger", "Ledger: the papers' claims", err);
    kvd_table *t =
        s ? kvd_section_table(s, "ledger", "What the papers say, what these files say", err) : NULL;
    if (!t)
        return -1;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "id", "what");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "claim", "claim");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "published", "published");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "ours", "ours");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "verdict", "verdict");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "rule", "rule of the verdict");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "departures", "departures");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "source", "where the paper says it");
    measured_on(r, &on);
    other_departures(r, &more);
    for (size_t i = 0; i < l->n; i++) {
        const kvd_ledger_entry *e = &l->entry[i];
        count[e->verdict]++;
        kvd_table_text(t, e->id);
        kvd_table_text(t, e->claim);
        kvd_ledger_range(e->low, e->high, e->unit, range, sizeof range);
        kvd_table_text(t, range);
        kvd_table_text(t, kvd_text_get(&e->ours));
        kvd_table_text(t, kvd_verdict_name[e->verdict]);
        kvd_table_text(t, e->rule);
        kvd_text_release(&departures);
        kvd_text_add(&departures, "paper: %s", e->setting);
        kvd_table_text(t, kvd_text_get(&departures));
        kvd_table_text(t, e->source);
        if (kvd_text_check(&departures, err))
            goto done;
    }
    if (kvd_text_check(&on, err) || kvd_text_check(&more, err))
        goto done;
    t->only_files = true; /* the page has a table of its own shape */
    kvd_table_note(t, "Ours: measured on %s.%s", kvd_text_get(&on), kvd_text_get(&more));
    kvd_text_add(&s->words,
                 "<p>%zu reproduced, %zu where the trend holds, %zu not reproduced, %zu not measured with "
                 "these files. "
                 "Each verdict follows from the rule in its row; claims and rules are in "
                 "<code>data/paper/ledger.csv</code>.</p>\n",
                 count[KVD_REPRODUCED], count[KVD_TREND_HOLDS], count[KVD_NOT_REPRODUCED],
                 count[KVD_NOT_MEASURED]);
    html_table(l, t->note ? t->note : "", &s->words);
    status = 0;
done:
    kvd_text_release(&on);
    kvd_text_release(&more);
    kvd_text_release(&departures);
    return status;
}
