/* kvdim-jct: measures job completion times of inference, and the time of each phase of a job. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/datadir.h"
#include "common/device.h"
#include "common/files/output.h"
#include "common/json.h"
#include "common/run.h"
#include "formats/jct.h"
#include "formats/rows.h"
#include "methods/grid.h"
#include "model/model_info.h"
#include "serving/jct/jct_sweep.h"

static const char program[] = "kvdim-jct";

static int load_requests(kvd_jct_sweep *s, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    double rate;
    if (strncmp(cfg->requests, "poisson:", 8)) {
        if (kvd_requests_read(&s->requests, cfg->requests, err) ||
            (cfg->n_requests && kvd_requests_first(&s->requests, cfg->n_requests, err)))
            return -1;
    } else if (kvd_arg_double("--requests poisson:RATE", cfg->requests + 8, 1e-9, 1e9, &rate,
                              err) ||
               kvd_requests_poisson(&s->requests, rate, cfg->n_requests ? cfg->n_requests : 100,
                                    cfg->lengths, s->run.seed, err))
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

static int resolve_sizes(kvd_jct_sweep *s, kvd_err *err)
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
        return kvd_fail(err,
                        "requests of up to %zu tokens: the model was made for at most %d positions",
                        s->max_len, s->config->max_positions);
    /* largest number of requests that run at once; with --parallel sequence, they run one at a
     * time */
    s->max_batch = cfg->sequence    ? 1
                   : cfg->max_batch ? cfg->max_batch
                   : cfg->requests  ? 64
                                    : largest(cfg->batch, cfg->n_batches);
    if (largest(cfg->step_batch, cfg->n_step_batches) > s->max_batch)
        return kvd_fail(err,
                        "--step-batch %s: at most %zu requests run at the same time; raise "
                        "--max-batch",
                        cfg->step_batch_text, s->max_batch);
    if (cfg->iterations && !cfg->n_step_batches && s->max_batch == 1 && !cfg->max_batch &&
        !cfg->sequence)
        fprintf(stderr,
                "%s: warning: --iterations times steps of one request alone, and kvdim-serve needs "
                "several numbers of requests: give --max-batch N, such as 64\n",
                program);
    s->max_tokens = cfg->max_tokens ? cfg->max_tokens : 8192;
    if (cfg->chunk && cfg->chunk < s->max_batch)
        return kvd_fail(err, "--chunk %zu is less than a step of %zu requests takes", cfg->chunk,
                        s->max_batch);
    const size_t jobs = cfg->n_inputs * cfg->n_outputs * cfg->n_batches;
    s->points = s->methods.n * (cfg->requests ? 1 : jobs + cfg->iterations);
    return 0;
}

static int resolve_device(kvd_jct_sweep *s, kvd_err *err)
{
    kvd_jct_options *const cfg = s->cfg;
    char gpu[128];
    if (kvd_device_resolve(&cfg->common, gpu, sizeof gpu, err))
        return -1;
    kvd_device_note(gpu, &s->run);
    if (!cfg->type_given)
        cfg->type = *gpu ? KVD_BF16 : KVD_F32;
    if (s->run.gpu[0] && cfg->gpus > (size_t)kvd_cuda_count())
        return kvd_fail(err, "--gpus %zu: this machine has %d", cfg->gpus, kvd_cuda_count());
    if (!s->run.gpu[0] && cfg->attention != KVD_ATTENTION_OURS)
        return kvd_fail(err, "--attention %s: no GPU is used here",
                        kvd_jct_attention_name[cfg->attention]);
    if (!s->run.gpu[0] && cfg->graphs_given && cfg->graphs)
        return kvd_fail(err, "--graphs on: no GPU is used here");
    if (!s->run.gpu[0] && cfg->gpus > 1)
        return kvd_fail(err, "--gpus %zu: no GPU can be used here", cfg->gpus);
    return 0;
}

/* Sets the default for --spread (file of singular values) if the run needs such a file. */
static int find_spread(kvd_jct_sweep *s, kvd_err *err)
{
    static const char name[] = "kvdim25m-sigma.csv";
    static char folder[2 * PATH_MAX], path[3 * PATH_MAX];
    kvd_jct_options *const cfg = s->cfg;
    if (cfg->spread || !kvd_jct_wants_spread(cfg))
        return 0;
    if (kvd_data_folder(NULL, NULL, "data/widths", "widths", name, folder, err))
        return kvd_in(err, "--spread");
    snprintf(path, sizeof path, "%s/%s", folder, name);
    cfg->spread = path;
    return 0;
}

static int record_inputs(kvd_jct_sweep *s, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    kvd_run *const r = &s->run;
    const bool poisson = cfg->requests && !strncmp(cfg->requests, "poisson:", 8),
               lengths = poisson && kvd_requests_lengths_from_file(cfg->lengths);
    return kvd_checkpoint_add_input(s->checkpoint, r, err) ||
           kvd_method_paths_add_inputs(&cfg->files, r, err) ||
           kvd_run_add_inputs(r, &cfg->spread, kvd_jct_wants_spread(cfg), err) ||
           kvd_methods_add_inputs(cfg->method, cfg->n_methods, r, err) ||
           kvd_run_add_inputs(r, &cfg->lengths, lengths, err) ||
           kvd_run_add_inputs(r, &cfg->requests, !poisson, err);
}

/* Writes a text of the options that affect results. A resumed run must have the same text. */
static int describe_sweep(kvd_jct_sweep *s, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    size_t size = 0;
    FILE *const f = open_memstream(&s->description, &size);
    if (!f)
        return kvd_no_memory(err, "the sweep's description", 4096);
    for (int i = 0; i < s->run.n_inputs; i++)
        fprintf(f, "%s ", s->run.inputs[i].hash);
    for (size_t i = 0; i < s->methods.n; i++)
        fprintf(f, "%s%s", i ? " " : "", s->methods.item[i].label);
    if (cfg->requests)
        fprintf(f, "; requests %s, %s, %zu", cfg->requests, cfg->lengths ? cfg->lengths : "",
                s->requests.n);
    else
        fprintf(f, "; input %s, output %s, batch %s", cfg->input_text, cfg->output_text,
                cfg->batch_text);
    fprintf(
        f,
        "; %s, %s, %zu GPUs%s, attention %s, graphs %s, phases %s, chunk %zu, max-tokens %zu, max-batch "
        "%zu, pages %zu, admission %s, repeats %zu, steps %zu, iterations %s%s%s, threads %d, seed %llu",
        s->run.gpu[0] ? s->run.gpu : kvd_cpu_name(), kvd_dtype_name(cfg->type), cfg->gpus,
        cfg->sequence ? " by tokens" : "", kvd_jct_attention_name[cfg->attention],
        cfg->graphs ? "on" : "off", cfg->phases ? "on" : "off", cfg->chunk, s->max_tokens,
        s->max_batch, cfg->pages, kvd_admission_name[cfg->admission], cfg->repeats, cfg->steps,
        cfg->iterations ? "yes" : "no", cfg->n_step_batches ? " of " : "",
        cfg->n_step_batches ? cfg->step_batch_text : "", s->run.threads,
        (unsigned long long)s->run.seed);
    return fclose(f) ? kvd_no_memory(err, "the sweep's description", 4096) : 0;
}

static int record_methods(kvd_jct_sweep *s, kvd_err *err)
{
    char *methods = NULL;
    size_t size = 0;
    FILE *const f = open_memstream(&methods, &size);
    for (size_t i = 0; f && i < s->methods.n; i++)
        fprintf(f, "%s%s", i ? " " : "", s->methods.item[i].label);
    const int status = !f || fclose(f) ? kvd_no_memory(err, "the names of methods", size)
                                       : kvd_run_parameter(&s->run, "method", err, "%s", methods);
    free(methods);
    return status;
}

static int record_options(kvd_jct_sweep *s, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    kvd_run *const r = &s->run;
    return record_methods(s, err) ||
           kvd_run_parameter(r, "input-len", err, "%s", cfg->input_text ? cfg->input_text : "") ||
           kvd_run_parameter(r, "output-len", err, "%s",
                             cfg->output_text ? cfg->output_text : "") ||
           kvd_run_parameter(r, "batch", err, "%s", cfg->requests ? "" : cfg->batch_text) ||
           kvd_run_parameter(r, "spread", err, "%s",
                             kvd_jct_wants_spread(cfg) ? cfg->spread : "") ||
           kvd_run_parameter(r, "requests", err, "%s", s->requests.name) ||
           kvd_run_parameter(r, "iterations", err, "%s", cfg->iterations ? "yes" : "no") ||
           kvd_run_parameter(r, "step-batch", err, "%s",
                             cfg->step_batch_text ? cfg->step_batch_text : "") ||
           kvd_run_parameter(r, "chunk", err, "%zu", cfg->chunk) ||
           kvd_run_parameter(r, "max-tokens", err, "%zu", s->max_tokens) ||
           kvd_run_parameter(r, "max-batch", err, "%zu", s->max_batch) ||
           kvd_run_parameter(r, "pages", err, "%zu", cfg->pages) ||
           kvd_run_parameter(r, "admission", err, "%s", kvd_admission_name[cfg->admission]) ||
           kvd_run_parameter(r, "dtype", err, "%s", kvd_dtype_name(cfg->type)) ||
           kvd_run_parameter(r, "gpus", err, "%zu", s->run.gpu[0] ? cfg->gpus : 0) ||
           kvd_run_parameter(r, "attention", err, "%s", kvd_jct_attention_name[cfg->attention]) ||
           kvd_run_parameter(r, "parallel", err, "%s", cfg->sequence ? "sequence" : "tensor") ||
           kvd_run_parameter(r, "graphs", err, "%s", cfg->graphs ? "on" : "off") ||
           kvd_run_parameter(r, "phases", err, "%s", cfg->phases ? "on" : "off") ||
           kvd_run_parameter(r, "repeats", err, "%zu", cfg->repeats) ||
           kvd_run_parameter(r, "steps", err, "%zu", cfg->steps);
}

static void print_break_even(const kvd_jct_sweep *s)
{
    const char *const once = s->cfg->repeats == 1 ? " (one run of each job)" : "";
    const kvd_rows *const r = s->out;
    for (size_t i = 0; i < kvd_rows_count(r); i++)
        for (int output = 0; output < 2; output++) {
            const char *const length = output ? "output" : "input", *const other =
                                                                        output ? "input" : "output";
            if (kvd_jct_lengths(r, i, output) < 2 ||
                !strcmp(kvd_row_text(s->out, i, "name"), "none") ||
                !kvd_jct_first_of_lengths(r, i, output))
                continue;
            const double at = kvd_jct_break_even(r, i, output);
            kvd_jct_noise noise;
            printf("%s, batch %.0f, %s %.0f: ", kvd_row_text(s->out, i, "method"),
                   kvd_row_real(s->out, i, "batch"), other, kvd_row_real(s->out, i, other));
            if (kvd_jct_break_even_noise(r, i, output, &noise))
                printf(
                    "runs are too noisy to tell from which %s length on it is faster than none: at %.0f "
                    "equal runs "
                    "differ by up to %.3g s, the method differs from none by %.3g s; give more --repeats\n",
                    length, noise.length, noise.spread, noise.difference);
            else if (isnan(at))
                printf("no %s length of the sweep from which on it is faster than none%s\n", length,
                       once);
            else
                printf("faster than none from an %s length of %.0f on%s\n", length, at, once);
        }
}

/* Warns if equal runs of a job differ by more than a quarter of its job completion time. */
static void warn_of_noise(const kvd_rows *r)
{
    double worst = 0.25;
    size_t at = SIZE_MAX;
    for (size_t i = 0; i < kvd_rows_count(r); i++) {
        const double spread = kvd_row_real(r, i, "jct_max_s") - kvd_row_real(r, i, "jct_min_s");
        if (!strcmp(kvd_row_text(r, i, "kind"), "job") &&
            spread > worst * kvd_row_real(r, i, "jct_s")) {
            worst = spread / kvd_row_real(r, i, "jct_s");
            at = i;
        }
    }
    if (at < SIZE_MAX)
        fprintf(
            stderr,
            "%s: warning: equal runs differ by up to %.0f %% of the JCT (%s, batch %.0f, input %.0f, "
            "output %.0f): give more --repeats, or let nothing else run\n",
            program, 100 * worst, kvd_row_text(r, at, "method"), kvd_row_real(r, at, "batch"),
            kvd_row_real(r, at, "input"), kvd_row_real(r, at, "output"));
}

static int print_json(const kvd_jct_sweep *s, kvd_err *err)
{
    json_t *const all =
        json_pack("{s:s, s:s, s:s, s:i, s:i, s:o}", "program", program, "output",
                  s->cfg->common.output, "model", s->info.name, "points", (int)s->points,
                  "points_done", (int)s->done, "rows", kvd_rows_json(s->out));
    return kvd_json_print(all, err);
}

static int run_sweep(kvd_jct_sweep *s, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    if (kvd_jct_sweep_run(s, err) || kvd_jct_sweep_finish(s, err)) {
        if (s->saved)
            kvd_in(err, "%zu of %zu points are in '%s', the same command with --resume continues",
                   s->saved, s->points, s->rows_path);
        else
            kvd_in_kept(err, 0, "point", s->rows_path, true);
        return -1;
    }
    if ((cfg->timeline && kvd_jct_trace_close(&s->trace, err)) ||
        (cfg->common.json && print_json(s, err)))
        return -1;
    if (!cfg->common.quiet && !cfg->common.json) {
        if (!cfg->requests && kvd_rows_count(s->out) > s->n_before)
            puts(kvd_jct_legend);
        print_break_even(s);
    }
    warn_of_noise(s->out);
    if (s->left_out)
        return kvd_fail(err, "%zu of %zu points were left out, see above", s->left_out, s->points);
    return 0;
}

static int try_output(const char *path, kvd_err *err)
{
    kvd_output out = {0};
    if (kvd_output_begin(&out, path, err))
        return -1;
    kvd_output_release(&out, true);
    return 0;
}

static int work(kvd_jct_sweep *s, kvd_err *err)
{
    kvd_jct_options *const cfg = s->cfg;
    static char none[] = "none";
    if (try_output(cfg->common.output, err) || resolve_device(s, err) ||
        !(s->checkpoint = cfg->shape ? kvd_checkpoint_of_shape(cfg->shape, KVD_SHAPE_SEED, err)
                                     : kvd_checkpoint_open(cfg->model, err)))
        return -1;
    s->config = kvd_checkpoint_config(s->checkpoint);
    if (!cfg->n_methods) {
        if (kvd_method_parse(none, &cfg->method[0], err) || !(cfg->method_text[0] = strdup(none)))
            return -1;
        cfg->n_methods = 1;
    }
    for (size_t i = 0; cfg->files.fisher && i < cfg->n_methods; i++)
        kvd_method_with_fisher(&cfg->method[i]);
    if (find_spread(s, err) || record_inputs(s, err) ||
        kvd_run_not_an_input(&s->run, cfg->common.output, err) ||
        (cfg->timeline && kvd_run_not_an_input(&s->run, cfg->timeline, err)))
        return -1;
    kvd_model_info_set(&s->info, s->config, kvd_checkpoint_path(s->checkpoint),
                       s->run.inputs[0].hash, kvd_checkpoint_dtype(s->checkpoint));
    if (kvd_jct_methods_load(&s->methods, cfg, s->config, &s->info, err) || resolve_sizes(s, err) ||
        record_options(s, err) || describe_sweep(s, err) ||
        !(s->out = kvd_jct_rows((int)cfg->repeats, err)) ||
        kvd_jct_methods_warn(&s->methods, cfg, program, err) || kvd_jct_sweep_open(s, err))
        return -1;
    if (cfg->timeline && s->n_before)
        fprintf(stderr, "%s: '%s' will not hold what was measured before, %zu rows of '%s'\n",
                program, cfg->timeline, s->n_before,
                s->was_complete ? cfg->common.output : s->rows_path);
    if (cfg->timeline && kvd_jct_trace_open(&s->trace, cfg->timeline, err))
        return -1;
    s->trace.zero = kvd_jct_now();
    if (s->run.gpu[0])
        kvd_energy_open(&s->energy, 0, (int)cfg->gpus);
    return run_sweep(s, err);
}

static void release(kvd_jct_sweep *s)
{
    kvd_jct_trace_release(&s->trace);
    kvd_jct_sweep_close(s);
    kvd_energy_close(&s->energy);
    kvd_rows_free(s->out);
    kvd_requests_release(&s->requests);
    kvd_jct_methods_release(&s->methods);
    kvd_checkpoint_close(s->checkpoint);
    kvd_jct_options_release(s->cfg);
    kvd_run_release(&s->run);
    free(s->description);
    free(s->skipped);
}

int main(int argc, char **argv)
{
    static kvd_jct_options cfg;
    static kvd_jct_sweep s;
    kvd_err err = {""};
    kvd_jct_parse(argc, argv, &cfg);
    s.cfg = &cfg;
    int status = kvd_run_start(&s.run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&s, &err);
    release(&s);
    return kvd_run_exit(program, status, &err);
}
