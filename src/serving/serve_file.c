#include "serving/serve_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const kvd_schema kvd_schema_serving = {"serving", 1, "Simulated serving of request traces"};

/* ---- columns ----------------------------------------------------------------------------------------- */

static const kvd_column fixed[] = {
    {"kind", KVD_COL_TEXT, "1", "point, max-rate or validation"},
    {"method", KVD_COL_TEXT, "1", "method with its keys, as in the file of costs"},
    {"trace", KVD_COL_TEXT, "1", "where arrivals and lengths are from"},
    {"engine", KVD_COL_TEXT, "1", "what the costs were measured on"},
    {"gpus", KVD_COL_INT, "1", "GPUs of a replica; 0: the CPU"},
    {"replicas", KVD_COL_INT, "1", "machines that serve"},
    {"route", KVD_COL_TEXT, "1", "how requests are spread over them"},
    {"max_batch", KVD_COL_INT, "1", "most requests that a replica runs at once"},
    {"max_tokens", KVD_COL_INT, "token", "most prompt tokens of an iteration without chunk"},
    {"chunk", KVD_COL_INT, "token", "tokens of an iteration; 0: prompts go whole"},
    {"pages", KVD_COL_INT, "1", "of 64 tokens in the cache of a replica"},
    {"memory_bytes", KVD_COL_REAL, "byte", "of a GPU; NaN: the cache that was measured"},
    {"reserve_bytes", KVD_COL_REAL, "byte", "of it, for anything but weights and cache; NaN: the same"},
    {"bytes_per_token", KVD_COL_REAL, "byte", "of the cache, all layers, as stored"},
    {"weight_bytes", KVD_COL_REAL, "byte", "of the weights"},
    {"rate", KVD_COL_REAL, "1/s", "requests that arrive"},
    {"latency_bound_s", KVD_COL_REAL, "s/token", "of max-rate: the bound on the mean normalised latency"},
    {"requests", KVD_COL_INT, "1", "that arrived"},
    {"skipped", KVD_COL_INT, "1", "of the trace, that were left out on request"},
    {"refused", KVD_COL_INT, "1", "of those that arrived: larger than the whole cache"},
    {"iterations", KVD_COL_INT, "1", "of all replicas"},
    {"extrapolated_share", KVD_COL_REAL, "1", "of the iterations: beyond what was measured"},
    {"wait_mean_s", KVD_COL_REAL, "s", "from the arrival until the first token goes through the model"},
    {"drain_s", KVD_COL_REAL, "s", "from the last arrival to the end"},
    {"served_per_s", KVD_COL_REAL, "1/s", "requests served, over the time from the first arrival to the end"},
    {"tokens_per_s", KVD_COL_REAL, "token/s", "output tokens, over the same time"},
    {"slo_ttft_s", KVD_COL_REAL, "s", "objective for the time to the first token; infinite: none"},
    {"slo_tbt_s", KVD_COL_REAL, "s", "objective for a request's mean time between tokens; infinite: none"},
    {"slo_share", KVD_COL_REAL, "1", "of the requests: within both"},
    {"goodput_per_s", KVD_COL_REAL, "1/s", "of those, over the same time"},
    {"utilisation", KVD_COL_REAL, "1", "of the replicas' time: in iterations"},
    {"kv_share", KVD_COL_REAL, "1", "of the pages: reserved, mean over time"},
    {"quantity", KVD_COL_TEXT, "1", "of validation: what is compared"},
    {"statistic", KVD_COL_TEXT, "1", "of validation: its mean or p90 over requests"},
    {"measured_s", KVD_COL_REAL, "s", "of validation: in the replay"},
    {"simulated_s", KVD_COL_REAL, "s", "of validation: in the simulation of the replay"},
    {"error_percent", KVD_COL_REAL, "%", "of validation: the simulation less the replay, over the replay"},
};

static const struct {
    const char *name, *units, *meaning;
} measure[] = {{"ttft", "s", "from the arrival to the first token"},
               {"tbt", "s", "between two tokens, over all of them"},
               {"latency", "s/token", "normalised latency: JCT over output tokens"},
               {"jct", "s", "from the arrival to the last token"}};
enum {
    N_FIXED = sizeof fixed / sizeof *fixed,
    N_MEASURES = sizeof measure / sizeof *measure,
    N_STATISTICS = KVD_LATENCY_STATISTICS,
    N_COLUMNS = N_FIXED + N_MEASURES * N_STATISTICS * 3
};
static const char *const bound_name[3] = {"", "_lo", "_hi"};
static const char *const bound_meaning[3] = {"", "; lower end of its 95 % interval",
                                             "; upper end of its 95 % interval"};

static void statistic_name(char *name, size_t size, int m, int k, int bound)
{
    snprintf(name, size, "%s_%s%s_s", measure[m].name, kvd_latency_statistic_name[k], bound_name[bound]);
}

/* "ttft_mean_s", "ttft_mean_lo_s", ...; kvd_rows borrows them. */
static const kvd_column *columns(void)
{
    static kvd_column all[N_COLUMNS];
    static char name[N_COLUMNS][32], words[N_COLUMNS][120];
    if (all[0].name)
        return all;
    int c = N_FIXED;
    for (int m = 0; m < N_MEASURES; m++)
        for (int k = 0; k < N_STATISTICS; k++)
            for (int b = 0; b < 3; b++, c++) {
                statistic_name(name[c], sizeof name[c], m, k, b);
                snprintf(words[c], sizeof words[c], "%s of: %s%s", kvd_latency_statistic_name[k],
                         measure[m].meaning, bound_meaning[b]);
                all[c] = (kvd_column){name[c], KVD_COL_REAL, measure[m].units, words[c]};
            }
    memcpy(all, fixed, sizeof fixed);
    return all;
}

int kvd_serve_table_init(kvd_serve_table *t, kvd_err *err)
{
    memset(t, 0, sizeof *t);
    t->rows = kvd_rows_new(columns(), N_COLUMNS, err);
    return t->rows ? 0 : -1;
}

void kvd_serve_table_release(kvd_serve_table *t)
{
    kvd_rows_free(t->rows);
    for (int i = 0; i < 3; i++)
        free(t->curve[i]);
    memset(t, 0, sizeof *t);
}

/* ---- rows -------------------------------------------------------------------------------------------- */

/* A row whose curves are NaN. */
static int begin(kvd_serve_table *t, kvd_err *err)
{
    if (t->n == t->capacity) {
        const size_t more = t->capacity ? 2 * t->capacity : 32;
        for (int i = 0; i < 3; i++) {
            double *const curve = realloc(t->curve[i], more * KVD_LATENCY_CURVE * sizeof *curve);
            if (!curve)
                return kvd_no_memory(err, "rows", more * KVD_LATENCY_CURVE * sizeof *curve);
            t->curve[i] = curve;
        }
        t->capacity = more;
    }
    for (int i = 0; i < 3; i++)
        for (size_t k = 0; k < KVD_LATENCY_CURVE; k++)
            t->curve[i][t->n * KVD_LATENCY_CURVE + k] = NAN;
    t->n++;
    return kvd_rows_begin(t->rows, err);
}

static void put_about(kvd_rows *r, const char *kind, const kvd_serve_about *a)
{
    const kvd_serve_setting *s = a->setting;
    kvd_rows_text(r, "kind", kind);
    kvd_rows_text(r, "method", a->method);
    kvd_rows_text(r, "trace", a->trace);
    kvd_rows_text(r, "engine", kvd_costs_engine(s->costs));
    kvd_rows_int(r, "gpus", kvd_costs_gpus(s->costs));
    kvd_rows_int(r, "replicas", s->replicas);
    kvd_rows_text(r, "route", kvd_route_name[s->route]);
    kvd_rows_int(r, "max_batch", (int64_t)s->limits.max_batch);
    kvd_rows_int(r, "max_tokens", (int64_t)s->limits.max_tokens);
    kvd_rows_int(r, "chunk", (int64_t)s->limits.chunk);
    kvd_rows_int(r, "pages", (int64_t)s->limits.pages);
    kvd_rows_real(r, "memory_bytes", a->memory);
    kvd_rows_real(r, "reserve_bytes", a->reserve);
    kvd_rows_real(r, "bytes_per_token", kvd_costs_bytes_per_token(s->costs));
    kvd_rows_real(r, "weight_bytes", kvd_costs_weight_bytes(s->costs));
    kvd_rows_int(r, "skipped", (int64_t)a->skipped);
    kvd_rows_real(r, "slo_ttft_s", s->slo_ttft);
    kvd_rows_real(r, "slo_tbt_s", s->slo_tbt);
}

static void put_point(kvd_rows *r, const kvd_serve_point *p)
{
    const kvd_latency *const of[N_MEASURES] = {&p->ttft, &p->tbt, &p->normalised, &p->jct};
    kvd_rows_real(r, "rate", p->rate);
    kvd_rows_int(r, "requests", (int64_t)p->requests);
    kvd_rows_int(r, "refused", (int64_t)p->simulated.refused);
    kvd_rows_int(r, "iterations", (int64_t)p->simulated.iterations);
    kvd_rows_real(r, "extrapolated_share",
                  (double)p->simulated.extrapolated / (double)p->simulated.iterations);
    kvd_rows_real(r, "wait_mean_s", p->wait);
    kvd_rows_real(r, "drain_s", p->drain);
    kvd_rows_real(r, "served_per_s", p->served_rate);
    kvd_rows_real(r, "tokens_per_s", p->token_rate);
    kvd_rows_real(r, "slo_share", p->slo_share);
    kvd_rows_real(r, "goodput_per_s", p->goodput);
    kvd_rows_real(r, "utilisation", p->utilisation);
    kvd_rows_real(r, "kv_share", p->kv_share);
    for (int m = 0; m < N_MEASURES; m++)
        for (int k = 0; k < N_STATISTICS; k++) {
            const kvd_interval *const i = &of[m]->statistic[k];
            const double value[3] = {i->value, i->lo, i->hi};
            char name[32];
            for (int b = 0; b < 3; b++) {
                statistic_name(name, sizeof name, m, k, b);
                kvd_rows_real(r, name, value[b]);
            }
        }
}

int kvd_serve_add_point(kvd_serve_table *t, const kvd_serve_about *a, const kvd_serve_point *p, double bound,
                        kvd_err *err)
{
    const kvd_latency *const of[3] = {&p->ttft, &p->tbt, &p->normalised};
    if (begin(t, err))
        return -1;
    put_about(t->rows, isnan(bound) ? "point" : "max-rate", a);
    put_point(t->rows, p);
    kvd_rows_real(t->rows, "latency_bound_s", bound);
    for (int i = 0; i < 3; i++)
        memcpy(t->curve[i] + (t->n - 1) * KVD_LATENCY_CURVE, of[i]->curve, sizeof of[i]->curve);
    return 0;
}

int kvd_serve_add_comparison(kvd_serve_table *t, const kvd_serve_about *a, const kvd_serve_point *p,
                             const kvd_serve_comparison *c, kvd_err *err)
{
    if (begin(t, err))
        return -1;
    put_about(t->rows, "validation", a);
    put_point(t->rows, p);
    kvd_rows_text(t->rows, "quantity", c->quantity);
    kvd_rows_text(t->rows, "statistic", c->statistic);
    kvd_rows_real(t->rows, "measured_s", c->measured);
    kvd_rows_real(t->rows, "simulated_s", c->simulated);
    kvd_rows_real(t->rows, "error_percent", 100 * (c->simulated - c->measured) / c->measured);
    return 0;
}

/* ---- the file ---------------------------------------------------------------------------------------- */

static int put_curve(kvd_h5 *f, const kvd_serve_table *t, int i, kvd_err *err)
{
    static const char *const name[3] = {"ttft", "tbt", "latency"};
    static const char *const units[3] = {"s", "s", "s/token"};
    char path[48], words[80];
    snprintf(path, sizeof path, "/rows/%s_quantiles_s", name[i]);
    snprintf(words, sizeof words, "quantiles 0, 0.01 .. 1 of %s; NaN: none", name[i]);
    const kvd_h5_spec spec = {.path = path,
                              .long_name = words,
                              .units = units[i],
                              .type = H5T_IEEE_F64LE,
                              .rank = 2,
                              .dims = {t->n, KVD_LATENCY_CURVE},
                              .axes = {"row", "quantile"}};
    return kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, t->curve[i], err);
}

int kvd_serve_write(kvd_h5 *f, const kvd_serve_table *t, const kvd_model_info *model, const char *none,
                    kvd_err *err)
{
    if (kvd_model_info_write(f, model, err) ||
        kvd_h5_put_text(f, "/", "simulated",
                        "every time is simulated from the costs of measured iterations, but for measured_s",
                        err) ||
        kvd_h5_put_text(f, "/", "no_rate", none, err) || kvd_rows_write(f, t->rows, err))
        return -1;
    for (int i = 0; i < 3; i++)
        if (put_curve(f, t, i, err))
            return -1;
    return kvd_h5_finish(f, err);
}

/* ---- the table on stdout ----------------------------------------------------------------------------- */

const char kvd_serve_heading[] =
    "simulated: times in s, of normalised latency in s per token, [95 %]\n"
    "kind       method                     req/s TTFT mean [95 %]               "
    " p99   TBT mean      p99  latency mean [95 %]             p99  served/s goodput/s   busy  cache";
const char kvd_serve_comparison_heading[] =
    "simulation against a measured replay\n"
    "method                   quantity          statistic   measured/s  simulated/s   error";

const char *kvd_serve_line(const kvd_rows *r, size_t i, char line[KVD_SERVE_LINE])
{
    char ttft[48], latency[48];
    if (!strcmp(kvd_row_text(r, i, "kind"), "validation")) {
        snprintf(line, KVD_SERVE_LINE, "%-24.24s %-17s %-9s %12.5g %12.5g %+6.1f %%",
                 kvd_row_text(r, i, "method"), kvd_row_text(r, i, "quantity"),
                 kvd_row_text(r, i, "statistic"), kvd_row_real(r, i, "measured_s"),
                 kvd_row_real(r, i, "simulated_s"), kvd_row_real(r, i, "error_percent"));
        return line;
    }
    snprintf(ttft, sizeof ttft, "%.4g [%.3g, %.3g]", kvd_row_real(r, i, "ttft_mean_s"),
             kvd_row_real(r, i, "ttft_mean_lo_s"), kvd_row_real(r, i, "ttft_mean_hi_s"));
    snprintf(latency, sizeof latency, "%.4g [%.3g, %.3g]", kvd_row_real(r, i, "latency_mean_s"),
             kvd_row_real(r, i, "latency_mean_lo_s"), kvd_row_real(r, i, "latency_mean_hi_s"));
    snprintf(line, KVD_SERVE_LINE,
             "%-10s %-24.24s %7.4g %-26s %8.4g %10.4g %8.4g  %-26s %8.4g %9.4g %9.4g %6.3f %6.3f",
             kvd_row_text(r, i, "kind"), kvd_row_text(r, i, "method"), kvd_row_real(r, i, "rate"), ttft,
             kvd_row_real(r, i, "ttft_p99_s"), kvd_row_real(r, i, "tbt_mean_s"),
             kvd_row_real(r, i, "tbt_p99_s"), latency, kvd_row_real(r, i, "latency_p99_s"),
             kvd_row_real(r, i, "served_per_s"), kvd_row_real(r, i, "goodput_per_s"),
             kvd_row_real(r, i, "utilisation"), kvd_row_real(r, i, "kv_share"));
    return line;
}
