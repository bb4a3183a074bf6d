#include "serving/jct/jct_options.h"

#include <stdlib.h>
#include <string.h>

#include "common/files/output.h"
#include "methods/grid.h"
#include "model/text/text_options.h"
#include "serving/batching.h"

/* Fails if an option was given that has no effect with --parallel sequence, in which GPUs divide
 * the tokens of one prompt. */
static int check_sequence(const kvd_jct_options *cfg, kvd_err *err)
{
    if (cfg->gpus < 2)
        return kvd_fail(err, "--parallel sequence requires --gpus of at least 2");
    const char *const without = cfg->requests     ? "--requests"
                                : cfg->iterations ? "--iterations"
                                : cfg->chunk      ? "--chunk"
                                : cfg->max_batch  ? "--max-batch"
                                : cfg->max_tokens ? "--max-tokens"
                                : cfg->steps      ? "--steps"
                                : cfg->admission  ? "--admission stored"
                                : cfg->attention != KVD_ATTENTION_OURS
                                    ? "--attention papers or stock"
                                    : NULL;
    if (without)
        return kvd_fail(err, "--parallel sequence cannot be used with %s", without);
    for (size_t i = 0; i < cfg->n_outputs; i++)
        if (cfg->output[i] != 1)
            return kvd_fail(
                err, "--parallel sequence computes prompts alone and requires --output-len 1");
    return 0;
}

static int check_usage(void *config, kvd_err *err)
{
    const kvd_jct_options *const cfg = config;
    const bool poisson = cfg->requests && !strncmp(cfg->requests, "poisson:", 8);
    if (poisson && !cfg->lengths)
        return kvd_fail(err, "--requests %s requires --lengths", cfg->requests);
    if (cfg->lengths && !poisson)
        return kvd_fail(err, "--lengths requires --requests poisson:RATE");
    if (cfg->chunk && cfg->max_tokens)
        return kvd_fail(err, "--max-tokens limits whole prompts and cannot be used with --chunk");
    static const char *const rows[] = {".rows", ".rows.partial", ".rows.lock", NULL};
    const kvd_output_name outputs[] = {{"-o", cfg->common.output, rows},
                                       {"--timeline", cfg->timeline, NULL}};
    if (kvd_output_distinct(outputs, 2, err))
        return -1;
    for (size_t i = 0; i < cfg->n_weight_bits; i++)
        if (cfg->weight_bits[i] != 4 && cfg->weight_bits[i] != 16)
            return kvd_fail(err, "--weights-bits %zu: the engine has weights of 4 and of 16 bits",
                            cfg->weight_bits[i]);
    for (size_t i = 0; i < cfg->n_methods; i++)
        if (cfg->method[i].ranks != KVD_WIDTH_RULE_EQ6 && !kvd_method_has_point(&cfg->method[i]))
            return kvd_fail(err, "--method %s: ranks requires p or r; a rates file has its own",
                            cfg->method_text[i]);
    return cfg->sequence ? check_sequence(cfg, err) : 0;
}

static int find_shape(void *config, const char *text, kvd_err *err)
{
    kvd_jct_options *const cfg = config;
    return (cfg->shape = kvd_shape_find(text, err)) ? 0 : -1;
}

static int add_methods(void *config, const char *spec, kvd_err *err)
{
    kvd_jct_options *const cfg = config;
    return kvd_methods_add(spec, cfg->method, cfg->method_text, &cfg->n_methods, KVD_JCT_METHODS,
                           err);
}

const char *const kvd_jct_attention_name[KVD_N_ATTENTIONS + 1] = {"ours", "papers", "stock", NULL};
static const char *const parallel[] = {"tensor", "sequence", NULL};

#define T kvd_jct_options
#define LENGTH(name, most, usual, field, n, raw, other, text)                                      \
    {                                                                                              \
        name, .type = KVD_OPT_WHOLES, .arg = "LIST", KVD_INTO_LIST(T, field, n),                   \
              KVD_TYPED(T, raw), .low = 1, .high = most, .initial = usual, .requires = other,      \
              .help = text                                                                         \
    }

static const kvd_option options[] = {
    {.help = "Model"},
    KVD_OPTION_MODEL(T),
    {"shape", .type = KVD_OPT_CALL, .arg = "NAME", .call = find_shape, .excludes = "MODEL",
     .help =
         "Measure with random weights of a published model's shape in place of MODEL; "
         "kvdim-collect --shape list prints the names. Methods that remove dimensions then need no "
         "--spectrum (see --spread)"},

    {.help = "Methods"},
    KVD_OPTION_METHOD(add_methods, "none", ""),
    KVD_OPTION_PLUGIN,
    KVD_OPTION_LIST_METHODS,
    KVD_OPTIONS_METHOD_FILES(T),
    {"spread", .type = KVD_OPT_TEXT, .arg = "FILE.csv", KVD_INTO(T, spread), .excludes = "spectrum",
     .otherwise = "data/widths/kvdim25m-sigma.csv with --shape",
     .help =
         "Use random rotations in place of --spectrum, and take singular values from the heads in "
         "FILE.csv (columns pair, dim and one per head), in turn. Times are valid; generated "
         "tokens mean nothing"},

    {.help = "Requests"},
    LENGTH(
        "input-len", 1 << 24, NULL, input, n_inputs, input_text, "output-len",
        "Number of tokens of a prompt. Every prompt length runs with every output length and every "
        "batch"),
    LENGTH("output-len", 1 << 24, NULL, output, n_outputs, output_text, "input-len",
           "Number of tokens that a request generates"),
    LENGTH("batch", 65535, "1", batch, n_batches, batch_text, "input-len",
           "Requests that arrive together"),
    {"requests", .type = KVD_OPT_TEXT, .arg = "FILE|poisson:RATE", KVD_INTO(T, requests),
     .excludes = "input-len output-len batch iterations repeats steps",
     .help =
         "Replay a trace in real time, or Poisson arrivals at RATE requests per second with the "
         "lengths of --lengths. The result has one row per request"},
    {"lengths", .type = KVD_OPT_TEXT, .arg = "FILE|NAME|fixed:INPUT:OUTPUT", KVD_INTO(T, lengths),
     .requires = "requests", .help = "Lengths of the requests of poisson:RATE"},
    {"n-requests", .type = KVD_OPT_WHOLE, KVD_INTO(T, n_requests), .low = 1, .high = 1e8,
     .requires = "requests", .otherwise = "100 with poisson:RATE, else all of the trace",
     .help = "Number of Poisson arrivals, or the first N requests of a trace"},
    {"iterations", .type = KVD_OPT_FLAG, KVD_INTO(T, iterations),
     .help = "Also measure single iterations of the engine for many batch sizes, up to "
             "--max-batch, and lengths; kvdim-serve simulates from them"},
    LENGTH(
        "step-batch", 65535, NULL, step_batch, n_step_batches, step_batch_text, "iterations",
        "Measure with --iterations only decode steps of the longest sequences, for these numbers "
        "of requests (without it, all iterations). kvdim-serve cannot simulate from them alone"),

    {.help = "Engine"},
    {"chunk", .type = KVD_OPT_WHOLE, KVD_INTO(T, chunk), .high = 1 << 24, .initial = "0",
     .unit = "tokens: prompts run whole",
     .help = "Split prompts so that an iteration has at most N tokens"},
    {"max-tokens", .type = KVD_OPT_WHOLE, KVD_INTO(T, max_tokens), .low = 1, .high = 1 << 24,
     .otherwise = "8192 tokens",
     .help =
         "Largest number of prompt tokens in one iteration without --chunk; a longer prompt runs "
         "alone"},
    {"max-batch", .type = KVD_OPT_WHOLE, KVD_INTO(T, max_batch), .low = 1, .high = 65535,
     .otherwise = "the largest --batch, 64 with --requests",
     .help = "Largest number of requests that run at the same time"},
    {"pages", .type = KVD_OPT_WHOLE, KVD_INTO(T, pages), .low = 1, .high = 1099511627776.0,
     .otherwise = "as many as the free memory holds",
     .help = "Number of cache pages, of 64 tokens each"},
    {"admission", .type = KVD_OPT_WORD, .words = kvd_admission_name, KVD_INTO(T, admission),
     .initial = "whole",
     .help =
         "Cache pages that a request reserves. whole: enough for all its input and output tokens, "
         "when it is admitted. stored: as many as its stored tokens fill; if no page is free, the "
         "request that arrived last is preempted and computed again later, as in vLLM"},
    {"dtype", .type = KVD_OPT_WORD, .words = kvd_dtype_words, KVD_INTO(T, type),
     KVD_GIVEN(T, type_given), .otherwise = "bf16 on a GPU, else f32",
     .help = "Type of the weights and the cache; on the CPU weights are always float32"},
    {"weights-bits", .type = KVD_OPT_WHOLES, .arg = "LIST",
     KVD_INTO_LIST(T, weight_bits, n_weight_bits), .low = 4, .high = 16, .initial = "16",
     .help = "Bits of the weights on a GPU, 16 or 4. With 4, every method runs with 4-bit matrices "
             "in the layers too, as NAME@w4"},
    {"gpus", .type = KVD_OPT_WHOLE, KVD_INTO(T, gpus), .low = 1, .high = 64, .initial = "1",
     .help = "Number of GPUs that share the model"},
    {"attention", .type = KVD_OPT_WORD, .words = kvd_jct_attention_name, KVD_INTO(T, attention),
     .initial = "ours",
     .help =
         "Attention on a GPU. ours: work is divided by the cost of each head. papers: work is "
         "divided as the papers describe. stock: an unmodified kernel, for which heads are padded "
         "to the widest head of the layer and latents are multiplied back to full width"},
    {"parallel", .type = KVD_OPT_WORD, .words = parallel, KVD_INTO(T, sequence),
     .initial = "tensor",
     .help =
         "How GPUs share the model. tensor: each GPU has some heads and columns of the weights. "
         "sequence: each GPU has all weights and a part of the prompt; requires --output-len 1"},
    {"graphs", .type = KVD_OPT_WORD, .words = kvd_switch_words, KVD_INTO(T, graphs),
     KVD_GIVEN(T, graphs_given), .initial = "on", .help = "Replay steps as CUDA graphs"},

    {.help = "Measurement"},
    {"phases", .type = KVD_OPT_WORD, .words = kvd_switch_words, KVD_INTO(T, phases),
     .initial = "on",
     .help = "Also time the parts of each iteration (attention, rotation, products, ...)"},
    {"repeats", .type = KVD_OPT_WHOLE, KVD_INTO(T, repeats), .low = 1, .high = 100000,
     .initial = "3", .unit = "runs",
     .help = "Number of runs of every job, and of samples of every iteration"},
    {"steps", .type = KVD_OPT_WHOLE, KVD_INTO(T, steps), .low = 1, .high = 1 << 24,
     .otherwise = "all",
     .help =
         "On a GPU, run only N decode steps of each job, evenly spaced over the output. Each "
         "counts for (output - 1) / N steps. Methods whose steps depend on all earlier steps run "
         "every step"},
    {"timeline", .type = KVD_OPT_TEXT, .arg = "FILE.json", KVD_INTO(T, timeline),
     .help = "Write iterations and requests as a trace that Perfetto opens"},
    KVD_OPTION_RESUME(
        T,
        "Continue an interrupted run: keep the rows in OUT.h5.rows, or else those in OUT.h5, and "
        "measure only what is missing"),
    KVD_OPTIONS_COMMON(
        T, "OUT.h5",
        "Write the result to OUT.h5 when the sweep ends; rows are saved in OUT.h5.rows after every "
        "job, and an earlier OUT.h5 stays until then"),
    {0}};

static const kvd_program program = {
    .name = "kvdim-jct",
    .summary =
        "Measure the job completion time of inference and its parts: batches of requests run "
        "through continuous batching and a model whose KV cache a method compresses.",
    .usage = {"(MODEL | --shape NAME) --input-len LIST --output-len LIST -o OUT.h5 [OPTION...]",
              "(MODEL | --shape NAME) --requests FILE|poisson:RATE -o OUT.h5 [OPTION...]"},
    .any_of = {"MODEL shape", "output", "input-len requests"},
    .examples = {"kvdim-jct data/models/kvdim-6m --method none,zack,p=0.5 --spectrum spectrum.h5 "
                 "--input-len 64,256 --output-len 32 --batch 1,4 -o jct.h5",
                 "kvdim-jct --shape llama-3.1-8b --input-len 1024,8192 --output-len 128 "
                 "--iterations --max-batch 64 -o jct.h5",
                 "kvdim-jct data/models/kvdim-6m --requests poisson:4 --lengths fixed:100:20 "
                 "--n-requests 50 -o replay.h5"},
    .notes = "Points that do not fit into memory are reported, the other points run, and the exit "
             "status is 1.",
    .options = options,
    .check = check_usage};

void kvd_jct_parse(int argc, char **argv, kvd_jct_options *cfg)
{
    kvd_options_parse(&program, argc, argv, cfg);
}

void kvd_jct_options_release(kvd_jct_options *cfg)
{
    while (cfg->n_methods)
        free(cfg->method_text[--cfg->n_methods]);
    kvd_options_release(&program, cfg);
}
