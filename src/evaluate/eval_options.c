/* Parses the command line of kvdim-eval. */
#include "evaluate/eval_run.h"

#include <math.h>

#include "methods/grid.h"
#include "model/checkpoint/checkpoint.h"
#include "model/text/text_options.h"

static int check_methods(const kvd_eval_options *cfg, kvd_err *err)
{
    if ((isnan(cfg->in.target) && !cfg->scan && !cfg->in.sweep &&
         kvd_inputs_check_ranks(&cfg->in, err)) ||
        (cfg->in.sweep && kvd_inputs_check_sweep(&cfg->in, err)) ||
        (!isnan(cfg->in.target) &&
         kvd_target_check_methods(cfg->in.method, cfg->in.method_text, cfg->in.n_methods,
                                  cfg->in.target_key, err)))
        return -1;
    if (!cfg->scan)
        return 0;
    if (cfg->in.prompt || cfg->in.method[0].plan.tokens || cfg->in.method[0].plan.bits)
        return kvd_fail(
            err, "--scan-errors cuts one head of one --method, without --prompt or other axes");
    if (cfg->in.n_methods != 1 || !cfg->in.method[0].dims || cfg->in.method[0].dims->one_p)
        return kvd_fail(
            err, "--scan-errors takes one --method whose heads may have widths of their own");
    if (kvd_method_has_point(&cfg->in.method[0]) || cfg->in.method[0].ranks != KVD_WIDTH_RULE_EQ6 ||
        cfg->in.method[0].cut != KVD_CUT_BOTH)
        return kvd_fail(err, "--scan-errors tries widths of its own, --method %s takes no key",
                        cfg->in.method_text[0]);
    return 0;
}

static int check_usage(void *config, kvd_err *err)
{
    const kvd_eval_options *const cfg = config;
    if (cfg->in.n_field > 1 && cfg->in.n_field != cfg->in.n_text)
        return kvd_fail(err,
                        "--field is given %zu times for %zu texts: give it once, or once for "
                        "each text",
                        cfg->in.n_field, cfg->in.n_text);
    if (cfg->in.by_text && cfg->in.n_text < 2)
        return kvd_fail(err, "--by-text requires at least two texts");
    return check_methods(cfg, err);
}

#define T kvd_eval_options
#define I kvd_inputs_options

static const kvd_option options[] = {
    {.help = "Input"},
    KVD_OPTION_MODEL(I),
    KVD_OPTIONS_TEXT(I, "ids"),
    KVD_OPTION_IDS(I, NULL),
    {"field", .type = KVD_OPT_CALL, .arg = "NAME", .call = kvd_inputs_call_field,
     .repeatable = true, .requires = "text", .otherwise = "text",
     .help = KVD_FIELD_HELP ". Given more than once: one for each text in their order, '' for a "
                            "text without fields"},
    KVD_OPTION_NO_SPECIAL(I),
    KVD_OPTION_TOKENS(I, "all; 2048 with --scan-errors", "Stop after N tokens"),
    {"by-text", .type = KVD_OPT_FLAG, KVD_INTO(I, by_text), .requires = "text",
     .help = "Give every text the same weight: --tokens counts for each text, results are means "
             "over the texts, intervals draw sequences within each text, and --target also "
             "answers for each text alone"},
    KVD_OPTION_SEQ_LEN(I),
    {"prompt", .type = KVD_OPT_WHOLE, KVD_INTO(I, prompt), .high = 1 << 30, .initial = "0",
     .unit = "tokens: every token is a decode step",
     .help =
         "Take the first N tokens of every sequence as its prompt. Tokens of the prompt attend to "
         "each other uncompressed, then the cache is compressed. Only predictions of later tokens "
         "are scored, one decode step after another"},
    KVD_OPTION_LABEL(I, "from the file names"),

    {.help = "Methods"},
    KVD_OPTION_METHOD(kvd_inputs_call_method, KVD_METHODS_OF_FILES,
                      ". The uncompressed model, none, is always evaluated too"),
    KVD_OPTION_PLUGIN,
    KVD_OPTION_LIST_METHODS,
    KVD_OPTIONS_METHOD_FILES(I),
    {"seeds", .type = KVD_OPT_WHOLE, KVD_INTO(I, seeds), .low = 1, .high = 1000, .initial = "1",
     .help =
         "Evaluate methods that draw random numbers with N seeds, --seed and those after it, and "
         "report mean and spread"},

    {.help = "Searches and comparisons"},
    KVD_OPTIONS_TARGET(I, "of the uncompressed model's top-1 accuracy"),
    {"points-only", .type = KVD_OPT_FLAG, KVD_INTO(T, points_only), .requires = "target",
     .help = "Do not search between settings: choose among those given with --method"},
    KVD_OPTION_SWEEP(I),
    {"scan-errors", .type = KVD_OPT_FLAG, KVD_INTO(T, scan),
     .excludes = "sweep resume target rates error-table seeds weights-bits",
     .help = "Cut one head at a time with one --method, measure the loss of quality, and write the "
             "table of all heads to -o"},
    {"weights-bits", .type = KVD_OPT_WHOLES, .arg = "LIST",
     KVD_INTO_LIST(T, weights_bits, n_weights_bits), .low = 2, .high = 8,
     .help =
         "For comparison, also evaluate the model with an uncompressed cache and weights quantised "
         "to each number of bits"},
    {"weights-group", .type = KVD_OPT_WHOLE, KVD_INTO(T, weights_group), .low = 1,
     .high = KVD_WEIGHT_GROUP, .initial = "128", .unit = "weights", .requires = "weights-bits",
     .help = "Number of weights of a matrix row that share a scale and a zero point"},

    {.help = "Run"},
    KVD_OPTION_COMPUTE(I),
    {"cache", .type = KVD_OPT_WORD, .words = kvd_dtype_words, KVD_INTO(I, cache),
     KVD_GIVEN(I, cache_given), .otherwise = "that of --compute",
     .help = "Type in which compressed keys and values are stored. With --compute bf16 the default "
             "runs on the attention kernels that kvdim-attn times"},
    KVD_OPTION_BATCH(I, "2048 tokens, on a GPU 8192"),
    {"resume", .type = KVD_OPT_FLAG, KVD_INTO(I, resume), .excludes = "seeds",
     .help =
         "Save the result of each method and setting in OUT.h5.rows as soon as it is measured, and "
         "continue where an interrupted run with the same options stopped; a complete OUT.h5 of "
         "other options is refused"},
    KVD_OPTIONS_COMMON(I, "OUT.h5", "Write the result to OUT.h5, whole or not at all"),
    {0}};

#define DEMO "kvdim-eval data/models/kvdim-6m --text book.txt --spectrum spectrum.h5 "

static const kvd_program program = {
    .name = "kvdim-eval",
    .summary = "Evaluate next-token predictions with compressed KV caches against the uncompressed "
               "model.",
    .usage = {"MODEL (--text FILE... | --ids FILE.csv) -o OUT.h5 [OPTION...]"},
    .any_of = {"MODEL", "output", "text ids"},
    .examples = {DEMO "--rates rates.h5 -o accuracy.h5",
                 DEMO "--method zack,p=0.5,uniform,p=0.5 -o accuracy.h5",
                 DEMO "--method zack --target 0.99 -o target.h5",
                 DEMO "--calibration dump.h5 --prompt 128 --sweep 8 --resume -o sweep.h5"},
    .notes =
        "Two checks guard the results. Before methods are evaluated, the matrices of each "
        "--spectrum must reproduce the uncompressed logits while no dimension is removed. Every "
        "measured method must have been applied to every sequence and layer, and must have dropped, "
        "shortened, merged or coded something. A warning names methods that saved no bytes. If "
        "other methods remain, one without an effect is left out with a warning, and the exit "
        "status is 0.",
    .moved = "generate reference needle classify classes ask items",
    .moved_to = "kvdim-tasks",
    .options = options,
    .check = check_usage};

void kvd_eval_parse(int argc, char **argv, kvd_eval_options *cfg)
{
    kvd_options_parse(&program, argc, argv, cfg);
}

void kvd_eval_options_release(kvd_eval_options *cfg)
{
    kvd_inputs_options_release(&cfg->in);
    kvd_options_release(&program, cfg);
}
