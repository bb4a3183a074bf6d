/* Command line of kvdim-export. */
#include "export/export.h"

#include <stdlib.h>
#include <string.h>

#include "methods/grid.h"
#include "model/text/text_options.h"

static int check_usage(void *config, kvd_err *err)
{
    kvd_export_options *const cfg = config;
    cfg->files.n_spectra = 1;
    cfg->files.n_rates = cfg->files.rates[0] ? 1 : 0;
    const bool by_key = cfg->method_text && kvd_method_has_point(&cfg->method);
    if (!cfg->files.n_rates && !by_key)
        return kvd_fail(err, "no widths given: give --rates, or --method with p= or r=");
    if (cfg->files.n_rates && by_key)
        return kvd_fail(err, "--method %s has widths of its own: leave out --rates",
                        cfg->method_text);
    if (cfg->files.n_rates && cfg->method_text && cfg->method.ranks != KVD_WIDTH_RULE_EQ6)
        return kvd_fail(err, "--method %s: ranks requires p or r; a rates file has its own",
                        cfg->method_text);
    return 0;
}

static int read_method(void *config, const char *spec, kvd_err *err)
{
    kvd_export_options *const cfg = config;
    size_t n = 0;
    if (kvd_methods_add(spec, &cfg->method, &cfg->own_text, &n, 1, err))
        return -1;
    cfg->method_text = cfg->own_text;
    if (cfg->method.dims && !kvd_plan_beyond_widths(&cfg->method.plan))
        return 0;
    char known[128] = "";
    kvd_method_entry e;
    for (int i = 0; kvd_method_entry_at(i, &e); i++) {
        if (!e.dims)
            continue;
        strncat(known, *known ? ", " : "", sizeof known - strlen(known) - 1);
        strncat(known, e.info->name, sizeof known - strlen(known) - 1);
    }
    return kvd_fail(
        err,
        "--method %s cannot be folded into weights; give one of %s alone, without online and explicit",
        spec, known);
}

#define T kvd_export_options

static const kvd_option options[] = {
    {.help = "Input"},
    KVD_OPTION_MODEL(T),
    {"spectrum", .type = KVD_OPT_TEXT, .arg = "FILE", KVD_INTO(T, files.spectrum[0]),
     .help = "Rotations or projections of every head (kvdim-spectrum, kvdim-sensitivity)"},
    {"rates", .type = KVD_OPT_TEXT, .arg = "FILE", KVD_INTO(T, files.rates[0]),
     .help = "Number of kept dimensions of every head (kvdim-fit)"},
    {"point", .type = KVD_OPT_WHOLE, .arg = "I", KVD_INTO(T, point), KVD_GIVEN(T, point_given),
     .high = 1 << 30, .requires = "rates", .otherwise = "the only one",
     .help = "Index of the removal rate to take from --rates, counted from 0"},
    {"overall-p", .type = KVD_OPT_NUMBER, .arg = "P", KVD_INTO(T, overall_p), .high = 1,
     .requires = "rates", .excludes = "point",
     .help =
         "Fraction of all dimensions removed: take the removal rate of --rates with the smallest "
         "fraction of at least P"},
    {"method", .type = KVD_OPT_CALL, .arg = "NAME[,KEY=VALUE...]", .call = read_method,
     .otherwise = "zack, fdc or balanced, whichever --rates was fitted for",
     .help =
         "One method that removes dimensions, with the parameters that kvdim-eval takes: p or r in "
         "place of --rates, cut=v or cut=qk to cut only values or only queries and keys"},
    KVD_OPTION_LIST_METHODS,
    KVD_OPTION_ERROR_TABLE(T),

    {.help = "Output"},
    {"dtype", .type = KVD_OPT_WORD, .words = kvd_dtype_words, KVD_INTO(T, dtype),
     KVD_GIVEN(T, dtype_given), .excludes = "rotations-only",
     .otherwise = "every tensor keeps its type",
     .help = "Type of all weights except experts stored in MXFP4"},
    {"rotations-only", .type = KVD_OPT_FLAG, KVD_INTO(T, rotations),
     .help =
         "Write only the projections of every head, in float32, to rotations.safetensors for use "
         "in other software. No checkpoint is written"},
    {"force", .type = KVD_OPT_FLAG, KVD_INTO(T, force),
     .help = "Replace FOLDER, which must be an earlier export"},
    KVD_OPTIONS_COMMON(T, "FOLDER", "Write the checkpoint into FOLDER"),
    {0}};

static const kvd_program program = {
    .name = "kvdim-export",
    .summary = "Write a Hugging Face checkpoint with projections folded into its weights.",
    .usage = {"MODEL --spectrum S.h5 (--rates R.h5 | --method NAME,p=P) -o FOLDER [OPTION...]"},
    .any_of = {"MODEL", "output", "spectrum"},
    .examples = {"kvdim-export data/models/kvdim-6m --spectrum spectrum.h5 --rates rates.h5 "
                 "--overall-p 0.5 -o folded",
                 "kvdim-eval folded --text book.txt --method none -o folded.h5",
                 "kvdim-eval data/models/kvdim-6m --text book.txt --spectrum spectrum.h5 --rates "
                 "rates.h5 --method zack,cut=v -o predicted.h5"},
    .notes =
        "In every model, the projection of values is multiplied into W_V and W_O. The projection "
        "of queries and keys is multiplied into W_Q and W_K of models without RoPE; in other "
        "models queries and keys stay whole. Removed dimensions become zeros in the weights, "
        "because the checkpoint format has one head size for all heads.",
    .moved = "plugin",
    .moved_to = "kvdim-eval",
    .options = options,
    .check = check_usage};

void kvd_export_parse(int argc, char **argv, kvd_export_options *cfg)
{
    kvd_options_parse(&program, argc, argv, cfg);
}

void kvd_export_options_release(kvd_export_options *cfg)
{
    free(cfg->own_text);
}
