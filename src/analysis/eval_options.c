#include "analysis/eval_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "methods/grid.h"
#include "model/checkpoint.h"

enum {
    OPT_TEXT = 0x100,
    OPT_IDS,
    OPT_FIELD,
    OPT_BY_TEXT,
    OPT_NO_SPECIAL,
    OPT_TOKENS,
    OPT_SEQ_LEN,
    OPT_LABEL,
    OPT_METHOD,
    OPT_SPECTRUM,
    OPT_RATES,
    OPT_TABLE,
    OPT_TARGET,
    OPT_POINTS_ONLY,
    OPT_TARGET_KEY,
    OPT_SWEEP,
    OPT_RESUME,
    OPT_SCAN,
    OPT_CACHE,
    OPT_COMPUTE,
    OPT_BATCH,
    OPT_PROMPT,
    OPT_CALIBRATION,
    OPT_FISHER,
    OPT_GENERATE,
    OPT_REFERENCE,
    OPT_NEEDLE,
    OPT_CLASSIFY,
    OPT_CLASSES,
    OPT_ASK,
    OPT_ITEMS,
    OPT_SEEDS,
    OPT_WEIGHTS_BITS,
    OPT_WEIGHTS_GROUP
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "On which data:", 1},
    {"text", OPT_TEXT, "FILE", 0,
     "Text: .jsonl, .json (a list), .csv (header row), anything else one plain document. May be repeated; "
     "further arguments after MODEL are texts too",
     1},
    {"ids", OPT_IDS, "FILE.csv", 0, "Token ids instead, one sequence per line", 1},
    {"field", OPT_FIELD, "NAME", 0,
     "JSON key or CSV column of the text (default text); A,B joins two. Given several times: one for each "
     "text, in "
     "their order ('' where a text has none)",
     1},
    {"by-text", OPT_BY_TEXT, 0, 0,
     "Every text weighs the same: --tokens is of each, results are means over the texts, and intervals draw "
     "sequences within each. --target then also answers for each text alone",
     1},
    {"no-special", OPT_NO_SPECIAL, 0, 0, "Leave out the special tokens around a document", 1},
    {"tokens", OPT_TOKENS, "N", 0, "Stop after N tokens (default: all; 2048 with --scan-errors)", 1},
    {"seq-len", OPT_SEQ_LEN, "N", 0,
     "Documents are cut into sequences of N tokens (default: 512, or the model's longest)", 1},
    {"prompt", OPT_PROMPT, "N", 0,
     "The first N rows of every sequence are its prompt: they attend to each other uncompressed, are then "
     "compressed, and only "
     "later rows are scored, one step after another (default 0: every row is a step)",
     1},
    {"label", OPT_LABEL, "NAME", 0, "What tables call these texts (default: from the file names)", 1},
    {0, 0, 0, 0, "What to evaluate:", 2},
    {"method", OPT_METHOD, "NAME[+NAME...][,KEY=VALUE...]", 0,
     "May be repeated; NAME+NAME fills several axes of the cache. KEY=A/B/C: a method for each of the "
     "values, "
     "and for each combination where several keys have several. Keys of dims methods: "
     "p,p.qk,p.v,r,ranks,cut; those of the others are listed "
     "below. p: overall fraction removed, or p.qk and p.v of the two pairs; r: removal rate of Eq. 6; "
     "none of them: every point of the method's --rates file. RULE eq6 (default), eq6-energy, error, which "
     "takes widths from "
     "--error-table, or loss, which minimises what the singular values of fisher predict. cut=v or cut=qk "
     "cuts one side at the widths of both and leaves the other whole. "
     "The uncompressed model, none, is always evaluated too. Default: every method whose pairs a --rates "
     "file "
     "has, without one every method whose pairs a --spectrum has (for --target)",
     2},
    {"spectrum", OPT_SPECTRUM, "FILE", 0, "Bases; may be repeated, a method takes the one with its pairs", 2},
    {"rates", OPT_RATES, "FILE", 0, "Points from kvdim-fit; may be repeated, as --spectrum", 2},
    {"error-table", OPT_TABLE, "FILE", 0, "Made by --scan-errors, for ranks=error", 2},
    {"calibration", OPT_CALIBRATION, "FILE", 0,
     "Activations of calibration text (kvdim-collect --rope both), for methods that take levels from them",
     2},
    {"fisher", OPT_FISHER, "FILE", 0,
     "Squared gradients (kvdim-collect --fisher), for kvquant's weights and palu's search; those of kvquant "
     "are of the tokens of "
     "--calibration",
     2},
    {"target", OPT_TARGET, "SHARE", 0,
     "For each method, search how few bytes keep this share of the uncompressed top-1 accuracy, along the "
     "key that trades one for "
     "the other: p of dims, else the key of the method named last (listed below)",
     2},
    {"target-key", OPT_TARGET_KEY, "[NAME.]KEY", 0, "Search this key instead", 2},
    {"sweep", OPT_SWEEP, "N", 0,
     "Each --method at N values of the key that --target searches, from many bytes to few; without --method "
     "every method that stores less by itself",
     2},
    {"points-only", OPT_POINTS_ONLY, 0, 0,
     "With --target: no search, the answer is read off the points that the methods ask for", 2},
    {"scan-errors", OPT_SCAN, 0, 0,
     "Measure what cutting each single head of one --method costs, and write that table to -o", 2},
    {"weights-bits", OPT_WEIGHTS_BITS, "B", 0,
     "For comparison, no method: the model with the matrices of its layers quantised to B bits, 2 to 8, and "
     "a "
     "whole cache (default: none). May be repeated",
     2},
    {"weights-group", OPT_WEIGHTS_GROUP, "N", 0,
     "Weights of a row that share a scale and a zero point (default 128)", 2},
    {0, 0, 0, 0, "Free-running, with K and V of past tokens as the cache stores them (on the CPU):", 3},
    {"generate", OPT_GENERATE, "N", 0,
     "Behind the --prompt of every sequence that has N more tokens, generate N greedily; compare with what "
     "the "
     "uncompressed model generates and with the text's own continuation",
     3},
    {"reference", OPT_REFERENCE, "FIELD", 0,
     "With --generate: whole documents are the prompts, and the references stand in this JSON key or CSV "
     "column",
     3},
    {"needle", OPT_NEEDLE, "N", 0,
     "Hide a pass key at N depths of every sequence, shortened to make room, and ask for it", 3},
    {"classify", OPT_CLASSIFY, "FIELD", 0,
     "Documents' labels stand in this JSON key or CSV column: take the label that is likeliest behind each "
     "document",
     3},
    {"classes", OPT_CLASSES, "A,B,...", 0, "The labels to choose from (default: all that documents have)", 3},
    {"ask", OPT_ASK, "TEXT", 0,
     "Put this behind every document of --reference, into the prompt, and of --classify, behind the "
     "compressed document",
     3},
    {"items", OPT_ITEMS, "N", 0, "Only the first N sequences or documents run free (default: all)", 3},
    {"seeds", OPT_SEEDS, "N", 0,
     "Evaluate methods that draw random numbers under N seeds, --seed and those that follow it, and give the "
     "mean "
     "and the spread (default 1)",
     3},
    {0, 0, 0, 0, "How to run:", 4},
    {"compute", OPT_COMPUTE, "f32|bf16", 0,
     "Arithmetic of the passes: float32, or on a GPU bf16 with float32 sums (default f32)", 4},
    {"cache", OPT_CACHE, "f32|f16|bf16", 0,
     "Type in which K' and V' are stored (default: that of --compute). With --compute bf16 the default runs "
     "on the attention kernels that kvdim-attn times",
     4},
    {"resume", OPT_RESUME, 0, 0,
     "Points one after another, each saved in OUT.h5.rows when it is done; go on where an interrupted run "
     "with the same options "
     "stopped",
     4},
    {"batch", OPT_BATCH, "N", 0, "Tokens in one pass (default 2048, on a GPU 8192; at least one sequence)",
     4},
    {0},
};

int kvd_eval_add_method(kvd_eval_options *cfg, const char *text, kvd_err *err)
{
    if (cfg->n_methods == KVD_EVAL_METHODS)
        return kvd_fail(err, "more than %d methods", (int)KVD_EVAL_METHODS);
    cfg->method_text[cfg->n_methods] = text;
    return kvd_method_parse(text, &cfg->method[cfg->n_methods++], err);
}

/* One text for many methods (methods/grid.h). */
static int add_methods(kvd_eval_options *cfg, const char *text, kvd_err *err)
{
    char **texts;
    size_t n;
    if (kvd_method_grid(text, KVD_EVAL_METHODS, &texts, &n, err))
        return -1;
    int status = 0;
    for (size_t i = 0; i < n; i++) {
        if (!status && !(status = kvd_eval_add_method(cfg, texts[i], err)))
            cfg->own_text[cfg->n_own++] = texts[i];
        else
            free(texts[i]);
    }
    free(texts);
    return status;
}

void kvd_eval_options_release(kvd_eval_options *cfg)
{
    while (cfg->n_own)
        free(cfg->own_text[--cfg->n_own]);
}

static int check_methods(const kvd_eval_options *cfg, kvd_err *err)
{
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const kvd_method *const m = &cfg->method[i];
        if (m->ranks != KVD_RANKS_EQ6 && !kvd_method_has_point(m) && isnan(cfg->target) && !cfg->scan &&
            !cfg->sweep)
            return kvd_fail(err, "--method %s: ranks goes with p, r or --target; a rates file has its own",
                            cfg->method_text[i]);
    }
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const kvd_method *const m = &cfg->method[i];
        kvd_method_rate rate;
        if (kvd_method_is_none(m) || (isnan(cfg->target) && !cfg->sweep))
            continue;
        if (kvd_method_rate_find(m, isnan(cfg->target) ? NULL : cfg->target_key, &rate, err))
            return -1;
        if (!isnan(cfg->target) && rate.p && m->cut != KVD_CUT_BOTH)
            return kvd_fail(err, "--target searches p of both sides, --method %s leaves one whole",
                            cfg->method_text[i]);
        kvd_method_rate swept;
        if (cfg->sweep && kvd_method_rate_find(m, NULL, &swept, err))
            return -1;
        if (cfg->sweep && kvd_method_rate_given(m, &swept))
            return kvd_fail(err, "--sweep tries values of %s, of which --method %s gives one", swept.name,
                            cfg->method_text[i]);
        if (rate.p && kvd_method_has_sides(m))
            return kvd_fail(err, "--%s takes one p for both pairs, --method %s has one for each",
                            isnan(cfg->target) ? "sweep" : "target", cfg->method_text[i]);
    }
    size_t tried = 0;
    for (size_t i = 0; i < cfg->n_methods; i++)
        tried += !kvd_method_is_none(&cfg->method[i]);
    if (cfg->n_methods && !tried && (cfg->sweep || !isnan(cfg->target)))
        return kvd_fail(err,
                        "--%s of nothing: the uncompressed model has no key that trades bytes for quality",
                        cfg->sweep ? "sweep" : "target");
    if (cfg->target_key && isnan(cfg->target))
        return kvd_fail(err, "--target-key goes with --target");
    if (cfg->scan && (cfg->sweep || cfg->resume))
        return kvd_fail(err, "--scan-errors goes without --sweep and --resume");
    if (cfg->resume && (kvd_eval_runs_free(cfg) || cfg->seeds > 1))
        return kvd_fail(err, "--resume goes without --generate, --needle, --classify and --seeds");
    if (!cfg->scan)
        return 0;
    if (cfg->prompt || cfg->method[0].tokens || cfg->method[0].bits)
        return kvd_fail(err, "--scan-errors cuts one head of one --method, without --prompt or other axes");
    if (cfg->n_methods != 1 || !cfg->method[0].dims || cfg->method[0].dims->one_p)
        return kvd_fail(err, "--scan-errors takes one --method whose heads may have widths of their own");
    if (kvd_method_has_point(&cfg->method[0]) || cfg->method[0].ranks != KVD_RANKS_EQ6 ||
        cfg->method[0].cut != KVD_CUT_BOTH)
        return kvd_fail(err, "--scan-errors tries widths of its own, --method %s takes no key",
                        cfg->method_text[0]);
    if (!isnan(cfg->target) || cfg->n_rates || cfg->table)
        return kvd_fail(err, "--scan-errors goes without --target, --rates and --error-table");
    return 0;
}

bool kvd_eval_runs_free(const kvd_eval_options *cfg)
{
    return cfg->generate || cfg->needle || cfg->classify;
}

static int check_free(const kvd_eval_options *cfg, kvd_err *err)
{
    if (cfg->reference && !cfg->generate)
        return kvd_fail(err, "--reference goes with --generate");
    if (cfg->generate && !cfg->reference && !cfg->prompt)
        return kvd_fail(err, "--generate wants a --prompt to go on from, or a --reference");
    if ((cfg->reference || cfg->needle || cfg->classify) && !cfg->n_text)
        return kvd_fail(err, "--reference, --needle and --classify go with --text");
    if (cfg->classes && !cfg->classify)
        return kvd_fail(err, "--classes goes with --classify");
    if (cfg->ask && !cfg->reference && !cfg->classify)
        return kvd_fail(err, "--ask goes with --reference or --classify");
    if (cfg->items && !kvd_eval_runs_free(cfg))
        return kvd_fail(err, "--items goes with --generate, --needle or --classify");
    if (cfg->weights_group_given && !cfg->n_weights_bits)
        return kvd_fail(err, "--weights-group goes with --weights-bits");
    if (cfg->n_weights_bits && (cfg->scan || kvd_eval_runs_free(cfg)))
        return kvd_fail(err,
                        "--weights-bits goes without --scan-errors, --generate, --needle and --classify");
    if (cfg->scan && (kvd_eval_runs_free(cfg) || cfg->seeds > 1))
        return kvd_fail(err, "--scan-errors goes without --generate, --needle, --classify and --seeds");
    return 0;
}

static int check_usage(const kvd_eval_options *cfg, kvd_err *err)
{
    if (!cfg->model)
        return kvd_fail(err, "no MODEL given");
    if (!cfg->common.output)
        return kvd_fail(err, "no -o OUT.h5 given");
    if (cfg->n_text && !cfg->text_given)
        return kvd_fail(err, "argument '%s' is one too many (texts go with --text)", cfg->text[0]);
    if ((cfg->n_text > 0) + (cfg->ids != NULL) != 1)
        return kvd_fail(err, "give one of --text and --ids");
    if (cfg->n_field && !cfg->n_text)
        return kvd_fail(err, "--field goes with --text");
    if (cfg->no_special && !cfg->n_text)
        return kvd_fail(err, "--no-special goes with --text");
    if (cfg->n_field > 1 && cfg->n_field != cfg->n_text)
        return kvd_fail(err, "--field %zu times with %zu texts: once, or once for each text", cfg->n_field,
                        cfg->n_text);
    if (cfg->points_only && isnan(cfg->target))
        return kvd_fail(err, "--points-only goes with --target");
    if (cfg->by_text && cfg->n_text < 2)
        return kvd_fail(err, "--by-text goes with two texts or more");
    if (cfg->n_field > 1 && kvd_eval_runs_free(cfg))
        return kvd_fail(err, "free-running takes one --field for all texts");
    if (check_free(cfg, err))
        return -1;
    return check_methods(cfg, err);
}

static int parse_cache(const char *text, kvd_dtype *out, kvd_err *err)
{
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, kvd_dtype_name((kvd_dtype)i))) {
            *out = (kvd_dtype)i;
            return 0;
        }
    return kvd_fail(err, "--cache: '%s' is none of f32, f16, bf16", text);
}

static int parse_compute(const char *text, kvd_dtype *out, kvd_err *err)
{
    *out = strcmp(text, "bf16") ? KVD_F32 : KVD_BF16;
    return *out == KVD_BF16 || !strcmp(text, "f32")
               ? 0
               : kvd_fail(err, "--compute: '%s' is neither f32 nor bf16", text);
}

static int parse_free(int key, const char *arg, kvd_eval_options *cfg, kvd_err *err)
{
    switch (key) {
    case OPT_GENERATE:
        return kvd_arg_size("--generate", arg, 1, 1 << 30, &cfg->generate, err);
    case OPT_REFERENCE:
        cfg->reference = arg;
        return 0;
    case OPT_NEEDLE:
        return kvd_arg_size("--needle", arg, 1, 1001, &cfg->needle, err);
    case OPT_CLASSIFY:
        cfg->classify = arg;
        return 0;
    case OPT_CLASSES:
        cfg->classes = arg;
        return 0;
    case OPT_ASK:
        cfg->ask = arg;
        return 0;
    case OPT_ITEMS:
        return kvd_arg_size("--items", arg, 1, 1 << 30, &cfg->items, err);
    case OPT_SEEDS:
        return kvd_arg_size("--seeds", arg, 1, 1000, &cfg->seeds, err);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int add_weights_bits(kvd_eval_options *cfg, const char *text, kvd_err *err)
{
    size_t bits;
    if (kvd_arg_size("--weights-bits", text, 2, 8, &bits, err))
        return -1;
    for (size_t i = 0; i < cfg->n_weights_bits; i++)
        if (cfg->weights_bits[i] == bits)
            return kvd_fail(err, "--weights-bits %zu is given twice", bits);
    cfg->weights_bits[cfg->n_weights_bits++] = bits;
    return 0;
}

static int parse_one(int key, char *arg, struct argp_state *state, kvd_err *err)
{
    kvd_eval_options *cfg = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &cfg->common;
        return 0;
    case ARGP_KEY_ARG:
        if (cfg->model)
            return kvd_arg_add("--text", arg, cfg->text, &cfg->n_text, KVD_EVAL_TEXTS, err);
        cfg->model = arg;
        return 0;
    case ARGP_KEY_END:
        return check_usage(cfg, err);
    case OPT_TEXT:
        cfg->text_given = true;
        return kvd_arg_add("--text", arg, cfg->text, &cfg->n_text, KVD_EVAL_TEXTS, err);
    case OPT_IDS:
        return kvd_arg_once("--ids", arg, &cfg->ids, err);
    case OPT_FIELD:
        return kvd_arg_add("--field", *arg ? arg : NULL, cfg->field, &cfg->n_field, KVD_EVAL_TEXTS, err);
    case OPT_BY_TEXT:
        cfg->by_text = true;
        return 0;
    case OPT_NO_SPECIAL:
        cfg->no_special = true;
        return 0;
    case OPT_TOKENS:
        return kvd_arg_size("--tokens", arg, 2, (size_t)1 << 48, &cfg->tokens, err);
    case OPT_SEQ_LEN:
        return kvd_arg_size("--seq-len", arg, 2, 1 << 30, &cfg->seq_len, err);
    case OPT_BATCH:
        return kvd_arg_size("--batch", arg, 1, 1 << 30, &cfg->batch, err);
    case OPT_CALIBRATION:
        return kvd_arg_once("--calibration", arg, &cfg->calibration, err);
    case OPT_FISHER:
        return kvd_arg_once("--fisher", arg, &cfg->fisher, err);
    case OPT_PROMPT:
        return kvd_arg_size("--prompt", arg, 0, 1 << 30, &cfg->prompt, err);
    case OPT_LABEL:
        if (!*arg || strlen(arg) > 63)
            return kvd_fail(err, "--label '%s': 1 to 63 bytes", arg);
        cfg->label = arg;
        return 0;
    case OPT_METHOD:
        return add_methods(cfg, arg, err);
    case OPT_SPECTRUM:
        return kvd_arg_add("--spectrum", arg, cfg->spectrum, &cfg->n_spectra, KVD_EVAL_FILES, err);
    case OPT_RATES:
        return kvd_arg_add("--rates", arg, cfg->rates, &cfg->n_rates, KVD_EVAL_FILES, err);
    case OPT_TABLE:
        return kvd_arg_once("--error-table", arg, &cfg->table, err);
    case OPT_TARGET:
        if (kvd_arg_double("--target", arg, 0, 1, &cfg->target, err))
            return -1;
        return cfg->target > 0 ? 0 : kvd_fail(err, "--target: a share of 0 is kept by everything");
    case OPT_POINTS_ONLY:
        cfg->points_only = true;
        return 0;
    case OPT_TARGET_KEY:
        return kvd_arg_once("--target-key", arg, &cfg->target_key, err);
    case OPT_WEIGHTS_BITS:
        return add_weights_bits(cfg, arg, err);
    case OPT_WEIGHTS_GROUP:
        cfg->weights_group_given = true;
        return kvd_arg_size("--weights-group", arg, 1, KVD_WEIGHT_GROUP, &cfg->weights_group, err);
    case OPT_SWEEP:
        return kvd_arg_size("--sweep", arg, 1, 64, &cfg->sweep, err);
    case OPT_RESUME:
        cfg->resume = true;
        return 0;
    case OPT_SCAN:
        cfg->scan = true;
        return 0;
    case OPT_COMPUTE:
        return parse_compute(arg, &cfg->compute, err);
    case OPT_CACHE:
        cfg->cache_given = true;
        return parse_cache(arg, &cfg->cache, err);
    default:
        return parse_free(key, arg, cfg, err);
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    kvd_err err = {""};
    return kvd_args_answer(state, parse_one(key, arg, state, &err), &err);
}

/* The key that --sweep and --target vary. */
static void print_rate(FILE *f, const char *name)
{
    kvd_err none;
    kvd_method m;
    kvd_method_rate r;
    if (!kvd_method_parse(name, &m, &none) && !kvd_method_rate_find(&m, NULL, &r, &none))
        fprintf(f, "  %-12s   --sweep, --target: %s from %g to %g%s%s\n", "", r.name, r.most, r.least,
                *r.with ? ", along with it " : "", r.with);
}

/* The registry's methods at the end of --help. argp frees what it gets. */
static char *help_filter(int key, const char *text, void *input)
{
    (void)input;
    if (key != ARGP_KEY_HELP_EXTRA)
        return (char *)(uintptr_t)text;
    char *all = NULL;
    size_t size = 0;
    FILE *const f = open_memstream(&all, &size);
    if (!f)
        return NULL;
    fprintf(f, "Methods, the axis each shortens, and its keys with their defaults:\n  %-12s %s\n", "none",
            "the uncompressed model");
    kvd_preset p;
    for (int i = 0; kvd_preset_at(i, &p); i++) {
        fprintf(f, "  %-12s %s: %s\n", p.name, p.axis, p.summary);
        print_rate(f, p.name);
        for (int k = 0; p.parameter && p.parameter[k].key; k++)
            fprintf(f, "  %-12s   %s=%g  %s\n", "", p.parameter[k].key, p.parameter[k].value,
                    p.parameter[k].meaning);
    }
    return fclose(f) ? NULL : all;
}

void kvd_eval_parse(const char *program, int argc, char **argv, kvd_eval_options *cfg)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = kvd_common_options_child,
        .help_filter = help_filter,
        .args_doc = "MODEL (--text FILE... | --ids FILE.csv) -o OUT.h5",
        .doc =
            "Evaluate next-token predictions with compressed KV caches against the uncompressed model.\v"
            "Example:\n"
            "  kvdim-eval data/models/kvdim-6m --text book.txt --spectrum spectrum.h5 --rates rates.h5 "
            "-o accuracy.h5\n"
            "  kvdim-eval data/models/kvdim-6m --text book.txt --spectrum spectrum.h5 --method zack,p=0.5 "
            "--method uniform,p=0.5 -o accuracy.h5\n"
            "  kvdim-eval data/models/kvdim-6m --text book.txt --spectrum spectrum.h5 --method zack "
            "--target 0.99 -o target.h5\n"
            "  kvdim-eval data/models/kvdim-6m --text book.txt --spectrum spectrum.h5 --calibration dump.h5 "
            "--prompt 128 --sweep 8 --resume -o sweep.h5\n\n"
            "Before a method is believed, its projections at full width must reproduce the uncompressed "
            "logits; every point must show that each sequence and layer was compressed."};
    kvd_args_parse(program, &argp, argc, argv, cfg);
}
