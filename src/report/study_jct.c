/* Report: jobs and their parts, lengths from which a method pays, replays. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
#include "formats/jct.h"
#include "report/jct_rows.h"
#include "report/studies.h"

/* ---- tables --------------------------------------------------------------------------------------- */

static void sizes(kvd_table *t, const kvd_jct_entry *e)
{
    kvd_table_text(t, e->place);
    kvd_table_text(t, kvd_jct_text(e, "method"));
    kvd_table_int(t, (int64_t)kvd_jct_real(e, "input"));
    kvd_table_int(t, (int64_t)kvd_jct_real(e, "output"));
}

static void size_columns(kvd_table *t)
{
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "place", "model and machine");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "input", "input");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "output", "output");
}

/* JCT of none in the same file and sizes over that of the row. */
static double speed_up(const kvd_jct_entry *e)
{
    kvd_jct_entry none = *e;
    none.row = kvd_jct_uncompressed(e->file->jct, e->row);
    return none.row == SIZE_MAX ? (double)NAN : kvd_jct_real(&none, "jct_s") / kvd_jct_real(e, "jct_s");
}

static int jobs_table(const kvd_jct_entries *all, kvd_section *s, kvd_err *err)
{
    static const struct {
        const char *column, *heading;
        int digits;
    } reals[] = {{"jct_s", "JCT, s", 4},
                 {"jct_mad_s", "MAD", 2},
                 {"ttft_s", "TTFT, s", 4},
                 {"tbt_mean_s", "TBT, s", 4},
                 {"tbt_p99_s", "p99", 3},
                 {"tokens_per_s", "tokens/s", 4},
                 {"prefill_s", "prefill, s", 4},
                 {"decode_s", "decode, s", 4},
                 {"residue_share", "residue", 2},
                 {"step_weight", "steps for each run", 3},
                 {"width_cv", "CV of widths", 3},
                 {"bytes_per_token", "bytes/token", 5},
                 {"dense_bytes_per_token", "uncompressed", 5},
                 {"peak_bytes", "peak, bytes", 4},
                 {"energy_j", "energy, J", 4}};
    enum { N_REALS = sizeof reals / sizeof reals[0] };
    kvd_table *const t = kvd_section_table(s, "jct", "Every job", err);
    if (!t)
        return -1;
    size_columns(t);
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "speed_up", "times as fast as none");
    for (int i = 0; i < N_REALS; i++)
        kvd_table_add_column(t, KVD_CELL_REAL, reals[i].digits, reals[i].column, reals[i].heading);
    kvd_table_note(t,
                   "Each row is the run with the median JCT; MAD is over the runs. JCT is from the "
                   "arrival of all requests "
                   "to the last token of the last; TTFT is their mean. Residue: the share of JCT that no "
                   "part accounts for. Steps for each run: above 1 the steps of the output ran in part, each "
                   "in the middle of those it stands for.");
    for (size_t i = 0; i < all->n; i++) {
        sizes(t, &all->item[i]);
        kvd_table_real(t, speed_up(&all->item[i]));
        for (int k = 0; k < N_REALS; k++)
            kvd_table_real(t, kvd_jct_real(&all->item[i], reals[k].column));
    }
    return 0;
}

static int parts_table(const kvd_jct_entries *all, kvd_section *s, kvd_err *err)
{
    static const char *const side[] = {"prefill", "decode"};
    kvd_table *const t = kvd_section_table(s, "jct-parts", "Parts, in percent of prefill and of decode", err);
    if (!t)
        return -1;
    size_columns(t);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "side", "of");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "seconds", "s");
    for (int p = 0; p < KVD_JCT_PARTS; p++) {
        char name[48];
        snprintf(name, sizeof name, "part_%d_percent", p);
        kvd_table_add_column(t, KVD_CELL_REAL, 3, name, kvd_jct_part_title[p]);
        kvd_table_shade(t, 0, 60);
    }
    kvd_table_note(t, "A part that is 0 may be done by the one after it (column fused of the file). The "
                      "rest: embedding, norms, "
                      "logits, choice of tokens, and the residue.");
    for (size_t i = 0; i < all->n; i++)
        for (int k = 0; k < 2; k++) {
            char column[16];
            snprintf(column, sizeof column, "%s_s", side[k]);
            const double seconds = kvd_jct_real(&all->item[i], column);
            if (!(seconds > 0) || !(kvd_jct_real(&all->item[i], "phases") > 0))
                continue;
            sizes(t, &all->item[i]);
            kvd_table_text(t, side[k]);
            kvd_table_real(t, seconds);
            for (int p = 0; p < KVD_JCT_PARTS; p++)
                kvd_table_real(t, 100 * kvd_jct_part(&all->item[i], p, side[k]) / seconds);
        }
    t->only_files = t->n_rows == 0;
    return 0;
}

static int break_even_table(const kvd_jct_entries *all, kvd_section *s, kvd_err *err)
{
    kvd_table *const t =
        kvd_section_table(s, "jct-break-even", "Lengths from which on a method is faster than none", err);
    if (!t)
        return -1;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "place", "model and machine");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "length", "length of the");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "at", "at");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "from", "from, tokens");
    kvd_table_note(t, "Where the two lines of JCT cross for the last time, straight between measured "
                      "lengths; - where the method is not "
                      "faster at the longest one.");
    for (size_t i = 0; i < all->n; i++)
        for (int output = 0; output < 2; output++) {
            const kvd_jct_entry *const e = &all->item[i];
            char at[48];
            if (!strcmp(kvd_jct_text(e, "name"), "none") ||
                !kvd_jct_first_of_lengths(e->file->jct, e->row, output) ||
                kvd_jct_lengths(e->file->jct, e->row, output) < 2 || isnan(speed_up(e)))
                continue;
            snprintf(at, sizeof at, "%s %.0f", output ? "input" : "output",
                     kvd_jct_real(e, output ? "input" : "output"));
            kvd_table_text(t, e->place);
            kvd_table_text(t, kvd_jct_text(e, "method"));
            kvd_table_text(t, output ? "output" : "input");
            kvd_table_text(t, at);
            kvd_table_real(t, kvd_jct_break_even(e->file->jct, e->row, output));
        }
    t->only_files = t->n_rows == 0;
    return 0;
}

/* One line for each method of a replay. */
static int replays_table(const kvd_jct_entries *all, kvd_section *s, kvd_err *err)
{
    static const char *const column[] = {"ttft_s", "tbt_mean_s", "jct_s"};
    kvd_table *const t = kvd_section_table(s, "jct-replays", "Replayed requests", err);
    double *const x = malloc((all->n + 1) * sizeof *x);
    if (!t || !x) {
        free(x);
        return t ? kvd_no_memory(err, "requests", all->n * sizeof *x) : -1;
    }
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "place", "model and machine");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "file", "file");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "requests", "requests");
    for (int k = 0; k < 3; k++) {
        char name[32];
        snprintf(name, sizeof name, "%s_mean", column[k]);
        kvd_table_add_column(t, KVD_CELL_REAL, 4, name, k == 0 ? "TTFT, s" : k == 1 ? "TBT, s" : "JCT, s");
        snprintf(name, sizeof name, "%s_p99", column[k]);
        kvd_table_add_column(t, KVD_CELL_REAL, 4, name, "p99");
    }
    kvd_table_note(t, "Measured by the clock, from the arrival of each request. TBT: mean of a request.");
    for (size_t i = 0, end; i < all->n; i = end) {
        for (end = i + 1; end < all->n && all->item[end].file == all->item[i].file &&
                          !strcmp(all->item[end].series, all->item[i].series);)
            end++;
        kvd_table_text(t, all->item[i].place);
        kvd_table_text(t, all->item[i].file->name);
        kvd_table_text(t, kvd_jct_text(&all->item[i], "method"));
        kvd_table_int(t, (int64_t)(end - i));
        for (int k = 0; k < 3; k++) {
            size_t n = 0;
            for (size_t j = i; j < end; j++)
                if (!isnan(kvd_jct_real(&all->item[j], column[k])))
                    x[n++] = kvd_jct_real(&all->item[j], column[k]);
            kvd_table_real(t, n ? kvd_mean(x, n) : (double)NAN);
            kvd_table_real(t, n ? kvd_quantile(x, n, 0.99) : (double)NAN);
        }
    }
    free(x);
    t->only_files = t->n_rows == 0;
    return 0;
}

/* ---- figures -------------------------------------------------------------------------------------- */

enum { MOST_FIGURES = 8, MOST_BARS = 24 };

static size_t end_of_place(const kvd_jct_entries *all, size_t first)
{
    size_t end = first;
    while (end < all->n && !strcmp(all->item[end].place, all->item[first].place))
        end++;
    return end;
}

static int by_sizes(const void *a, const void *b)
{
    const kvd_jct_entry *x = *(const kvd_jct_entry *const *)a, *y = *(const kvd_jct_entry *const *)b;
    static const char *const column[] = {"input", "output"};
    for (int i = 0; i < 2; i++) {
        const double p = kvd_jct_real(x, column[i]), q = kvd_jct_real(y, column[i]);
        if (p < q || p > q)
            return p < q ? -1 : 1;
    }
    return (x > y) - (x < y);
}

/* Parts as the papers' figures have them: what a method adds and what grows with which length apart, the rest together. */
enum { PAPER_PARTS = 12 };
static const struct {
    const char *title, *column[4];
} paper_part[PAPER_PARTS - 1] = {
    {"attention of prompts", {"prefill_prefill"}},
    {"attention of steps", {"prefill_decode", "decode_decode"}},
    {"restoring in prompts", {"prefill_restore"}},
    {"restoring in steps", {"decode_restore"}},
    {"compressing in prompts", {"prefill_compress"}},
    {"compressing in steps", {"decode_compress"}},
    {"rotation and store", {"prefill_rotate", "decode_rotate", "prefill_append", "decode_append"}},
    {"work lists", {"prefill_schedule", "decode_schedule"}},
    {"products of prompts", {"prefill_qkv", "prefill_o", "prefill_mlp"}},
    {"products of steps", {"decode_qkv", "decode_o", "decode_mlp"}},
    {"between GPUs", {"prefill_comm", "decode_comm"}},
};

static double paper_share(const kvd_jct_entry *e, int part)
{
    const double jct = kvd_jct_real(e, "jct_s");
    double sum = 0;
    if (part == PAPER_PARTS - 1) {
        sum = 100;
        for (int i = 0; i < part; i++)
            sum -= paper_share(e, i);
        return sum;
    }
    for (int i = 0; i < 4 && paper_part[part].column[i]; i++) {
        char column[48];
        snprintf(column, sizeof column, "%s_s", paper_part[part].column[i]);
        sum += kvd_jct_real(e, column);
    }
    return 100 * sum / jct;
}

static void paper_columns(kvd_table *t, int digits)
{
    for (int p = 0; p < PAPER_PARTS; p++) {
        const char *const title = p < PAPER_PARTS - 1 ? paper_part[p].title : "the rest";
        kvd_table_add_column(t, KVD_CELL_REAL, digits, title, title);
    }
}

static int shares_table(const kvd_jct_entries *all, kvd_section *s, kvd_err *err)
{
    kvd_table *const t =
        kvd_section_table(s, "jct-shares", "What the papers' breakdowns show, in percent of the JCT", err);
    if (!t)
        return -1;
    size_columns(t);
    paper_columns(t, 3);
    for (int p = 0; p < PAPER_PARTS; p++)
        kvd_table_shade(t, 0, 60);
    kvd_table_note(t,
                   "Of the job's own JCT. Restoring: decompression, or keys rebuilt from latents. The rest: "
                   "embedding, norms, logits, choice of "
                   "tokens, the host, the residue. A part that is 0 may be done by the one after it (column "
                   "fused of the file).");
    for (size_t i = 0; i < all->n; i++) {
        if (!(kvd_jct_real(&all->item[i], "phases") > 0))
            continue;
        sizes(t, &all->item[i]);
        for (int p = 0; p < PAPER_PARTS; p++)
            kvd_table_real(t, paper_share(&all->item[i], p));
    }
    t->only_files = t->n_rows == 0;
    return 0;
}

/* Rows of one place with parts, by sizes; *n of them, the caller frees. */
static const kvd_jct_entry **bars_of(const kvd_jct_entries *all, size_t first, size_t end, size_t *n,
                                     kvd_err *err)
{
    const kvd_jct_entry **const e = calloc(end - first, sizeof *e);
    *n = 0;
    if (!e) {
        kvd_no_memory(err, "bars", (end - first) * sizeof *e);
        return NULL;
    }
    for (size_t i = first; i < end; i++)
        if (kvd_jct_real(&all->item[i], "phases") > 0)
            e[(*n)++] = &all->item[i];
    qsort(e, *n, sizeof *e, by_sizes);
    *n = *n < MOST_BARS ? *n : MOST_BARS;
    return e;
}

static void bar_of(kvd_table *t, const kvd_jct_entry *e)
{
    char label[64];
    snprintf(label, sizeof label, "%.0f + %.0f", kvd_jct_real(e, "input"), kvd_jct_real(e, "output"));
    kvd_table_text(t, e->series);
    kvd_table_text(t, label);
}

/* Bars of one place: parts in percent of the JCT of none at the same sizes (of the row itself without none), or shares of its own. */
static int bars_figure(const kvd_jct_entries *all, size_t first, size_t end, int number, bool shares,
                       kvd_section *s, kvd_err *err)
{
    char name[32], caption[KVD_LABEL + 400];
    size_t n;
    const kvd_jct_entry **const e = bars_of(all, first, end, &n, err);
    if (!e)
        return -1;
    snprintf(name, sizeof name, "jct-%s-%d", shares ? "shares" : "bars", number);
    kvd_table *const t = n ? kvd_section_table(s, name, all->item[first].place, err) : NULL;
    if (!t) {
        free(e);
        return n ? -1 : 0;
    }
    t->only_files = true;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "bar", "bar");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "sizes", "sizes");
    if (shares)
        paper_columns(t, 6);
    for (int p = 0; !shares && p < KVD_JCT_PARTS; p++)
        kvd_table_add_column(t, KVD_CELL_REAL, 6, kvd_jct_part_title[p], kvd_jct_part_title[p]);
    for (size_t i = 0; i < n; i++) {
        const double up = speed_up(e[i]), whole = kvd_jct_real(e[i], "jct_s") * (isnan(up) ? 1 : up);
        bar_of(t, e[i]);
        for (int p = 0; p < (shares ? (int)PAPER_PARTS : (int)KVD_JCT_PARTS); p++)
            kvd_table_real(
                t, fmax(0, shares ? paper_share(e[i], p) : 100 * kvd_jct_part(e[i], p, NULL) / whole));
    }
    free(e);
    snprintf(
        caption, sizeof caption, "%s. %s Parts from the bottom up in the order of the key, line by line.",
        all->item[first].place,
        shares ? "Shares of the job's own JCT, as the papers' breakdowns have them."
               : "What the time of a job goes to, prefill and decode together, in percent of the JCT of "
                 "none at the same input and output lengths (of the method itself where none was not run).");
    const int width = 220 + 46 * (int)n;
    return kvd_section_figure(s, name, "jct_bars.gp", width < 760 ? 760 : width, 600, caption, err,
                              "csv='tables/%s.csv'; parts=%d; whole='%s'", name,
                              shares ? (int)PAPER_PARTS : (int)KVD_JCT_PARTS, shares ? "the job" : "none");
}

/* Places with their other length, in rising order, that were run at two lengths or more. */
static void add_panel(const kvd_jct_entries *all, size_t first, size_t end, bool output, double other,
                      size_t panel, kvd_table *t)
{
    for (size_t i = first; i < end; i++) {
        const kvd_jct_entry *const e = &all->item[i];
        const double x = kvd_jct_real(e, output ? "input" : "output");
        char title[KVD_LABEL];
        if (x < other || x > other)
            continue;
        snprintf(title, sizeof title, "%.150s; %s %.0f", e->place, output ? "input" : "output", other);
        kvd_table_int(t, (int64_t)panel);
        kvd_table_text(t, title);
        kvd_table_text(t, e->series);
        kvd_table_real(t, kvd_jct_real(e, output ? "output" : "input"));
        kvd_table_real(t, kvd_jct_real(e, "jct_s"));
        kvd_table_real(t, kvd_jct_real(e, "jct_min_s"));
        kvd_table_real(t, kvd_jct_real(e, "jct_max_s"));
    }
}

static int lines_figure(const kvd_jct_entries *all, bool output, kvd_section *s, kvd_err *err)
{
    enum { MOST_PANELS = 9 };
    const char *const name = output ? "jct-outputs" : "jct-lengths", *const length =
                                                                         output ? "output" : "input";
    size_t panels = 0;
    kvd_table *const t =
        kvd_section_table(s, name, output ? "JCT against output length" : "JCT against input length", err);
    if (!t)
        return -1;
    t->only_files = true;
    kvd_table_add_column(t, KVD_CELL_INT, 0, "panel", "panel");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "place", "place");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "method");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, length, length);
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "jct_s", "JCT");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "jct_min_s", "least");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "jct_max_s", "largest");
    for (size_t first = 0, end; first < all->n; first = end) {
        double done = -1; /* the other length rises from panel to panel */
        end = end_of_place(all, first);
        for (;;) {
            double other = INFINITY;
            for (size_t i = first; i < end; i++) {
                const double x = kvd_jct_real(&all->item[i], output ? "input" : "output");
                if (x > done && x < other &&
                    kvd_jct_lengths(all->item[i].file->jct, all->item[i].row, output) >= 2)
                    other = x;
            }
            if (isinf(other) || panels == MOST_PANELS)
                break;
            done = other;
            add_panel(all, first, end, output, other, ++panels, t);
        }
    }
    if (!panels)
        return 0;
    const int columns = panels < 3 ? (int)panels : 3, rows = ((int)panels + columns - 1) / columns;
    return kvd_section_figure(
        s, name, "jct_lengths.gp", columns == 1 ? 560 : 440 * columns, 90 + 300 * rows,
        output ? "Job completion time against the length of the outputs, both logarithmic, "
                 "a panel for each machine, "
                 "batch and input length. Bars: least and largest of the runs."
               : "Job completion time against the length of the prompts, both "
                 "logarithmic, a panel for each machine, "
                 "batch and output length. Bars: least and largest of the runs.",
        err, "csv='tables/%s.csv'; panels=%zu; columns=%d; of='%s'", name, panels, columns, length);
}

static int figures(const kvd_jct_entries *all, kvd_section *s, kvd_err *err)
{
    int number = 0;
    for (size_t first = 0, end; first < all->n && number < MOST_FIGURES; first = end) {
        end = end_of_place(all, first);
        ++number;
        if (bars_figure(all, first, end, number, false, s, err) ||
            bars_figure(all, first, end, number, true, s, err))
            return -1;
    }
    return lines_figure(all, false, s, err) || lines_figure(all, true, s, err) ? -1 : 0;
}

/* ---- the section ---------------------------------------------------------------------------------- */

int kvd_study_jct(const kvd_results *r, kvd_report *report, kvd_err *err)
{
    kvd_jct_entries jobs, requests = {0};
    if (kvd_jct_collect(r, "job", &jobs, err))
        return -1;
    int status = kvd_jct_collect(r, "request", &requests, err);
    if (!status && jobs.n + requests.n) {
        kvd_section *const s = kvd_report_section(report, "jct", "Job completion time", err);
        if (s)
            kvd_text_raw(&s->words, "<p>Measured by kvdim-jct: requests through continuous batching and a "
                                    "model whose cache the method "
                                    "really compresses. On the CPU methods that go row by row are "
                                    "references: their bytes count, their "
                                    "seconds do not.</p>\n");
        status = !s ||
                 (jobs.n &&
                  (figures(&jobs, s, err) || break_even_table(&jobs, s, err) || jobs_table(&jobs, s, err) ||
                   shares_table(&jobs, s, err) || parts_table(&jobs, s, err))) ||
                 (requests.n && replays_table(&requests, s, err));
    }
    kvd_jct_entries_release(&jobs);
    kvd_jct_entries_release(&requests);
    return status ? -1 : 0;
}
