/* Section of the report: times of attention kernels. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/rows.h"
#include "report/studies/studies.h"

static void machine_table(const kvd_results *r, kvd_section *s)
{
    kvd_table *const t =
        kvd_section_table(s, "kernels-machine", "Rates that the machines reached in these runs");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "file", "file");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "device", "device");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "copy_gb_per_s", "copy, GB/s");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "read_gb_per_s", "read, GB/s");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "tflop_per_s", "matrix product, TFLOP/s");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "texp_per_s", "exponentials, T/s");
    kvd_table_note(t, "Measured before the rows of each file; floors are work over these rates.");
    for (size_t i = 0; i < r->n; i++)
        for (int k = 0; r->item[i].kind == KVD_RESULT_KERNELS && k < 2; k++) {
            const kvd_machine_rates *const m = &r->item[i].kernels.machine[k];
            if (!m->device[0])
                continue;
            kvd_table_text(t, r->item[i].name);
            kvd_table_text(t, m->device);
            kvd_table_reals(t, m->rate.copy_bytes * 1e-9, m->rate.read_bytes * 1e-9,
                            m->rate.flop * 1e-12, m->rate.exps * 1e-12);
        }
}

static void rows_table(const kvd_report_rows *all, kvd_section *s)
{
    kvd_table *const t = kvd_section_table(s, "kernels", "Every timed kernel");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "case", "case");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "widths", "widths");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "impl", "implementation");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "schedule", "schedule");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "p", "p");
    kvd_table_add_column(t, KVD_CELL_REAL, 5, "median_us", "median, us");
    kvd_table_add_column(t, KVD_CELL_REAL, 2, "mad_us", "MAD, us");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "tflops", "TFLOP/s");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "gb_per_s", "GB/s");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "fraction_of_floor", "of the floor");
    kvd_table_shade(t, 0, 1);
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "speedup", "over cuDNN");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "plan_us", "scheduling, us");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "imbalance", "max/mean busy");
    kvd_table_add_column(t, KVD_CELL_REAL, 2, "rel_err", "error");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "sm_clock_mhz", "SM clock, MHz");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "verdict", "right");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "warnings", "warnings");
    kvd_table_note(
        t, "Medians of samples taken in turns with the other rows of the case. p, TFLOP/s and GB/s "
           "count the work of the answer: padding is none, and dense rows answer the uncompressed "
           "question (p = 0). Of the floor: the larger of bytes, FLOP and exponentials over the "
           "machine's rates, over the median. Scheduling is not in the median. Error: relative "
           "Frobenius error against float64 on the same rounded inputs.");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const e = &all->item[i];
        kvd_table_text(t, e->place);
        kvd_table_row(t, e->rows, e->row, 14);
        kvd_table_text(t, !(kvd_report_real(e, "ok") > 0)        ? "no"
                          : isnan(kvd_report_real(e, "rel_err")) ? "not checked"
                                                                 : "yes");
        kvd_table_row(t, e->rows, e->row, 1);
    }
}

static void schedule_table(const kvd_report_rows *all, kvd_section *s)
{
    kvd_table *const t = kvd_section_table(s, "kernels-schedules", "Schedulers");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "case", "case");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "widths", "widths");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "impl", "implementation");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "schedule", "schedule");
    kvd_table_add_column(t, KVD_CELL_REAL, 5, "median_us", "attention, us");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "plan_us", "scheduling, us");
    kvd_table_add_column(t, KVD_CELL_REAL, 3, "plan_cycles", "SM clocks");
    kvd_table_add_column(t, KVD_CELL_REAL, 2, "plan_share", "share");
    kvd_table_add_column(t, KVD_CELL_REAL, 5, "busy_max_us", "busiest SM, us");
    kvd_table_add_column(t, KVD_CELL_REAL, 5, "busy_mean_us", "mean, us");
    kvd_table_add_column(t, KVD_CELL_REAL, 4, "imbalance", "max/mean");
    kvd_table_note(
        t,
        "Scheduling and its share of attention are per layer. Prefill plans are made for 32 "
        "layers in one launch, since widths differ from layer to layer; a decode plan is one "
        "launch, and serves every layer of the same widths. Busy: from the first to the last work "
        "of a CTA");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const e = &all->item[i];
        const double plan = kvd_report_real(e, "plan_us");
        if (isnan(plan))
            continue;
        kvd_table_text(t, e->place);
        kvd_table_row(t, e->rows, e->row, 6);
        kvd_table_real(t, plan / kvd_report_real(e, "median_us"));
        kvd_table_row(t, e->rows, e->row, 3);
    }
}

/* Returns true if the row has the speed-up of a compressed attention kernel, relative to cuDNN. */
static bool on_curve(const kvd_report_row *e)
{
    return strcmp(kvd_report_text(e, "runs"), "dense") && !isnan(kvd_report_real(e, "speedup"));
}

static bool same_curve(const kvd_report_row *a, const kvd_report_row *b)
{
    return !strcmp(a->place, b->place) && !strcmp(a->series, b->series);
}

static int by_curve(const void *a, const void *b)
{
    const kvd_report_row *const x = *(const kvd_report_row *const *)a,
                                *const y = *(const kvd_report_row *const *)b;
    int order = strcmp(x->place, y->place);
    order = order ? order : strcmp(x->series, y->series);
    const double p = kvd_report_real(x, "case_p"), q = kvd_report_real(y, "case_p");
    return order ? order : (p > q) - (p < q);
}

static int speedup_figure(const kvd_report_rows *all, kvd_section *s, kvd_err *err)
{
    enum { MOST_PANELS = 9, FEWEST_POINTS = 3 };
    const kvd_report_row **const e = calloc(all->n, sizeof *e);
    size_t n = 0, panels = 0;
    if (!e)
        return kvd_no_memory(err, "curves", (unsigned long long)all->n * sizeof *e);
    kvd_table *const t =
        kvd_section_table(s, "kernels-speedup", "Speed-up over cuDNN at full width against p");
    t->only_files = true;
    kvd_table_add_column(t, KVD_CELL_INT, 0, "panel", "panel");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "case", "case");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "series");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "case_p", "p");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "speedup", "speed-up");
    for (size_t i = 0; i < all->n; i++)
        if (on_curve(&all->item[i]))
            e[n++] = &all->item[i];
    qsort(e, n, sizeof *e, by_curve);
    const char *place = NULL;
    for (size_t i = 0, last; i < n; i = last) {
        last = i;
        while (last < n && same_curve(e[i], e[last]))
            last++;
        if (last - i < FEWEST_POINTS)
            continue;
        if (!place || strcmp(place, e[i]->place)) {
            if (panels == MOST_PANELS)
                break;
            place = e[i]->place;
            panels++;
        }
        for (size_t k = i; k < last; k++) {
            kvd_table_int(t, (int64_t)panels);
            kvd_table_text(t, e[k]->place);
            kvd_table_text(t, e[k]->series);
            kvd_table_row(t, e[k]->rows, e[k]->row, 2);
        }
    }
    free(e);
    if (n == 0)
        return 0;
    const int columns = panels < 3 ? (int)panels : 3, rows = ((int)panels + 2) / 3;
    kvd_section_figure(
        s, "kernels-speedup", "kernels_speedup.gp", columns == 1 ? 480 : 330 * columns,
        150 + 300 * rows,
        "Time of cuDNN with every head at d_head over that of the implementation, same "
        "case, same run, against the fraction p of dimensions removed. Dashed: 1 / (1 - "
        "p), what fewer bytes or FLOP alone would give. Higher is better.",
        "csv='tables/kernels-speedup.csv'; panels=%zu; columns=%d", panels, columns);
    if (panels == 0)
        kvd_section_not_drawn(s, "no implementation was timed at %d values of p next to cuDNN",
                              (int)FEWEST_POINTS);
    else if (n > t->n_rows)
        kvd_section_left_out(
            s,
            "Left out: %zu of %zu timings, of curves with fewer than %d points or beyond "
            "the first %d cases; the table has them.",
            n - t->n_rows, n, (int)FEWEST_POINTS, (int)MOST_PANELS);
    return 0;
}

static const kvd_machine_rates *machine_of(const kvd_report_row *e)
{
    const kvd_kernels *const k = &e->file->kernels;
    const bool cpu =
        !strcmp(kvd_report_text(e, "impl"), "cpu") || !strcmp(kvd_report_text(e, "impl"), "ref");
    return &k->machine[cpu ? 0 : 1];
}

static void roofline_figure(const kvd_report_rows *all, const kvd_machine_rates *m, size_t number,
                            kvd_section *s)
{
    char name[64], title[KVD_LABEL + 32];
    snprintf(name, sizeof name, "kernels-roofline-%zu", number);
    snprintf(title, sizeof title, "Rooflines on %s", m->device);
    kvd_table *const t = kvd_section_table(s, name, title);
    t->only_files = true;
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "series", "implementation");
    kvd_table_add_column(t, KVD_CELL_TEXT, 0, "phase", "phase");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "flop_per_byte", "FLOP/byte");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "tflops", "TFLOP/s");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "exp_tflops", "limit set by exponentials, TFLOP/s");
    kvd_table_add_column(t, KVD_CELL_REAL, 6, "p", "p");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const e = &all->item[i];
        if (strcmp(machine_of(e)->device, m->device) ||
            kvd_report_real(e, "batch") * kvd_report_real(e, "seq_len") < 1)
            continue;
        const double flop = kvd_report_real(e, "flop");
        kvd_table_series(t, kvd_report_text(e, "impl"));
        kvd_table_row(t, e->rows, e->row, 1);
        kvd_table_reals(t, flop / kvd_report_real(e, "bytes"),
                        flop / kvd_report_real(e, "median_us") * 1e-6,
                        flop / kvd_report_real(e, "exps") * m->rate.exps * 1e-12);
        kvd_table_row(t, e->rows, e->row, 1);
    }
    kvd_section_figure(
        s, name, "kernels_roofline.gp", 860, 520,
        "Useful FLOP per second against useful FLOP per byte of Q, K, V and O. Roofs: read "
        "bandwidth and matrix products as measured in the same run. Circles: prefill, squares: "
        "decode; hollow at full width, filled where widths are cut. Small crosses: where "
        "exponentials, one per score, end the climb of a prefill below the roof. Points of one "
        "case are drawn side by side, a little off their true place.",
        "csv='tables/%s.csv'; bandwidth=%.6g; peak=%.6g", name, m->rate.read_bytes * 1e-12,
        m->rate.flop * 1e-12);
    kvd_section_panels(s, t,
                       &(kvd_panel){.title = "useful TFLOP/s",
                                    .x = "flop_per_byte",
                                    .log_x = true,
                                    .y = "tflops",
                                    .log_y = true},
                       1);
}

static void rooflines(const kvd_report_rows *all, kvd_section *s)
{
    enum { MOST = 4 };
    const kvd_machine_rates *drawn[MOST];
    size_t n = 0;
    for (size_t i = 0; i < all->n && n < MOST; i++) {
        const kvd_machine_rates *const m = machine_of(&all->item[i]);
        bool again = !m->device[0];
        for (size_t k = 0; k < n; k++)
            again = again || !strcmp(drawn[k]->device, m->device);
        if (again)
            continue;
        drawn[n++] = m;
        roofline_figure(all, m, n, s);
    }
}

int kvd_study_kernels(const kvd_results *r, kvd_report *report, kvd_err *err)
{
    kvd_report_rows all;
    if (kvd_kernels_collect(r, &all, err))
        return -1;
    int status = 0;
    if (all.n) {
        size_t wrong = 0;
        kvd_section *const s = kvd_report_section(report, "kernels", "Attention kernels");
        for (size_t i = 0; i < all.n; i++)
            wrong += !(kvd_report_real(&all.item[i], "ok") > 0);
        kvd_text_raw(
            &s->words,
            "<p>Attention of one layer, timed and checked by kvdim-attn. Only the kernels are "
            "timed: no projections, no other part of a layer.</p>\n");
        if (wrong)
            kvd_text_add(
                &s->words,
                "<p><strong>%zu of %zu rows are wrong</strong>: above the tolerance of their "
                "type.</p>\n",
                wrong, all.n);
        kvd_study_missing_points(r, KVD_RESULT_KERNELS, &s->words);
        status = speedup_figure(&all, s, err);
        rooflines(&all, s);
        machine_table(r, s);
        rows_table(&all, s);
        schedule_table(&all, s);
    }
    kvd_report_rows_release(&all);
    return status;
}
