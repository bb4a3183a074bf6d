/* Section of the report: job completion times and the parts of which they consist. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
#include "formats/jct.h"
#include "report/studies/studies.h"

static void put_sizes(kvd_table *t, const kvd_report_row *e)
{
    kvd_table_text(t, e->place);
    kvd_table_row(t, e->rows, e->row, 3);
}

static void size_columns(kvd_table *t)
{
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "place", "model and machine");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "input", "input");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "output", "output");
}

enum { MOST_FIGURES = 40, MOST_BARS = 24, MOST_PANELS = 9 };

static size_t end_of_place(const kvd_report_rows *all, size_t first)
{
    size_t end = first;
    while (end < all->n && !strcmp(all->item[end].place, all->item[first].place))
        end++;
    return end;
}

static int by_sizes(const void *a, const void *b)
{
    const kvd_report_row *x = *(const kvd_report_row *const *)a,
                         *y = *(const kvd_report_row *const *)b;
    static const char *const column[] = {"input", "output"};
    for (int i = 0; i < 2; i++) {
        const double p = kvd_report_real(x, column[i]), q = kvd_report_real(y, column[i]);
        if (p < q || p > q)
            return p < q ? -1 : 1;
    }
    return (x > y) - (x < y);
}

/* number of parts of a job's time in bar charts; the last part is the time that no other part
 * covers */
enum { PAPER_PARTS = 12 };
static const struct {
    const char *title, *column[6];
} paper_part[PAPER_PARTS - 1] = {
    {"attention of prompts", {"prefill_prefill"}},
    {"attention of steps", {"prefill_decode", "decode_decode"}},
    {"restoring in prompts", {"prefill_restore"}},
    {"restoring in steps", {"decode_restore"}},
    {"compressing in prompts", {"prefill_compress"}},
    {"compressing in steps", {"decode_compress"}},
    {"rotation", {"prefill_rotate", "decode_rotate"}},
    {"store", {"prefill_append", "decode_append"}},
    {"work lists", {"prefill_schedule", "decode_schedule"}},
    {"products",
     {"prefill_qkv", "prefill_o", "prefill_mlp", "decode_qkv", "decode_o", "decode_mlp"}},
    {"between GPUs", {"prefill_comm", "decode_comm"}},
};

static double paper_share(const kvd_report_row *e, int part)
{
    const double jct = kvd_report_real(e, "jct_s");
    double sum = 0;
    if (part == PAPER_PARTS - 1) {
        sum = 100;
        for (int i = 0; i < part; i++)
            sum -= paper_share(e, i);
        return sum;
    }
    for (int i = 0; i < 6 && paper_part[part].column[i]; i++) {
        char column[48];
        snprintf(column, sizeof column, "%s_s", paper_part[part].column[i]);
        sum += kvd_report_real(e, column);
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

static void shares_table(const kvd_report_rows *all, kvd_section *s)
{
    kvd_table *const t = kvd_section_table(
        s, "jct-shares", "Parts of the papers' breakdowns, in percent of the JCT");
    size_columns(t);
    paper_columns(t, 3);
    for (int p = 0; p < PAPER_PARTS; p++)
        kvd_table_shade(t, 0, 60);
    kvd_table_note(
        t,
        "Of the job's own JCT. Restoring: decompression, or keys rebuilt from latents. The rest: "
        "embedding, norms, logits, choice of tokens, the host, the residue. A part that is 0 may "
        "be done by the one after it (column fused of the file).");
    for (size_t i = 0; i < all->n; i++) {
        if (!(kvd_report_real(&all->item[i], "phases") > 0))
            continue;
        put_sizes(t, &all->item[i]);
        for (int p = 0; p < PAPER_PARTS; p++)
            kvd_table_real(t, paper_share(&all->item[i], p));
    }
}

/* Returns the timed jobs (batches of requests) for which phases, such as attention, were timed
 * separately. They are ordered by input and output length. The caller frees the array. */
static const kvd_report_row **bars_of(const kvd_report_rows *all, size_t first, size_t end,
                                      size_t *n, kvd_err *err)
{
    const kvd_report_row **const e = calloc(end - first, sizeof *e);
    *n = 0;
    if (!e) {
        kvd_no_memory(err, "bars", (end - first) * sizeof *e);
        return NULL;
    }
    for (size_t i = first; i < end; i++)
        if (kvd_report_real(&all->item[i], "phases") > 0)
            e[(*n)++] = &all->item[i];
    qsort(e, *n, sizeof *e, by_sizes);
    return e;
}

static size_t bar_of(kvd_table *t, const kvd_report_row *e)
{
    char label[96];
    const double input = kvd_report_real(e, "input"), output = kvd_report_real(e, "output"),
                 weight = kvd_report_real(e, "step_weight");
    if (weight > 1)
        snprintf(label, sizeof label, "%.0f + %.0f (%.0f steps)", input, output,
                 (output - 1) / weight);
    else
        snprintf(label, sizeof label, "%.0f + %.0f", input, output);
    kvd_table_text(t, e->series);
    kvd_table_text(t, label);
    return strlen(e->series) + 2 + strlen(label);
}

static void bars_title(const kvd_report_row *const *e, size_t n, bool several, size_t size,
                       char *title)
{
    if (several)
        snprintf(title, size, "%s; %.0f + %.0f to %.0f + %.0f tokens", e[0]->place,
                 kvd_report_real(e[0], "input"), kvd_report_real(e[0], "output"),
                 kvd_report_real(e[n - 1], "input"), kvd_report_real(e[n - 1], "output"));
    else
        snprintf(title, size, "%s", e[0]->place);
}

/* Draws the parts of job times as bars, in % of the uncompressed job's time or, if `shares` is
 * true, in % of the job's own time. */
static void bars_figure(const kvd_report_row *const *e, size_t n, int number, bool shares,
                        bool several, kvd_section *s)
{
    char name[32], title[KVD_LABEL + 100], caption[KVD_LABEL + 500];
    size_t label = 0;
    snprintf(name, sizeof name, "jct-%s-%d", shares ? "shares" : "bars", number);
    bars_title(e, n, several, sizeof title, title);
    kvd_table *const t = kvd_section_table(s, name, title);
    t->only_files = true;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "bar", "bar");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "sizes", "sizes");
    if (shares)
        paper_columns(t, 6);
    for (int p = 0; !shares && p < KVD_JCT_PARTS; p++)
        kvd_table_add_column(t, KVD_CELL_REAL, 6, kvd_jct_part_title[p], kvd_jct_part_title[p]);
    for (size_t i = 0; i < n; i++) {
        const double up = kvd_jct_speed_up(e[i]),
                     whole = kvd_report_real(e[i], "jct_s") * (isnan(up) ? 1 : up);
        const size_t characters = bar_of(t, e[i]);
        label = characters > label ? characters : label;
        for (int p = 0; p < (shares ? (int)PAPER_PARTS : (int)KVD_JCT_PARTS); p++)
            kvd_table_real(t, fmax(0, shares ? paper_share(e[i], p)
                                             : 100 * kvd_jct_part(e[i], p, NULL) / whole));
    }
    snprintf(
        caption, sizeof caption,
        "%s. %s Parts from the bottom up in the order of the key, line by line.", title,
        shares
            ? "Shares of the job's own JCT, as the papers' breakdowns have them."
            : "Parts of the time of a job, prefill and decode together, in percent of the JCT of "
              "none at the same input and output lengths (of the method itself where none was not "
              "run).");
    /* pixels that the slanted labels of bars take below the axis, and to the left of it */
    const int below = 20 + (int)(6.6 * (double)label), beside = below / 2 > 70 ? below / 2 : 70,
              width = 150 + beside + 46 * (int)n;
    kvd_section_figure(s, name, "jct_bars.gp", width < 760 ? 760 : width, 410 + below, caption,
                       "csv='tables/%s.csv'; parts=%d; whole='%s'; below=%d; beside=%d", name,
                       shares ? (int)PAPER_PARTS : (int)KVD_JCT_PARTS, shares ? "the job" : "none",
                       below, beside);
}

static int bars_figures(const kvd_report_rows *all, size_t first, size_t end, int *number,
                        size_t *left_out, kvd_section *s, kvd_err *err)
{
    size_t n;
    const kvd_report_row **const e = bars_of(all, first, end, &n, err);
    if (!e)
        return -1;
    const size_t figures = (n + MOST_BARS - 1) / MOST_BARS;
    for (size_t i = 0; i < figures; i++) {
        const size_t from = i * n / figures, bars = (i + 1) * n / figures - from;
        if (*number == MOST_FIGURES) {
            *left_out += n - from;
            break;
        }
        ++*number;
        bars_figure(e + from, bars, *number, false, figures > 1, s);
        bars_figure(e + from, bars, *number, true, figures > 1, s);
    }
    free(e);
    return 0;
}

static int by_series(const void *a, const void *b)
{
    const kvd_report_row *x = *(const kvd_report_row *const *)a,
                         *y = *(const kvd_report_row *const *)b;
    const bool p = !strcmp(x->series, "none"), q = !strcmp(y->series, "none");
    const int order = p != q ? q - p : strcmp(x->series, y->series);
    return order ? order : by_sizes(a, b);
}

/* Adds one panel of job completion times to a figure. The panel shows only jobs of input length
 * `other` (if `output` is true) or of output length `other` (if false). */
static void add_panel(const kvd_report_rows *all, size_t first, size_t end, bool output,
                      double other, size_t panel, const kvd_report_row **found, kvd_table *t)
{
    size_t n = 0;
    for (size_t i = first; i < end; i++) {
        const double x = kvd_report_real(&all->item[i], output ? "input" : "output");
        if (x >= other && x <= other)
            found[n++] = &all->item[i];
    }
    qsort(found, n, sizeof *found, by_series);
    for (size_t i = 0; i < n; i++) {
        const kvd_report_row *const e = found[i];
        char title[KVD_LABEL];
        snprintf(title, sizeof title, "%.150s; %s %.0f", e->place, output ? "input" : "output",
                 other);
        kvd_table_int(t, (int64_t)panel);
        kvd_table_text(t, title);
        kvd_table_text(t, e->series);
        kvd_table_row(t, e->rows, e->row, 4);
    }
}

static size_t add_panels(const kvd_report_rows *all, bool output, const kvd_report_row **found,
                         kvd_table *t)
{
    size_t panels = 0;
    for (size_t first = 0, end; first < all->n; first = end) {
        /* input length (if `output` is true) or output length of all jobs in the last added panel;
         * -1 before the first panel */
        double done = -1;
        end = end_of_place(all, first);
        for (;;) {
            double other = INFINITY;
            for (size_t i = first; i < end; i++) {
                const double x = kvd_report_real(&all->item[i], output ? "input" : "output");
                if (x > done && x < other &&
                    kvd_jct_lengths(all->item[i].file->jct, all->item[i].row, output) >= 2)
                    other = x;
            }
            if (isinf(other))
                break;
            done = other;
            if (++panels <= MOST_PANELS)
                add_panel(all, first, end, output, other, panels, found, t);
        }
    }
    return panels;
}

static int lines_figure(const kvd_report_rows *all, bool output, kvd_section *s, kvd_err *err)
{
    const char *const name = output ? "jct-outputs" : "jct-lengths", *const length = output
                                                                                         ? "output"
                                                                                         : "input";
    const kvd_report_row **const found = calloc(all->n, sizeof *found);
    kvd_table *const t = kvd_section_table(
        s, name, output ? "JCT against output length" : "JCT against input length");
    if (!found)
        return kvd_no_memory(err, "points", all->n * sizeof *found);
    t->only_files = true;
    kvd_table_add_column(t, KVD_CELL_INT, 0, "panel", "panel");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "place", "place");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "method");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, length, length);
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "jct_s", "JCT");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "jct_min_s", "least");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "jct_max_s", "largest");
    size_t panels = add_panels(all, output, found, t);
    free(found);
    if (!panels)
        return 0;
    if (panels > MOST_PANELS) {
        kvd_text_add(&s->words,
                     "<p>The first %d of %zu panels of JCT against %s length are drawn.</p>\n",
                     (int)MOST_PANELS, panels, length);
        panels = MOST_PANELS;
    }
    const int columns = panels < 3 ? (int)panels : 3, rows = ((int)panels + columns - 1) / columns;
    kvd_section_figure(
        s, name, "jct_lengths.gp", columns == 1 ? 560 : 330 * columns, 90 + 300 * rows,
        output ? "Job completion time against the length of the outputs, both logarithmic, "
                 "a panel for each machine, "
                 "batch and input length. Bars: least and largest of the runs."
               : "Job completion time against the length of the prompts, both "
                 "logarithmic, a panel for each machine, "
                 "batch and output length. Bars: least and largest of the runs.",
        "csv='tables/%s.csv'; panels=%zu; columns=%d; of='%s'", name, panels, columns, length);
    kvd_section_panels(
        s, t, &(kvd_panel){.title = "JCT", .x = length, .log_x = true, .y = "jct_s", .log_y = true},
        1);
    return 0;
}

static int figures(const kvd_report_rows *all, kvd_section *s, kvd_err *err)
{
    int number = 0;
    size_t left_out = 0;
    for (size_t first = 0, end; first < all->n; first = end) {
        end = end_of_place(all, first);
        if (bars_figures(all, first, end, &number, &left_out, s, err))
            return -1;
    }
    if (left_out)
        kvd_text_add(
            &s->words,
            "<p>%zu jobs have no bars, beyond the %d figures that are drawn; all of them are in "
            "the tables.</p>\n",
            left_out, (int)MOST_FIGURES);
    return kvd_status(lines_figure(all, false, s, err) || lines_figure(all, true, s, err));
}

static void jobs_table(const kvd_report_rows *all, kvd_section *s)
{
    kvd_table *const t = kvd_section_table(s, "jct", "Every job");
    size_columns(t);
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "speed_up", "times as fast as none");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "jct_s", "JCT, s");
    kvd_table_add_column(t, KVD_CELL_REAL, 2, "jct_mad_s", "MAD");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "ttft_s", "TTFT, s");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "tbt_mean_s", "TBT, s");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "tbt_p99_s", "p99");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "tokens_per_s", "tokens/s");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "prefill_s", "prefill, s");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "decode_s", "decode, s");
    kvd_table_add_column(t, KVD_CELL_REAL, 2, "residue_share", "residue");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "step_weight", "steps for each run");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "width_cv", "CV of widths");
    kvd_table_add_column(t, KVD_CELL_REAL, 5, "bytes_per_token", "bytes/token");
    kvd_table_add_column(t, KVD_CELL_REAL, 5, "dense_bytes_per_token", "uncompressed");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "peak_bytes", "peak, bytes");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "energy_j", "energy, J");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "file", "file");
    kvd_table_note(
        t,
        "Each row is the run with the median JCT; MAD is over the runs. JCT is from the arrival "
        "of all requests to the last token of the last; TTFT is their mean. Residue: the share of "
        "JCT that no part accounts for. Steps for each run: above 1 the steps of the output ran "
        "in part, each in the middle of those that it represents.");
    for (size_t i = 0; i < all->n; i++) {
        put_sizes(t, &all->item[i]);
        kvd_table_real(t, kvd_jct_speed_up(&all->item[i]));
        kvd_table_row(t, all->item[i].rows, all->item[i].row, 15);
        kvd_table_text(t, all->item[i].file->name);
    }
}

static void parts_table(const kvd_report_rows *all, kvd_section *s)
{
    static const char *const side[] = {"prefill", "decode"};
    kvd_table *const t =
        kvd_section_table(s, "jct-parts", "Parts, in percent of prefill and of decode");
    size_columns(t);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "side", "of");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "seconds", "s");
    for (int p = 0; p < KVD_JCT_PARTS; p++) {
        char name[48];
        snprintf(name, sizeof name, "part_%d_percent", p);
        kvd_table_add_column(t, KVD_CELL_REAL, 3, name, kvd_jct_part_title[p]);
        kvd_table_shade(t, 0, 60);
    }
    kvd_table_note(
        t, "A part that is 0 may be done by the one after it (column fused of the file). The "
           "rest: embedding, norms, "
           "logits, choice of tokens, and the residue.");
    for (size_t i = 0; i < all->n; i++)
        for (int k = 0; k < 2; k++) {
            char column[16];
            snprintf(column, sizeof column, "%s_s", side[k]);
            const double seconds = kvd_report_real(&all->item[i], column);
            if (!(seconds > 0) || !(kvd_report_real(&all->item[i], "phases") > 0))
                continue;
            put_sizes(t, &all->item[i]);
            kvd_table_text(t, side[k]);
            kvd_table_real(t, seconds);
            for (int p = 0; p < KVD_JCT_PARTS; p++)
                kvd_table_real(t, 100 * kvd_jct_part(&all->item[i], p, side[k]) / seconds);
        }
}

static void break_even_table(const kvd_report_rows *all, kvd_section *s)
{
    kvd_table *const t = kvd_section_table(s, "jct-break-even",
                                           "Lengths from which on a method is faster than none");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "place", "model and machine");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "length", "length of the");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "at", "at");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "from", "from, tokens");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "too_noisy_at", "too noisy at, tokens");
    kvd_table_note(t,
                   "Where the two lines of JCT cross for the last time, straight between measured "
                   "lengths; - where the method is not faster at the longest one, or where equal "
                   "runs of one length differ by more than the method from none. One run of each "
                   "job shows no noise.");
    for (size_t i = 0; i < all->n; i++)
        for (int output = 0; output < 2; output++) {
            const kvd_report_row *const e = &all->item[i];
            char at[48];
            if (!strcmp(kvd_report_text(e, "name"), "none") ||
                !kvd_jct_first_of_lengths(e->file->jct, e->row, output) ||
                kvd_jct_lengths(e->file->jct, e->row, output) < 2 || isnan(kvd_jct_speed_up(e)))
                continue;
            snprintf(at, sizeof at, "%s %.0f", output ? "input" : "output",
                     kvd_report_real(e, output ? "input" : "output"));
            kvd_table_text(t, e->place);
            kvd_table_text(t, kvd_report_text(e, "method"));
            kvd_table_text(t, output ? "output" : "input");
            kvd_table_text(t, at);
            kvd_jct_noise noise;
            const bool noisy = kvd_jct_break_even_noise(e->file->jct, e->row, output, &noise);
            kvd_table_real(t,
                           noisy ? (double)NAN : kvd_jct_break_even(e->file->jct, e->row, output));
            kvd_table_real(t, noisy ? noise.length : (double)NAN);
        }
}

static int replays_table(const kvd_report_rows *all, kvd_section *s, kvd_err *err)
{
    static const char *const column[] = {"ttft_s", "tbt_mean_s", "jct_s"};
    kvd_table *const t = kvd_section_table(s, "jct-replays", "Replayed requests");
    double *const x = malloc((all->n + 1) * sizeof *x);
    if (!x)
        return kvd_no_memory(err, "requests", all->n * sizeof *x);
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "place", "model and machine");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "file", "file");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "method", "method");
    kvd_table_add_column(t, KVD_CELL_INT, 0, "requests", "requests");
    for (int k = 0; k < 3; k++) {
        char name[32];
        snprintf(name, sizeof name, "%s_mean", column[k]);
        kvd_table_add_column(t, KVD_CELL_REAL, 4, name,
                             k == 0   ? "TTFT, s"
                             : k == 1 ? "TBT, s"
                                      : "JCT, s");
        snprintf(name, sizeof name, "%s_p99", column[k]);
        kvd_table_add_column(t, KVD_CELL_REAL, 4, name, "p99");
    }
    kvd_table_note(
        t, "Measured by the clock, from the arrival of each request. TBT: mean of a request.");
    for (size_t i = 0, end; i < all->n; i = end) {
        for (end = i + 1; end < all->n && all->item[end].file == all->item[i].file &&
                          !strcmp(all->item[end].series, all->item[i].series);)
            end++;
        kvd_table_text(t, all->item[i].place);
        kvd_table_text(t, all->item[i].file->name);
        kvd_table_text(t, kvd_report_text(&all->item[i], "method"));
        kvd_table_int(t, (int64_t)(end - i));
        for (int k = 0; k < 3; k++) {
            size_t n = 0;
            for (size_t j = i; j < end; j++)
                if (!isnan(kvd_report_real(&all->item[j], column[k])))
                    x[n++] = kvd_report_real(&all->item[j], column[k]);
            kvd_table_real(t, n ? kvd_mean(x, n) : (double)NAN);
            kvd_table_real(t, n ? kvd_quantile(x, n, 0.99) : (double)NAN);
        }
    }
    free(x);
    return 0;
}

int kvd_study_jct(const kvd_results *r, kvd_report *report, kvd_err *err)
{
    kvd_report_rows jobs, requests = {0};
    if (kvd_jct_collect(r, "job", &jobs, err))
        return -1;
    int status = kvd_jct_collect(r, "request", &requests, err);
    if (!status && jobs.n + requests.n) {
        kvd_section *const s = kvd_report_section(report, "jct", "Job completion time");
        kvd_text_raw(&s->words,
                     "<p>Measured by kvdim-jct: requests through continuous batching and a "
                     "model whose cache the method really compresses. On the CPU methods that "
                     "go row by row are references: their bytes count, their seconds do "
                     "not.</p>\n");
        kvd_study_missing_points(r, KVD_RESULT_JCT, &s->words);
        if (jobs.n && !(status = figures(&jobs, s, err))) {
            break_even_table(&jobs, s);
            jobs_table(&jobs, s);
            shares_table(&jobs, s);
            parts_table(&jobs, s);
        }
        if (requests.n && !status)
            status = replays_table(&requests, s, err);
    }
    kvd_report_rows_release(&jobs);
    kvd_report_rows_release(&requests);
    return status;
}
