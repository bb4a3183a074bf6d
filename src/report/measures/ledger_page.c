/* Writes the report section that lists the claims of the papers with their verdicts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/ledger.h"

/* If more claims than this share a verdict, their list is folded on the HTML page until clicked. */
enum { MOST_OPEN = 12 };

static void html_entry(const kvd_ledger_entry *e, kvd_text *t)
{
    char range[160];
    kvd_text_add(t, "<details class=\"claim\"><summary><b class=\"v%d\">",
                 kvd_verdict_colour(e->verdict));
    kvd_text_html(t, e->id);
    kvd_text_raw(t, "</b> ");
    if (e->verdict != KVD_NOT_MEASURED) {
        kvd_ledger_ours(e, range, sizeof range);
        kvd_text_raw(t, "measured ");
        kvd_text_html(t, range);
        if (isnan(e->low) && isnan(e->high)) {
            kvd_text_raw(t, ", no number published: ");
        } else {
            kvd_ledger_range(e->low, e->high, e->unit, range, sizeof range);
            kvd_text_raw(t, ", published ");
            kvd_text_html(t, range);
            kvd_text_raw(t, ": ");
        }
    }
    kvd_text_html(t, e->claim);
    kvd_text_raw(t, "</summary>\n<p>");
    kvd_text_html(t, e->claim);
    kvd_text_raw(t, " (");
    kvd_text_html(t, e->source);
    kvd_text_raw(t, "). The paper measured: ");
    kvd_text_html(t, e->setting);
    kvd_text_raw(t, ".</p>\n<p>Measured here: ");
    kvd_text_html(t, kvd_text_get(&e->ours));
    kvd_text_raw(t, "</p>\n<p>Rule: ");
    kvd_text_html(t, e->rule);
    kvd_text_raw(t, "</p></details>\n");
}

static void html_entries(const kvd_ledger *l, const size_t count[KVD_N_VERDICTS], kvd_text *t)
{
    for (int v = 0; v < KVD_N_VERDICTS; v++) {
        if (count[v] == 0)
            continue;
        kvd_text_add(
            t, "<details id=\"verdict-%d\"%s><summary><b class=\"v%d\">%s: %zu</b></summary>\n", v,
            v == KVD_NOT_MEASURED || count[v] > MOST_OPEN ? "" : " open",
            kvd_verdict_colour((kvd_verdict)v), kvd_verdict_name[v], count[v]);
        for (size_t i = 0; i < l->n; i++)
            if (l->entry[i].verdict == (kvd_verdict)v)
                html_entry(&l->entry[i], t);
        kvd_text_raw(t, "</details>\n");
    }
}

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
                     x->model.name, x->model.family, x->model.n_layers, x->model.n_heads,
                     x->model.n_kv_heads, x->model.d_head);
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
        kvd_text_raw(
            t, " Query heads that read one KV head share its rotation (Z-1 in docs/readings.md); "
               "the papers name one rotation per head.");
    if (small)
        kvd_text_raw(t, " The papers' heads have 128 dimensions.");
}

/* Returns the length of the figure's name in a claim's id, such as that of "ZACK Fig. 13" in "ZACK
 * Fig. 13 (IMDb)". */
static size_t figure_name(const char *id)
{
    return strcspn(id, ",(") - (strcspn(id, ",(") > 0 && id[strcspn(id, ",(") - 1] == ' ');
}

/* Draws a chart for one figure of a paper: ratio of two methods' latencies (or throughputs) against
 * the request rate. Each claim about the figure has a curve. */
static void figure_of_loads(const kvd_ledger *l, size_t first, int number, kvd_section *s)
{
    const size_t n = figure_name(l->entry[first].id);
    const bool times = strcmp(l->entry[first].unit, "times") == 0;
    char name[32], series[KVD_LABEL], caption[400];
    snprintf(name, sizeof name, "ledger-loads-%d", number);
    kvd_table *const t = kvd_section_data(s, name, "Ratios against the load");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "load", "load");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "ratio", "ratio");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "queue", "queue");
    for (size_t i = first; i < l->n; i++) {
        const kvd_ledger_entry *const e = &l->entry[i];
        if (strncmp(e->id, l->entry[first].id, n) || figure_name(e->id) != n)
            continue;
        for (size_t k = 0; k < e->values.n; k++) {
            const kvd_measured_value *const v = &e->values.value[k];
            const char *const more = e->id + n + strspn(e->id + n, " ,(");
            snprintf(series, sizeof series, "%.*s", (int)strcspn(more, ")"), more);
            if (e->n_services > 1)
                snprintf(series + strlen(series), 16, ", %zu", v->curve + 1);
            kvd_table_series(t, series);
            kvd_table_real(t, v->load);
            kvd_table_real(t, times ? v->value : 1 + v->value / 100);
            kvd_table_text(t, v->grows ? "grows" : "");
        }
    }
    snprintf(caption, sizeof caption,
             "%.*s: %s against the load, which is the rate of arrivals over the highest rate that "
             "the baseline sustains. Open points: the queue grows, so more requests would give "
             "another value.",
             (int)n, l->entry[first].id,
             times ? "rate at equal normalised latency, over that of the baseline,"
                   : "mean time over that of the baseline");
    kvd_section_figure(s, name, "loads.gp", 700, kvd_height_with_key(380, 700, 3, t, 0, SIZE_MAX),
                       caption, "csv='tables/%s.csv'", name);
    const kvd_panel panel = {.title = "ratio", .x = "load", .y = "ratio"};
    kvd_section_panels(s, t, &panel, 1);
    kvd_section_fold(s);
}

static void figures_of_loads(const kvd_ledger *l, kvd_section *s)
{
    int number = 0;
    for (size_t i = 0; i < l->n; i++) {
        const size_t n = figure_name(l->entry[i].id);
        bool first = l->entry[i].n_services > 0;
        for (size_t k = 0; k < i && first; k++)
            first = !(l->entry[k].n_services > 0 && figure_name(l->entry[k].id) == n &&
                      strncmp(l->entry[k].id, l->entry[i].id, n) == 0);
        if (first)
            figure_of_loads(l, i, ++number, s);
    }
}

void kvd_ledger_section(const kvd_ledger *l, const kvd_results *r, kvd_report *report)
{
    size_t count[KVD_N_VERDICTS] = {0};
    char range[96];
    kvd_text on = {0}, more = {0}, departures = {0};
    kvd_section *s = kvd_report_section(report, "ledger", "Ledger: the papers' claims");
    kvd_table *t =
        s ? kvd_section_table(s, "ledger", "Claims of the papers and measured values") : NULL;
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
        s->failed |= departures.failed;
    }
    s->failed |= on.failed | more.failed;
    /* Writes the table of all claims to files only; the HTML page shows each claim separately. */
    t->only_files = true;
    kvd_table_note(t, "Measured on %s.%s", kvd_text_get(&on), kvd_text_get(&more));
    kvd_text_raw(&s->words, "<p class=\"note\">");
    kvd_text_html(&s->words, t->note ? t->note : "");
    kvd_text_raw(&s->words,
                 " Each verdict follows from the rule of its claim; claims and rules are rows of "
                 "<code>data/paper/ledger.csv</code>.</p>\n");
    html_entries(l, count, &s->words);
    char figures[320];
    kvd_figure_counts_say(&l->figures, figures, sizeof figures);
    kvd_text_add(&s->words, "<p>%s.</p>\n", figures);
    figures_of_loads(l, s);
    kvd_text_raw(&s->words, "<p class=\"files\"><a href=\"tables/ledger.csv\">ledger.csv</a>, "
                            "<a href=\"tables/ledger.md\">ledger.md</a></p>\n");
    kvd_text_release(&on);
    kvd_text_release(&more);
    kvd_text_release(&departures);
}
