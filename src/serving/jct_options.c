#include "serving/jct_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "methods/grid.h"

enum {
    OPT_SHAPE = 0x100,
    OPT_METHOD,
    OPT_SPECTRUM,
    OPT_SPREAD,
    OPT_RATES,
    OPT_TABLE,
    OPT_CALIBRATION,
    OPT_FISHER,
    OPT_INPUT,
    OPT_OUTPUT,
    OPT_BATCH,
    OPT_REQUESTS,
    OPT_LENGTHS,
    OPT_N_REQUESTS,
    OPT_ITERATIONS,
    OPT_CHUNK,
    OPT_MAX_TOKENS,
    OPT_MAX_BATCH,
    OPT_PAGES,
    OPT_DTYPE,
    OPT_GPUS,
    OPT_ATTENTION,
    OPT_PARALLEL,
    OPT_GRAPHS,
    OPT_PHASES,
    OPT_REPEATS,
    OPT_STEPS,
    OPT_TRACE,
    OPT_RESUME
};

static const struct argp_option options[] = {
    {"shape", OPT_SHAPE, "NAME", 0,
     "In place of MODEL: a published shape with random weights. kvdim-collect --shape list names them. "
     "Methods of the dims axis then need no --spectrum: see --spread",
     1},
    {0, 0, 0, 0, "What is compared:", 2},
    {"method", OPT_METHOD, "LIST", 0,
     "Methods as kvdim-eval takes them, with commas between: none,zack,p=0.5,h2o+kivi. May be repeated "
     "(default none)",
     2},
    {"spectrum", OPT_SPECTRUM, "FILE", 0, "Bases; may be repeated, a method takes the one with its pairs", 2},
    {"spread", OPT_SPREAD, "FILE.csv", 0,
     "In place of --spectrum: random rotations, with the singular values of measured heads "
     "(pair,dim,HEAD...) "
     "dealt out over "
     "the heads. Times are right then, outputs mean nothing (default with --shape: "
     "data/widths/kvdim25m-sigma.csv)",
     2},
    {"rates", OPT_RATES, "FILE", 0, "Points from kvdim-fit, for methods without p and r; may be repeated", 2},
    {"error-table", OPT_TABLE, "FILE", 0, "Made by kvdim-eval --scan-errors, for ranks=error", 2},
    {"calibration", OPT_CALIBRATION, "FILE", 0, "Activations of calibration text, for methods that need them",
     2},
    {"fisher", OPT_FISHER, "FILE", 0,
     "Squared gradients (kvdim-collect --fisher), for methods that take them", 2},
    {0, 0, 0, 0, "On which requests:", 3},
    {"input-len", OPT_INPUT, "LIST", 0, "Tokens of a prompt; each with each output and batch", 3},
    {"output-len", OPT_OUTPUT, "LIST", 0, "Tokens that come out", 3},
    {"batch", OPT_BATCH, "LIST", 0, "Requests that arrive together (default 1)", 3},
    {"requests", OPT_REQUESTS, "FILE|poisson:RATE", 0,
     "Replay a trace by the clock instead, or requests at RATE a second with --lengths: a row for each", 3},
    {"lengths", OPT_LENGTHS, "FILE|NAME|fixed:IN:OUT", 0, "Lengths of poisson:RATE", 3},
    {"n-requests", OPT_N_REQUESTS, "N", 0, "Requests of poisson:RATE (default 100); the first N of a trace",
     3},
    {"iterations", OPT_ITERATIONS, 0, 0, "Also a grid of single iterations, from which kvdim-serve simulates",
     3},
    {0, 0, 0, 0, "How it runs:", 4},
    {"chunk", OPT_CHUNK, "N", 0, "Iterations of up to N tokens, prompts in pieces (default 0: prompts whole)",
     4},
    {"max-tokens", OPT_MAX_TOKENS, "N", 0,
     "Tokens of whole prompts in one iteration (default 8192); a longer prompt goes alone", 4},
    {"max-batch", OPT_MAX_BATCH, "N", 0,
     "Requests that run at once (default: the largest --batch; 64 with --requests)", 4},
    {"pages", OPT_PAGES, "N", 0, "Pages of 64 tokens in the cache (default: what memory leaves)", 4},
    {"dtype", OPT_DTYPE, "f32|f16|bf16", 0,
     "Of weights and cache (default: bf16 on a GPU; on the CPU, whose weights are always float32, f32)", 4},
    {"gpus", OPT_GPUS, "N", 0, "GPUs that share the model (default 1)", 4},
    {"attention", OPT_ATTENTION, "ours|papers|stock", 0,
     "Of a GPU: papers shares its work out as the papers say; stock has heads padded to the widest of the "
     "layer and no schedule "
     "that knows of widths, and restores latents (default ours)",
     4},
    {"parallel", OPT_PARALLEL, "tensor|sequence", 0,
     "How they share it: by heads and columns of the weights (default); or each has all weights and a slice "
     "of the "
     "prompt, for --output-len 1",
     4},
    {"graphs", OPT_GRAPHS, "on|off", 0, "Steps are replayed CUDA graphs (default on)", 4},
    {"phases", OPT_PHASES, "on|off", 0, "Take the times of the parts (default on)", 4},
    {"repeats", OPT_REPEATS, "N", 0, "Runs of every job (default 3); samples of every iteration", 4},
    {"steps", OPT_STEPS, "N", 0,
     "On a GPU: of each job's steps run N, evenly spread over the output, each for (output - 1) / N of them. "
     "Methods whose steps need every token before them run all (default: all)",
     4},
    {"trace", OPT_TRACE, "FILE.json", 0, "Iterations and requests as a trace that Perfetto opens", 4},
    {"resume", OPT_RESUME, 0, 0, "Go on with the unfinished sweep in OUT.h5", 4},
    {0},
};

/* ---- methods -------------------------------------------------------------------------------------------- */

static int add_method(kvd_jct_options *cfg, const char *text, size_t length, kvd_err *err)
{
    if (cfg->n_methods == KVD_JCT_METHODS)
        return kvd_fail(err, "more than %d methods", (int)KVD_JCT_METHODS);
    char *const copy = strndup(text, length);
    if (!copy)
        return kvd_no_memory(err, "a method", length);
    cfg->method_text[cfg->n_methods] = copy;
    return kvd_method_parse(copy, &cfg->method[cfg->n_methods++], err);
}

static int add_methods(kvd_jct_options *cfg, const char *list, kvd_err *err)
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

/* ---- usage ------------------------------------------------------------------------------------------------ */

static int settle_lengths(kvd_jct_options *cfg, kvd_err *err)
{
    enum { MOST = 1 << 24 };
    if (cfg->requests)
        return cfg->input_text || cfg->output_text || cfg->batch_text
                   ? kvd_fail(err, "--requests goes without --input-len, --output-len and --batch")
                   : 0;
    if (!cfg->input_text || !cfg->output_text)
        return kvd_fail(err, "give --input-len and --output-len, or --requests");
    if (kvd_arg_sizes("--input-len", cfg->input_text, 1, MOST, &cfg->input, &cfg->n_inputs, err) ||
        kvd_arg_sizes("--output-len", cfg->output_text, 1, MOST, &cfg->output, &cfg->n_outputs, err) ||
        kvd_arg_sizes("--batch", cfg->batch_text ? cfg->batch_text : "1", 1, 65535, &cfg->batch,
                      &cfg->n_batches, err))
        return -1;
    return 0;
}

/* What says how a batch or a replay runs must have a say in it: an option that is passed over is a measurement of something else. */
static int check_meaning(const kvd_jct_options *cfg, kvd_err *err)
{
    if (cfg->requests && cfg->iterations)
        return kvd_fail(err, "--iterations goes with --input-len, not with --requests");
    if (cfg->requests && cfg->repeats_given)
        return kvd_fail(err, "--repeats goes with --input-len: --requests are replayed once");
    if (cfg->chunk && cfg->max_tokens)
        return kvd_fail(err, "--max-tokens is of whole prompts and goes without --chunk");
    if (cfg->spread && cfg->n_spectra)
        return kvd_fail(err, "--spread stands in place of --spectrum");
    if (cfg->trace && !strcmp(cfg->trace, cfg->common.output))
        return kvd_fail(err, "--trace and --output are both '%s'", cfg->trace);
    return 0;
}

/* Prompts alone, one at a time. */
static int check_sequence(const kvd_jct_options *cfg, kvd_err *err)
{
    if (cfg->gpus < 2)
        return kvd_fail(err, "--parallel sequence: give --gpus of 2 or more");
    const char *const without = cfg->requests                          ? "--requests"
                                : cfg->iterations                      ? "--iterations"
                                : cfg->chunk                           ? "--chunk"
                                : cfg->max_batch                       ? "--max-batch"
                                : cfg->max_tokens                      ? "--max-tokens"
                                : cfg->steps                           ? "--steps"
                                : cfg->attention != KVD_ATTENTION_OURS ? "--attention papers and stock"
                                                                       : NULL;
    if (without)
        return kvd_fail(err, "--parallel sequence goes without %s", without);
    for (size_t i = 0; i < cfg->n_outputs; i++)
        if (cfg->output[i] != 1)
            return kvd_fail(err, "--parallel sequence computes prompts alone: give --output-len 1");
    return 0;
}

static int check_usage(kvd_jct_options *cfg, kvd_err *err)
{
    if (!cfg->model && !cfg->shape)
        return kvd_fail(err, "no MODEL given");
    if (cfg->model && cfg->shape)
        return kvd_fail(err, "argument '%s' is one too many: --shape stands in place of MODEL", cfg->model);
    if (!cfg->common.output)
        return kvd_fail(err, "no -o OUT.h5 given");
    const bool poisson = cfg->requests && !strncmp(cfg->requests, "poisson:", 8);
    if (poisson && !cfg->lengths)
        return kvd_fail(err, "--requests %s: give --lengths", cfg->requests);
    if (cfg->lengths && !poisson)
        return kvd_fail(err, "--lengths goes with --requests poisson:RATE");
    if (cfg->steps && cfg->requests)
        return kvd_fail(err, "--steps goes with --output-len, not with --requests");
    if (cfg->n_requests && !cfg->requests)
        return kvd_fail(err, "--n-requests goes with --requests");
    if (check_meaning(cfg, err))
        return -1;
    for (size_t i = 0; i < cfg->n_methods; i++)
        if (cfg->method[i].ranks != KVD_RANKS_EQ6 && !kvd_method_has_point(&cfg->method[i]))
            return kvd_fail(err, "--method %s: ranks goes with p or r; a rates file has its own",
                            cfg->method_text[i]);
    if (settle_lengths(cfg, err))
        return -1;
    return cfg->sequence ? check_sequence(cfg, err) : 0;
}

/* ---- argp -------------------------------------------------------------------------------------------------- */

static int on_or_off(const char *option, const char *text, bool *to, kvd_err *err)
{
    *to = !strcmp(text, "on");
    return *to || !strcmp(text, "off") ? 0 : kvd_fail(err, "%s: '%s' is neither on nor off", option, text);
}

static int parse_parallel(kvd_jct_options *cfg, const char *text, kvd_err *err)
{
    cfg->sequence = !strcmp(text, "sequence");
    return cfg->sequence || !strcmp(text, "tensor")
               ? 0
               : kvd_fail(err, "--parallel: '%s' is neither tensor nor sequence", text);
}

static int parse_type(kvd_jct_options *cfg, const char *text, kvd_err *err)
{
    cfg->type_given = true;
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, kvd_dtype_name((kvd_dtype)i))) {
            cfg->type = (kvd_dtype)i;
            return 0;
        }
    return kvd_fail(err, "--dtype: '%s' is none of f32, f16, bf16", text);
}

const char *const kvd_jct_attention_name[KVD_N_ATTENTIONS] = {"ours", "papers", "stock"};

static int parse_attention(kvd_jct_options *cfg, const char *text, kvd_err *err)
{
    for (int i = 0; i < KVD_N_ATTENTIONS; i++)
        if (!strcmp(text, kvd_jct_attention_name[i])) {
            cfg->attention = (kvd_attention_choice)i;
            return 0;
        }
    return kvd_fail(err, "--attention: '%s' is none of ours, papers, stock", text);
}

static int parse_number(int key, const char *arg, kvd_jct_options *cfg, kvd_err *err)
{
    switch (key) {
    case OPT_N_REQUESTS:
        return kvd_arg_size("--n-requests", arg, 1, 100000000, &cfg->n_requests, err);
    case OPT_CHUNK:
        return kvd_arg_size("--chunk", arg, 0, 1 << 24, &cfg->chunk, err);
    case OPT_MAX_TOKENS:
        return kvd_arg_size("--max-tokens", arg, 1, 1 << 24, &cfg->max_tokens, err);
    case OPT_MAX_BATCH:
        return kvd_arg_size("--max-batch", arg, 1, 65535, &cfg->max_batch, err);
    case OPT_PAGES:
        return kvd_arg_size("--pages", arg, 1, (size_t)1 << 40, &cfg->pages, err);
    case OPT_GPUS:
        return kvd_arg_size("--gpus", arg, 1, 64, &cfg->gpus, err);
    case OPT_STEPS:
        return kvd_arg_size("--steps", arg, 1, 1 << 24, &cfg->steps, err);
    default: /* OPT_REPEATS */
        cfg->repeats_given = true;
        return kvd_arg_size("--repeats", arg, 1, 100000, &cfg->repeats, err);
    }
}

static int parse_file(int key, char *arg, kvd_jct_options *cfg, kvd_err *err)
{
    switch (key) {
    case OPT_SPECTRUM:
        return kvd_arg_add("--spectrum", arg, cfg->spectrum, &cfg->n_spectra, KVD_JCT_FILES, err);
    case OPT_RATES:
        return kvd_arg_add("--rates", arg, cfg->rates, &cfg->n_rates, KVD_JCT_FILES, err);
    case OPT_SPREAD:
        return kvd_arg_once("--spread", arg, &cfg->spread, err);
    case OPT_TABLE:
        return kvd_arg_once("--error-table", arg, &cfg->table, err);
    case OPT_CALIBRATION:
        return kvd_arg_once("--calibration", arg, &cfg->calibration, err);
    case OPT_FISHER:
        return kvd_arg_once("--fisher", arg, &cfg->fisher, err);
    case OPT_REQUESTS:
        return kvd_arg_once("--requests", arg, &cfg->requests, err);
    case OPT_LENGTHS:
        return kvd_arg_once("--lengths", arg, &cfg->lengths, err);
    default: /* OPT_TRACE */
        return kvd_arg_once("--trace", arg, &cfg->trace, err);
    }
}

static int parse_one(int key, char *arg, struct argp_state *state, kvd_err *err)
{
    kvd_jct_options *const cfg = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &cfg->common;
        return 0;
    case ARGP_KEY_ARG:
        if (cfg->model)
            return kvd_fail(err, "argument '%s' is one too many", arg);
        cfg->model = arg;
        return 0;
    case ARGP_KEY_END:
        return check_usage(cfg, err);
    case OPT_SHAPE:
        cfg->shape = kvd_shape_find(arg, err);
        return cfg->shape ? 0 : -1;
    case OPT_METHOD:
        return add_methods(cfg, arg, err);
    case OPT_INPUT:
        return kvd_arg_once("--input-len", arg, &cfg->input_text, err);
    case OPT_OUTPUT:
        return kvd_arg_once("--output-len", arg, &cfg->output_text, err);
    case OPT_BATCH:
        return kvd_arg_once("--batch", arg, &cfg->batch_text, err);
    case OPT_DTYPE:
        return parse_type(cfg, arg, err);
    case OPT_ATTENTION:
        return parse_attention(cfg, arg, err);
    case OPT_PARALLEL:
        return parse_parallel(cfg, arg, err);
    case OPT_GRAPHS:
        cfg->graphs_given = true;
        return on_or_off("--graphs", arg, &cfg->graphs, err);
    case OPT_PHASES:
        return on_or_off("--phases", arg, &cfg->phases, err);
    case OPT_ITERATIONS:
        cfg->iterations = true;
        return 0;
    case OPT_RESUME:
        cfg->resume = true;
        return 0;
    case OPT_SPECTRUM:
    case OPT_SPREAD:
    case OPT_RATES:
    case OPT_TABLE:
    case OPT_CALIBRATION:
    case OPT_FISHER:
    case OPT_REQUESTS:
    case OPT_LENGTHS:
    case OPT_TRACE:
        return parse_file(key, arg, cfg, err);
    case OPT_N_REQUESTS:
    case OPT_CHUNK:
    case OPT_MAX_TOKENS:
    case OPT_MAX_BATCH:
    case OPT_PAGES:
    case OPT_GPUS:
    case OPT_REPEATS:
    case OPT_STEPS:
        return parse_number(key, arg, cfg, err);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    kvd_err err = {""};
    return kvd_args_answer(state, parse_one(key, arg, state, &err), &err);
}

void kvd_jct_parse(const char *program, int argc, char **argv, kvd_jct_options *cfg)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = kvd_common_options_child,
        .args_doc =
            "(MODEL | --shape NAME) (--input-len LIST --output-len LIST | --requests TRACE) -o OUT.h5",
        .doc =
            "Job completion time of inference and its parts: batches of requests through continuous batching "
            "and a model whose KV cache a method really compresses.\vExample:\n"
            "  kvdim-jct data/models/kvdim-6m --method none,zack,p=0.5 --spectrum spectrum.h5 --input-len "
            "64,256 --output-len 32 --batch 1,4 -o jct.h5\n"
            "  kvdim-jct --shape llama-3.1-8b --input-len 1024,8192 --output-len 128 --iterations -o jct.h5\n"
            "  kvdim-jct data/models/kvdim-6m --requests poisson:4 --lengths fixed:100:20 --n-requests 50 -o "
            "replay.h5\n\n"
            "What could not run for want of memory is said, the others run, and the exit status is 1. OUT.h5 "
            "is "
            "whole after every job."};
    kvd_args_parse(program, &argp, argc, argv, cfg);
}

void kvd_jct_options_release(kvd_jct_options *cfg)
{
    for (size_t i = 0; i < cfg->n_methods; i++)
        free(cfg->method_text[i]);
    free(cfg->input);
    free(cfg->output);
    free(cfg->batch);
    cfg->n_methods = 0;
    cfg->input = cfg->output = cfg->batch = NULL;
}
