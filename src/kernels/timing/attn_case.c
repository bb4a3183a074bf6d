/* Runs one case of kvdim-attn: checks all attention implementations, then times them in turns. */
#include "kernels/timing/attn_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/run.h"
#include "common/stats.h"

const char kvd_kernels_heading[] =
    "phase   impl           sched  type   batch x tokens  widths            p "
    "    median/us    mad  TFLOP/s    GB/s "
    " floor  plan/us  imbal  vs cudnn   rel.err";

const char *kvd_kernels_line(const kvd_rows *r, size_t i, char line[KVD_KERNELS_LINE])
{
    char p[16], median[16], mad[16], flops[16], bandwidth[16], plan[16], imbalance[16], speedup[16],
        error[16], floor_part[16], size[40];
    snprintf(size, sizeof size, "%.0f x %.0f", kvd_row_real(r, i, "batch"),
             kvd_row_real(r, i, "seq_len"));
    snprintf(line, KVD_KERNELS_LINE,
             "%-7s %-14s %-6s %-4s %16s  %-16.16s %5s %11s %6s %8s %7s %6s %8s %6s %9s %9s%s%s%s",
             kvd_row_text(r, i, "phase"), kvd_row_text(r, i, "impl"),
             kvd_row_text(r, i, "schedule"), kvd_row_text(r, i, "dtype"), size,
             kvd_row_text(r, i, "widths"),
             kvd_real_text(p, sizeof p, "%.3f", kvd_row_real(r, i, "p")),
             kvd_real_text(median, sizeof median, "%.2f", kvd_row_real(r, i, "median_us")),
             kvd_real_text(mad, sizeof mad, "%.2f", kvd_row_real(r, i, "mad_us")),
             kvd_real_text(flops, sizeof flops, "%.4g", kvd_row_real(r, i, "tflops")),
             kvd_real_text(bandwidth, sizeof bandwidth, "%.4g", kvd_row_real(r, i, "gb_per_s")),
             kvd_real_text(floor_part, sizeof floor_part, "%.3f",
                           kvd_row_real(r, i, "fraction_of_floor")),
             kvd_real_text(plan, sizeof plan, "%.2f", kvd_row_real(r, i, "plan_us")),
             kvd_real_text(imbalance, sizeof imbalance, "%.3f", kvd_row_real(r, i, "imbalance")),
             kvd_real_text(speedup, sizeof speedup, "%.3f", kvd_row_real(r, i, "speedup")),
             kvd_real_text(error, sizeof error, "%.2e", kvd_row_real(r, i, "rel_err")),
             kvd_row_real(r, i, "ok") > 0 ? "" : "  WRONG",
             kvd_row_text(r, i, "warnings")[0] ? "  " : "", kvd_row_text(r, i, "warnings"));
    return line;
}

enum { PLAN_SAMPLES = 20, BUSY_SAMPLES = 5 };

typedef struct {
    const kvd_impl *impl;
    kvd_scheduler scheduler;
    void *self;
    char label[64];
    kvd_bench_rival rival;
    kvd_bench_stats stats;
    kvd_row_error error;
    char engine[KVD_IMPL_ENGINE];
    /* Microseconds: median time to assign the work of one layer to CTAs; largest and mean time for
     * which CTAs were busy. */
    double plan_us, busy_max_us, busy_mean_us;
    double imbalance; /* ratio of the two; times and ratio are NaN if not measured */
} entry;

typedef struct {
    const kvd_attn_case *c;
    kvd_bench *bench;
    entry e[KVD_ATTN_ENTRIES];
    int n;
    /* Reference attention outputs: one set for unpadded heads, one for padded heads, and so on. */
    kvd_row_check check[KVD_N_RUNS];
    bool checked[KVD_N_RUNS];
} running;

static void label_of(const kvd_attn_entry *e, char *label, size_t size)
{
    const bool choice = e->scheduler != KVD_BY_ITSELF;
    snprintf(label, size, "%s%s%s", e->impl->name, choice ? " by " : "",
             choice ? kvd_scheduler_name[e->scheduler] : "");
}

static void open_all(running *r, void (*skipped)(void *, const char *), void *ctx)
{
    const kvd_attn_case *const c = r->c;
    for (int i = 0; i < c->n; i++) {
        const kvd_attn_entry *const from = &c->entry[i];
        entry *const e = &r->e[r->n];
        kvd_err why = {""};
        memset(e, 0, sizeof *e);
        e->impl = from->impl;
        e->scheduler = from->scheduler;
        label_of(from, e->label, sizeof e->label);
        if (kvd_impl_takes(e->impl, c->problem, &why) ||
            e->impl->open(e->impl, c->problem, e->scheduler, kvd_bench_stream(r->bench), e->engine,
                          &e->self, &why)) {
            char line[KVD_ATTN_SKIPPED + 512];
            snprintf(line, sizeof line, "%s, %d x %zu, %s, %s: left out %s: %s",
                     kvd_attn_phase_name[c->problem->phase], c->problem->batch, c->problem->seq_len,
                     kvd_dtype_name(c->problem->dtype), c->problem->widths, e->label, why.msg);
            skipped(ctx, line);
            continue;
        }
        r->n++;
    }
}

static int launch_and_wait(running *r, entry *e, kvd_err *err)
{
    void *const stream = kvd_bench_stream(r->bench);
    if ((e->impl->prepare && e->impl->prepare(e->self, stream, err)) ||
        e->impl->launch(e->self, stream, err) || (e->impl->cuda && kvd_bench_wait(r->bench, err)))
        return kvd_in(err, "%s", e->label);
    return 0;
}

static int check(running *r, entry *e, kvd_err *err)
{
    const kvd_width_use runs =
        e->impl->runs == KVD_WIDTH_USE_PADDED ? KVD_WIDTH_USE_OWN : e->impl->runs;
    kvd_row_check *const rows = &r->check[runs];
    if (!r->checked[runs] && kvd_impl_check_make(e->impl, r->c->problem, r->c->check, rows, err))
        return kvd_in(err, "reference");
    r->checked[runs] = true;
    if (kvd_impl_poison(e->impl, e->self, kvd_bench_stream(r->bench), err))
        return kvd_in(err, "%s", e->label);
    if (launch_and_wait(r, e, err))
        return -1;
    if (!rows->n) {
        e->error = (kvd_row_error){NAN, NAN, 0};
        return 0;
    }
    return kvd_impl_fetch(e->impl, e->self, err) ||
                   kvd_row_check_compare(rows, e->impl->row, e->self, &e->error, err)
               ? kvd_in(err, "%s", e->label)
               : 0;
}

static bool within(const entry *e, kvd_dtype dtype)
{
    const double most = kvd_row_tolerance(dtype);
    return !e->error.rows || (e->error.rel_err <= most && e->error.worst <= 3 * most);
}

static int plan_once(running *r, entry *e, kvd_err *err)
{
    if (e->impl->plan && (e->impl->plan(e->self, kvd_bench_stream(r->bench), err) ||
                          (e->impl->cuda && kvd_bench_wait(r->bench, err))))
        return kvd_in(err, "%s, scheduling", e->label);
    return 0;
}

static int plan_layers(const running *r, const entry *e)
{
    const int n = e->impl->plan_layers[r->c->problem->phase];
    return n ? n : 1;
}

static int time_plan(running *r, entry *e, kvd_err *err)
{
    double us[PLAN_SAMPLES];
    kvd_bench_rival rival = {
        .name = e->label, .cuda = e->impl->cuda, .launch = e->impl->plan, .ctx = e->self, .us = us};
    const kvd_bench_plan plan = {.warmup = 3, .samples = PLAN_SAMPLES, .cold = r->c->plan->cold};
    kvd_bench_stats stats;
    e->plan_us = NAN;
    if (!e->impl->plan || e->scheduler == KVD_BY_ITSELF)
        return 0;
    if (kvd_bench_run(r->bench, &plan, &rival, 1, err) ||
        kvd_bench_summarise(&rival, PLAN_SAMPLES, &stats, err))
        return kvd_in(err, "scheduling");
    e->plan_us = stats.median_us / plan_layers(r, e);
    return 0;
}

static int time_busy(running *r, entry *e, kvd_err *err)
{
    double most[BUSY_SAMPLES], mean[BUSY_SAMPLES], ratio[BUSY_SAMPLES];
    e->busy_max_us = e->busy_mean_us = e->imbalance = NAN;
    if (!e->impl->busy)
        return 0;
    for (int i = 0; i < BUSY_SAMPLES; i++) {
        kvd_busy b;
        if (e->impl->busy(e->self, kvd_bench_stream(r->bench), &b, err))
            return kvd_in(err, "%s", e->label);
        if (!b.n)
            return 0;
        most[i] = kvd_quantile(b.us, b.n, 1);
        mean[i] = kvd_mean(b.us, b.n);
        ratio[i] = most[i] / mean[i];
    }
    e->busy_max_us = kvd_quantile(most, BUSY_SAMPLES, 0.5);
    e->busy_mean_us = kvd_quantile(mean, BUSY_SAMPLES, 0.5);
    e->imbalance = kvd_quantile(ratio, BUSY_SAMPLES, 0.5);
    return 0;
}

static int time_all(running *r, double *us, kvd_err *err)
{
    const int samples = r->c->plan->samples;
    kvd_bench_rival rivals[KVD_ATTN_ENTRIES];
    for (int i = 0; i < r->n; i++) {
        entry *const e = &r->e[i];
        rivals[i] = (kvd_bench_rival){.name = e->label,
                                      .cuda = e->impl->cuda,
                                      .prepare = e->impl->prepare,
                                      .launch = e->impl->launch,
                                      .ctx = e->self,
                                      .us = us + (size_t)i * (size_t)samples};
    }
    if (kvd_bench_run(r->bench, r->c->plan, rivals, r->n, err))
        return -1;
    for (int i = 0; i < r->n; i++) {
        r->e[i].rival = rivals[i];
        if (kvd_bench_summarise(&rivals[i], samples, &r->e[i].stats, err))
            return -1;
    }
    return 0;
}

static double baseline(const running *r)
{
    for (int i = 0; i < r->n; i++)
        if (!strcmp(r->e[i].impl->name, "cudnn"))
            return r->e[i].stats.median_us;
    return NAN;
}

static void put_case(kvd_rows *r, const kvd_problem *p, const entry *e)
{
    const kvd_attn_heads heads = kvd_impl_heads(e->impl, p);
    kvd_rows_text(r, "phase", kvd_attn_phase_name[p->phase]);
    kvd_rows_text(r, "impl", e->impl->name);
    kvd_rows_text(r, "schedule", kvd_scheduler_name[e->scheduler]);
    kvd_rows_text(r, "engine", e->engine);
    kvd_rows_text(r, "runs", kvd_width_use_name[e->impl->runs]);
    kvd_rows_text(r, "dtype", kvd_dtype_name(p->dtype));
    kvd_rows_text(r, "data", p->sharp ? "sharp" : "normal");
    kvd_rows_int(r, "batch", p->batch);
    kvd_rows_int(r, "seq_len", (int64_t)p->seq_len);
    kvd_rows_text(r, "lengths", kvd_lengths_name[p->lengths]);
    kvd_rows_int(r, "kv_tokens", (int64_t)kvd_problem_tokens(p, false));
    kvd_rows_int(r, "n_heads", heads.n_heads);
    kvd_rows_int(r, "n_kv_heads", heads.n_kv_heads);
    kvd_rows_int(r, "d_head", heads.d_head);
    kvd_rows_int(r, "window", heads.window);
    kvd_rows_text(r, "widths", p->widths);
    kvd_rows_real(r, "case_p", kvd_heads_p(&p->heads));
    kvd_rows_real(r, "p", kvd_heads_p(&heads));
    kvd_rows_real(r, "mean_d_qk", kvd_heads_mean(heads.d_qk, heads.n_kv_heads));
    kvd_rows_real(r, "mean_d_v", kvd_heads_mean(heads.d_v, heads.n_kv_heads));
}

static void put_times(kvd_rows *r, const running *x, const entry *e)
{
    const kvd_bench_stats *const s = &e->stats;
    const kvd_bench_rival *const v = &e->rival;
    const kvd_bench_plan *const plan = x->c->plan;
    kvd_rows_text(r, "l2", plan->cold ? "cold" : "hot");
    kvd_rows_int(r, "graph", v->graph);
    kvd_rows_int(r, "warmup", plan->warmup);
    kvd_rows_int(r, "samples", (int64_t)s->n);
    kvd_rows_real(r, "median_us", s->median_us);
    kvd_rows_real(r, "mad_us", s->mad_us);
    kvd_rows_real(r, "min_us", s->min_us);
    kvd_rows_real(r, "p05_us", s->p05_us);
    kvd_rows_real(r, "p95_us", s->p95_us);
    kvd_rows_real(r, "plan_us", e->plan_us);
    kvd_rows_int(r, "plan_layers", e->impl->plan && !isnan(e->plan_us) ? plan_layers(x, e) : 0);
    kvd_rows_real(r, "plan_cycles", e->plan_us * v->sm_clock_mhz);
    kvd_rows_real(r, "busy_max_us", e->busy_max_us);
    kvd_rows_real(r, "busy_mean_us", e->busy_mean_us);
    kvd_rows_real(r, "imbalance", e->imbalance);
    kvd_rows_real(r, "speedup", baseline(x) / s->median_us);
    kvd_rows_real(r, "sm_clock_mhz", v->sm_clock_mhz);
    kvd_rows_real(r, "mem_clock_mhz", v->mem_clock_mhz);
    kvd_rows_real(r, "temperature", v->temperature);
    kvd_rows_int(r, "throttled", v->throttled);
    kvd_rows_int(r, "power_capped", v->power_capped);
    kvd_rows_text(r, "warnings", s->warnings);
}

static void put_floors(kvd_rows *r, const kvd_floors *f, double us)
{
    kvd_rows_real(r, "bytes", f->bytes);
    kvd_rows_real(r, "flop", f->flop);
    kvd_rows_real(r, "exps", f->exps);
    kvd_rows_real(r, "floor_us", f->us);
    kvd_rows_real(r, "floor_bytes_us", f->bytes_us);
    kvd_rows_real(r, "floor_flop_us", f->flop_us);
    kvd_rows_real(r, "floor_exp_us", f->exps_us);
    kvd_rows_real(r, "fraction_of_floor", f->us / us);
    kvd_rows_real(r, "tflops", f->flop / us * 1e-6);
    kvd_rows_real(r, "gb_per_s", f->bytes / us * 1e-3);
}

static int add_row(const running *r, const entry *e, kvd_rows *out, size_t *n_wrong, kvd_err *err)
{
    static const kvd_rate_ceilings unknown;
    const kvd_attn_case *const c = r->c;
    const kvd_rate_ceilings *const rates = e->impl->cuda ? c->gpu : c->cpu;
    const bool ok = within(e, c->problem->dtype);
    kvd_floors floors;
    if (kvd_rows_begin(out, err))
        return -1;
    kvd_impl_count_work(e->impl, c->problem, &floors);
    kvd_floors_time(c->problem->phase, rates ? rates : &unknown, &floors);
    memcpy(kvd_rows_samples(out, 0, kvd_rows_count(out) - 1), e->rival.us,
           (size_t)c->plan->samples * sizeof *e->rival.us);
    kvd_rows_int(out, "case", c->number);
    put_case(out, c->problem, e);
    put_times(out, r, e);
    put_floors(out, &floors, e->stats.median_us);
    kvd_rows_real(out, "rel_err", e->error.rel_err);
    kvd_rows_real(out, "rel_err_worst_row", e->error.worst);
    kvd_rows_int(out, "check_rows", (int64_t)e->error.rows);
    kvd_rows_int(out, "ok", ok);
    *n_wrong += !ok;
    return 0;
}

int kvd_attn_case_run(const kvd_attn_case *c, kvd_bench *bench, kvd_rows *out,
                      void (*skipped)(void *ctx, const char *line), void *ctx, size_t *n_wrong,
                      kvd_err *err)
{
    running *const r = calloc(1, sizeof *r);
    double *us = NULL;
    int status = -1;
    if (!r)
        return kvd_no_memory(err, "a case", sizeof *r);
    r->c = c;
    r->bench = bench;
    open_all(r, skipped, ctx);
    if (r->n == 0) {
        status = 0;
        goto done;
    }
    us = kvd_new((size_t)r->n * (size_t)c->plan->samples, sizeof *us, "samples", err);
    if (!us)
        goto done;
    for (int i = 0; i < r->n; i++) {
        if (kvd_interrupted()) {
            kvd_fail_interrupted(err);
            goto done;
        }
        if (plan_once(r, &r->e[i], err) || check(r, &r->e[i], err) || time_plan(r, &r->e[i], err) ||
            time_busy(r, &r->e[i], err))
            goto done;
    }
    status = time_all(r, us, err);
    for (int i = 0; !status && i < r->n; i++)
        status = add_row(r, &r->e[i], out, n_wrong, err);
done:
    free(us);
    for (int i = 0; i < r->n; i++)
        r->e[i].impl->close(r->e[i].self);
    for (int i = 0; i < KVD_N_RUNS; i++)
        kvd_row_check_release(&r->check[i]);
    free(r);
    return status;
}
