#include "serving/simulate/serve_rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void put_about(kvd_rows *r, const char *kind, const kvd_serve_about *a)
{
    const kvd_serve_setting *s = a->setting;
    kvd_rows_text(r, "kind", kind);
    kvd_rows_text(r, "method", a->method);
    kvd_rows_text(r, "trace", a->trace);
    kvd_rows_text(r, "engine", kvd_costs_engine(s->costs));
    kvd_rows_int(r, "gpus", kvd_costs_gpus(s->costs));
    kvd_rows_int(r, "graphs", kvd_costs_graphs(s->costs));
    kvd_rows_int(r, "phases", kvd_costs_phases(s->costs));
    kvd_rows_int(r, "replicas", s->replicas);
    kvd_rows_text(r, "route", kvd_route_name[s->route]);
    kvd_rows_int(r, "max_batch", (int64_t)s->limits.max_batch);
    kvd_rows_int(r, "max_tokens", (int64_t)s->limits.max_tokens);
    kvd_rows_int(r, "chunk", (int64_t)s->limits.chunk);
    kvd_rows_text(r, "admission", kvd_admission_name[s->limits.admission]);
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
    const kvd_latency *const of[KVD_SERVING_MEASURES] = {&p->ttft, &p->tbt, &p->normalised,
                                                         &p->jct};
    kvd_rows_real(r, "rate", p->rate);
    kvd_rows_int(r, "requests", (int64_t)p->requests);
    kvd_rows_int(r, "refused", (int64_t)p->simulated.refused);
    kvd_rows_int(r, "preempted", (int64_t)p->simulated.preempted);
    kvd_rows_int(r, "recomputed", (int64_t)p->simulated.recomputed);
    kvd_rows_real(r, "running_mean", p->running);
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
    for (int m = 0; m < KVD_SERVING_MEASURES; m++)
        for (int k = 0; k < KVD_LATENCY_STATISTICS; k++) {
            const kvd_interval *const i = &of[m]->statistic[k];
            const double value[3] = {i->value, i->lo, i->hi};
            char name[32];
            for (int b = 0; b < 3; b++) {
                kvd_serving_column(name, sizeof name, (kvd_serving_time)m, (kvd_latency_statistic)k,
                                   b);
                kvd_rows_real(r, name, value[b]);
            }
        }
}

int kvd_serve_add_point(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                        double bound, kvd_err *err)
{
    const kvd_latency *const of[KVD_SERVING_CURVES] = {&p->ttft, &p->tbt, &p->normalised};
    if (kvd_rows_begin(r, err))
        return -1;
    put_about(r, isnan(bound) ? "point" : "max-rate", a);
    put_point(r, p);
    kvd_rows_real(r, "latency_bound_s", bound);
    for (int i = 0; i < KVD_SERVING_CURVES; i++)
        memcpy(kvd_rows_samples(r, i, kvd_rows_count(r) - 1), of[i]->curve, sizeof of[i]->curve);
    return 0;
}

int kvd_serve_add_comparison(kvd_rows *r, const kvd_serve_about *a, const kvd_serve_point *p,
                             const kvd_serve_comparison *c, kvd_err *err)
{
    if (kvd_rows_begin(r, err))
        return -1;
    put_about(r, "validation", a);
    put_point(r, p);
    kvd_rows_text(r, "quantity", c->quantity);
    kvd_rows_text(r, "statistic", c->statistic);
    kvd_rows_real(r, "measured_s", c->measured);
    kvd_rows_real(r, "simulated_s", c->simulated);
    kvd_rows_real(r, "error_percent", 100 * (c->simulated - c->measured) / c->measured);
    return 0;
}

const char kvd_serve_heading[] =
    "simulated: times in s; latency: job completion time over output tokens, in s per token; [95 %]: "
    "interval of the mean\n"
    "served/s, goodput/s: requests per second, of all and of those within the objectives; busy: share "
    "of the time in iterations; cache: share of the pages reserved\n"
    "kind       method                     req/s TTFT mean [95 %]               "
    " p99   TBT mean      p99  latency mean [95 %]             p99  served/s goodput/s   busy  cache";
const char kvd_serve_comparison_heading[] =
    "simulation against a measured replay\n"
    "method                   quantity          statistic   measured/s  simulated/s   error";

static const char *mean_cell(const kvd_rows *r, size_t i, const char *name, char to[48])
{
    static const char *const suffix[] = {"mean_s", "mean_lo_s", "mean_hi_s"};
    char column[40], mean[16], interval[32];
    double x[3];
    for (int k = 0; k < 3; k++) {
        snprintf(column, sizeof column, "%s_%s", name, suffix[k]);
        x[k] = kvd_row_real(r, i, column);
    }
    kvd_real_text(mean, sizeof mean, "%.4g", x[0]);
    kvd_interval_text(interval, sizeof interval, "[%.3g, %.3g]", x[1], x[2]);
    snprintf(to, 48, isnan(x[0]) ? "%s" : "%s %s", mean, interval);
    return to;
}

const char *kvd_serve_line(const kvd_rows *r, size_t i, char line[KVD_SERVE_LINE])
{
    char ttft[48], ttft_p99[16], tbt[16], tbt_p99[16], latency[48], latency_p99[16], served[16],
        goodput[16], busy[16], cache[16];
    if (!strcmp(kvd_row_text(r, i, "kind"), "validation")) {
        snprintf(line, KVD_SERVE_LINE, "%-24s %-17s %-9s %12.5g %12.5g %+6.1f %%",
                 kvd_row_text(r, i, "method"), kvd_row_text(r, i, "quantity"),
                 kvd_row_text(r, i, "statistic"), kvd_row_real(r, i, "measured_s"),
                 kvd_row_real(r, i, "simulated_s"), kvd_row_real(r, i, "error_percent"));
        return line;
    }
    snprintf(
        line, KVD_SERVE_LINE, "%-10s %-24s %7.4g %-26s %8s %10s %8s  %-26s %8s %9s %9s %6s %6s",
        kvd_row_text(r, i, "kind"), kvd_row_text(r, i, "method"), kvd_row_real(r, i, "rate"),
        mean_cell(r, i, "ttft", ttft),
        kvd_real_text(ttft_p99, sizeof ttft_p99, "%.4g", kvd_row_real(r, i, "ttft_p99_s")),
        kvd_real_text(tbt, sizeof tbt, "%.4g", kvd_row_real(r, i, "tbt_mean_s")),
        kvd_real_text(tbt_p99, sizeof tbt_p99, "%.4g", kvd_row_real(r, i, "tbt_p99_s")),
        mean_cell(r, i, "latency", latency),
        kvd_real_text(latency_p99, sizeof latency_p99, "%.4g", kvd_row_real(r, i, "latency_p99_s")),
        kvd_real_text(served, sizeof served, "%.4g", kvd_row_real(r, i, "served_per_s")),
        kvd_real_text(goodput, sizeof goodput, "%.4g", kvd_row_real(r, i, "goodput_per_s")),
        kvd_real_text(busy, sizeof busy, "%.3f", kvd_row_real(r, i, "utilisation")),
        kvd_real_text(cache, sizeof cache, "%.3f", kvd_row_real(r, i, "kv_share")));
    return line;
}
