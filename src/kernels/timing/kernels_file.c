#include "kernels/timing/kernels_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const kvd_schema kvd_schema_kernels = {"kernels", 1, "Attention kernels, timed and checked"};

static const kvd_column columns[] = {
    {"case", KVD_COL_INT, "1",
     "rows of one case share it: same phase, type, lengths and widths, timed in turns"},
    {"phase", KVD_COL_TEXT, "1", "prefill or decode"},
    {"impl", KVD_COL_TEXT, "1", "implementation"},
    {"schedule", KVD_COL_TEXT, "1", "none, papers, ours; - where there is no choice"},
    {"engine", KVD_COL_TEXT, "1", "what ran, by its own account"},
    {"runs", KVD_COL_TEXT, "1", "widths it computed on: own, padded (to the widest head), dense (d_head)"},
    {"dtype", KVD_COL_TEXT, "1", "of Q, K, V and O: f32, f16, bf16"},
    {"data", KVD_COL_TEXT, "1", "normal, or sharp: with outliers"},
    {"batch", KVD_COL_INT, "1", "requests"},
    {"seq_len", KVD_COL_INT, "1", "tokens per request as asked for"},
    {"lengths", KVD_COL_TEXT, "1", "equal, lognormal, one-long or file"},
    {"kv_tokens", KVD_COL_INT, "1", "sum of the requests' lengths"},
    {"n_heads", KVD_COL_INT, "1", "query heads"},
    {"n_kv_heads", KVD_COL_INT, "1", "KV heads"},
    {"d_head", KVD_COL_INT, "1", "width of an uncut head"},
    {"widths", KVD_COL_TEXT, "1", "what the case's widths are called"},
    {"case_p", KVD_COL_REAL, "1", "fraction of dimensions that the case's widths remove"},
    {"p", KVD_COL_REAL, "1", "the same of the widths of the answer that this row gave: 0 for dense"},
    {"mean_d_qk", KVD_COL_REAL, "1", "mean d_qk of that answer"},
    {"mean_d_v", KVD_COL_REAL, "1", "mean d_v of that answer"},
    {"l2", KVD_COL_TEXT, "1", "cold: caches hold other data before each sample; hot: not"},
    {"graph", KVD_COL_INT, "1", "1: samples are replays of a CUDA graph"},
    {"warmup", KVD_COL_INT, "1", "rounds thrown away"},
    {"samples", KVD_COL_INT, "1", "samples kept"},
    {"median_us", KVD_COL_REAL, "us", "median time of a sample"},
    {"mad_us", KVD_COL_REAL, "us", "median absolute deviation from it"},
    {"min_us", KVD_COL_REAL, "us", "smallest"},
    {"p05_us", KVD_COL_REAL, "us", "5 % quantile"},
    {"p95_us", KVD_COL_REAL, "us", "95 % quantile"},
    {"plan_us", KVD_COL_REAL, "us",
     "median time of scheduling per layer, which is not in median_us; NaN: there is none"},
    {"plan_layers", KVD_COL_INT, "1", "layers whose schedules one launch made; 0: none"},
    {"plan_cycles", KVD_COL_REAL, "cycle", "the same in SM clocks"},
    {"bytes", KVD_COL_REAL, "byte", "Q, K, V read once and O written once, at the widths of the answer"},
    {"flop", KVD_COL_REAL, "flop", "of both products, causal, at the widths of the answer"},
    {"exps", KVD_COL_REAL, "1", "exponentials: scores that are not masked"},
    {"floor_us", KVD_COL_REAL, "us", "largest of the next three"},
    {"floor_bytes_us", KVD_COL_REAL, "us", "bytes over the measured rate of memory"},
    {"floor_flop_us", KVD_COL_REAL, "us", "flop over the measured rate of matrix products"},
    {"floor_exp_us", KVD_COL_REAL, "us", "exps over the measured rate of exponentials"},
    {"fraction_of_floor", KVD_COL_REAL, "1", "floor_us / median_us: 1 is as fast as the machine can"},
    {"tflops", KVD_COL_REAL, "Tflop/s", "flop / median_us"},
    {"gb_per_s", KVD_COL_REAL, "GB/s", "bytes / median_us"},
    {"busy_max_us", KVD_COL_REAL, "us", "time that the busiest SM worked; NaN: not measured"},
    {"busy_mean_us", KVD_COL_REAL, "us", "mean over SMs"},
    {"imbalance", KVD_COL_REAL, "1", "busy_max_us / busy_mean_us"},
    {"speedup", KVD_COL_REAL, "1", "median of impl cudnn in the same case over this one; NaN without it"},
    {"rel_err", KVD_COL_REAL, "1",
     "||O - reference|| / ||reference|| over the checked rows; NaN: none or not finite"},
    {"rel_err_worst_row", KVD_COL_REAL, "1", "the same of the worst of them"},
    {"check_rows", KVD_COL_INT, "1", "query rows checked against the reference in double"},
    {"ok", KVD_COL_INT, "1", "0: an error above the tolerance of the type"},
    {"sm_clock_mhz", KVD_COL_REAL, "MHz", "median SM clock over the samples; NaN: not known"},
    {"mem_clock_mhz", KVD_COL_REAL, "MHz", "median memory clock"},
    {"temperature", KVD_COL_REAL, "degC", "highest over the samples"},
    {"throttled", KVD_COL_INT, "1", "samples dropped because the card was slowed by heat or by its board"},
    {"power_capped", KVD_COL_INT, "1", "samples kept that were taken under the card's power limit"},
    {"warnings", KVD_COL_TEXT, "1", "slow-first, outliers, noise, short, throttled"},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

int kvd_kernels_init(kvd_kernels *k, int samples, kvd_err *err)
{
    memset(k, 0, sizeof *k);
    k->samples = samples;
    k->rows = kvd_rows_new(columns, N_COLUMNS, err);
    return k->rows ? 0 : -1;
}

void kvd_kernels_release(kvd_kernels *k)
{
    kvd_rows_free(k->rows);
    free(k->us);
    memset(k, 0, sizeof *k);
}

/* ---- rows --------------------------------------------------------------------------------------- */

static int add_samples(kvd_kernels *k, const double *us, kvd_err *err)
{
    const size_t n = (size_t)k->samples;
    if (k->n == k->capacity) {
        const size_t more = k->capacity ? 2 * k->capacity : 64;
        double *const grown =
            more > SIZE_MAX / sizeof *grown / n ? NULL : realloc(k->us, more * n * sizeof *grown);
        if (!grown)
            return kvd_no_memory(err, "samples of all rows", (unsigned long long)(more * n) * sizeof *grown);
        k->us = grown;
        k->capacity = more;
    }
    memcpy(k->us + k->n++ * n, us, n * sizeof *us);
    return 0;
}

static void put_case(kvd_rows *r, const kvd_kernels_row *x)
{
    const kvd_problem *const p = x->problem;
    const kvd_attn_heads heads = kvd_impl_heads(x->impl, p);
    kvd_rows_text(r, "phase", kvd_attn_phase_name[p->phase]);
    kvd_rows_text(r, "impl", x->impl->name);
    kvd_rows_text(r, "schedule", kvd_scheduler_name[x->scheduler]);
    kvd_rows_text(r, "engine", x->engine);
    kvd_rows_text(r, "runs", kvd_runs_name[x->impl->runs]);
    kvd_rows_text(r, "dtype", kvd_dtype_name(p->dtype));
    kvd_rows_text(r, "data", p->sharp ? "sharp" : "normal");
    kvd_rows_int(r, "batch", p->batch);
    kvd_rows_int(r, "seq_len", (int64_t)p->seq_len);
    kvd_rows_text(r, "lengths", kvd_lengths_name[p->lengths]);
    kvd_rows_int(r, "kv_tokens", (int64_t)kvd_problem_tokens(p, false));
    kvd_rows_int(r, "n_heads", heads.n_heads);
    kvd_rows_int(r, "n_kv_heads", heads.n_kv_heads);
    kvd_rows_int(r, "d_head", heads.d_head);
    kvd_rows_text(r, "widths", p->widths);
    kvd_rows_real(r, "case_p", kvd_heads_p(&p->heads));
    kvd_rows_real(r, "p", kvd_heads_p(&heads));
    kvd_rows_real(r, "mean_d_qk", kvd_heads_mean(heads.d_qk, heads.n_kv_heads));
    kvd_rows_real(r, "mean_d_v", kvd_heads_mean(heads.d_v, heads.n_kv_heads));
}

static void put_times(kvd_rows *r, const kvd_kernels_row *x)
{
    const kvd_bench_stats *const s = x->stats;
    const kvd_bench_rival *const v = x->rival;
    kvd_rows_text(r, "l2", x->plan->cold ? "cold" : "hot");
    kvd_rows_int(r, "graph", v->graph);
    kvd_rows_int(r, "warmup", x->plan->warmup);
    kvd_rows_int(r, "samples", (int64_t)s->n);
    kvd_rows_real(r, "median_us", s->median_us);
    kvd_rows_real(r, "mad_us", s->mad_us);
    kvd_rows_real(r, "min_us", s->min_us);
    kvd_rows_real(r, "p05_us", s->p05_us);
    kvd_rows_real(r, "p95_us", s->p95_us);
    kvd_rows_real(r, "plan_us", x->plan_us);
    kvd_rows_int(r, "plan_layers", x->plan_layers);
    kvd_rows_real(r, "plan_cycles", x->plan_us * v->sm_clock_mhz);
    kvd_rows_real(r, "busy_max_us", x->busy_max_us);
    kvd_rows_real(r, "busy_mean_us", x->busy_mean_us);
    kvd_rows_real(r, "imbalance", x->imbalance);
    kvd_rows_real(r, "speedup", x->speedup);
    kvd_rows_real(r, "sm_clock_mhz", v->sm_clock_mhz);
    kvd_rows_real(r, "mem_clock_mhz", v->mem_clock_mhz);
    kvd_rows_real(r, "temperature", v->temperature);
    kvd_rows_int(r, "throttled", v->throttled);
    kvd_rows_int(r, "power_capped", v->power_capped);
    kvd_rows_text(r, "warnings", s->warnings);
}

static void put_floors(kvd_rows *r, const kvd_kernels_row *x)
{
    const kvd_floors *const f = x->floors;
    const double us = x->stats->median_us;
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

int kvd_kernels_add(kvd_kernels *k, const kvd_kernels_row *x, kvd_err *err)
{
    kvd_rows *const r = k->rows;
    if (add_samples(k, x->rival->us, err) || kvd_rows_begin(r, err))
        return -1;
    kvd_rows_int(r, "case", x->number);
    put_case(r, x);
    put_times(r, x);
    put_floors(r, x);
    kvd_rows_real(r, "rel_err", x->error->rel_err);
    kvd_rows_real(r, "rel_err_worst_row", x->error->worst);
    kvd_rows_int(r, "check_rows", (int64_t)x->error->rows);
    kvd_rows_int(r, "ok", x->ok);
    return 0;
}

/* ---- the file ----------------------------------------------------------------------------------- */

static int put_rates(kvd_h5 *f, const char *where, const char *device, const kvd_rate_ceilings *c,
                     kvd_err *err)
{
    return kvd_h5_put_text(f, where, "device", device, err) ||
                   kvd_h5_put_double(f, where, "copy_bytes_per_s", c->copy_bytes, err) ||
                   kvd_h5_put_double(f, where, "read_bytes_per_s", c->read_bytes, err) ||
                   kvd_h5_put_double(f, where, "flop_per_s", c->flop, err) ||
                   kvd_h5_put_double(f, where, "exps_per_s", c->exps, err)
               ? -1
               : 0;
}

static int put_samples(kvd_h5 *f, const kvd_kernels *k, kvd_err *err)
{
    const kvd_h5_spec spec = {.path = "/rows/samples_us",
                              .long_name = "every sample in the order taken; NaN: dropped",
                              .units = "us",
                              .type = H5T_IEEE_F64LE,
                              .rank = 2,
                              .dims = {k->n, (hsize_t)k->samples},
                              .axes = {"row", "sample"}};
    return kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, k->us, err);
}

int kvd_kernels_write(const kvd_kernels *k, const char *path, const kvd_kernels_facts *facts,
                      const kvd_run *run, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    int status = -1;
    if (kvd_h5_create(&f, path, &kvd_schema_kernels, run, err) ||
        kvd_h5_put_int(&f, "/", "cases", (int64_t)facts->cases, err) ||
        kvd_h5_put_int(&f, "/", "cases_done", (int64_t)facts->cases_done, err) ||
        kvd_h5_put_text(&f, "/", "skipped", facts->skipped, err) ||
        (facts->gpu_name[0] && (kvd_h5_put_text(&f, "/provenance", "gpu", facts->gpu_name, err) ||
                                kvd_h5_put_text(&f, "/provenance", "driver", facts->driver, err))) ||
        (facts->cpu && put_rates(&f, "/ceilings/cpu", kvd_cpu_name(), facts->cpu, err)) ||
        (facts->gpu && put_rates(&f, "/ceilings/gpu", facts->gpu_name, facts->gpu, err)) ||
        kvd_rows_write(&f, k->rows, err) || put_samples(&f, k, err) || kvd_h5_finish(&f, err))
        goto done;
    status = 0;
done:
    kvd_h5_close(&f, false);
    return status;
}

/* ---- for people --------------------------------------------------------------------------------- */

const char kvd_kernels_heading[] = "phase   impl           sched  type   batch x tokens  widths            p "
                                   "    median/us    mad  TFLOP/s    GB/s "
                                   " floor  plan/us  imbal  vs cudnn   rel.err";

/* Fixed columns; "-" where there is no value. */
static const char *number(char *to, size_t size, const char *format, double x)
{
    if (isnan(x))
        snprintf(to, size, "-");
    else
        snprintf(to, size, format, x);
    return to;
}

const char *kvd_kernels_line(const kvd_rows *r, size_t i, char line[KVD_KERNELS_LINE])
{
    char plan[16], imbalance[16], speedup[16], error[16], floor_part[16], size[40];
    snprintf(size, sizeof size, "%.0f x %.0f", kvd_row_real(r, i, "batch"), kvd_row_real(r, i, "seq_len"));
    snprintf(line, KVD_KERNELS_LINE,
             "%-7s %-14s %-6s %-4s %16s  %-16.16s %.3f %11.2f %6.2f %8.4g %7.4g %6s %8s %6s %9s %9s%s%s%s",
             kvd_row_text(r, i, "phase"), kvd_row_text(r, i, "impl"), kvd_row_text(r, i, "schedule"),
             kvd_row_text(r, i, "dtype"), size, kvd_row_text(r, i, "widths"), kvd_row_real(r, i, "p"),
             kvd_row_real(r, i, "median_us"), kvd_row_real(r, i, "mad_us"), kvd_row_real(r, i, "tflops"),
             kvd_row_real(r, i, "gb_per_s"),
             number(floor_part, sizeof floor_part, "%.3f", kvd_row_real(r, i, "fraction_of_floor")),
             number(plan, sizeof plan, "%.2f", kvd_row_real(r, i, "plan_us")),
             number(imbalance, sizeof imbalance, "%.3f", kvd_row_real(r, i, "imbalance")),
             number(speedup, sizeof speedup, "%.3f", kvd_row_real(r, i, "speedup")),
             number(error, sizeof error, "%.2e", kvd_row_real(r, i, "rel_err")),
             kvd_row_real(r, i, "ok") > 0 ? "" : "  WRONG", kvd_row_text(r, i, "warnings")[0] ? "  " : "",
             kvd_row_text(r, i, "warnings"));
    return line;
}
