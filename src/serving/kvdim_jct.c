/*
 * kvdim-jct: what inference costs from the arrival of requests to their last tokens, and what its parts are.
 *
 * Reads a checkpoint or a published shape, kvdim/spectrum, kvdim/rates, kvdim/error-table, request traces. Writes kvdim/jct and
 * with --trace a JSON trace.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/device.h"
#include "common/progress.h"
#include "common/run.h"
#include "formats/rows_json.h"
#include "methods/cache.h"
#include "serving/jct_grid.h"
#include "serving/jct_loop.h"
#include "serving/jct_methods.h"

static const char program[] = "kvdim-jct";

typedef struct {
    kvd_jct_options *cfg;
    kvd_run run;
    kvd_checkpoint *checkpoint;
    const kvd_config *config;
    kvd_model_info info;
    char gpu[256]; /* empty: the CPU runs the model */
    kvd_jct_methods methods;
    kvd_requests requests; /* of --requests */
    size_t longest_input, max_len, max_batch, max_tokens;
    kvd_energy energy;
    kvd_jct_trace trace;
    kvd_jct out;
    char *sweep;   /* text: what a resumed run must have in common */
    char *skipped; /* lines                                        */
    size_t points, done, left_out, printed;
    kvd_progress progress;
} sweep;

/* One method of it. */
typedef struct {
    size_t number;
    const kvd_jct_method *method;
    kvd_plan plan;
    bool open;
    kvd_engine *engine;
    kvd_jct_setting setting;
    kvd_jct_loop loop;
} candidate;

/* ---- what there is to do ------------------------------------------------------------------------------- */

static int load_requests(sweep *s, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    double rate;
    if (strncmp(cfg->requests, "poisson:", 8)) {
        if (kvd_requests_read(&s->requests, cfg->requests, err))
            return -1;
        if (cfg->n_requests)
            kvd_requests_first(&s->requests, cfg->n_requests);
    } else if (kvd_arg_double("--requests poisson:RATE", cfg->requests + 8, 1e-9, 1e9, &rate, err) ||
               kvd_requests_poisson(&s->requests, rate, cfg->n_requests ? cfg->n_requests : 100, cfg->lengths,
                                    s->run.seed, err))
        return -1;
    for (size_t i = 0; i < s->requests.n; i++) {
        const kvd_request *const r = &s->requests.request[i];
        const size_t len = (size_t)r->input + r->output;
        s->longest_input = r->input > s->longest_input ? r->input : s->longest_input;
        s->max_len = len > s->max_len ? len : s->max_len;
    }
    return 0;
}

static size_t largest(const size_t *x, size_t n)
{
    size_t most = 0;
    for (size_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

static int settle_sizes(sweep *s, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    if (cfg->requests) {
        if (load_requests(s, err))
            return -1;
    } else {
        s->longest_input = largest(cfg->input, cfg->n_inputs);
        s->max_len = s->longest_input + largest(cfg->output, cfg->n_outputs);
    }
    if (s->max_len > (size_t)s->config->max_positions)
        return kvd_fail(err, "requests of up to %zu tokens: the model was made for at most %d positions",
                        s->max_len, s->config->max_positions);
    s->max_batch = cfg->max_batch ? cfg->max_batch : cfg->requests ? 64 : largest(cfg->batch, cfg->n_batches);
    s->max_tokens = cfg->max_tokens ? cfg->max_tokens : 8192;
    if (cfg->chunk && cfg->chunk < s->max_batch)
        return kvd_fail(err, "--chunk %zu is less than a step of %zu requests takes", cfg->chunk,
                        s->max_batch);
    const size_t jobs = cfg->n_inputs * cfg->n_outputs * cfg->n_batches;
    s->points = s->methods.n * (cfg->requests ? 1 : jobs + cfg->iterations);
    return 0;
}

static int settle_device(sweep *s, kvd_err *err)
{
    kvd_jct_options *const cfg = s->cfg;
    if (kvd_device_settle(&cfg->common, s->gpu, sizeof s->gpu, err))
        return -1;
    kvd_device_note(s->gpu, &s->run);
    if (!cfg->type_given)
        cfg->type = s->gpu[0] ? KVD_BF16 : KVD_F32;
    if (s->gpu[0] && cfg->gpus > (size_t)kvd_cuda_count())
        return kvd_fail(err, "--gpus %zu: this machine has %d", cfg->gpus, kvd_cuda_count());
    if (!s->gpu[0] && cfg->gpus > 1)
        return kvd_fail(err, "--gpus %zu: no GPU can be used here", cfg->gpus);
    return 0;
}

/* ---- provenance ------------------------------------------------------------------------------------------- */

static int record_inputs(sweep *s, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    kvd_run *const r = &s->run;
    if (kvd_checkpoint_add_input(s->checkpoint, r, err))
        return -1;
    for (size_t i = 0; i < cfg->n_spectra; i++)
        if (kvd_run_add_input(r, cfg->spectrum[i], err))
            return -1;
    for (size_t i = 0; i < cfg->n_rates; i++)
        if (kvd_run_add_input(r, cfg->rates[i], err))
            return -1;
    if ((cfg->table && kvd_run_add_input(r, cfg->table, err)) ||
        (cfg->calibration && kvd_run_add_input(r, cfg->calibration, err)))
        return -1;
    return cfg->requests && strncmp(cfg->requests, "poisson:", 8) ? kvd_run_add_input(r, cfg->requests, err)
                                                                  : 0;
}

/* The methods and everything else that decides what a row is. */
static int describe_sweep(sweep *s, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    size_t size = 0;
    FILE *const f = open_memstream(&s->sweep, &size);
    if (!f)
        return kvd_no_memory(err, "the sweep's description", 4096);
    for (int i = 0; i < s->run.n_inputs; i++)
        fprintf(f, "%s ", s->run.inputs[i].hash);
    for (size_t i = 0; i < s->methods.n; i++)
        fprintf(f, "%s%s", i ? " " : "", s->methods.item[i].label);
    if (cfg->requests)
        fprintf(f, "; requests %s, %s, %zu", cfg->requests, cfg->lengths ? cfg->lengths : "", s->requests.n);
    else
        fprintf(f, "; input %s, output %s, batch %s", cfg->input_text, cfg->output_text,
                cfg->batch_text ? cfg->batch_text : "1");
    fprintf(f,
            "; %s, %s, %zu GPUs, graphs %s, phases %s, chunk %zu, max-tokens %zu, max-batch %zu, pages %zu, "
            "repeats "
            "%zu, iterations %s, threads %d, seed %llu",
            s->gpu[0] ? s->gpu : kvd_cpu_name(), kvd_dtype_name(cfg->type), cfg->gpus,
            cfg->graphs ? "on" : "off", cfg->phases ? "on" : "off", cfg->chunk, s->max_tokens, s->max_batch,
            cfg->pages, cfg->repeats, cfg->iterations ? "yes" : "no", s->run.threads,
            (unsigned long long)s->run.seed);
    return fclose(f) ? kvd_no_memory(err, "the sweep's description", 4096) : 0;
}

static int record_options(sweep *s, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    kvd_run *const r = &s->run;
    char methods[500] = "";
    for (size_t i = 0; i < s->methods.n; i++) {
        const size_t used = strlen(methods);
        snprintf(methods + used, sizeof methods - used, "%s%s", i ? " " : "", s->methods.item[i].label);
    }
    return kvd_run_parameter(r, "method", err, "%s", methods) ||
                   kvd_run_parameter(r, "input-len", err, "%s", cfg->input_text ? cfg->input_text : "") ||
                   kvd_run_parameter(r, "output-len", err, "%s", cfg->output_text ? cfg->output_text : "") ||
                   kvd_run_parameter(r, "batch", err, "%s",
                                     cfg->requests     ? ""
                                     : cfg->batch_text ? cfg->batch_text
                                                       : "1") ||
                   kvd_run_parameter(r, "requests", err, "%s", s->requests.name) ||
                   kvd_run_parameter(r, "iterations", err, "%s", cfg->iterations ? "yes" : "no") ||
                   kvd_run_parameter(r, "chunk", err, "%zu", cfg->chunk) ||
                   kvd_run_parameter(r, "max-tokens", err, "%zu", s->max_tokens) ||
                   kvd_run_parameter(r, "max-batch", err, "%zu", s->max_batch) ||
                   kvd_run_parameter(r, "pages", err, "%zu", cfg->pages) ||
                   kvd_run_parameter(r, "dtype", err, "%s", kvd_dtype_name(cfg->type)) ||
                   kvd_run_parameter(r, "gpus", err, "%zu", s->gpu[0] ? cfg->gpus : 0) ||
                   kvd_run_parameter(r, "graphs", err, "%s", cfg->graphs ? "on" : "off") ||
                   kvd_run_parameter(r, "phases", err, "%s", cfg->phases ? "on" : "off") ||
                   kvd_run_parameter(r, "repeats", err, "%zu", cfg->repeats)
               ? -1
               : 0;
}

/* ---- rows --------------------------------------------------------------------------------------------------- */

/* What cannot run is said once, and remembered in the file. */
static void skip(sweep *s, const char *what, const char *why)
{
    char *grown = NULL;
    s->left_out++;
    if (s->progress.terminal && !s->progress.quiet)
        fputc('\n', stderr);
    fprintf(stderr, "%s: %s: left out: %s\n", program, what, why);
    if (asprintf(&grown, "%s%s%s: %s", s->skipped ? s->skipped : "", s->skipped ? "\n" : "", what, why) >=
        0) {
        free(s->skipped);
        s->skipped = grown;
    }
}

static int save(sweep *s, kvd_err *err)
{
    const kvd_jct_facts facts = {.model = &s->info,
                                 .sweep = s->sweep,
                                 .skipped = s->skipped ? s->skipped : "",
                                 .points = s->points,
                                 .points_done = s->done};
    const bool shown = !s->cfg->common.quiet && !s->cfg->common.json;
    char line[KVD_JCT_LINE];
    if (kvd_rows_count(s->out.rows) && kvd_jct_write(&s->out, s->cfg->common.output, &facts, &s->run, err))
        return -1;
    for (; s->printed < kvd_rows_count(s->out.rows); s->printed++) {
        if (!shown)
            continue;
        if (!s->printed)
            puts(kvd_jct_heading);
        puts(kvd_jct_line(s->out.rows, s->printed, line));
    }
    fflush(stdout);
    return 0;
}

static double value(const sweep *s, size_t row, const char *column)
{
    return kvd_rows_get_real(s->out.rows, row, kvd_rows_find(s->out.rows, column));
}

static const char *text(const sweep *s, size_t row, const char *column)
{
    return kvd_rows_get_text(s->out.rows, row, kvd_rows_find(s->out.rows, column));
}

static bool is(double a, size_t b)
{
    return fabs(a - (double)b) < 0.5;
}

/* Whether a resumed file has the row already. */
static bool has_job(const sweep *s, const candidate *c, size_t batch, size_t input, size_t output)
{
    for (size_t i = 0; i < kvd_rows_count(s->out.rows); i++)
        if (!strcmp(text(s, i, "kind"), "job") && !strcmp(text(s, i, "method"), c->method->label) &&
            is(value(s, i, "batch"), batch) && is(value(s, i, "input"), input) &&
            is(value(s, i, "output"), output))
            return true;
    return false;
}

static bool has_iteration(const sweep *s, const candidate *c, const kvd_jct_point *p)
{
    for (size_t i = 0; i < kvd_rows_count(s->out.rows); i++)
        if (!strcmp(text(s, i, "kind"), "iteration") && !strcmp(text(s, i, "method"), c->method->label) &&
            is(value(s, i, "batch"), p->batch) && is(value(s, i, "piece"), p->piece) &&
            (p->piece ? is(value(s, i, "before"), p->tokens)
                      : is(value(s, i, "context") - (double)(s->cfg->repeats + 1) / 2, p->tokens)))
            return true;
    return false;
}

static bool has_requests(const sweep *s, const candidate *c)
{
    for (size_t i = 0; i < kvd_rows_count(s->out.rows); i++)
        if (!strcmp(text(s, i, "kind"), "request") && !strcmp(text(s, i, "method"), c->method->label))
            return true;
    return false;
}

/* ---- one method ----------------------------------------------------------------------------------------------- */

static int open_engine(sweep *s, candidate *c, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    const kvd_engine_spec spec = {.limits = {.max_batch = s->max_batch,
                                             .max_tokens = s->max_tokens,
                                             .chunk = cfg->chunk,
                                             .pages = cfg->pages},
                                  .max_len = s->max_len,
                                  .type = cfg->type,
                                  .n_gpus = (int)cfg->gpus,
                                  .graphs = cfg->graphs,
                                  .phases = cfg->phases};
    if (kvd_jct_method_plan(&s->methods, c->number, cfg->type, s->longest_input, s->run.seed, &c->plan, err))
        return -1;
    c->open = true;
#ifdef KVD_CUDA
    if (s->gpu[0])
        c->engine = kvd_engine_open_cuda(s->checkpoint, &c->plan, &spec, err);
    else
#endif
        c->engine = kvd_engine_open_cpu(s->checkpoint, &c->plan, &spec, err);
    if (!c->engine)
        return -1;
    kvd_cache_bytes bytes;
    kvd_cache_count_bytes(s->config, NULL, kvd_dtype_bytes(cfg->type), &bytes);
    c->setting = (kvd_jct_setting){.method = c->method->label,
                                   .name = kvd_method_name(c->method->method),
                                   .overall_p = c->method->point->overall_p,
                                   .facts = &c->engine->facts,
                                   .dense_bytes_per_token = bytes.dense,
                                   .type = cfg->type,
                                   .gpus = s->gpu[0] ? (int)cfg->gpus : 0,
                                   .graphs = s->gpu[0] && cfg->graphs,
                                   .phases = cfg->phases,
                                   .chunk = cfg->chunk};
    c->loop = (kvd_jct_loop){.engine = c->engine,
                             .limits = spec.limits,
                             .vocab = (size_t)s->config->vocab_size,
                             .seed = s->run.seed,
                             .energy = &s->energy};
    c->loop.limits.pages = c->engine->facts.pages;
    return 0;
}

static void close_engine(candidate *c)
{
    if (c->engine)
        c->engine->free(c->engine);
    if (c->open)
        kvd_plan_close(&c->plan);
    c->engine = NULL;
    c->open = false;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

/* A run that does not count, with some steps: caches warm, graphs captured. */
static int warm_up(const kvd_jct_loop *l, kvd_requests *job, kvd_err *err)
{
    enum { STEPS = 4 };
    const uint32_t output = job->request[0].output;
    kvd_jct_served served;
    kvd_jct_loop quiet = *l;
    quiet.trace = NULL;
    for (size_t i = 0; i < job->n; i++)
        job->request[i].output = output < STEPS ? output : STEPS;
    const int status = kvd_jct_serve(&quiet, job, &served, err);
    kvd_jct_served_release(&served);
    for (size_t i = 0; i < job->n; i++)
        job->request[i].output = output;
    return status;
}

static int run_job(sweep *s, candidate *c, kvd_requests *job, kvd_err *err)
{
    const size_t repeats = s->cfg->repeats, gaps = job->n * (job->request[0].output - 1);
    kvd_jct_run *const run = calloc(repeats, sizeof *run);
    double *const gap = calloc(repeats * gaps + 1, sizeof *gap);
    int status = run && gap ? warm_up(&c->loop, job, err)
                            : kvd_no_memory(err, "a job's times", (repeats * gaps) * sizeof *gap);
    for (size_t i = 0; !status && i < repeats; i++) {
        kvd_jct_served served;
        kvd_jct_loop loop = c->loop;
        loop.trace = i == 0 && s->cfg->trace ? &s->trace : NULL;
        status = kvd_jct_serve(&loop, job, &served, err);
        run[i] = served.run;
        if (!status)
            memcpy(gap + i * gaps, served.gap, gaps * sizeof *gap);
        kvd_jct_served_release(&served);
    }
    if (!status)
        status = kvd_jct_add_job(&s->out, &c->setting, job->n, job->request[0].input, job->request[0].output,
                                 run, (int)repeats, gap, repeats * gaps, err);
    free(run);
    free(gap);
    return status;
}

/* Whether a request of that size can ever run; else it is left out with its numbers. */
static bool fits(sweep *s, const candidate *c, const char *what, size_t tokens)
{
    char why[160];
    if ((tokens + 63) / 64 <= c->loop.limits.pages)
        return true;
    snprintf(why, sizeof why, "a request of %zu tokens takes %zu pages of the cache, there are %zu", tokens,
             (tokens + 63) / 64, c->loop.limits.pages);
    skip(s, what, why);
    return false;
}

static int job(sweep *s, candidate *c, size_t batch, size_t input, size_t output, kvd_err *err)
{
    char what[400];
    snprintf(what, sizeof what, "%s, %zu x (%zu + %zu)", c->method->label, batch, input, output);
    if (has_job(s, c, batch, input, output) || !fits(s, c, what, input + output))
        return 0;
    kvd_requests requests = {.n = batch, .request = calloc(batch, sizeof *requests.request)};
    if (!requests.request)
        return kvd_no_memory(err, "requests", batch * sizeof *requests.request);
    for (size_t i = 0; i < batch; i++)
        requests.request[i] = (kvd_request){0, (uint32_t)input, (uint32_t)output};
    if (s->cfg->trace)
        kvd_jct_trace_job(&s->trace, what);
    const int status = run_job(s, c, &requests, err);
    free(requests.request);
    return status ? kvd_in(err, "%s", what) : 0;
}

static int jobs(sweep *s, candidate *c, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    for (size_t b = 0; b < cfg->n_batches; b++)
        for (size_t i = 0; i < cfg->n_inputs; i++)
            for (size_t o = 0; o < cfg->n_outputs; o++) {
                if (job(s, c, cfg->batch[b], cfg->input[i], cfg->output[o], err))
                    return -1;
                kvd_progress_step(&s->progress, (double)++s->done);
                if (save(s, err))
                    return -1;
            }
    return 0;
}

/* ---- iterations and requests ------------------------------------------------------------------------------------- */

static int iterations(sweep *s, candidate *c, kvd_err *err)
{
    const size_t samples = s->cfg->repeats;
    kvd_jct_point *point = NULL;
    size_t n = 0;
    double *const second = calloc(samples, sizeof *second), context;
    int status = second ? kvd_jct_grid(s->longest_input, s->max_len, &c->loop.limits,
                                       kvd_plan_beyond_widths(&c->plan), samples, &point, &n, err)
                        : kvd_no_memory(err, "samples", samples * sizeof *second);
    for (size_t i = 0; !status && i < n; i++) {
        if (has_iteration(s, c, &point[i]))
            continue;
        status =
            kvd_jct_grid_run(&c->loop, &point[i], samples, second, &context, err) ||
            kvd_jct_add_iteration(&s->out, &c->setting, point[i].piece, point[i].piece ? point[i].tokens : 0,
                                  point[i].batch, context, second, (int)samples, err) ||
            save(s, err);
        if (status)
            kvd_in(err, "%s, %s of %zu behind %zu", c->method->label, point[i].piece ? "a piece" : "a step",
                   point[i].piece ? point[i].piece : point[i].batch, point[i].tokens);
    }
    free(point);
    free(second);
    kvd_progress_step(&s->progress, (double)++s->done);
    return status ? -1 : save(s, err);
}

static int replay(sweep *s, candidate *c, kvd_err *err)
{
    kvd_jct_served served = {0};
    if (has_requests(s, c)) {
        s->done++;
        return 0;
    }
    if (!fits(s, c, c->method->label, s->max_len))
        return 0;
    c->loop.trace = s->cfg->trace ? &s->trace : NULL;
    if (s->cfg->trace)
        kvd_jct_trace_job(&s->trace, c->method->label);
    int status = kvd_jct_serve(&c->loop, &s->requests, &served, err);
    for (size_t i = 0; !status && i < served.n; i++) {
        const kvd_request *const r = &s->requests.request[i];
        const kvd_jct_request row = {.request = i,
                                     .input = r->input,
                                     .output = r->output,
                                     .arrival = r->arrival,
                                     .ttft = served.first[i] - r->arrival,
                                     .jct = served.last[i] - r->arrival,
                                     .gap = served.gap + served.gap_at[i],
                                     .n_gaps = served.gap_at[i + 1] - served.gap_at[i]};
        status = kvd_jct_add_request(&s->out, &c->setting, &row, err);
    }
    kvd_jct_served_release(&served);
    kvd_progress_step(&s->progress, (double)++s->done);
    return status ? kvd_in(err, "%s", c->method->label) : save(s, err);
}

/* ---- the sweep ------------------------------------------------------------------------------------------------------ */

static int run_method(sweep *s, size_t i, kvd_err *err)
{
    candidate c = {.number = i, .method = &s->methods.item[i]};
    kvd_err why = {""};
    int status = 0;
    if (open_engine(s, &c, &why))
        skip(s, c.method->label, why.msg);
    else if (s->cfg->requests)
        status = replay(s, &c, err);
    else
        status = jobs(s, &c, err) || (s->cfg->iterations && iterations(s, &c, err));
    close_engine(&c);
    return status ? -1 : 0;
}

static void print_break_even(const sweep *s)
{
    const kvd_rows *const r = s->out.rows;
    for (size_t i = 0; i < kvd_rows_count(r); i++)
        for (int output = 0; output < 2; output++) {
            const char *const length = output ? "output" : "input", *const other =
                                                                        output ? "input" : "output";
            bool first = !strcmp(text(s, i, "kind"), "job") && strcmp(text(s, i, "name"), "none") &&
                         (output ? s->cfg->n_outputs : s->cfg->n_inputs) > 1;
            for (size_t j = 0; first && j < i; j++)
                first = strcmp(text(s, j, "kind"), "job") ||
                        strcmp(text(s, j, "method"), text(s, i, "method")) ||
                        fabs(value(s, j, "batch") - value(s, i, "batch")) > 0.5 ||
                        fabs(value(s, j, other) - value(s, i, other)) > 0.5;
            if (!first)
                continue;
            const double at = kvd_jct_break_even(r, i, output);
            printf("%s, batch %.0f, %s %.0f: ", text(s, i, "method"), value(s, i, "batch"), other,
                   value(s, i, other));
            if (isnan(at))
                printf("no %s length of the sweep from which on it is faster than none\n", length);
            else
                printf("faster than none from an %s length of %.0f on\n", length, at);
        }
}

static int print_json(const sweep *s, kvd_err *err)
{
    json_t *const all = json_pack("{s:s, s:s, s:s, s:i, s:i, s:o}", "program", program, "output",
                                  s->cfg->common.output, "model", s->info.name, "points", (int)s->points,
                                  "points_done", (int)s->done, "rows", kvd_rows_json(s->out.rows));
    const int failed =
        !all || json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) || puts("") < 0;
    json_decref(all);
    return failed ? kvd_fail(err, "cannot write the JSON summary") : 0;
}

static int run_sweep(sweep *s, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    kvd_progress_start(&s->progress, "jct", "points", (double)s->points, cfg->common.quiet);
    int status = 0;
    for (size_t i = 0; !status && i < s->methods.n; i++)
        status = run_method(s, i, err);
    kvd_progress_end(&s->progress);
    if (status) {
        if (kvd_rows_count(s->out.rows))
            kvd_in(err, "%zu of %zu points are in '%s'", s->done, s->points, cfg->common.output);
        return -1;
    }
    if (cfg->trace && kvd_jct_trace_close(&s->trace, err))
        return -1;
    if (cfg->common.json ? print_json(s, err) : 0)
        return -1;
    if (!cfg->common.quiet && !cfg->common.json)
        print_break_even(s);
    if (s->left_out)
        return kvd_fail(err, "%zu of %zu points were left out, see above", s->left_out, s->points);
    return 0;
}

static int work(sweep *s, kvd_err *err)
{
    kvd_jct_options *const cfg = s->cfg;
    static char none[] = "none";
    if (settle_device(s, err) ||
        !(s->checkpoint = cfg->shape ? kvd_checkpoint_of_shape(cfg->shape, KVD_SHAPE_SEED, err)
                                     : kvd_checkpoint_open(cfg->model, err)))
        return -1;
    s->config = kvd_checkpoint_config(s->checkpoint);
    if (!cfg->n_methods) {
        if (kvd_method_parse(none, &cfg->method[0], err) || !(cfg->method_text[0] = strdup(none)))
            return -1;
        cfg->n_methods = 1;
    }
    if (record_inputs(s, err))
        return -1;
    kvd_model_info_set(&s->info, s->config, kvd_checkpoint_path(s->checkpoint), s->run.inputs[0].hash,
                       kvd_checkpoint_dtype(s->checkpoint));
    if (kvd_jct_methods_load(&s->methods, cfg, s->config, &s->info, err) || settle_sizes(s, err) ||
        record_options(s, err) || describe_sweep(s, err) || kvd_jct_init(&s->out, (int)cfg->repeats, err))
        return -1;
    if (cfg->resume && kvd_jct_resume(&s->out, cfg->common.output, s->sweep, err) < 0)
        return -1;
    s->printed = kvd_rows_count(s->out.rows);
    if (cfg->trace && kvd_jct_trace_open(&s->trace, cfg->trace, err))
        return -1;
    s->trace.zero = kvd_jct_now();
    if (s->gpu[0])
        kvd_energy_open(&s->energy, 0, (int)cfg->gpus);
    return run_sweep(s, err);
}

static void release(sweep *s)
{
    kvd_jct_trace_release(&s->trace);
    kvd_energy_close(&s->energy);
    kvd_jct_release(&s->out);
    kvd_requests_release(&s->requests);
    kvd_jct_methods_release(&s->methods);
    kvd_checkpoint_close(s->checkpoint);
    kvd_jct_options_release(s->cfg);
    kvd_run_release(&s->run);
    free(s->sweep);
    free(s->skipped);
}

int main(int argc, char **argv)
{
    static kvd_jct_options cfg = {
        .common = {.seed = 1}, .gpus = 1, .repeats = 3, .graphs = true, .phases = true};
    static sweep s;
    kvd_err err = {""};
    kvd_jct_parse(program, argc, argv, &cfg);
    s.cfg = &cfg;
    int status = kvd_run_start(&s.run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&s, &err);
    release(&s);
    return kvd_run_exit(program, status, &err);
}
