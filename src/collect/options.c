#include "collect/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/family.h"

enum {
    OPT_SHAPE = 0x0f0,
    OPT_TEXT = 0x100,
    OPT_IDS,
    OPT_RANDOM,
    OPT_FIELD,
    OPT_NO_SPECIAL,
    OPT_TOKENS,
    OPT_SEQ_LEN,
    OPT_ROPE,
    OPT_MOMENTS,
    OPT_ATTENTION,
    OPT_ATTENTION_REQUESTS,
    OPT_FISHER,
    OPT_FISHER_ROWS,
    OPT_SNAPSHOTS,
    OPT_LAYERS,
    OPT_DTYPE,
    OPT_LABEL,
    OPT_BATCH,
    OPT_COMPUTE,
    OPT_GPUS,
    OPT_RESUME,
    OPT_SAVE_EVERY
};

static const struct argp_option options[] = {
    {"shape", OPT_SHAPE, "NAME", 0,
     "In place of MODEL: the published shape NAME with random weights, always the same ones, for times and "
     "memory; "
     "--shape list names them. Goes with --random or --ids",
     0},
    {0, 0, 0, 0, "What to run (one of the three):", 1},
    {"text", OPT_TEXT, "FILE", 0,
     "Text: .jsonl, .json (a list), .csv (header row), anything else one plain document. May be repeated; "
     "further arguments after MODEL are texts too",
     1},
    {"ids", OPT_IDS, "FILE.csv", 0, "Token ids, one sequence per line; no tokenizer needed", 1},
    {"random", OPT_RANDOM, "N", 0, "N token ids, uniform over the vocabulary, from --seed", 1},
    {"field", OPT_FIELD, "NAME", 0, "JSON key or CSV column of the text (default text); A,B joins two", 1},
    {"no-special", OPT_NO_SPECIAL, 0, 0,
     "Leave out the special tokens (BOS, ...) that the tokenizer puts around a document", 1},
    {"tokens", OPT_TOKENS, "N", 0, "Stop after N tokens; fewer is an error (default: all)", 1},
    {"seq-len", OPT_SEQ_LEN, "N", 0,
     "Documents are cut into sequences of N tokens (default: 512, or the model's longest)", 1},
    {0, 0, 0, 0, "What to record:", 2},
    {"moments", OPT_MOMENTS, "FILE", OPTION_ARG_OPTIONAL,
     "Second moments only, into OUT.h5; with =FILE, into FILE beside the dump", 2},
    {"attention", OPT_ATTENTION, "FILE", OPTION_ARG_OPTIONAL,
     "What attention does with its tokens, in constant memory, into OUT.h5; with =FILE, into FILE beside the "
     "dump or the moments. On the CPU",
     2},
    {"attention-requests", OPT_ATTENTION_REQUESTS, "N", 0,
     "With --attention: keep mass and softmax denominators token by token for the first N sequences "
     "(default 16)",
     2},
    {"fisher", OPT_FISHER, "FILE", OPTION_ARG_OPTIONAL,
     "Squared gradients of the loss with respect to K, V and their weights, into OUT.h5; with =FILE, into "
     "FILE beside the "
     "others. A backward pass, on the CPU, four to five times the work of a forward pass",
     2},
    {"fisher-rows", OPT_FISHER_ROWS, "N", 0,
     "With --fisher: keep squared gradients token by token for the first N tokens, which kvquant weighs its "
     "numbers with "
     "(default 4096; 0: none)",
     2},
    {"snapshots", OPT_SNAPSHOTS, "N,N,...", 0,
     "With --moments: also the moments of the first N tokens, as --tokens N rounded up to whole sequences "
     "gives "
     "them, each in a file of its own: MOMENTS.N.h5 for MOMENTS.h5",
     2},
    {"rope", OPT_ROPE, "after|both", 0, "Q and K after RoPE, or before it as well (default after)", 2},
    {"layers", OPT_LAYERS, "A-B", 0, "Layers A to B, from 0 (default all)", 2},
    {"dtype", OPT_DTYPE, "f32|f16|bf16", 0, "Of the dump (default f16; a value beyond its range is an error)",
     2},
    {"label", OPT_LABEL, "NAME", 0, "What tables call these texts (default: from the file names)", 2},
    {0, 0, 0, 0, "How to run:", 3},
    {"batch", OPT_BATCH, "N", 0,
     "Tokens in one pass, at least one sequence (default 2048; on a GPU 16384, or half of that again and "
     "again until its "
     "memory holds them)",
     3},
    {"compute", OPT_COMPUTE, "f32|bf16", 0,
     "On a GPU: products in float32, as the CPU's (default), or from bf16 with float32 sums, which is faster",
     3},
    {"gpus", OPT_GPUS, "N", 0, "GPUs that hold the model between them (default 1); ranks take N each", 3},
    {"resume", OPT_RESUME, 0, 0, "Go on where an interrupted run with the same options stopped", 3},
    {"save-every", OPT_SAVE_EVERY, "SECONDS", 0,
     "How often to make safe what was recorded (default 5; 0: after every batch)", 3},
    {0},
};

static int parse_layers(kvd_collect_options *cfg, const char *text, kvd_err *err)
{
    char first[32];
    const char *dash = strchr(text, '-');
    size_t a, b;
    const size_t n = dash ? (size_t)(dash - text) : strlen(text);
    if (!n || n >= sizeof first)
        return kvd_fail(err, "--layers '%s': not A-B", text);
    memcpy(first, text, n);
    first[n] = '\0';
    if (kvd_arg_size("--layers", first, 0, 999999, &a, err) ||
        kvd_arg_size("--layers", dash ? dash + 1 : first, a, 999999, &b, err))
        return -1;
    cfg->first_layer = (int)a;
    cfg->last_layer = (int)b;
    return 0;
}

static int parse_choice(const char *option, const char *text, const char *const *choice, int n, int *out,
                        kvd_err *err)
{
    char list[64] = "";
    for (int i = 0; i < n; i++) {
        if (!strcmp(text, choice[i])) {
            *out = i;
            return 0;
        }
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", choice[i]);
    }
    return kvd_fail(err, "%s '%s': should be one of %s", option, text, list);
}

static int add_text(kvd_collect_options *cfg, const char *path, kvd_err *err)
{
    return kvd_arg_add("--text", path, cfg->text, &cfg->n_text, KVD_MAX_TEXTS, err);
}

/* As --help: prints and ends. */
static void list_shapes(void)
{
    printf("%-14s %-22s %14s  %s\n", "shape", "model", "weights (1e9)", "published as");
    for (size_t i = 0; i < kvd_shape_count(); i++) {
        const kvd_shape *s = kvd_shape_at(i);
        kvd_config c;
        kvd_err ignored; /* a test reads every shape */
        if (kvd_config_parse(s->name, s->json, strlen(s->json), &c, &ignored) == 0)
            printf("%-14s %-22s %14.2f  %s\n", s->name, s->title, (double)kvd_family_elements(&c) / 1e9,
                   s->source);
    }
    exit(fflush(stdout) ? 1 : 0);
}

static int check_model(const kvd_collect_options *cfg, kvd_err *err)
{
    if (!cfg->shape)
        return cfg->model ? 0 : kvd_fail(err, "no MODEL given");
    if (cfg->text_given)
        return kvd_fail(err, "--shape has no tokenizer for --text: give --random or --ids");
    if (cfg->model)
        return kvd_fail(err, "argument '%s' is one too many: --shape stands in place of MODEL", cfg->model);
    return 0;
}

static int check_attention(const kvd_collect_options *cfg, kvd_err *err)
{
    if (!cfg->attention)
        return cfg->attention_requests ? kvd_fail(err, "--attention-requests goes with --attention") : 0;
    if (cfg->common.device == KVD_DEVICE_CUDA)
        return kvd_fail(err, "--attention needs --device cpu: the GPU pass hands out no scores");
    if (cfg->moments && !cfg->moments_file && !cfg->attention_file)
        return kvd_fail(err, "--moments and --attention both want '%s': give one of them a file",
                        cfg->common.output);
    if (cfg->attention_file && !strcmp(cfg->attention_file, cfg->common.output))
        return kvd_fail(err, "--attention and -o name the same file '%s'", cfg->attention_file);
    if (cfg->attention_file && cfg->moments_file && !strcmp(cfg->attention_file, cfg->moments_file))
        return kvd_fail(err, "--attention and --moments name the same file '%s'", cfg->attention_file);
    return 0;
}

static int check_fisher(const kvd_collect_options *cfg, kvd_err *err)
{
    if (!cfg->fisher)
        return cfg->fisher_rows_given ? kvd_fail(err, "--fisher-rows goes with --fisher") : 0;
    if (cfg->common.device == KVD_DEVICE_CUDA)
        return kvd_fail(err, "--fisher needs --device cpu: gradients of weights are not summed on GPUs");
    if (cfg->resume || cfg->n_snapshots)
        return kvd_fail(err, "--fisher keeps no state: it goes without --%s",
                        cfg->resume ? "resume" : "snapshots");
    const char *const other = cfg->moments && !cfg->moments_file       ? "--moments"
                              : cfg->attention && !cfg->attention_file ? "--attention"
                                                                       : NULL;
    if (!cfg->fisher_file)
        return other ? kvd_fail(err, "%s and --fisher both want '%s': give one of them a file", other,
                                cfg->common.output)
                     : 0;
    const struct {
        const char *option, *path;
    } others[] = {
        {"-o", cfg->common.output}, {"--moments", cfg->moments_file}, {"--attention", cfg->attention_file}};
    for (size_t i = 0; i < 3; i++)
        if (others[i].path && !strcmp(others[i].path, cfg->fisher_file))
            return kvd_fail(err, "--fisher and %s name the same file '%s'", others[i].option,
                            cfg->fisher_file);
    return 0;
}

static int check_usage(const kvd_collect_options *cfg, kvd_err *err)
{
    if (check_model(cfg, err))
        return -1;
    if (!cfg->common.output)
        return kvd_fail(err, "no -o OUT.h5 given");
    if (cfg->n_text && !cfg->text_given)
        return kvd_fail(err, "argument '%s' is one too many (texts go with --text)", cfg->text[0]);
    if ((cfg->n_text > 0) + (cfg->ids != NULL) + (cfg->n_random > 0) != 1)
        return kvd_fail(err, "give one of --text, --ids and --random");
    if (cfg->no_special && !cfg->n_text)
        return kvd_fail(err, "--no-special goes with --text");
    if (cfg->moments_file && !strcmp(cfg->moments_file, cfg->common.output))
        return kvd_fail(err, "--moments and -o name the same file '%s'", cfg->moments_file);
    if (check_attention(cfg, err) || check_fisher(cfg, err))
        return -1;
    if (cfg->n_snapshots && !cfg->moments)
        return kvd_fail(err, "--snapshots goes with --moments");
    for (size_t i = 1; i < cfg->n_snapshots; i++)
        if (cfg->snapshots[i] <= cfg->snapshots[i - 1])
            return kvd_fail(err, "--snapshots: %zu after %zu, the counts must rise", cfg->snapshots[i],
                            cfg->snapshots[i - 1]);
    if (cfg->field && !cfg->n_text)
        return kvd_fail(err, "--field goes with --text");
    return 0;
}

static int parse_one(int key, char *arg, struct argp_state *state, kvd_err *err)
{
    static const char *const ropes[] = {"after", "both"}, *const dtypes[] = {"f32", "f16", "bf16"},
                             *const computes[] = {"f32", "bf16"};
    kvd_collect_options *cfg = state->input;
    int i = 0;
    size_t n = 0;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &cfg->common;
        return 0;
    case ARGP_KEY_ARG:
        if (!cfg->model)
            cfg->model = arg;
        else
            return add_text(cfg, arg, err);
        return 0;
    case ARGP_KEY_END:
        return check_usage(cfg, err);
    case OPT_SHAPE:
        if (!strcmp(arg, "list"))
            list_shapes();
        cfg->shape = kvd_shape_find(arg, err);
        return cfg->shape ? 0 : -1;
    case OPT_TEXT:
        cfg->text_given = true;
        return add_text(cfg, arg, err);
    case OPT_IDS:
        return kvd_arg_once("--ids", arg, &cfg->ids, err);
    case OPT_RANDOM:
        return kvd_arg_size("--random", arg, 2, (size_t)1 << 48, &cfg->n_random, err);
    case OPT_FIELD:
        return kvd_arg_once("--field", arg, &cfg->field, err);
    case OPT_NO_SPECIAL:
        cfg->no_special = true;
        return 0;
    case OPT_TOKENS:
        return kvd_arg_size("--tokens", arg, 2, (size_t)1 << 48, &cfg->tokens, err);
    case OPT_SEQ_LEN:
        return kvd_arg_size("--seq-len", arg, 2, 1 << 30, &cfg->seq_len, err);
    case OPT_BATCH:
        return kvd_arg_size("--batch", arg, 1, 1 << 30, &cfg->batch, err);
    case OPT_COMPUTE:
        if (parse_choice("--compute", arg, computes, 2, &i, err))
            return -1;
        cfg->compute = i ? KVD_BF16 : KVD_F32;
        return 0;
    case OPT_GPUS:
        if (kvd_arg_size("--gpus", arg, 1, 16, &n, err))
            return -1;
        cfg->gpus = (int)n;
        return 0;
    case OPT_ROPE:
        if (parse_choice("--rope", arg, ropes, 2, &i, err))
            return -1;
        cfg->rope_both = i == 1;
        return 0;
    case OPT_MOMENTS:
        cfg->moments = true;
        cfg->moments_file = arg;
        return 0;
    case OPT_ATTENTION:
        cfg->attention = true;
        cfg->attention_file = arg;
        return 0;
    case OPT_ATTENTION_REQUESTS:
        return kvd_arg_size("--attention-requests", arg, 1, 1 << 20, &cfg->attention_requests, err);
    case OPT_FISHER:
        cfg->fisher = true;
        cfg->fisher_file = arg;
        return 0;
    case OPT_FISHER_ROWS:
        cfg->fisher_rows_given = true;
        return kvd_arg_size("--fisher-rows", arg, 0, (size_t)1 << 48, &cfg->fisher_rows, err);
    case OPT_SNAPSHOTS:
        free(cfg->snapshots);
        cfg->snapshots = NULL;
        return kvd_arg_sizes("--snapshots", arg, 2, (size_t)1 << 48, &cfg->snapshots, &cfg->n_snapshots, err);
    case OPT_LAYERS:
        return parse_layers(cfg, arg, err);
    case OPT_DTYPE:
        if (parse_choice("--dtype", arg, dtypes, 3, &i, err))
            return -1;
        cfg->dtype = (kvd_dtype)i;
        return 0;
    case OPT_LABEL:
        if (!*arg || strlen(arg) > 63)
            return kvd_fail(err, "--label '%s': 1 to 63 bytes", arg);
        cfg->label = arg;
        return 0;
    case OPT_RESUME:
        cfg->resume = true;
        return 0;
    case OPT_SAVE_EVERY:
        return kvd_arg_double("--save-every", arg, 0, 1e9, &cfg->save_every, err);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    kvd_err err = {""};
    return kvd_args_answer(state, parse_one(key, arg, state, &err), &err);
}

void kvd_collect_defaults(kvd_collect_options *o)
{
    memset(o, 0, sizeof *o);
    o->common.seed = 1;
    o->last_layer = -1;
    o->dtype = KVD_F16;
    o->compute = KVD_F32;
    o->fisher_rows = 4096;
    o->save_every = 5;
}

bool kvd_collect_dumps(const kvd_collect_options *o)
{
    return !(o->moments && !o->moments_file) && !(o->attention && !o->attention_file) &&
           !(o->fisher && !o->fisher_file);
}

const struct argp kvd_collect_argp = {
    .options = options,
    .parser = parse,
    .children = kvd_common_options_child,
    .args_doc = "(MODEL | --shape NAME) (--text FILE... | --ids FILE.csv | --random N) -o OUT.h5",
    .doc = "Run a checkpoint over texts and record Q, K and V of every layer and head.\v"
           "Example:\n"
           "  kvdim-collect data/models/kvdim-6m --text book.txt --tokens 16384 -o act.h5\n"
           "  kvdim-collect data/models/kvdim-6m --text book.txt --moments -o mom.h5\n"
           "  kvdim-collect --shape llama-3.1-8b --random 2048 --moments -o mom.h5\n"
           "  kvdim-collect data/models/kvdim-6m --text book.txt --attention -o att.h5\n"
           "  kvdim-collect data/models/kvdim-6m --text book.txt --rope both --fisher=fisher.h5 -o act.h5\n"
           "  mpirun -n 4 kvdim-collect data/models/kvdim-6m --text book.txt --moments -o mom.h5\n\n"
           "MODEL is a Hugging Face folder, a NAME.safetensors or a llama2.c NAME.bin. An interrupted "
           "run leaves OUT.h5.partial and OUT.h5.state; the same command with --resume goes on."};
