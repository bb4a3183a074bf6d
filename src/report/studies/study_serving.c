/* Section of the report: simulated serving. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/rows.h"
#include "report/studies/studies.h"

static void put_interval(kvd_table *t, const kvd_report_row *e, const char *measure)
{
    static const char *const end[] = {"mean_s", "mean_lo_s", "mean_hi_s"};
    for (int i = 0; i < 3; i++) {
        char column[48];
        snprintf(column, sizeof column, "%s_%s", measure, end[i]);
        kvd_table_real(t, kvd_report_real(e, column));
    }
}

static double change(const kvd_report_rows *all, const kvd_report_row *e, const char *column)
{
    const kvd_report_row *const none = kvd_serving_uncompressed(all, e);
    return none ? 100 * (kvd_report_real(e, column) / kvd_report_real(none, column) - 1)
                : (double)NAN;
}

static void rates_table(const kvd_report_rows *all, kvd_section *s)
{
    kvd_table *const t = kvd_section_table(s, "serving-rates", "Highest rates of requests");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "place", "model and trace");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "latency_bound_s", "bound, s/token");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "rate", "requests/s");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "times_none", "times none's");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "served_per_s", "served/s");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "kv_share", "cache in use");
    kvd_table_add_column(t, KVD_CELL_REAL, 2, "extrapolated_percent", "extrapolated, %");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "refused", "refused");
    kvd_table_note(
        t, "Simulated. The highest rate at which the mean normalised latency (JCT over output "
           "tokens) of the trace stays within the bound. Where fewer are served than arrive the "
           "queue grows, and a longer trace would sustain a lower rate.");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const e = &all->item[i];
        if (strcmp(e->kind, "max-rate"))
            continue;
        kvd_table_text(t, e->place);
        kvd_table_row(t, e->rows, e->row, 3);
        kvd_table_real(t, 1 + change(all, e, "rate") / 100);
        kvd_table_row(t, e->rows, e->row, 2);
        kvd_table_real(t, 100 * kvd_report_real(e, "extrapolated_share"));
        kvd_table_row(t, e->rows, e->row, 1);
    }
}

static void points_table(const kvd_report_rows *all, kvd_section *s)
{
    kvd_table *const t = kvd_section_table(s, "serving", "Every simulated point");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "place", "model and trace");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "rate", "requests/s");
    kvd_table_add_interval(t, 3, "ttft_mean_s", "TTFT, s");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "ttft_p99_s", "p99");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "ttft_change_percent", "against none, %");
    kvd_table_add_interval(t, 3, "tbt_mean_s", "TBT, s");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "tbt_p99_s", "p99");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "tbt_change_percent", "against none, %");
    kvd_table_add_interval(t, 3, "latency_mean_s", "normalised latency, s/token");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "latency_p99_s", "p99");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "served_per_s", "served/s");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "goodput_per_s", "goodput/s");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "utilisation", "busy");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "kv_share", "cache in use");
    kvd_table_add_column(t, KVD_CELL_REAL, 2, "extrapolated_percent", "extrapolated, %");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "refused", "refused");
    kvd_table_note(
        t,
        "Simulated from measured iterations, means with 95 %% intervals over stretches of "
        "consecutive requests. TTFT includes the wait in the queue. Goodput: requests within the "
        "objectives, all that are served when there are none.");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const e = &all->item[i];
        if (strcmp(e->kind, "point"))
            continue;
        kvd_table_text(t, e->place);
        kvd_table_row(t, e->rows, e->row, 2);
        put_interval(t, e, "ttft");
        kvd_table_row(t, e->rows, e->row, 1);
        kvd_table_real(t, change(all, e, "ttft_mean_s"));
        put_interval(t, e, "tbt");
        kvd_table_row(t, e->rows, e->row, 1);
        kvd_table_real(t, change(all, e, "tbt_mean_s"));
        put_interval(t, e, "latency");
        kvd_table_row(t, e->rows, e->row, 5);
        kvd_table_real(t, 100 * kvd_report_real(e, "extrapolated_share"));
        kvd_table_row(t, e->rows, e->row, 1);
    }
}

static void validation_table(const kvd_report_rows *all, kvd_section *s)
{
    kvd_table *const t =
        kvd_section_table(s, "serving-validation", "The simulation against a measured replay");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "place", "model and replay");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "requests", "requests");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "quantity", "quantity");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "statistic", "statistic");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "measured_s", "measured, s");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "simulated_s", "simulated, s");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "error_percent", "difference, %");
    kvd_table_note(
        t,
        "One replica serves the requests of the replay at the times at which they came. TBT of a "
        "request: its mean time between two tokens.");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const e = &all->item[i];
        if (strcmp(e->kind, "validation"))
            continue;
        kvd_table_text(t, e->place);
        kvd_table_row(t, e->rows, e->row, 7);
    }
}

static size_t curve_length(const kvd_report_rows *all, size_t first)
{
    size_t n = 0;
    for (size_t i = first; i < all->n && !strcmp(all->item[i].place, all->item[first].place); i++)
        n += !strcmp(all->item[i].kind, "point") &&
             !strcmp(all->item[i].series, all->item[first].series);
    return n;
}

static void latency_figure(const kvd_report_rows *all, size_t first, int number, kvd_section *s)
{
    static const kvd_panel panels[] = {
        {.title = "normalised latency", .x = "rate", .y = "latency_mean_s"},
        {.title = "TTFT", .x = "rate", .y = "ttft_mean_s"},
        {.title = "TBT", .x = "rate", .y = "tbt_mean_s"}};
    char name[32], caption[KVD_LABEL + 320];
    snprintf(name, sizeof name, "serving-latency-%d", number);
    kvd_table *const t = kvd_section_table(s, name, all->item[first].place);
    t->only_files = true;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "rate", "requests/s");
    kvd_table_add_interval(t, 3, "latency_mean_s", "latency_mean_s");
    kvd_table_add_interval(t, 3, "ttft_mean_s", "ttft_mean_s");
    kvd_table_add_interval(t, 3, "tbt_mean_s", "tbt_mean_s");
    for (size_t i = first; i < all->n && !strcmp(all->item[i].place, all->item[first].place); i++) {
        if (strcmp(all->item[i].kind, "point"))
            continue;
        kvd_table_text(t, all->item[i].series);
        kvd_table_real(t, kvd_report_real(&all->item[i], "rate"));
        put_interval(t, &all->item[i], "latency");
        put_interval(t, &all->item[i], "ttft");
        put_interval(t, &all->item[i], "tbt");
    }
    snprintf(
        caption, sizeof caption,
        "%s. Simulated means against the rate at which requests arrive: JCT over output tokens, "
        "time to the first token with the wait in the queue, time between two tokens. Bars: 95 %% "
        "intervals over stretches of consecutive requests.",
        all->item[first].place);
    kvd_section_figure(s, name, "serving.gp", 1000,
                       kvd_height_with_key(420, 1000, 3, t, 0, SIZE_MAX), caption,
                       "csv='tables/%s.csv'", name);
    kvd_section_panels(s, t, panels, sizeof panels / sizeof *panels);
}

static void figures(const kvd_report_rows *all, kvd_section *s)
{
    enum { MOST = 24, FEWEST_POINTS = 3 };
    int drawn = 0;
    size_t left_out = 0;
    for (size_t i = 0; i < all->n; i++) {
        const size_t points =
            !i || strcmp(all->item[i].place, all->item[i - 1].place) ? curve_length(all, i) : 0;
        if (points >= FEWEST_POINTS && drawn < MOST) {
            latency_figure(all, i, ++drawn, s);
        } else {
            left_out += points > 0;
        }
    }
    if (left_out)
        kvd_text_add(
            &s->words,
            "<p>%zu traces have no figure: they were simulated at fewer than %d rates, or come "
            "after the first %d figures. The table has them.</p>\n",
            left_out, (int)FEWEST_POINTS, (int)MOST);
}

static void list_failures(const kvd_results *r, kvd_text *words)
{
    for (size_t i = 0; i < r->n; i++) {
        const char *line = r->item[i].kind == KVD_RESULT_SERVING ? r->item[i].no_rate : "";
        for (size_t n; *line; line += n + (line[n] != '\0')) {
            n = strcspn(line, "\n");
            char *const one = strndup(line, n);
            words->failed |= !one;
            kvd_text_raw(words, "<p>No highest rate of ");
            kvd_text_html(words, one ? one : "");
            kvd_text_raw(words, "</p>\n");
            free(one);
        }
    }
}

static void introduce(const kvd_report_rows *all, kvd_text *words)
{
    size_t beyond = 0, refused = 0, cpu = 0;
    double most = 0;
    for (size_t i = 0; i < all->n; i++) {
        const double share = kvd_report_real(&all->item[i], "extrapolated_share");
        beyond += share > 0;
        most = share > most ? share : most;
        refused += kvd_report_real(&all->item[i], "refused") > 0;
        cpu += !(kvd_report_real(&all->item[i], "gpus") > 0);
    }
    kvd_text_raw(
        words,
        "<p>Simulated by kvdim-serve: the batches are those that the engine would run, and every "
        "iteration takes the time that kvdim-jct measured for one like it. Nothing here was "
        "served but what the validation calls measured.</p>\n");
    if (cpu)
        kvd_text_add(
            words,
            "<p><strong>%zu of %zu rows have a CPU's costs</strong>: they say nothing of a GPU's "
            "service, and the ledger does not judge them.</p>\n",
            cpu, all->n);
    if (beyond)
        kvd_text_add(
            words,
            "<p><strong>%zu of %zu rows extrapolate</strong>: up to %.3g %% of their iterations "
            "are extrapolated beyond the measured costs.</p>\n",
            beyond, all->n, 100 * most);
    if (refused)
        kvd_text_add(
            words,
            "<p><strong>%zu of %zu rows refuse requests</strong> that are larger than the whole "
            "cache; means are over the others.</p>\n",
            refused, all->n);
}

int kvd_study_serving(const kvd_results *r, kvd_report *report, kvd_err *err)
{
    kvd_report_rows all;
    if (kvd_serving_collect(r, &all, err))
        return -1;
    if (all.n) {
        kvd_section *const s = kvd_report_section(report, "serving", "Serving");
        introduce(&all, &s->words);
        list_failures(r, &s->words);
        figures(&all, s);
        rates_table(&all, s);
        validation_table(&all, s);
        points_table(&all, s);
    }
    kvd_report_rows_release(&all);
    return 0;
}
