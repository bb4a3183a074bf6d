#include "kernels/timing/attn_options.h"

#include <stdlib.h>
#include <string.h>

enum {
    OPT_RATES = 0x100,
    OPT_OVERALL_P,
    OPT_LAYER,
    OPT_DIMS,
    OPT_PHASE,
    OPT_IMPL,
    OPT_SCHEDULE,
    OPT_BATCH,
    OPT_SEQ_LEN,
    OPT_SIZE,
    OPT_LENGTHS,
    OPT_RAGGED,
    OPT_HEADS,
    OPT_KV_HEADS,
    OPT_D_HEAD,
    OPT_DTYPE,
    OPT_DATA,
    OPT_SAMPLES,
    OPT_WARMUP,
    OPT_COLD,
    OPT_HOT,
    OPT_CHECK,
    OPT_LIST
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "Widths, each giving one case:", 1},
    {"dims", OPT_DIMS, "WIDTHS", 0,
     "128, or 64:48 (d_qk:d_v), a comma list of such per KV head (repeated when shorter), or a CSV file of "
     "columns d_qk,d_v. "
     "May be repeated. Default: --d-head",
     1},
    {"rates", OPT_RATES, "R.h5", 0, "Padded widths of kvdim-fit, heads in order from --layer on", 1},
    {"overall-p", OPT_OVERALL_P, "LIST|A:B:STEP", 0, "Which points of --rates (default: all)", 1},
    {"layer", OPT_LAYER, "L", 0, "First layer whose heads are taken (default 0)", 1},
    {0, 0, 0, 0, "Sizes:", 2},
    {"phase", OPT_PHASE, "prefill,decode", 0, "One or both", 2},
    {"batch", OPT_BATCH, "LIST", 0, "Requests (default 1); each with each --seq-len", 2},
    {"seq-len", OPT_SEQ_LEN, "LIST", 0, "Tokens per request (default 4096)", 2},
    {"size", OPT_SIZE, "BxS,...", 0, "Pairs of both instead, as 64x8192,1x131072", 2},
    {"ragged", OPT_RAGGED, "equal|lognormal|one-long", 0,
     "How lengths vary around --seq-len: not; lognormally, of that mean; one of that length and the others "
     "1/16 of it",
     2},
    {"lengths", OPT_LENGTHS, "FILE.csv", 0, "One length per line; replaces --batch, --seq-len and --ragged",
     2},
    {"heads", OPT_HEADS, "N", 0, "Query heads (default 32)", 2},
    {"kv-heads", OPT_KV_HEADS, "N", 0, "KV heads (default 8)", 2},
    {"d-head", OPT_D_HEAD, "N", 0, "Width of an uncut head (default 128, or that of --rates)", 2},
    {0, 0, 0, 0, "What runs:", 3},
    {"impl", OPT_IMPL, "LIST", 0, "Implementations, see --list (default: cuda,cudnn on a GPU, else cpu)", 3},
    {"schedule", OPT_SCHEDULE, "none,papers,ours", 0,
     "Of implementations that have schedulers (default ours)", 3},
    {"dtype", OPT_DTYPE, "f32,f16,bf16", 0, "(default: bf16 on a GPU, else f32)", 3},
    {"data", OPT_DATA, "normal|sharp", 0, "sharp: outliers in Q and K, so that softmax has few winners", 3},
    {"list", OPT_LIST, NULL, 0, "Print the implementations and what they take, and stop", 3},
    {0, 0, 0, 0, "How it is measured:", 4},
    {"samples", OPT_SAMPLES, "N", 0, "Timed launches of each (default 30)", 4},
    {"warmup", OPT_WARMUP, "N", 0, "Launches before them (default 5)", 4},
    {"cold", OPT_COLD, NULL, 0, "Fill caches with other data before every launch (default)", 4},
    {"hot", OPT_HOT, NULL, 0, "Do not", 4},
    {"check", OPT_CHECK, "auto|rows|all|none", 0,
     "Query rows compared with the reference: all where that is quick, else a sample (auto); a sample; all; "
     "none",
     4},
    {0},
};

/* ---- lists of words ----------------------------------------------------------------------------- */

/* Calls put for each word of a comma list; copies, as the text belongs to argv. */
static int each(const char *text, kvd_attn_options *cfg,
                int (*put)(kvd_attn_options *, const char *, kvd_err *), kvd_err *err)
{
    char *const copy = strdup(text);
    if (!copy)
        return kvd_no_memory(err, "an option", strlen(text));
    int status = 0;
    for (char *s = copy, *next; !status && s; s = next) {
        next = strchr(s, ',');
        if (next)
            *next++ = '\0';
        status = put(cfg, s, err);
    }
    free(copy);
    return status;
}

static int word(const char *option, const char *text, const char *const *names, int n, kvd_err *err)
{
    char all[128] = "";
    for (int i = 0; i < n; i++) {
        if (!strcmp(text, names[i]))
            return i;
        const size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", names[i]);
    }
    kvd_fail(err, "%s: '%s' is none of %s", option, text, all);
    return -1;
}

static int put_phase(kvd_attn_options *cfg, const char *text, kvd_err *err)
{
    const int i = word("--phase", text, kvd_attn_phase_name, KVD_N_ATTN_PHASES, err);
    if (i < 0)
        return -1;
    cfg->phase[i] = true;
    return 0;
}

static int put_scheduler(kvd_attn_options *cfg, const char *text, kvd_err *err)
{
    const int i = word("--schedule", text, kvd_scheduler_name, KVD_BY_ITSELF, err);
    if (i < 0)
        return -1;
    cfg->scheduler[i] = cfg->scheduler_given = true;
    return 0;
}

static int put_dtype(kvd_attn_options *cfg, const char *text, kvd_err *err)
{
    const char *const names[] = {kvd_dtype_name(KVD_F32), kvd_dtype_name(KVD_F16), kvd_dtype_name(KVD_BF16)};
    const int i = word("--dtype", text, names, 3, err);
    if (i < 0)
        return -1;
    cfg->dtype[i] = cfg->dtype_given = true;
    return 0;
}

static int put_impl(kvd_attn_options *cfg, const char *text, kvd_err *err)
{
    const kvd_impl *const impl = kvd_impl_find(text, err);
    if (!impl)
        return -1;
    for (int i = 0; i < cfg->n_impls; i++)
        if (cfg->impl[i] == impl)
            return kvd_fail(err, "--impl: '%s' is given twice", text);
    if (cfg->n_impls == KVD_ATTN_IMPLS)
        return kvd_fail(err, "--impl: more than %d", (int)KVD_ATTN_IMPLS);
    cfg->impl[cfg->n_impls++] = impl;
    return 0;
}

/* ---- sizes -------------------------------------------------------------------------------------- */

enum { MOST_BATCH = 65535, MOST_TOKENS = 1 << 27 };

static int add_size(kvd_attn_options *cfg, size_t batch, size_t seq_len, kvd_err *err)
{
    if (cfg->n_sizes == KVD_ATTN_SIZES)
        return kvd_fail(err, "more than %d sizes", (int)KVD_ATTN_SIZES);
    cfg->size[cfg->n_sizes++] = (kvd_attn_size){batch, seq_len};
    return 0;
}

static int put_size(kvd_attn_options *cfg, const char *text, kvd_err *err)
{
    char batch[32];
    const char *const x = strchr(text, 'x');
    kvd_attn_size s;
    if (!x || (size_t)(x - text) >= sizeof batch)
        return kvd_fail(err, "--size: '%s' is not of the form 64x8192", text);
    memcpy(batch, text, (size_t)(x - text));
    batch[x - text] = '\0';
    if (kvd_arg_size("--size", batch, 1, MOST_BATCH, &s.batch, err) ||
        kvd_arg_size("--size", x + 1, 1, MOST_TOKENS, &s.seq_len, err))
        return -1;
    return add_size(cfg, s.batch, s.seq_len, err);
}

static const char *batches, *seq_lens, *sizes; /* as given; used when all are known */

static int settle_sizes(kvd_attn_options *cfg, kvd_err *err)
{
    size_t *batch = NULL, *seq_len = NULL, n_batch, n_seq_len;
    if (cfg->lengths_file)
        return batches || seq_lens || sizes || cfg->lengths != KVD_LENGTHS_EQUAL
                   ? kvd_fail(err, "--lengths goes without --batch, --seq-len, --size and --ragged")
                   : 0;
    if (sizes)
        return batches || seq_lens ? kvd_fail(err, "--size goes without --batch and --seq-len")
                                   : each(sizes, cfg, put_size, err);
    int status = kvd_arg_sizes("--batch", batches ? batches : "1", 1, MOST_BATCH, &batch, &n_batch, err);
    if (!status)
        status = kvd_arg_sizes("--seq-len", seq_lens ? seq_lens : "4096", 1, MOST_TOKENS, &seq_len,
                               &n_seq_len, err);
    for (size_t i = 0; !status && i < n_batch; i++)
        for (size_t j = 0; !status && j < n_seq_len; j++)
            status = add_size(cfg, batch[i], seq_len[j], err);
    free(batch);
    free(seq_len);
    return status;
}

static int check_usage(kvd_attn_options *cfg, kvd_err *err)
{
    if (cfg->list)
        return 0;
    if (!cfg->common.output)
        return kvd_fail(err, "no -o OUT.h5 given");
    if (!cfg->phase[KVD_PREFILL] && !cfg->phase[KVD_DECODE])
        return kvd_fail(err, "give --phase prefill, decode or both");
    if (!cfg->rates && (cfg->overall_p || cfg->layer))
        return kvd_fail(err, "--overall-p and --layer go with --rates");
    if (cfg->n_heads % cfg->n_kv_heads)
        return kvd_fail(err, "--heads %zu is not a multiple of --kv-heads %zu", cfg->n_heads,
                        cfg->n_kv_heads);
    return settle_sizes(cfg, err);
}

/* ---- argp --------------------------------------------------------------------------------------- */

static int parse_number(int key, const char *arg, kvd_attn_options *cfg, kvd_err *err)
{
    size_t n;
    switch (key) {
    case OPT_LAYER:
        return kvd_arg_size("--layer", arg, 0, 1000000, &cfg->layer, err);
    case OPT_HEADS:
        return kvd_arg_size("--heads", arg, 1, KVD_HEADS_MAX, &cfg->n_heads, err);
    case OPT_KV_HEADS:
        return kvd_arg_size("--kv-heads", arg, 1, KVD_HEADS_MAX, &cfg->n_kv_heads, err);
    case OPT_D_HEAD:
        cfg->d_head_given = true;
        return kvd_arg_size("--d-head", arg, 1, KVD_WIDTH_MAX, &cfg->d_head, err);
    case OPT_SAMPLES:
        if (kvd_arg_size("--samples", arg, 1, 100000, &n, err))
            return -1;
        cfg->plan.samples = (int)n;
        return 0;
    default: /* OPT_WARMUP */
        if (kvd_arg_size("--warmup", arg, 0, 100000, &n, err))
            return -1;
        cfg->plan.warmup = (int)n;
        return 0;
    }
}

static int parse_word(int key, const char *arg, kvd_attn_options *cfg, kvd_err *err)
{
    static const char *const checks[] = {"auto", "rows", "all", "none"}, *const data[] = {"normal", "sharp"};
    int i;
    switch (key) {
    case OPT_CHECK:
        i = word("--check", arg, checks, 4, err);
        cfg->check = (kvd_check_mode)i;
        break;
    case OPT_DATA:
        i = word("--data", arg, data, 2, err);
        cfg->sharp = i == 1;
        break;
    default: /* OPT_RAGGED */
        i = word("--ragged", arg, kvd_lengths_name, KVD_LENGTHS_FILE, err);
        cfg->lengths = (kvd_lengths)i;
        break;
    }
    return i < 0 ? -1 : 0;
}

static int parse_one(int key, char *arg, struct argp_state *state, kvd_err *err)
{
    kvd_attn_options *const cfg = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &cfg->common;
        return 0;
    case ARGP_KEY_ARG:
        return kvd_fail(err, "'%s' is not an option", arg);
    case ARGP_KEY_END:
        return check_usage(cfg, err);
    case OPT_DIMS:
        return kvd_arg_add("--dims", arg, cfg->dims, &cfg->n_dims, KVD_ATTN_DIMS, err);
    case OPT_RATES:
        return kvd_arg_once("--rates", arg, &cfg->rates, err);
    case OPT_OVERALL_P:
        free(cfg->overall_p);
        cfg->overall_p = NULL;
        return kvd_arg_doubles("--overall-p", arg, 0, 1, &cfg->overall_p, &cfg->n_overall_p, err);
    case OPT_PHASE:
        return each(arg, cfg, put_phase, err);
    case OPT_IMPL:
        return each(arg, cfg, put_impl, err);
    case OPT_SCHEDULE:
        return each(arg, cfg, put_scheduler, err);
    case OPT_DTYPE:
        return each(arg, cfg, put_dtype, err);
    case OPT_BATCH:
        batches = arg;
        return 0;
    case OPT_SEQ_LEN:
        seq_lens = arg;
        return 0;
    case OPT_SIZE:
        sizes = arg;
        return 0;
    case OPT_LENGTHS:
        return kvd_arg_once("--lengths", arg, &cfg->lengths_file, err);
    case OPT_LAYER:
    case OPT_HEADS:
    case OPT_KV_HEADS:
    case OPT_D_HEAD:
    case OPT_SAMPLES:
    case OPT_WARMUP:
        return parse_number(key, arg, cfg, err);
    case OPT_CHECK:
    case OPT_DATA:
    case OPT_RAGGED:
        return parse_word(key, arg, cfg, err);
    case OPT_COLD:
    case OPT_HOT:
        cfg->plan.cold = key == OPT_COLD;
        return 0;
    case OPT_LIST:
        cfg->list = true;
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

void kvd_attn_parse(const char *program, int argc, char **argv, kvd_attn_options *cfg)
{
    const struct argp argp = {.options = options,
                              .parser = parse,
                              .args_doc = "--phase PHASE [--dims WIDTHS | --rates R.h5] -o OUT.h5",
                              .children = kvd_common_options_child,
                              .doc =
                                  "Attention on heads of unequal width: times implementations against each "
                                  "other, checks every one against the "
                                  "reference, and says how near it is to what the machine can do.\vExample:\n"
                                  "  kvdim-attn --phase decode --size 64x8192 --dims "
                                  "data/widths/kvdim25m-p50.csv --impl cuda,cudnn -o decode.h5\n"
                                  "Exit status 1 also when a row is wrong."};
    kvd_args_parse(program, &argp, argc, argv, cfg);
}

void kvd_attn_options_release(kvd_attn_options *cfg)
{
    free(cfg->overall_p);
    cfg->overall_p = NULL;
}
