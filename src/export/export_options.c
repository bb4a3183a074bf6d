#include "export/export_options.h"

#include <math.h>
#include <string.h>

enum {
    OPT_SPECTRUM = 0x100,
    OPT_RATES,
    OPT_TABLE,
    OPT_METHOD,
    OPT_POINT,
    OPT_OVERALL_P,
    OPT_ROTATIONS,
    OPT_DTYPE,
    OPT_FORCE
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "What is folded:", 1},
    {"spectrum", OPT_SPECTRUM, "FILE", 0, "Bases, from kvdim-spectrum", 1},
    {"rates", OPT_RATES, "FILE", 0, "Widths, from kvdim-fit", 1},
    {"point", OPT_POINT, "I", 0, "Point of the rates file, from 0 (default: the only one)", 1},
    {"overall-p", OPT_OVERALL_P, "P", 0,
     "Instead of --point: the point of the rates file whose overall p is the smallest that reaches P", 1},
    {"method", OPT_METHOD, "NAME[,KEY=VALUE...]", 0,
     "A dims method with the keys of kvdim-eval: p or r instead of a rates file; cut=v or cut=qk for one "
     "side "
     "(default: "
     "zack, fdc or balanced, whichever has the pairs of the rates file)",
     1},
    {"error-table", OPT_TABLE, "FILE", 0, "For ranks=error", 1},
    {0, 0, 0, 0, "What is written:", 2},
    {"dtype", OPT_DTYPE, "f32|f16|bf16", 0, "Type of all weights (default: every tensor keeps its own)", 2},
    {"rotations-only", OPT_ROTATIONS, 0, 0,
     "The projections of every head as rotations.safetensors in place of a checkpoint, for use elsewhere", 2},
    {"force", OPT_FORCE, 0, 0, "Replace DIR, which must be an earlier export", 2},
    {0},
};

static int check_usage(const kvd_export_options *cfg, kvd_err *err)
{
    const kvd_method *const m = &cfg->method;
    const bool by_key = cfg->method_text && kvd_method_has_point(m);
    if (!cfg->model)
        return kvd_fail(err, "no MODEL given");
    if (!cfg->common.output)
        return kvd_fail(err, "no -o DIR given");
    if (!cfg->spectrum)
        return kvd_fail(err, "no --spectrum given");
    if (!cfg->rates && !by_key)
        return kvd_fail(err, "no widths given: give --rates, or --method with p= or r=");
    if (cfg->rates && by_key)
        return kvd_fail(err, "--method %s has widths of its own: leave out --rates", cfg->method_text);
    if ((cfg->point_given || !isnan(cfg->overall_p)) && !cfg->rates)
        return kvd_fail(err, "--point and --overall-p choose a point of --rates");
    if (cfg->point_given && !isnan(cfg->overall_p))
        return kvd_fail(err, "give one of --point and --overall-p");
    if (cfg->rates && cfg->method_text && m->ranks != KVD_RANKS_EQ6)
        return kvd_fail(err, "--method %s: ranks goes with p or r, a rates file has its own",
                        cfg->method_text);
    if (cfg->rotations && cfg->dtype_given)
        return kvd_fail(err, "--dtype is the type of weights, rotations are float32");
    return 0;
}

static int parse_method(kvd_export_options *cfg, const char *text, kvd_err *err)
{
    if (cfg->method_text)
        return kvd_fail(err, "--method is given twice");
    cfg->method_text = text;
    if (kvd_method_parse(text, &cfg->method, err))
        return -1;
    if (cfg->method.dims && !cfg->method.layers && !cfg->method.tokens && !cfg->method.bits)
        return 0;
    char known[128] = "";
    for (int i = 0; i < kvd_method_count(); i++) {
        strncat(known, i ? ", " : "", sizeof known - strlen(known) - 1);
        strncat(known, kvd_method_at(i)->name, sizeof known - strlen(known) - 1);
    }
    return kvd_fail(err, "--method %s does not fold into weights, what does is one of %s alone", text, known);
}

static int parse_dtype(kvd_export_options *cfg, const char *text, kvd_err *err)
{
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, kvd_dtype_name((kvd_dtype)i))) {
            cfg->dtype = (kvd_dtype)i;
            cfg->dtype_given = true;
            return 0;
        }
    return kvd_fail(err, "--dtype: '%s' is none of f32, f16, bf16", text);
}

static int parse_one(int key, char *arg, struct argp_state *state, kvd_err *err)
{
    kvd_export_options *cfg = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &cfg->common;
        return 0;
    case ARGP_KEY_ARG:
        if (cfg->model)
            return kvd_fail(err, "one MODEL is wanted, '%s' is a second", arg);
        cfg->model = arg;
        return 0;
    case ARGP_KEY_END:
        return check_usage(cfg, err);
    case OPT_SPECTRUM:
        return kvd_arg_once("--spectrum", arg, &cfg->spectrum, err);
    case OPT_RATES:
        return kvd_arg_once("--rates", arg, &cfg->rates, err);
    case OPT_TABLE:
        return kvd_arg_once("--error-table", arg, &cfg->table, err);
    case OPT_METHOD:
        return parse_method(cfg, arg, err);
    case OPT_POINT:
        cfg->point_given = true;
        return kvd_arg_size("--point", arg, 0, (size_t)1 << 30, &cfg->point, err);
    case OPT_OVERALL_P:
        return kvd_arg_double("--overall-p", arg, 0, 1, &cfg->overall_p, err);
    case OPT_ROTATIONS:
        cfg->rotations = true;
        return 0;
    case OPT_DTYPE:
        return parse_dtype(cfg, arg, err);
    case OPT_FORCE:
        cfg->force = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    kvd_err err = {""};
    return kvd_args_answer(state, parse_one(key, arg, state, &err), &err);
}

void kvd_export_parse(const char *program, int argc, char **argv, kvd_export_options *cfg)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = kvd_common_options_child,
        .args_doc = "MODEL --spectrum S.h5 (--rates R.h5 | --method NAME,p=P) -o DIR",
        .doc = "Write a Hugging Face checkpoint with projections folded into its weights.\v"
               "V folds into W_V and W_O of every model; Q and K fold into W_Q and W_K where no RoPE stands "
               "between "
               "these and the scores, and stay whole elsewhere. Dimensions that are cut are zero in the "
               "weights, as "
               "the format knows one width only.\n\n"
               "Example:\n"
               "  kvdim-export data/models/kvdim-6m --spectrum spectrum.h5 --rates rates.h5 --overall-p 0.5 "
               "-o folded\n"
               "  kvdim-eval folded --text book.txt --method none -o folded.h5\n"
               "  kvdim-eval data/models/kvdim-6m --text book.txt --spectrum spectrum.h5 --rates rates.h5 "
               "--method zack,cut=v -o predicted.h5"};
    kvd_args_parse(program, &argp, argc, argv, cfg);
}
