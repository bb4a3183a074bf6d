#include "serving/simulate/serve_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "methods/grid.h"

static int check_usage(void *config, kvd_err *err)
{
    kvd_serve_options *const cfg = config;
    const double gib = 1 << 30;
    if (isnan(cfg->reserve))
        cfg->reserve = cfg->memory / 10;
    cfg->memory *= gib;
    cfg->reserve *= gib;
    if (isnan(cfg->slo_ttft))
        cfg->slo_ttft = INFINITY;
    if (isnan(cfg->slo_tbt))
        cfg->slo_tbt = INFINITY;
    if (cfg->limits.chunk && cfg->max_tokens_given)
        return kvd_fail(err, "--max-tokens limits whole prompts and cannot be used with --chunk");
    if (cfg->limits.chunk && cfg->limits.chunk < cfg->limits.max_batch)
        return kvd_fail(err,
                        "--chunk %zu has no room for one step of each of --max-batch %zu requests",
                        cfg->limits.chunk, cfg->limits.max_batch);
    return 0;
}

static int add_methods(void *config, const char *spec, kvd_err *err)
{
    kvd_serve_options *const cfg = config;
    return kvd_methods_add(spec, NULL, cfg->method, &cfg->n_methods, KVD_SERVE_METHODS, err);
}

static int read_requests(void *config, const char *text, kvd_err *err)
{
    static const char poisson[] = "poisson:";
    kvd_serve_options *const cfg = config;
    char rate[KVD_ARG_FIELD];
    cfg->requests = text;
    cfg->poisson_rate = NAN;
    if (strncmp(text, poisson, sizeof poisson - 1))
        return 0;
    text += sizeof poisson - 1;
    const size_t n = strcspn(text, ":");
    kvd_arg_field(text, n, rate);
    cfg->lengths = text[n] ? text + n + 1 : "arxiv";
    if (!*cfg->lengths)
        return kvd_fail(err, "--requests %s: no lengths after the last colon", cfg->requests);
    return kvd_arg_double("--requests poisson:RATE", rate, 1e-9, 1e9, &cfg->poisson_rate, err);
}

#define T kvd_serve_options

static const kvd_option options[] = {
    {.help = "Costs"},
    {"costs", .type = KVD_OPT_TEXTS, .arg = "JCT.h5", KVD_INTO_LIST(T, costs, n_costs),
     .help =
         "Measured times of engine iterations (kvdim-jct --iterations). Several files must have "
         "the same model, GPU and settings, and each method must be in one of them"},
    KVD_OPTION_METHOD(add_methods, "all",
                      ". Each must be in a --costs file, with equal parameters. NAME@stock and "
                      "NAME@papers are methods that kvdim-jct measured with that --attention"),
    KVD_OPTION_PLUGIN,
    KVD_OPTION_LIST_METHODS,
    {"gpus", .type = KVD_OPT_WHOLE, KVD_INTO(T, gpus), .high = 1024,
     .otherwise = "the only number measured",
     .help =
         "Use the costs that were measured on N GPUs, if --costs holds several numbers of GPUs"},

    {.help = "Requests"},
    {"requests", .type = KVD_OPT_CALL, .arg = "FILE|poisson:RATE[:LENGTHS]", .call = read_requests,
     .help = "Recorded trace (Azure's CSV, Mooncake's JSON lines, or a CSV with arrival_s, "
             "input_tokens and output_tokens), or Poisson arrivals at RATE requests per second "
             "with the lengths of a file, of fixed:INPUT:OUTPUT, or of a table of the papers: "
             "imdb, arxiv (default), cocktail, cocktail-fdc, humaneval, pg19, pile, sharegpt"},
    {"n-requests", .type = KVD_OPT_WHOLE, KVD_INTO(T, n_requests), .low = 1, .high = 1e8,
     .requires = "requests", .otherwise = "all of a trace, 2000 Poisson arrivals per replica",
     .help = "First N requests of a trace, or the number of Poisson arrivals"},
    {"request-rate", .type = KVD_OPT_NUMBERS, .arg = "LIST|A:B:STEP",
     KVD_INTO_LIST(T, rate, n_rates), .low = 1e-9, .high = 1e9, .requires = "requests",
     .otherwise = "that of --requests",
     .help = "Requests per second, one point for each; a recorded trace is replayed faster or "
             "slower"},
    {"max-rate", .type = KVD_OPT_NUMBER, .arg = "LATENCY", KVD_INTO(T, bound), .high = 1e9,
     .above_low = true, .requires = "requests",
     .help =
         "Also search the highest request rate whose mean normalised latency is at most LATENCY "
         "seconds per token: the job completion time divided by the output tokens"},
    {"validate", .type = KVD_OPT_TEXT, .arg = "REPLAY.h5", KVD_INTO(T, validate),
     .help = "Simulate a replay that kvdim-jct --requests measured, and compare. A replay has one "
             "replica, on the machine that was measured"},

    {.help = "Servers"},
    {"replicas", .type = KVD_OPT_WHOLE, KVD_INTO(T, replicas), .low = 1, .high = 100000,
     .initial = "1", .requires = "requests", .help = "Machines with the model"},
    {"route", .type = KVD_OPT_WORD, .words = kvd_route_name, KVD_INTO(T, route),
     .initial = "shortest", .requires = "replicas",
     .help = "Replica that a request goes to: the one with the fewest tokens to compute "
             "(shortest), all in turns (round-robin), or the one with the fewest requests "
             "(least-loaded)"},
    {"memory", .type = KVD_OPT_NUMBER, .arg = "GIB", KVD_INTO(T, memory), .high = 1e6,
     .requires = "requests", .otherwise = "the cache that the costs were measured with",
     .help = "Memory of one GPU in GiB"},
    {"reserve", .type = KVD_OPT_NUMBER, .arg = "GIB", KVD_INTO(T, reserve), .high = 1e6,
     .requires = "memory", .otherwise = "a tenth of --memory",
     .help = "GiB of --memory that neither weights nor cache take"},
    {"max-batch", .type = KVD_OPT_WHOLE, KVD_INTO(T, limits.max_batch), .low = 1, .high = 1 << 24,
     KVD_GIVEN(T, max_batch_given), .initial = "64",
     .help = "Largest number of requests that a replica runs at the same time"},
    {"max-tokens", .type = KVD_OPT_WHOLE, KVD_INTO(T, limits.max_tokens), .low = 1, .high = 1 << 30,
     KVD_GIVEN(T, max_tokens_given), .initial = "8192", .unit = "tokens",
     .help =
         "Largest number of prompt tokens in one iteration without --chunk; a longer prompt runs "
         "alone"},
    {"chunk", .type = KVD_OPT_WHOLE, KVD_INTO(T, limits.chunk), .high = 1 << 30,
     KVD_GIVEN(T, chunk_given), .initial = "0", .unit = "tokens: prompts run whole",
     .help = "Split prompts so that an iteration has at most N tokens"},
    {"admission", .type = KVD_OPT_WORD, .words = kvd_admission_name, KVD_INTO(T, limits.admission),
     KVD_GIVEN(T, admission_given), .initial = "whole",
     .help =
         "Cache pages that a request reserves. whole: enough for all its input and output tokens, "
         "when it is admitted. stored: as many as its stored tokens fill; if no page is free, the "
         "request that arrived last is preempted and computed again later, as in vLLM"},
    {"slo-ttft", .type = KVD_OPT_NUMBER, .arg = "S", KVD_INTO(T, slo_ttft), .high = 1e9,
     .above_low = true, .requires = "requests", .otherwise = "none",
     .help = "Objective for the time to the first token, in seconds"},
    {"slo-tbt", .type = KVD_OPT_NUMBER, .arg = "S", KVD_INTO(T, slo_tbt), .high = 1e9,
     .above_low = true, .requires = "requests", .otherwise = "none",
     .help = "Objective for a request's mean time between tokens, in seconds"},
    KVD_OPTIONS_COMMON(T, "OUT.h5", "Write the result to OUT.h5, whole or not at all"),
    {0}};

static const kvd_program program = {
    .name = "kvdim-serve",
    .summary = "Simulate serving of a request trace with compressed KV caches, from measured costs "
               "of iterations.",
    .usage = {"--costs JCT.h5 --requests FILE|poisson:RATE[:LENGTHS] -o OUT.h5 [OPTION...]",
              "--costs JCT.h5 --validate REPLAY.h5 -o OUT.h5 [OPTION...]"},
    .any_of = {"costs", "requests validate", "output"},
    .examples = {"kvdim-serve --costs jct.h5 --requests poisson:4:arxiv --request-rate 1:8:1 "
                 "--memory 80 --max-rate 0.1 -o serving.h5",
                 "kvdim-serve --costs jct.h5 --requests AzureLLMInferenceTrace_conv.csv "
                 "--replicas 4 --slo-ttft 1 --slo-tbt 0.05 -o serving.h5",
                 "kvdim-serve --costs none-zack.h5 --costs kivi.h5 --requests poisson:4 "
                 "--n-requests 500 -o serving.h5",
                 "kvdim-serve --costs jct.h5 --validate replay.h5 -o validation.h5"},
    .notes = "The batches are those that the engine of kvdim-jct runs; only their times are looked "
             "up. Times outside the measured costs are extrapolated and counted.",
    .options = options,
    .check = check_usage};

void kvd_serve_parse(int argc, char **argv, kvd_serve_options *cfg)
{
    *cfg = (kvd_serve_options){.gpus = -1, .poisson_rate = NAN};
    kvd_options_parse(&program, argc, argv, cfg);
}

static int record_lists(const kvd_serve_options *cfg, kvd_run *run, kvd_err *err)
{
    char *methods = NULL, *rates = NULL;
    size_t n;
    FILE *const m = open_memstream(&methods, &n), *const r = open_memstream(&rates, &n);
    for (size_t i = 0; m && i < cfg->n_methods; i++)
        fprintf(m, "%s%s", i ? "," : "", cfg->method[i]);
    for (size_t i = 0; r && i < cfg->n_rates; i++)
        fprintf(r, "%s%.10g", i ? "," : "", cfg->rate[i]);
    const bool failed = (m ? fclose(m) : 1) + (r ? fclose(r) : 1) > 0;
    const int status = failed ? kvd_no_memory(err, "options", n)
                              : kvd_run_parameter(run, "method", err, "%s", methods) ||
                                    kvd_run_parameter(run, "request-rate", err, "%s", rates);
    free(methods);
    free(rates);
    return status ? -1 : 0;
}

int kvd_serve_record(const kvd_serve_options *cfg, size_t n_requests, kvd_run *r, kvd_err *err)
{
    const double gib = 1 << 30;
    return kvd_status(
        record_lists(cfg, r, err) ||
        kvd_run_parameter(r, "requests", err, "%s", cfg->requests ? cfg->requests : "") ||
        kvd_run_parameter(r, "n-requests", err, "%zu", n_requests) ||
        kvd_run_parameter(r, "replicas", err, "%zu", cfg->replicas) ||
        kvd_run_parameter(r, "route", err, "%s", kvd_route_name[cfg->route]) ||
        kvd_run_parameter(r, "gpus", err, "%d", cfg->gpus) ||
        kvd_run_parameter(r, "memory", err, "%.17g", cfg->memory / gib) ||
        kvd_run_parameter(r, "reserve", err, "%.17g", cfg->reserve / gib) ||
        kvd_run_parameter(r, "max-batch", err, "%zu", cfg->limits.max_batch) ||
        kvd_run_parameter(r, "max-tokens", err, "%zu", cfg->limits.max_tokens) ||
        kvd_run_parameter(r, "chunk", err, "%zu", cfg->limits.chunk) ||
        kvd_run_parameter(r, "admission", err, "%s", kvd_admission_name[cfg->limits.admission]) ||
        kvd_run_parameter(r, "slo-ttft", err, "%.17g", cfg->slo_ttft) ||
        kvd_run_parameter(r, "slo-tbt", err, "%.17g", cfg->slo_tbt) ||
        kvd_run_parameter(r, "max-rate", err, "%.17g", cfg->bound));
}

void kvd_serve_options_release(kvd_serve_options *cfg)
{
    while (cfg->n_methods)
        free(cfg->method[--cfg->n_methods]);
    kvd_options_release(&program, cfg);
}
