#include "formats/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/run.h"

const kvd_schema kvd_schema_kernels = {"kernels", 1, "Attention kernels, timed and checked"};

static const kvd_column columns[] = {
    {"case", KVD_COL_INT, "1",
     "rows of one case share it: same phase, type, lengths and widths, timed in turns"},
    {"phase", KVD_COL_TEXT, "1", "prefill or decode"},
    {"impl", KVD_COL_TEXT, "1", "implementation"},
    {"schedule", KVD_COL_TEXT, "1", "none, papers, ours; - if the implementation has no choice"},
    {"engine", KVD_COL_TEXT, "1", "description of the implementation that ran"},
    {"runs", KVD_COL_TEXT, "1",
     "widths of the computation: own, padded (to the widest head), dense (d_head)"},
    {"dtype", KVD_COL_TEXT, "1", "type of Q, K, V and O: f32, f16, bf16"},
    {"data", KVD_COL_TEXT, "1", "normal, or sharp: with outliers"},
    {"batch", KVD_COL_INT, "1", "requests"},
    {"seq_len", KVD_COL_INT, "1", "tokens per request as asked for"},
    {"lengths", KVD_COL_TEXT, "1", "equal, lognormal, one-long or file"},
    {"kv_tokens", KVD_COL_INT, "1", "sum of the requests' lengths"},
    {"n_heads", KVD_COL_INT, "1", "query heads"},
    {"n_kv_heads", KVD_COL_INT, "1", "KV heads"},
    {"d_head", KVD_COL_INT, "1", "width of an uncut head"},
    {"window", KVD_COL_INT, "1", "newest tokens that a query attends to; 0: all"},
    {"widths", KVD_COL_TEXT, "1", "name of the case's widths"},
    {"case_p", KVD_COL_REAL, "1", "fraction of dimensions that the case's widths remove"},
    {"p", KVD_COL_REAL, "1",
     "fraction of dimensions that the widths of this row's answer remove; 0 for dense"},
    {"mean_d_qk", KVD_COL_REAL, "1", "mean d_qk of that answer"},
    {"mean_d_v", KVD_COL_REAL, "1", "mean d_v of that answer"},
    {"l2", KVD_COL_TEXT, "1", "cold: caches hold other data before each sample; hot: not"},
    {"graph", KVD_COL_INT, "1", "1: samples are replays of a CUDA graph"},
    {"warmup", KVD_COL_INT, "1", "number of rounds before the first sample"},
    {"samples", KVD_COL_INT, "1", "number of samples"},
    {"median_us", KVD_COL_REAL, "us", "median time of a sample"},
    {"mad_us", KVD_COL_REAL, "us", "median absolute deviation of the samples"},
    {"min_us", KVD_COL_REAL, "us", "smallest time of a sample"},
    {"p05_us", KVD_COL_REAL, "us", "5 % quantile of the samples"},
    {"p95_us", KVD_COL_REAL, "us", "95 % quantile of the samples"},
    {"plan_us", KVD_COL_REAL, "us",
     "median time of scheduling per layer, not part of median_us; NaN: no scheduling"},
    {"plan_layers", KVD_COL_INT, "1", "layers whose schedules one launch made; 0: none"},
    {"plan_cycles", KVD_COL_REAL, "cycle", "median SM clocks of scheduling per layer"},
    {"bytes", KVD_COL_REAL, "byte",
     "Q, K, V read once and O written once, at the widths of the answer"},
    {"flop", KVD_COL_REAL, "flop",
     "operations of both products, causal, at the widths of the answer"},
    {"exps", KVD_COL_REAL, "1", "exponentials: scores that are not masked"},
    {"floor_us", KVD_COL_REAL, "us", "largest of floor_bytes_us, floor_flop_us and floor_exp_us"},
    {"floor_bytes_us", KVD_COL_REAL, "us", "bytes over the measured rate of memory"},
    {"floor_flop_us", KVD_COL_REAL, "us", "flop over the measured rate of matrix products"},
    {"floor_exp_us", KVD_COL_REAL, "us", "exps over the measured rate of exponentials"},
    {"fraction_of_floor", KVD_COL_REAL, "1",
     "floor_us / median_us: 1 is as fast as the machine can"},
    {"tflops", KVD_COL_REAL, "Tflop/s", "flop / median_us"},
    {"gb_per_s", KVD_COL_REAL, "GB/s", "bytes / median_us"},
    {"busy_max_us", KVD_COL_REAL, "us", "time that the busiest SM worked; NaN: not measured"},
    {"busy_mean_us", KVD_COL_REAL, "us", "mean over SMs of the time that they worked"},
    {"imbalance", KVD_COL_REAL, "1", "busy_max_us / busy_mean_us"},
    {"speedup", KVD_COL_REAL, "1",
     "median_us of impl cudnn in this case over median_us of this row; NaN without cudnn"},
    {"rel_err", KVD_COL_REAL, "1",
     "||O - reference|| / ||reference|| over the checked rows; NaN: none or not finite"},
    {"rel_err_worst_row", KVD_COL_REAL, "1",
     "||O - reference|| / ||reference|| of the worst checked row"},
    {"check_rows", KVD_COL_INT, "1", "query rows checked against the reference in double"},
    {"ok", KVD_COL_INT, "1", "0: an error above the tolerance of the type"},
    {"sm_clock_mhz", KVD_COL_REAL, "MHz", "median SM clock over the samples; NaN: not known"},
    {"mem_clock_mhz", KVD_COL_REAL, "MHz", "median memory clock"},
    {"temperature", KVD_COL_REAL, "degC", "highest over the samples"},
    {"throttled", KVD_COL_INT, "1",
     "samples dropped because the card was slowed by heat or by its board"},
    {"power_capped", KVD_COL_INT, "1", "samples kept that were taken under the card's power limit"},
    {"warnings", KVD_COL_TEXT, "1", "slow-first, outliers, noise, short, throttled"},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

kvd_rows *kvd_kernels_rows(int samples, kvd_err *err)
{
    const kvd_h5_spec spec = {.path = "/rows/samples_us",
                              .long_name = "every sample in the order taken; NaN: dropped",
                              .units = "us",
                              .rank = 2,
                              .dims = {0, (hsize_t)samples},
                              .axes = {"row", "sample"}};
    kvd_rows *r = kvd_rows_new(columns, N_COLUMNS, err);
    if (r && kvd_rows_add_samples(r, &spec, err)) {
        kvd_rows_free(r);
        r = NULL;
    }
    return r;
}

static int put_rates(kvd_h5 *f, const char *where, const char *device, const kvd_rate_ceilings *c,
                     kvd_err *err)
{
    return kvd_status(kvd_h5_put_text(f, where, "device", device, err) ||
                      kvd_h5_put_double(f, where, "copy_bytes_per_s", c->copy_bytes, err) ||
                      kvd_h5_put_double(f, where, "read_bytes_per_s", c->read_bytes, err) ||
                      kvd_h5_put_double(f, where, "flop_per_s", c->flop, err) ||
                      kvd_h5_put_double(f, where, "exps_per_s", c->exps, err));
}

int kvd_kernels_write(const kvd_rows *rows, const char *path, const kvd_kernels_facts *facts,
                      const kvd_run *run, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    int status = -1;
    if (kvd_h5_create(&f, path, &kvd_schema_kernels, run, err) ||
        kvd_h5_put_int(&f, "/", "cases", (int64_t)facts->cases, err) ||
        kvd_h5_put_int(&f, "/", "cases_done", (int64_t)facts->cases_done, err) ||
        kvd_h5_put_text(&f, "/", "skipped", facts->skipped, err) ||
        (facts->gpu_name[0] &&
         (kvd_h5_put_text(&f, "/provenance", "gpu", facts->gpu_name, err) ||
          kvd_h5_put_text(&f, "/provenance", "driver", facts->driver, err))) ||
        (facts->cpu && put_rates(&f, "/ceilings/cpu", kvd_cpu_name(), facts->cpu, err)) ||
        (facts->gpu && put_rates(&f, "/ceilings/gpu", facts->gpu_name, facts->gpu, err)) ||
        kvd_rows_write(&f, rows, err) || kvd_h5_finish(&f, err))
        goto done;
    status = 0;
done:
    kvd_h5_close(&f, false);
    return status;
}

static int read_machine(kvd_machine_rates *m, kvd_h5 *f, const char *where, kvd_err *err)
{
    char *device = NULL;
    if (kvd_h5_get_text_or_none(f, where, "device", &device, err))
        return -1;
    if (!device)
        return 0;
    snprintf(m->device, sizeof m->device, "%s", device);
    free(device);
    if (kvd_h5_get_double(f, where, "copy_bytes_per_s", &m->rate.copy_bytes, err) ||
        kvd_h5_get_double(f, where, "read_bytes_per_s", &m->rate.read_bytes, err) ||
        kvd_h5_get_double(f, where, "flop_per_s", &m->rate.flop, err) ||
        kvd_h5_get_double(f, where, "exps_per_s", &m->rate.exps, err))
        return -1;
    const double all[] = {m->rate.copy_bytes, m->rate.read_bytes, m->rate.flop, m->rate.exps};
    for (int i = 0; i < 4; i++)
        if (!(all[i] > 0) || !isfinite(all[i]))
            return kvd_fail(err, "'%s': a rate of '%s' is %g", f->path, where, all[i]);
    return 0;
}

static bool refused(const kvd_rows *r, size_t row, const char *column, double x)
{
    (void)r;
    (void)row;
    (void)column;
    return isinf(x) || x < 0;
}

int kvd_kernels_read(kvd_kernels *k, kvd_h5 *f, kvd_err *err)
{
    static const char *const needed[] = {"phase",     "impl",    "schedule", "dtype",   "widths",
                                         "runs",      "l2",      "lengths",  "case_p",  "p",
                                         "median_us", "bytes",   "flop",     "speedup", "rel_err",
                                         "batch",     "seq_len", "ok",       NULL};
    *k = (kvd_kernels){.rows = kvd_rows_load(f, err)};
    return kvd_status(!k->rows ||
                      kvd_rows_check(k->rows, f->path, columns, N_COLUMNS, needed, refused, err) ||
                      read_machine(&k->machine[0], f, "/ceilings/cpu", err) ||
                      read_machine(&k->machine[1], f, "/ceilings/gpu", err));
}
