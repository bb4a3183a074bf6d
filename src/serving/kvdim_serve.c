/* kvdim-serve: simulates serving with compressed caches, using iteration times that kvdim-jct
 * measured. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/device.h"
#include "common/json.h"
#include "common/progress.h"
#include "common/run.h"
#include "formats/jct.h"
#include "formats/rows.h"
#include "serving/simulate/costs_files.h"
#include "serving/simulate/replay.h"
#include "serving/simulate/serve_options.h"
#include "serving/simulate/serve_rows.h"

static const char program[] = "kvdim-serve";

/* number of requests drawn for each replica (copy of the model) with --requests poisson */
enum { POISSON_REQUESTS = 2000 };
/* largest request rate that is accepted, in requests per second */
static const double MOST_RATE = 1e9;

typedef struct {
    kvd_serve_options *cfg;
    kvd_run run;
    kvd_costs_files *costs;
    bool named;
    kvd_requests requests;
    /* request rate of the given arrivals (trace or Poisson) in requests per second; the arrivals
     * are sped up or slowed down to get other rates */
    double base_rate;
    kvd_rows *table;
    size_t printed;
    char *none;
    kvd_progress progress;
    size_t done;
    /* number of simulations of the current method that used extrapolated iteration times */
    size_t n_beyond;
    /* largest fraction of extrapolated iteration times in a simulation of the current method, and
     * that simulation's request rate */
    double worst_share, worst_rate;
    kvd_h5 file;
} service;

/* Warns if the file of iteration times is from an interrupted run of kvdim-jct. The simulation
 * interpolates the missing times. */
static void say_unfinished(const char *path)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    kvd_err unused;
    int64_t all = 0, done = 0;
    if (!kvd_h5_open(&f, path, &kvd_schema_jct, &unused) &&
        !kvd_h5_get_int(&f, "/", "points", &all, &unused) &&
        !kvd_h5_get_int(&f, "/", "points_done", &done, &unused) && done < all)
        fprintf(stderr, "%s: '%s' holds %lld of the %lld points of its sweep\n", program, path,
                (long long)done, (long long)all);
    kvd_h5_close(&f, false);
}

static int open_costs(service *v, kvd_err *err)
{
    const kvd_serve_options *const cfg = v->cfg;
    if (kvd_run_add_inputs(&v->run, cfg->costs, cfg->n_costs, err) ||
        !(v->costs = kvd_costs_files_open(cfg->costs, cfg->n_costs, cfg->gpus, err)))
        return -1;
    for (size_t i = 0; i < cfg->n_costs; i++)
        say_unfinished(cfg->costs[i]);
    if (*kvd_costs_files_apart(v->costs))
        fprintf(stderr, "%s: %s\n", program, kvd_costs_files_apart(v->costs));
    return 0;
}

static int resolve_methods(service *v, kvd_err *err)
{
    kvd_serve_options *const cfg = v->cfg;
    size_t n;
    const char *const *const known = kvd_costs_files_methods(v->costs, &n);
    v->named = cfg->n_methods > 0;
    if (!cfg->n_methods && n > KVD_SERVE_METHODS)
        return kvd_fail(err, "the costs are of %zu methods: name up to %d with --method", n,
                        (int)KVD_SERVE_METHODS);
    if (!cfg->n_methods)
        for (size_t k = 0; k < n; k++)
            if (!(cfg->method[cfg->n_methods++] = strdup(known[k])))
                return kvd_no_memory(err, "the name of a method", strlen(known[k]) + 1);
    for (size_t i = 0; i < cfg->n_methods; i++)
        if (!kvd_costs_files_of(v->costs, cfg->method[i], err))
            return -1;
    return 0;
}

static int poisson_requests(service *v, kvd_err *err)
{
    const kvd_serve_options *const cfg = v->cfg;
    const size_t n = cfg->n_requests ? cfg->n_requests : POISSON_REQUESTS * cfg->replicas;
    if (kvd_requests_lengths_from_file(cfg->lengths) &&
        kvd_run_add_input(&v->run, cfg->lengths, err))
        return -1;
    v->base_rate = cfg->poisson_rate;
    return kvd_requests_poisson(&v->requests, cfg->poisson_rate, n, cfg->lengths, v->run.seed, err);
}

static int recorded_requests(service *v, kvd_err *err)
{
    const kvd_serve_options *const cfg = v->cfg;
    if (kvd_run_add_input(&v->run, cfg->requests, err) ||
        kvd_requests_read(&v->requests, cfg->requests, err) ||
        (cfg->n_requests && kvd_requests_first(&v->requests, cfg->n_requests, err)))
        return -1;
    v->base_rate = kvd_requests_rate(&v->requests);
    if (!(v->base_rate > 0) && (cfg->n_rates || !isnan(cfg->bound)))
        return kvd_fail(err,
                        "'%s': no time passes between its requests, so they have no rate to change",
                        cfg->requests);
    if (v->base_rate > MOST_RATE)
        return kvd_fail(err, "'%s': %zu requests within %g s, more than %g a second", cfg->requests,
                        v->requests.n,
                        v->requests.request[v->requests.n - 1].arrival -
                            v->requests.request[0].arrival,
                        MOST_RATE);
    return 0;
}

static kvd_costs *costs_of(const service *v, const char *method, kvd_err *err)
{
    const char *const path = kvd_costs_files_of(v->costs, method, err);
    return path ? kvd_costs_load(path, method, v->cfg->gpus, err) : NULL;
}

static int check_replays(service *v, kvd_err *err)
{
    const kvd_serve_options *const cfg = v->cfg;
    bool any = false;
    for (size_t i = 0; i < cfg->n_methods; i++) {
        kvd_costs *const costs = costs_of(v, cfg->method[i], err);
        if (!costs)
            return -1;
        kvd_replay replay;
        const int found =
            kvd_replay_load(&replay, cfg->validate, cfg->method[i], kvd_costs_gpus(costs), err);
        kvd_costs_free(costs);
        if (found < 0)
            return -1;
        any = any || found == 0;
        if (found == 0)
            kvd_replay_release(&replay);
    }
    return any ? 0
               : kvd_fail(err,
                          "'%s' has no row of kind request of any of these methods on as many GPUs",
                          cfg->validate);
}

static int open_inputs(service *v, kvd_err *err)
{
    kvd_serve_options *const cfg = v->cfg;
    if (open_costs(v, err) || resolve_methods(v, err))
        return -1;
    bool known = !cfg->validate;
    for (size_t i = 0; !known && i < cfg->n_costs; i++)
        known = !strcmp(cfg->validate, cfg->costs[i]);
    if ((!known && kvd_run_add_input(&v->run, cfg->validate, err)) ||
        (cfg->validate && check_replays(v, err)))
        return -1;
    if (!cfg->requests)
        return 0;
    return isnan(cfg->poisson_rate) ? recorded_requests(v, err) : poisson_requests(v, err);
}

static void print_new_rows(service *v)
{
    const kvd_rows *const r = v->table;
    const bool shown = !v->cfg->common.quiet && !v->cfg->common.json;
    static bool points, comparisons;
    char line[KVD_SERVE_LINE];
    for (; v->printed < kvd_rows_count(r); v->printed++) {
        const bool comparison = !strcmp(kvd_row_text(r, v->printed, "kind"), "validation");
        bool *const headed = comparison ? &comparisons : &points;
        if (!shown)
            continue;
        if (!*headed)
            puts(comparison ? kvd_serve_comparison_heading : kvd_serve_heading);
        *headed = true;
        puts(kvd_serve_line(r, v->printed, line));
    }
    fflush(stdout);
}

static const char *at_rate(double rate, char text[64])
{
    if (!(rate > 0))
        return "with all requests at one time";
    (void)snprintf(text, 64, "at %.4g request%s a second", rate, fabs(rate - 1) <= 0 ? "" : "s");
    return text;
}

static void warn(service *v, const kvd_serve_about *a, const kvd_serve_point *p, double bound)
{
    const kvd_simulated *const s = &p->simulated;
    const double share = (double)s->extrapolated / (double)s->iterations;
    char text[64];
    const char *const at = at_rate(p->rate, text);
    v->n_beyond += s->extrapolated > 0;
    if (share > v->worst_share) {
        v->worst_share = share;
        v->worst_rate = p->rate;
    }
    const double rate = p->rate * (1 - (double)s->refused / (double)p->requests);
    if (!isnan(bound) && p->served_rate < 0.9 * rate)
        fprintf(stderr,
                "%s: %s: %s the queue grows (%.4g are served): the mean of "
                "these %zu requests is within the bound, that of a longer trace is not\n",
                program, a->method, at, p->served_rate, p->requests);
    if (s->preempted)
        fprintf(stderr, "%s: %s: %s %zu preemptions, %zu tokens computed again\n", program,
                a->method, at, s->preempted, s->recomputed);
    if (s->refused)
        fprintf(stderr, "%s: %s: %zu of %zu requests refused %s, the first: %s\n", program,
                a->method, s->refused, p->requests, at, s->refusal.msg);
}

static void warn_of_extrapolation(service *v, const char *method)
{
    char text[64];
    if (v->n_beyond)
        fprintf(stderr,
                "%s: %s: %zu point%s beyond the measured costs, %s in %.3g %% of the iterations\n",
                program, method, v->n_beyond, v->n_beyond > 1 ? "s extrapolate" : " extrapolates",
                at_rate(v->worst_rate, text), 100 * v->worst_share);
    v->n_beyond = 0;
    v->worst_share = 0;
}

/* Simulates requests that arrive at `rate` and adds a result row. bound: latency bound with which
 * --max-rate searched for `rate`; NaN if the user gave the rate. */
static int add_point(service *v, const kvd_serve_about *a, double rate, double bound, kvd_err *err)
{
    kvd_requests fast;
    kvd_serve_point point;
    const double factor = v->base_rate > 0 ? rate / v->base_rate : 1;
    if (kvd_serve_faster(&v->requests, factor, &fast, err))
        return -1;
    const int status = kvd_serve_measure(a->setting, &fast, rate, &point, err) ||
                       kvd_serve_add_point(v->table, a, &point, bound, err);
    kvd_requests_release(&fast);
    if (status)
        return -1;
    print_new_rows(v);
    warn(v, a, &point, bound);
    kvd_progress_step(&v->progress, (double)++v->done);
    return 0;
}

static int search_rate(service *v, const kvd_serve_about *a, kvd_err *err)
{
    const double bound = v->cfg->bound;
    double rate;
    if (kvd_serve_max_rate(a->setting, &v->requests, v->base_rate, bound, &rate, err))
        return -1;
    if (rate > 0 && isfinite(rate))
        return add_point(v, a, rate, bound, err);
    kvd_progress_step(&v->progress, (double)++v->done);
    char *all = NULL;
    if (asprintf(
            &all,
            rate > 0
                ? "%s%s: %zu requests keep a mean latency of %g s per token however fast they arrive\n"
                : "%s%s: no rate of %zu requests has a mean latency of %g s per token\n",
            v->none, a->method, v->requests.n, bound) < 0)
        return kvd_no_memory(err, "a line", strlen(v->none) + strlen(a->method));
    if (!v->cfg->common.quiet && !v->cfg->common.json)
        fputs(all + strlen(v->none), stdout);
    free(v->none);
    v->none = all;
    return 0;
}

static int serve_trace(service *v, const kvd_costs *costs, const char *method, kvd_err *err)
{
    const kvd_serve_options *const cfg = v->cfg;
    kvd_serve_setting setting = {.costs = costs,
                                 .limits = cfg->limits,
                                 .replicas = (int)cfg->replicas,
                                 .route = cfg->route,
                                 .slo_ttft = cfg->slo_ttft,
                                 .slo_tbt = cfg->slo_tbt,
                                 .seed = v->run.seed};
    const kvd_serve_about about = {.method = method,
                                   .trace = v->requests.name,
                                   .setting = &setting,
                                   .memory = cfg->memory,
                                   .reserve = cfg->reserve,
                                   .skipped = v->requests.n_skipped};
    if (kvd_serve_pages(costs, cfg->memory, cfg->reserve, &setting.limits.pages, err))
        return -1;
    for (size_t i = 0; i < cfg->n_rates; i++)
        if (add_point(v, &about, cfg->rate[i], NAN, err))
            return -1;
    return (!cfg->n_rates && add_point(v, &about, v->base_rate, NAN, err)) ||
           (isnan(cfg->bound) ? 0 : search_rate(v, &about, err));
}

/* Returns the batching limits for simulating requests that kvdim-jct served: the limits given as
 * options, else the limits that kvdim-jct used, else defaults. */
static kvd_batching_limits replay_limits(const service *v, const kvd_replay *r)
{
    const kvd_serve_options *const cfg = v->cfg;
    kvd_batching_limits l = r->limits;
    if (cfg->max_batch_given || !l.max_batch)
        l.max_batch = cfg->limits.max_batch;
    if (cfg->max_tokens_given || !l.max_tokens)
        l.max_tokens = cfg->limits.max_tokens;
    if (cfg->chunk_given)
        l.chunk = cfg->limits.chunk;
    if (cfg->admission_given)
        l.admission = cfg->limits.admission;
    return l;
}

static int compare_replay(service *v, const kvd_costs *costs, const char *method,
                          const kvd_replay *r, kvd_err *err)
{
    kvd_serve_comparison comparison[KVD_REPLAY_COMPARISONS];
    kvd_serve_point point;
    const kvd_serve_setting setting = {.costs = costs,
                                       .limits = replay_limits(v, r),
                                       .replicas = 1,
                                       .slo_ttft = INFINITY,
                                       .slo_tbt = INFINITY,
                                       .seed = v->run.seed};
    const kvd_serve_about about = {.method = method,
                                   .trace = r->requests.name,
                                   .setting = &setting,
                                   .memory = NAN,
                                   .reserve = NAN};
    if (strcmp(r->engine, kvd_costs_engine(costs)))
        fprintf(stderr, "%s: %s: the replay ran on another engine ('%s') than the costs ('%s')\n",
                program, method, r->engine, kvd_costs_engine(costs));
    if (kvd_serve_measure(&setting, &r->requests, kvd_requests_rate(&r->requests), &point, err) ||
        kvd_replay_compare(r, &setting, comparison, err))
        return -1;
    for (int i = 0; i < KVD_REPLAY_COMPARISONS; i++)
        if (kvd_serve_add_comparison(v->table, &about, &point, &comparison[i], err))
            return -1;
    print_new_rows(v);
    warn(v, &about, &point, NAN);
    return 0;
}

static int validate(service *v, const kvd_costs *costs, const char *method, kvd_err *err)
{
    kvd_replay replay;
    const int found =
        kvd_replay_load(&replay, v->cfg->validate, method, kvd_costs_gpus(costs), err);
    if (found > 0 && v->named)
        fprintf(stderr, "%s: %s: not validated, '%s' has no requests of it\n", program, method,
                v->cfg->validate);
    if (found)
        return found < 0 ? -1 : 0;
    const int status = compare_replay(v, costs, method, &replay, err);
    kvd_replay_release(&replay);
    kvd_progress_step(&v->progress, (double)++v->done);
    return status;
}

static int print_json(const service *v, kvd_err *err)
{
    json_t *const costs = json_array();
    for (size_t i = 0; costs && i < v->cfg->n_costs; i++)
        json_array_append_new(costs, json_string(v->cfg->costs[i]));
    json_t *const all =
        json_pack("{s:s, s:s, s:s, s:o, s:s, s:b, s:s, s:o}", "program", program, "output",
                  v->cfg->common.output, "model", kvd_costs_files_model(v->costs)->name, "costs",
                  costs, "trace", v->requests.name, "simulated", 1, "no_rate", v->none, "rows",
                  kvd_rows_json(v->table));
    return kvd_json_print(all, err);
}

static int serve_methods(service *v, kvd_err *err)
{
    const kvd_serve_options *const cfg = v->cfg;
    for (size_t i = 0; i < cfg->n_methods; i++) {
        kvd_costs *const costs = costs_of(v, cfg->method[i], err);
        if (!costs)
            return -1;
        const int status = (cfg->requests && serve_trace(v, costs, cfg->method[i], err)) ||
                           (cfg->validate && validate(v, costs, cfg->method[i], err));
        kvd_costs_free(costs);
        warn_of_extrapolation(v, cfg->method[i]);
        if (status)
            return strncmp(err->msg, "'", 1) ? kvd_in(err, "%s", cfg->method[i]) : -1;
    }
    return 0;
}

static int work(service *v, kvd_err *err)
{
    kvd_serve_options *const cfg = v->cfg;
    if (kvd_device_cpu_only(&cfg->common, err) || open_inputs(v, err) ||
        kvd_serve_record(cfg, v->requests.n, &v->run, err) || !(v->table = kvd_serving_rows(err)) ||
        kvd_h5_create(&v->file, cfg->common.output, &kvd_schema_serving, &v->run, err))
        return -1;
    size_t per_method = cfg->validate ? 1 : 0;
    if (cfg->requests)
        per_method += cfg->n_rates ? cfg->n_rates : 1;
    if (!isnan(cfg->bound))
        per_method++;
    kvd_progress_start(&v->progress, "serve", "points", (double)(per_method * cfg->n_methods),
                       cfg->common.quiet);
    const int status = serve_methods(v, err);
    kvd_progress_end(&v->progress);
    return status ||
           kvd_serving_write(&v->file, v->table, kvd_costs_files_model(v->costs), v->none, err) ||
           (cfg->common.json ? print_json(v, err) : 0);
}

static void release(service *v)
{
    kvd_h5_close(&v->file, false);
    kvd_rows_free(v->table);
    free(v->none);
    kvd_requests_release(&v->requests);
    kvd_costs_files_free(v->costs);
    kvd_run_release(&v->run);
    kvd_serve_options_release(v->cfg);
}

int main(int argc, char **argv)
{
    static kvd_serve_options cfg;
    static service v;
    kvd_err err = {""};
    kvd_serve_parse(argc, argv, &cfg);
    v.cfg = &cfg;
    v.file.id = H5I_INVALID_HID;
    int status = kvd_run_start(&v.run, program, argc, argv, &cfg.common, &err);
    if (!status && !(v.none = strdup("")))
        status = kvd_no_memory(&err, "a line", 1);
    if (!status)
        status = work(&v, &err);
    release(&v);
    return kvd_run_exit(program, status, &err);
}
