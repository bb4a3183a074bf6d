#include "formats/serving.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const kvd_schema kvd_schema_serving = {"serving", 1, "Simulated serving of request traces"};

const char *const kvd_latency_statistic_name[KVD_LATENCY_STATISTICS] = {"mean", "p50", "p90",
                                                                        "p99"};

static const kvd_column fixed[] = {
    {"kind", KVD_COL_TEXT, "1", "point, max-rate or validation"},
    {"method", KVD_COL_TEXT, "1", "method with its keys, as in the file of costs"},
    {"trace", KVD_COL_TEXT, "1", "source of arrivals and lengths"},
    {"engine", KVD_COL_TEXT, "1", "device and engine on which the costs were measured"},
    {"gpus", KVD_COL_INT, "1", "GPUs of a replica; 0: the CPU"},
    {"graphs", KVD_COL_INT, "1", "1: the costs are of steps replayed as CUDA graphs"},
    {"phases", KVD_COL_INT, "1", "1: the costs were measured together with the times of the parts"},
    {"replicas", KVD_COL_INT, "1", "replicas that serve requests"},
    {"route", KVD_COL_TEXT, "1", "rule by which requests are given to replicas"},
    {"max_batch", KVD_COL_INT, "1", "largest number of requests that a replica runs at once"},
    {"max_tokens", KVD_COL_INT, "token",
     "largest number of prompt tokens of an iteration without chunk"},
    {"chunk", KVD_COL_INT, "token", "tokens of an iteration; 0: prompts are not divided"},
    {"admission", KVD_COL_TEXT, "1",
     "whole: a request reserves pages for all its tokens; stored: for those that it stores, with "
     "preemption"},
    {"pages", KVD_COL_INT, "1", "pages of 64 tokens in the cache of a replica"},
    {"memory_bytes", KVD_COL_REAL, "byte",
     "memory of a GPU; NaN: the cache has the size that was measured"},
    {"reserve_bytes", KVD_COL_REAL, "byte",
     "memory of a GPU that neither weights nor cache may use; NaN: the cache has the size that was measured"},
    {"bytes_per_token", KVD_COL_REAL, "byte", "bytes that the cache stores per token, all layers"},
    {"weight_bytes", KVD_COL_REAL, "byte", "bytes of the weights"},
    {"rate", KVD_COL_REAL, "1/s", "arrival rate of requests"},
    {"latency_bound_s", KVD_COL_REAL, "s/token", "max-rate: bound on the mean normalised latency"},
    {"requests", KVD_COL_INT, "1", "requests that arrived"},
    {"skipped", KVD_COL_INT, "1", "requests of the trace that were left out on demand"},
    {"refused", KVD_COL_INT, "1",
     "arrived requests that were refused, because they are larger than the whole cache"},
    {"preempted", KVD_COL_INT, "1", "times that a running request was preempted"},
    {"recomputed", KVD_COL_INT, "token", "tokens that preempted requests computed again"},
    {"running_mean", KVD_COL_REAL, "1",
     "requests that a replica runs at once, mean over the time of its iterations"},
    {"iterations", KVD_COL_INT, "1", "iterations of all replicas"},
    {"extrapolated_share", KVD_COL_REAL, "1",
     "share of the iterations whose cost was extrapolated beyond the measured costs"},
    {"wait_mean_s", KVD_COL_REAL, "s",
     "mean time from the arrival until the first token goes through the model"},
    {"drain_s", KVD_COL_REAL, "s", "time from the last arrival to the end"},
    {"served_per_s", KVD_COL_REAL, "1/s",
     "requests served, over the time from the first arrival to the end"},
    {"tokens_per_s", KVD_COL_REAL, "token/s",
     "output tokens, over the time from the first arrival to the end"},
    {"slo_ttft_s", KVD_COL_REAL, "s", "objective for the time to the first token; infinite: none"},
    {"slo_tbt_s", KVD_COL_REAL, "s",
     "objective for a request's mean time between tokens; infinite: none"},
    {"slo_share", KVD_COL_REAL, "1", "share of the requests within both objectives"},
    {"goodput_per_s", KVD_COL_REAL, "1/s",
     "requests within both objectives, over the time from the first arrival to the end"},
    {"utilisation", KVD_COL_REAL, "1", "share of the replicas' time spent in iterations"},
    {"kv_share", KVD_COL_REAL, "1", "share of the pages that are reserved, mean over time"},
    {"quantity", KVD_COL_TEXT, "1", "validation: quantity that is compared"},
    {"statistic", KVD_COL_TEXT, "1", "validation: mean or p90 over requests"},
    {"measured_s", KVD_COL_REAL, "s", "validation: value in the replay"},
    {"simulated_s", KVD_COL_REAL, "s", "validation: value in the simulation of the replay"},
    {"error_percent", KVD_COL_REAL, "%", "validation: (simulated - measured) / measured"},
};

static const struct {
    const char *name, *units, *meaning;
} measure[KVD_SERVING_MEASURES] = {
    {"ttft", "s", "time from the arrival to the first token"},
    {"tbt", "s", "time between two tokens, over all tokens"},
    {"latency", "s/token", "normalised latency: JCT over output tokens"},
    {"jct", "s", "time from the arrival to the last token"}};
enum {
    N_FIXED = sizeof fixed / sizeof *fixed,
    N_COLUMNS = N_FIXED + (int)KVD_SERVING_MEASURES * (int)KVD_LATENCY_STATISTICS * 3
};
static const char *const bound_name[3] = {"", "_lo", "_hi"};
static const char *const bound_meaning[3] = {"", "; lower end of its 95 % interval",
                                             "; upper end of its 95 % interval"};

void kvd_serving_column(char *name, size_t size, kvd_serving_time m, kvd_latency_statistic k,
                        int bound)
{
    snprintf(name, size, "%s_%s%s_s", measure[m].name, kvd_latency_statistic_name[k],
             bound_name[bound]);
}

/* Returns the columns of a table of simulated serving. The last columns are statistics of
 * latencies, such as "ttft_mean_s". */
static const kvd_column *columns(void)
{
    static kvd_column all[N_COLUMNS];
    static char name[N_COLUMNS][32], words[N_COLUMNS][120];
    if (all[0].name)
        return all;
    int c = N_FIXED;
    for (int m = 0; m < KVD_SERVING_MEASURES; m++)
        for (int k = 0; k < KVD_LATENCY_STATISTICS; k++)
            for (int b = 0; b < 3; b++, c++) {
                kvd_serving_column(name[c], sizeof name[c], (kvd_serving_time)m,
                                   (kvd_latency_statistic)k, b);
                snprintf(words[c], sizeof words[c], "%s of: %s%s", kvd_latency_statistic_name[k],
                         measure[m].meaning, bound_meaning[b]);
                all[c] = (kvd_column){name[c], KVD_COL_REAL, measure[m].units, words[c]};
            }
    memcpy(all, fixed, sizeof fixed);
    return all;
}

kvd_rows *kvd_serving_rows(kvd_err *err)
{
    static const struct {
        const char *path, *long_name, *units;
    } curve[KVD_SERVING_CURVES] = {
        {"/rows/ttft_quantiles_s", "quantiles 0, 0.01 .. 1 of ttft; NaN: none", "s"},
        {"/rows/tbt_quantiles_s", "quantiles 0, 0.01 .. 1 of tbt; NaN: none", "s"},
        {"/rows/latency_quantiles_s", "quantiles 0, 0.01 .. 1 of latency; NaN: none", "s/token"}};
    kvd_rows *r = kvd_rows_new(columns(), N_COLUMNS, err);
    for (int i = 0; r && i < KVD_SERVING_CURVES; i++) {
        const kvd_h5_spec spec = {.path = curve[i].path,
                                  .long_name = curve[i].long_name,
                                  .units = curve[i].units,
                                  .rank = 2,
                                  .dims = {0, KVD_LATENCY_CURVE},
                                  .axes = {"row", "quantile"}};
        if (kvd_rows_add_samples(r, &spec, err)) {
            kvd_rows_free(r);
            r = NULL;
        }
    }
    return r;
}

int kvd_serving_write(kvd_h5 *f, const kvd_rows *r, const kvd_model_info *model, const char *none,
                      kvd_err *err)
{
    if (kvd_model_info_write(f, model, err) ||
        kvd_h5_put_text(
            f, "/", "simulated",
            "every time is simulated from the costs of measured iterations, but for measured_s",
            err) ||
        kvd_h5_put_text(f, "/", "no_rate", none, err) || kvd_rows_write(f, r, err))
        return -1;
    return kvd_h5_finish(f, err);
}

static bool refused(const kvd_rows *r, size_t row, const char *column, double x)
{
    (void)r;
    (void)row;
    return (isinf(x) && strncmp(column, "slo_", 4)) || (x < 0 && strcmp(column, "error_percent"));
}

int kvd_serving_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err)
{
    static const char *const needed[] = {"kind",
                                         "method",
                                         "trace",
                                         "quantity",
                                         "statistic",
                                         "replicas",
                                         "chunk",
                                         "requests",
                                         "refused",
                                         "rate",
                                         "extrapolated_share",
                                         "latency_bound_s",
                                         "goodput_per_s",
                                         "utilisation",
                                         "kv_share",
                                         "measured_s",
                                         "simulated_s",
                                         "error_percent",
                                         "ttft_mean_s",
                                         "ttft_mean_lo_s",
                                         "ttft_mean_hi_s",
                                         "ttft_p99_s",
                                         "tbt_mean_s",
                                         "tbt_mean_lo_s",
                                         "tbt_mean_hi_s",
                                         "tbt_p99_s",
                                         "latency_mean_s",
                                         "latency_mean_lo_s",
                                         "latency_mean_hi_s",
                                         "latency_p99_s",
                                         NULL};
    *rows = kvd_rows_load(f, err);
    return *rows ? kvd_rows_check(*rows, f->path, columns(), N_COLUMNS, needed, refused, err) : -1;
}
