#include "serving/serve_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "methods/grid.h"

enum {
    OPT_COSTS = 0x100,
    OPT_TRACE,
    OPT_METHOD,
    OPT_RATE,
    OPT_N_REQUESTS,
    OPT_MAX_RATE,
    OPT_VALIDATE,
    OPT_REPLICAS,
    OPT_ROUTE,
    OPT_GPUS,
    OPT_MEMORY,
    OPT_RESERVE,
    OPT_MAX_BATCH,
    OPT_MAX_TOKENS,
    OPT_CHUNK,
    OPT_SLO_TTFT,
    OPT_SLO_TBT
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "What is served:", 1},
    {"costs", OPT_COSTS, "JCT.h5", 0,
     "Measured costs of iterations (kvdim-jct --iterations). May be repeated: files of one model, GPU and "
     "setting, each method "
     "in one of them",
     1},
    {"method", OPT_METHOD, "LIST", 0,
     "Methods as the rows of the costs print them, with commas between: none,zack,p=0.5. May be repeated "
     "(default: all)",
     1},
    {"gpus", OPT_GPUS, "N", 0, "The costs on N GPUs, where they are measured on several numbers", 1},
    {0, 0, 0, 0, "To whom:", 2},
    {"trace", OPT_TRACE, "FILE|poisson:RATE[:LENGTHS]", 0,
     "A recorded trace (Azure's CSV, Mooncake's JSON lines, or columns "
     "arrival_s,input_tokens,output_tokens), or "
     "RATE requests a second with lengths of a file, of fixed:INPUT:OUTPUT, or of a table of the papers: "
     "imdb, "
     "arxiv (default), cocktail, cocktail-fdc, humaneval, pg19, pile, sharegpt",
     2},
    {"n-requests", OPT_N_REQUESTS, "N", 0,
     "The first N of a recorded trace (default all); the number of Poisson arrivals (default 2000 for each "
     "replica)",
     2},
    {"rate", OPT_RATE, "LIST|A:B:STEP", 0,
     "Requests a second, a point each; a recorded trace runs faster or slower (default: as it stands)", 2},
    {"max-rate", OPT_MAX_RATE, "LATENCY", 0,
     "Also search the highest rate whose mean normalised latency, JCT over output tokens, is at most LATENCY "
     "seconds",
     2},
    {"validate", OPT_VALIDATE, "REPLAY.h5", 0,
     "Simulate a replay that kvdim-jct --requests measured, and compare. --trace may then be left out", 2},
    {0, 0, 0, 0, "By what:", 3},
    {"replicas", OPT_REPLICAS, "N", 0, "Machines with the model (default 1)", 3},
    {"route", OPT_ROUTE, "shortest|round-robin|least-loaded", 0,
     "Where a request goes: to the replica with the fewest tokens to do (default), in turns, or to the one "
     "with "
     "the fewest requests",
     3},
    {"memory", OPT_MEMORY, "GIB", 0,
     "Memory of one GPU (default: the cache that the costs were measured with)", 3},
    {"reserve", OPT_RESERVE, "GIB", 0,
     "Of it, what neither weights nor cache take (default: a tenth of --memory)", 3},
    {"max-batch", OPT_MAX_BATCH, "N", 0, "Requests that a replica runs at once (default 64)", 3},
    {"max-tokens", OPT_MAX_TOKENS, "N", 0,
     "Tokens of whole prompts in one iteration (default 8192); a longer prompt goes alone", 3},
    {"chunk", OPT_CHUNK, "N", 0, "Iterations of up to N tokens, prompts in pieces (default 0: prompts whole)",
     3},
    {"slo-ttft", OPT_SLO_TTFT, "S", 0, "Objective for the time to the first token, seconds (default none)",
     3},
    {"slo-tbt", OPT_SLO_TBT, "S", 0,
     "Objective for a request's mean time between tokens, seconds (default none)", 3},
    {0},
};

/* ---- values --------------------------------------------------------------------------------------------- */

static int add_method(kvd_serve_options *cfg, const char *text, size_t length, kvd_err *err)
{
    if (!length)
        return kvd_fail(err, "--method: an empty name");
    if (cfg->n_methods == KVD_SERVE_METHODS)
        return kvd_fail(err, "more than %d methods", (int)KVD_SERVE_METHODS);
    char *const copy = strndup(text, length);
    if (!copy)
        return kvd_no_memory(err, "a method", length);
    for (size_t i = 0; i < cfg->n_methods; i++)
        if (!strcmp(cfg->method[i], copy)) {
            free(copy);
            return kvd_fail(err, "--method: '%s' is named twice", cfg->method[i]);
        }
    cfg->method[cfg->n_methods++] = copy;
    return 0;
}

static int add_methods(kvd_serve_options *cfg, const char *list, kvd_err *err)
{
    for (;; list++) {
        const size_t n = kvd_method_text_length(list);
        if (add_method(cfg, list, n, err))
            return -1;
        list += n;
        if (!*list)
            return 0;
    }
}

static int parse_trace(kvd_serve_options *cfg, const char *text, kvd_err *err)
{
    static const char poisson[] = "poisson:";
    char rate[KVD_ARG_FIELD];
    if (kvd_arg_once("--trace", text, &cfg->trace, err))
        return -1;
    if (strncmp(text, poisson, sizeof poisson - 1))
        return 0;
    text += sizeof poisson - 1;
    const size_t n = strcspn(text, ":");
    kvd_arg_field(text, n, rate);
    cfg->lengths = text[n] ? text + n + 1 : "arxiv";
    if (!*cfg->lengths)
        return kvd_fail(err, "--trace %s: no lengths behind the last colon", cfg->trace);
    return kvd_arg_double("--trace poisson:RATE", rate, 1e-9, 1e9, &cfg->poisson_rate, err);
}

static int parse_route(kvd_serve_options *cfg, const char *text, kvd_err *err)
{
    for (int i = 0; i < KVD_ROUTES; i++)
        if (!strcmp(text, kvd_route_name[i])) {
            cfg->route = (kvd_route)i;
            cfg->route_given = true;
            return 0;
        }
    return kvd_fail(err, "--route: '%s' is none of shortest, round-robin, least-loaded", text);
}

static int parse_gib(const char *option, const char *text, double *bytes, kvd_err *err)
{
    if (kvd_arg_double(option, text, 0, 1e6, bytes, err))
        return -1;
    *bytes *= 1 << 30;
    return 0;
}

static int parse_positive(const char *option, const char *text, double *value, kvd_err *err)
{
    if (kvd_arg_double(option, text, 0, 1e9, value, err))
        return -1;
    return *value > 0 ? 0 : kvd_fail(err, "%s: '%s' is not above 0", option, text);
}

static int parse_gpus(kvd_serve_options *cfg, const char *text, kvd_err *err)
{
    size_t n;
    if (kvd_arg_size("--gpus", text, 0, 1024, &n, err))
        return -1;
    cfg->gpus = (int)n;
    return 0;
}

/* ---- usage ---------------------------------------------------------------------------------------------- */

static int check_usage(kvd_serve_options *cfg, kvd_err *err)
{
    if (!cfg->n_costs)
        return kvd_fail(err, "no --costs JCT.h5 given");
    if (!cfg->trace && !cfg->validate)
        return kvd_fail(err, "no --trace FILE or poisson:RATE given, nor --validate REPLAY.h5");
    if (!cfg->common.output)
        return kvd_fail(err, "no -o OUT.h5 given");
    if (!cfg->trace && (cfg->n_rates || !isnan(cfg->bound) || cfg->n_requests))
        return kvd_fail(err, "--rate, --max-rate and --n-requests go with --trace");
    if (!cfg->trace && (cfg->replicas_given || cfg->route_given || !isnan(cfg->memory) ||
                        isfinite(cfg->slo_ttft) || isfinite(cfg->slo_tbt)))
        return kvd_fail(err, "--replicas, --route, --memory, --slo-ttft and --slo-tbt go with --trace: "
                             "a replay is one replica, on the machine that was measured");
    if (cfg->route_given && !cfg->replicas_given)
        return kvd_fail(err, "--route goes with --replicas");
    if (isnan(cfg->memory) && !isnan(cfg->reserve))
        return kvd_fail(err, "--reserve goes with --memory");
    if (isnan(cfg->reserve) && !isnan(cfg->memory))
        cfg->reserve = cfg->memory / 10;
    if (cfg->limits.chunk && cfg->max_tokens_given)
        return kvd_fail(err, "--max-tokens is of whole prompts and goes without --chunk");
    if (cfg->limits.chunk && cfg->limits.chunk < cfg->limits.max_batch)
        return kvd_fail(err, "--chunk %zu has no room for a step of each of --max-batch %zu",
                        cfg->limits.chunk, cfg->limits.max_batch);
    return 0;
}

static int parse_limit(int key, const char *arg, kvd_serve_options *cfg, kvd_err *err)
{
    switch (key) {
    case OPT_MAX_BATCH:
        cfg->max_batch_given = true;
        return kvd_arg_size("--max-batch", arg, 1, 1 << 24, &cfg->limits.max_batch, err);
    case OPT_MAX_TOKENS:
        cfg->max_tokens_given = true;
        return kvd_arg_size("--max-tokens", arg, 1, 1 << 30, &cfg->limits.max_tokens, err);
    case OPT_CHUNK:
        cfg->chunk_given = true;
        return kvd_arg_size("--chunk", arg, 0, 1 << 30, &cfg->limits.chunk, err);
    case OPT_MEMORY:
        return parse_gib("--memory", arg, &cfg->memory, err);
    case OPT_RESERVE:
        return parse_gib("--reserve", arg, &cfg->reserve, err);
    case OPT_SLO_TTFT:
        return parse_positive("--slo-ttft", arg, &cfg->slo_ttft, err);
    case OPT_SLO_TBT:
        return parse_positive("--slo-tbt", arg, &cfg->slo_tbt, err);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int parse_one(int key, char *arg, struct argp_state *state, kvd_err *err)
{
    kvd_serve_options *cfg = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &cfg->common;
        return 0;
    case ARGP_KEY_ARG:
        return kvd_fail(err, "argument '%s' is one too many", arg);
    case ARGP_KEY_END:
        return check_usage(cfg, err);
    case OPT_COSTS:
        return kvd_arg_add("--costs", arg, cfg->costs, &cfg->n_costs, KVD_SERVE_COSTS, err);
    case OPT_TRACE:
        return parse_trace(cfg, arg, err);
    case OPT_METHOD:
        return add_methods(cfg, arg, err);
    case OPT_RATE:
        if (cfg->rate)
            return kvd_fail(err, "--rate is given twice");
        return kvd_arg_doubles("--rate", arg, 1e-9, 1e9, &cfg->rate, &cfg->n_rates, err);
    case OPT_N_REQUESTS:
        return kvd_arg_size("--n-requests", arg, 1, 100000000, &cfg->n_requests, err);
    case OPT_MAX_RATE:
        return parse_positive("--max-rate", arg, &cfg->bound, err);
    case OPT_VALIDATE:
        return kvd_arg_once("--validate", arg, &cfg->validate, err);
    case OPT_REPLICAS:
        cfg->replicas_given = true;
        return kvd_arg_size("--replicas", arg, 1, 100000, &cfg->replicas, err);
    case OPT_ROUTE:
        return parse_route(cfg, arg, err);
    case OPT_GPUS:
        return parse_gpus(cfg, arg, err);
    default:
        return parse_limit(key, arg, cfg, err);
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    kvd_err err = {""};
    return kvd_args_answer(state, parse_one(key, arg, state, &err), &err);
}

void kvd_serve_parse(const char *program, int argc, char **argv, kvd_serve_options *cfg)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = kvd_common_options_child,
        .args_doc = "--costs JCT.h5 (--trace FILE|poisson:RATE | --validate REPLAY.h5) -o OUT.h5",
        .doc =
            "Simulate serving of a request trace with compressed KV caches, from measured costs of "
            "iterations.\v"
            "Examples:\n"
            "  kvdim-serve --costs jct.h5 --trace poisson:4:arxiv --rate 1:8:1 --memory 80 --max-rate 0.1 "
            "-o serving.h5\n"
            "  kvdim-serve --costs jct.h5 --trace AzureLLMInferenceTrace_conv.csv --replicas 4 --slo-ttft 1 "
            "--slo-tbt 0.05 -o serving.h5\n"
            "  kvdim-serve --costs none-zack.h5 --costs kivi.h5 --trace poisson:4 --n-requests 500 -o "
            "serving.h5\n"
            "  kvdim-serve --costs jct.h5 --validate replay.h5 -o validation.h5\n\n"
            "The batches are those that kvdim-jct's engine runs; only their times are looked up. What the "
            "costs did not measure is extrapolated and counted."};
    *cfg = (kvd_serve_options){.common = {.seed = 1},
                               .replicas = 1,
                               .gpus = -1,
                               .memory = NAN,
                               .reserve = NAN,
                               .limits = {.max_batch = 64, .max_tokens = 8192},
                               .slo_ttft = INFINITY,
                               .slo_tbt = INFINITY,
                               .bound = NAN,
                               .poisson_rate = NAN};
    kvd_args_parse(program, &argp, argc, argv, cfg);
}

/* ---- what a file says of them --------------------------------------------------------------------------- */

/* Methods and rates, with commas between. */
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
                                    kvd_run_parameter(run, "rate", err, "%s", rates);
    free(methods);
    free(rates);
    return status ? -1 : 0;
}

int kvd_serve_record(const kvd_serve_options *cfg, size_t n_requests, kvd_run *r, kvd_err *err)
{
    const double gib = 1 << 30;
    return record_lists(cfg, r, err) ||
                   kvd_run_parameter(r, "trace", err, "%s", cfg->trace ? cfg->trace : "") ||
                   kvd_run_parameter(r, "n-requests", err, "%zu", n_requests) ||
                   kvd_run_parameter(r, "replicas", err, "%zu", cfg->replicas) ||
                   kvd_run_parameter(r, "route", err, "%s", kvd_route_name[cfg->route]) ||
                   kvd_run_parameter(r, "gpus", err, "%d", cfg->gpus) ||
                   kvd_run_parameter(r, "memory", err, "%.17g", cfg->memory / gib) ||
                   kvd_run_parameter(r, "reserve", err, "%.17g", cfg->reserve / gib) ||
                   kvd_run_parameter(r, "max-batch", err, "%zu", cfg->limits.max_batch) ||
                   kvd_run_parameter(r, "max-tokens", err, "%zu", cfg->limits.max_tokens) ||
                   kvd_run_parameter(r, "chunk", err, "%zu", cfg->limits.chunk) ||
                   kvd_run_parameter(r, "slo-ttft", err, "%.17g", cfg->slo_ttft) ||
                   kvd_run_parameter(r, "slo-tbt", err, "%.17g", cfg->slo_tbt) ||
                   kvd_run_parameter(r, "max-rate", err, "%.17g", cfg->bound)
               ? -1
               : 0;
}

void kvd_serve_options_release(kvd_serve_options *cfg)
{
    for (size_t i = 0; i < cfg->n_methods; i++)
        free(cfg->method[i]);
    free(cfg->rate);
}
