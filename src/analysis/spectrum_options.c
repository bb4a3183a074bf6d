#include "analysis/spectrum_options.h"

#include <string.h>

const char *const kvd_decomposition_name[3] = {"svd", "tsqr", "gram"};

enum {
    OPT_PAIR = 0x100,
    OPT_PAIRING,
    OPT_METHOD,
    OPT_TOKENS,
    OPT_ROPE,
    OPT_LABEL,
    OPT_PRUNE,
    OPT_CENTROIDS,
    OPT_WEIGHTED
};

static const struct argp_option options[] = {
    {"pair", OPT_PAIR, "LIST", 0,
     "Pairs to decompose: qk, vw, q, k, v, wv, and the balanced bqk, bvw (default qk,vw)", 1},
    {"pairing", OPT_PAIRING, "shared|per-query", 0,
     "One rotation per KV head, from K and every query head of its group, or one per query head (default "
     "shared)",
     1},
    {"rope", OPT_ROPE, "after|before", 0, "Q and K after RoPE, or before it (default after)", 1},
    {"method", OPT_METHOD, "svd|tsqr|gram", 0,
     "gram: eigenvalues of X^T X, one pass, constant memory; heads with singular values below 1.25e-4 of the "
     "largest, which that blurs, are done again by tsqr when the rows are there. tsqr: streaming QR. svd: "
     "LAPACK on all rows of a head. Moments allow gram only (default gram). A GPU "
     "computes the eigenvalues of gram, but for bqk and bvw, and nothing else: always with --device cuda, "
     "with auto "
     "when they would take the CPU half a second",
     1},
    {"tokens", OPT_TOKENS, "N", 0, "The first N tokens of the dumps, in the order given (default: all)", 1},
    {"label", OPT_LABEL, "NAME", 0, "What tables call these data (default: the inputs' labels)", 1},
    {0, 0, NULL, 0, "Fewer rows of dumps, as ZDC calibrates:", 2},
    {"prune", OPT_PRUNE, "SHARE", 0,
     "Leave out this share of the sequences of every dump, chosen at random from --seed (ZDC: 0.5; default "
     "0)",
     2},
    {"centroids", OPT_CENTROIDS, "K", 0,
     "Replace the rows of every head of Q, K and V by the K centroids of K-means, from --seed (ZDC: 1000000; "
     "default: "
     "the rows)",
     2},
    {"weighted", OPT_WEIGHTED, NULL, 0,
     "Multiply each centroid by the square root of its number of rows; the paper does not", 2},
    {0},
};

static int choose(const char *option, const char *text, const char *const *name, int n, int *out,
                  kvd_err *err)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(text, name[i])) {
            *out = i;
            return 0;
        }
    return kvd_fail(err, "%s: '%s' is none of %s, %s%s%s", option, text, name[0], name[1], n > 2 ? ", " : "",
                    n > 2 ? name[2] : "");
}

static int check_usage(const kvd_spectrum_options *cfg, kvd_err *err)
{
    if (cfg->n_inputs == 0)
        return kvd_fail(err, "no IN.h5 given");
    if (!cfg->common.output)
        return kvd_fail(err, "no -o OUT.h5 given");
    for (int p = 0; p < KVD_N_PAIRS; p++)
        if (cfg->wanted[p] && kvd_pair_fisher((kvd_pair)p))
            return kvd_fail(err, "--pair: '%s' needs gradients, which kvdim-sensitivity makes",
                            kvd_pair_name[p]);
    for (int p = 0; p < KVD_N_PAIRS; p++)
        if (cfg->wanted[p] && kvd_pair_balanced((kvd_pair)p) && cfg->pairing == KVD_PER_QUERY)
            return kvd_fail(err, "--pair: '%s' is defined per KV head, not with --pairing per-query",
                            kvd_pair_name[p]);
    if (cfg->before_rope && cfg->wanted[KVD_PAIR_BQK])
        return kvd_fail(err, "--pair: 'bqk' is defined after RoPE, not with --rope before");
    if (cfg->reduction.weighted && !cfg->reduction.centroids)
        return kvd_fail(err, "--weighted: only --centroids have weights");
    return 0;
}

static int parse_prune(const char *text, double *prune, kvd_err *err)
{
    if (kvd_arg_double("--prune", text, 0, 1, prune, err))
        return -1;
    return *prune < 1 ? 0 : kvd_fail(err, "--prune: a share of 1 leaves nothing");
}

static int parse_one(int key, char *arg, struct argp_state *state, kvd_err *err)
{
    static const char *const ropes[] = {"after", "before"};
    kvd_spectrum_options *cfg = state->input;
    int i = 0;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &cfg->common;
        return 0;
    case ARGP_KEY_ARG:
        return kvd_arg_add("IN.h5", arg, cfg->input, &cfg->n_inputs, KVD_SPECTRUM_INPUTS, err);
    case ARGP_KEY_END:
        return check_usage(cfg, err);
    case OPT_PAIR:
        return kvd_pair_list("--pair", arg, cfg->wanted, err);
    case OPT_PAIRING:
        if (choose("--pairing", arg, kvd_pairing_name, 2, &i, err))
            return -1;
        cfg->pairing = i ? KVD_PER_QUERY : KVD_SHARED;
        return 0;
    case OPT_METHOD:
        if (choose("--method", arg, kvd_decomposition_name, 3, &i, err))
            return -1;
        cfg->method = (kvd_decomposition)i;
        cfg->method_given = true;
        return 0;
    case OPT_ROPE:
        if (choose("--rope", arg, ropes, 2, &i, err))
            return -1;
        cfg->before_rope = i == 1;
        return 0;
    case OPT_TOKENS:
        return kvd_arg_size("--tokens", arg, 1, (size_t)1 << 48, &cfg->tokens, err);
    case OPT_LABEL:
        if (strlen(arg) >= sizeof((kvd_spectrum *)0)->label)
            return kvd_fail(err, "--label: '%s' is longer than %zu bytes", arg,
                            sizeof((kvd_spectrum *)0)->label - 1);
        cfg->label = arg;
        return 0;
    case OPT_PRUNE:
        return parse_prune(arg, &cfg->reduction.prune, err);
    case OPT_CENTROIDS:
        return kvd_arg_size("--centroids", arg, 1, UINT32_MAX, &cfg->reduction.centroids, err);
    case OPT_WEIGHTED:
        cfg->reduction.weighted = true;
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

void kvd_spectrum_parse(const char *program, int argc, char **argv, kvd_spectrum_options *cfg)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "IN.h5... -o OUT.h5",
        .children = kvd_common_options_child,
        .doc = "Singular values and bases of every head, from activations or moments of one model; several "
               "inputs "
               "count as one set of texts.\vExample:\n  kvdim-spectrum results/wiki.moments.h5 --pair "
               "qk,vw,bqk,bvw -o results/wiki.spectrum.h5"};
    *cfg = (kvd_spectrum_options){.common = {.seed = 1}, .method = KVD_BY_GRAM};
    cfg->wanted[KVD_PAIR_QK] = cfg->wanted[KVD_PAIR_VW] = true;
    kvd_args_parse(program, &argp, argc, argv, cfg);
    cfg->reduction.seed = cfg->common.seed;
}
