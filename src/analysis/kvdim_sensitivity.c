/*
 * kvdim-sensitivity: projections and singular values that say what the predictions lose, from one backward pass over text.
 *
 * Reads a checkpoint and texts; writes kvdim/spectrum with the pairs fqk and fvw.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/sensitivity_engine.h"
#include "analysis/widths.h"
#include "common/args.h"
#include "common/device.h"
#include "common/progress.h"
#include "common/run.h"

static const char program[] = "kvdim-sensitivity";

enum {
    MAX_TEXTS = 4096,
    OPT_TEXT = 0x100,
    OPT_IDS,
    OPT_FIELD,
    OPT_NO_SPECIAL,
    OPT_BY_TEXT,
    OPT_TOKENS,
    OPT_SEQ_LEN,
    OPT_LABEL,
    OPT_BATCH,
    OPT_COMPUTE
};

typedef struct {
    kvd_common_options common;
    const char *model, *text[MAX_TEXTS], *ids, *field, *label;
    size_t n_text;
    bool no_special, by_text;
    size_t tokens, seq_len, batch; /* 0: not given */
    kvd_dtype compute;
} config;

static const struct argp_option options[] = {
    {"text", OPT_TEXT, "FILE", 0,
     "Text: .jsonl, .json (a list), .csv (header row), anything else one plain document. May be repeated", 0},
    {"ids", OPT_IDS, "FILE.csv", 0, "Token ids instead, one sequence per line", 0},
    {"field", OPT_FIELD, "NAME", 0, "JSON key or CSV column of the text (default text); A,B joins two", 0},
    {"no-special", OPT_NO_SPECIAL, 0, 0, "Leave out the special tokens around a document", 0},
    {"tokens", OPT_TOKENS, "N", 0, "Stop after N tokens (default: all)", 0},
    {"by-text", OPT_BY_TEXT, 0, 0, "--tokens is of each text", 0},
    {"seq-len", OPT_SEQ_LEN, "N", 0,
     "Documents are cut into sequences of N tokens (default: 512, or the model's longest)", 0},
    {"batch", OPT_BATCH, "N", 0, "Tokens in one pass (default 4096; at least one sequence)", 0},
    {"compute", OPT_COMPUTE, "f32|bf16", 0,
     "On a GPU: products in float32, as the CPU's (default), or from bf16 with float32 sums, which is faster",
     0},
    {"label", OPT_LABEL, "NAME", 0, "What tables call these texts (default: from the file names)", 0},
    {0},
};

static int check_usage(const config *cfg, kvd_err *err)
{
    if (!cfg->model)
        return kvd_fail(err, "no MODEL given");
    if (!cfg->common.output)
        return kvd_fail(err, "no -o OUT.h5 given");
    if ((cfg->n_text > 0) + (cfg->ids != NULL) != 1)
        return kvd_fail(err, "give one of --text and --ids");
    if (cfg->by_text && !cfg->n_text)
        return kvd_fail(err, "--by-text goes with --text");
    if (cfg->no_special && !cfg->n_text)
        return kvd_fail(err, "--no-special goes with --text");
    return cfg->field && !cfg->n_text ? kvd_fail(err, "--field goes with --text") : 0;
}

static int parse_one(int key, char *arg, struct argp_state *state, kvd_err *err)
{
    config *const cfg = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &cfg->common;
        return 0;
    case ARGP_KEY_ARG:
        if (cfg->model)
            return kvd_fail(err, "argument '%s' is one too many (texts go with --text)", arg);
        cfg->model = arg;
        return 0;
    case ARGP_KEY_END:
        return check_usage(cfg, err);
    case OPT_TEXT:
        return kvd_arg_add("--text", arg, cfg->text, &cfg->n_text, MAX_TEXTS, err);
    case OPT_IDS:
        return kvd_arg_once("--ids", arg, &cfg->ids, err);
    case OPT_FIELD:
        return kvd_arg_once("--field", arg, &cfg->field, err);
    case OPT_NO_SPECIAL:
        cfg->no_special = true;
        return 0;
    case OPT_BY_TEXT:
        cfg->by_text = true;
        return 0;
    case OPT_TOKENS:
        return kvd_arg_size("--tokens", arg, 2, (size_t)1 << 48, &cfg->tokens, err);
    case OPT_SEQ_LEN:
        return kvd_arg_size("--seq-len", arg, 2, 1 << 30, &cfg->seq_len, err);
    case OPT_BATCH:
        return kvd_arg_size("--batch", arg, 1, 1 << 30, &cfg->batch, err);
    case OPT_COMPUTE:
        cfg->compute = strcmp(arg, "bf16") ? KVD_F32 : KVD_BF16;
        return cfg->compute == KVD_BF16 || !strcmp(arg, "f32")
                   ? 0
                   : kvd_fail(err, "--compute: '%s' is neither f32 nor bf16", arg);
    case OPT_LABEL:
        if (!*arg || strlen(arg) > 63)
            return kvd_fail(err, "--label '%s': 1 to 63 bytes", arg);
        cfg->label = arg;
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

/* ---- one run ---------------------------------------------------------------------------------- */

typedef struct {
    config *cfg;
    kvd_run run;
    kvd_checkpoint *checkpoint;
    kvd_corpus *corpus;
    kvd_sensitivity *sums;
    kvd_sensitivity_engine *engine;
    kvd_spectrum spectrum;
    uint32_t *id;
    size_t *offset;
} job;

/* What --device and --compute come to. */
static int settle_device(job *j, kvd_err *err)
{
    config *const cfg = j->cfg;
    char name[sizeof j->run.gpu];
    if (kvd_device_settle(&cfg->common, name, sizeof name, err))
        return -1;
    kvd_device_note(name, &j->run);
    return cfg->compute == KVD_F32 || cfg->common.device == KVD_DEVICE_CUDA
               ? 0
               : kvd_fail(err, "--compute %s needs a GPU, and this run has none",
                          kvd_dtype_name(cfg->compute));
}

static int open_corpus(job *j, kvd_err *err)
{
    config *const cfg = j->cfg;
    const kvd_config *const model = kvd_checkpoint_config(j->checkpoint);
    const size_t longest = (size_t)model->max_positions;
    if (!cfg->seq_len)
        cfg->seq_len = longest < 512 ? longest : 512;
    if (cfg->seq_len > longest)
        return kvd_fail(err, "--seq-len %zu: the model was made for at most %zu positions", cfg->seq_len,
                        longest);
    const kvd_corpus_spec spec = {.text = cfg->text,
                                  .n_text = cfg->n_text,
                                  .field = cfg->field,
                                  .no_special = cfg->no_special,
                                  .ids = cfg->ids,
                                  .max_tokens = cfg->tokens,
                                  .by_text = cfg->by_text,
                                  .seq_len = cfg->seq_len,
                                  .vocab_size = (size_t)model->vocab_size};
    kvd_tokenizer *tok = NULL;
    if (cfg->n_text) {
        char *const path = kvd_checkpoint_tokenizer_path(j->checkpoint, err);
        tok = path ? kvd_tokenizer_open(path, spec.vocab_size, err) : NULL;
        free(path);
        if (!tok)
            return -1;
    }
    j->corpus = kvd_corpus_open(&spec, tok, err);
    kvd_tokenizer_free(tok);
    if (!j->corpus)
        return -1;
    if (cfg->label)
        snprintf(j->spectrum.label, sizeof j->spectrum.label, "%s", cfg->label);
    else
        kvd_corpus_label(&spec, j->spectrum.label, sizeof j->spectrum.label);
    return 0;
}

static int record(job *j, kvd_err *err)
{
    const config *const cfg = j->cfg;
    kvd_run *const r = &j->run;
    if (kvd_run_add_model(r, cfg->model, err))
        return -1;
    for (size_t i = 0; i < cfg->n_text; i++)
        if (kvd_run_add_input(r, cfg->text[i], err))
            return -1;
    return (cfg->ids && kvd_run_add_input(r, cfg->ids, err)) ||
                   kvd_run_parameter(r, "tokens", err, "%zu", kvd_corpus_n_tokens(j->corpus)) ||
                   kvd_run_parameter(r, "by-text", err, "%s", cfg->by_text ? "yes" : "no") ||
                   kvd_run_parameter(r, "seq-len", err, "%zu", cfg->seq_len) ||
                   kvd_run_parameter(r, "label", err, "%s", j->spectrum.label) ||
                   kvd_run_parameter(r, "field", err, "%s", cfg->field ? cfg->field : "") ||
                   kvd_run_parameter(r, "no-special", err, "%s", cfg->no_special ? "yes" : "no") ||
                   kvd_run_parameter(r, "batch", err, "%zu", cfg->batch) ||
                   kvd_run_parameter(r, "device", err, "%s",
                                     cfg->common.device == KVD_DEVICE_CUDA ? "cuda" : "cpu") ||
                   kvd_run_parameter(r, "compute", err, "%s", kvd_dtype_name(cfg->compute))
               ? -1
               : 0;
}

static int stop_when_asked(kvd_err *err)
{
    return kvd_interrupted() ? kvd_fail_interrupted(err) : 0;
}

/* Sequences from `first` on, as many as fit; their number. */
static size_t load_batch(job *j, size_t first, size_t most, kvd_batch *b, kvd_err *err)
{
    const size_t n = kvd_corpus_batch(j->corpus, first, most), begin = kvd_corpus_offset(j->corpus, first);
    for (size_t i = 0; i < n; i++)
        j->offset[i] = kvd_corpus_offset(j->corpus, first + i) - begin;
    j->offset[n] = j->offset[n - 1] + kvd_corpus_length(j->corpus, first + n - 1);
    *b = (kvd_batch){.n_sequences = n, .offset = j->offset, .first_sequence = first, .id = j->id};
    return kvd_corpus_read(j->corpus, first, n, j->id, err) ? 0 : n;
}

static int run_corpus(job *j, size_t most, kvd_err *err)
{
    kvd_progress progress;
    int status = 0;
    kvd_progress_start(&progress, "sensitivity", "tokens", (double)kvd_corpus_n_tokens(j->corpus),
                       j->cfg->common.quiet);
    for (size_t first = 0; !status && first < kvd_corpus_n_sequences(j->corpus);) {
        kvd_batch b;
        const size_t n = load_batch(j, first, most, &b, err);
        status = n ? j->engine->run(j->engine, &b, err) : -1;
        if (!status)
            kvd_progress_step(&progress, (double)(kvd_corpus_offset(j->corpus, first) + b.offset[n]));
        first += n;
    }
    kvd_progress_end(&progress);
    return status;
}

static int make_engine(job *j, size_t most, kvd_err *err)
{
    const kvd_sensitivity_spec spec = {.checkpoint = j->checkpoint,
                                       .sums = j->sums,
                                       .compute = j->cfg->compute,
                                       .seed = j->run.seed,
                                       .max_tokens = most,
                                       .max_len = j->cfg->seq_len,
                                       .give_up = stop_when_asked};
#ifdef KVD_CUDA
    if (j->cfg->common.device == KVD_DEVICE_CUDA)
        j->engine = kvd_sensitivity_engine_cuda(&spec, err);
    else
#endif
        j->engine = kvd_sensitivity_engine_cpu(&spec, err);
    return j->engine ? kvd_run_parameter(&j->run, "engine", err, "%s", j->engine->describe(j->engine)) : -1;
}

static int compute(job *j, kvd_err *err)
{
    config *const cfg = j->cfg;
    size_t most = cfg->batch > cfg->seq_len ? cfg->batch : cfg->seq_len;
    if (most > kvd_corpus_n_tokens(j->corpus))
        most = kvd_corpus_n_tokens(j->corpus);
    j->id = malloc(most * sizeof *j->id);
    j->offset = malloc((most + 1) * sizeof *j->offset);
    if (!j->id || !j->offset)
        return kvd_no_memory(err, "a batch", most * (sizeof *j->id + sizeof *j->offset));
    if (!(j->sums = kvd_sensitivity_new(kvd_checkpoint_config(j->checkpoint), err)))
        return -1;
    return make_engine(j, most, err) || run_corpus(j, most, err) || j->engine->settle(j->engine, err)
               ? -1
               : kvd_sensitivity_bases(j->sums, kvd_corpus_n_tokens(j->corpus), &j->spectrum, err);
}

/* ---- results ---------------------------------------------------------------------------------- */

static int print(const job *j, kvd_err *err)
{
    static const kvd_pair pair[2] = {KVD_PAIR_FQK, KVD_PAIR_FVW};
    const kvd_spectrum *const s = &j->spectrum;
    json_t *const rows = json_array();
    if (!j->cfg->common.quiet && !j->cfg->common.json)
        printf("%s: %zu tokens of '%s', %s; entropy of its predictions %.4f nats\nwidths by loss, and the KL "
               "divergence "
               "that they are predicted to cost\n     p   nats/token\n",
               j->cfg->common.output, s->n_tokens, s->label, s->model.name,
               j->engine->loss / (double)j->engine->n_predicted);
    for (int i = 1; i < 9; i++) {
        kvd_widths w = {0};
        double loss;
        const int status = kvd_widths_by_loss(s, pair, i / 10.0, &loss, &w, err);
        kvd_widths_release(&w);
        if (status)
            break; /* narrow heads end before 0.8 */
        json_array_append_new(rows, json_pack("{s:f, s:f}", "p", i / 10.0, "predicted_kl", loss));
        if (!j->cfg->common.quiet && !j->cfg->common.json)
            printf("  %4.1f   %.6f\n", i / 10.0, loss);
    }
    json_t *const all = json_pack("{s:s, s:s, s:s, s:s, s:I, s:o}", "program", program, "output",
                                  j->cfg->common.output, "model", s->model.name, "label", s->label, "tokens",
                                  (json_int_t)s->n_tokens, "by_loss", rows);
    const int failed =
        !all || (j->cfg->common.json &&
                 (json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) || puts("") < 0));
    json_decref(all);
    return failed ? kvd_fail(err, "cannot write the JSON summary") : 0;
}

static int work(job *j, kvd_err *err)
{
    config *const cfg = j->cfg;
    kvd_spectrum *const s = &j->spectrum;
    kvd_h5 out = {.id = H5I_INVALID_HID};
    if (settle_device(j, err) || !(j->checkpoint = kvd_checkpoint_open(cfg->model, err)) ||
        open_corpus(j, err) || record(j, err))
        return -1;
    kvd_model_info_set(&s->model, kvd_checkpoint_config(j->checkpoint), cfg->model, j->run.inputs[0].hash,
                       kvd_checkpoint_dtype(j->checkpoint));
    memcpy(s->corpus_hash, kvd_corpus_hash(j->corpus), sizeof s->corpus_hash);
    snprintf(s->method, sizeof s->method, "gram");
    snprintf(s->rope, sizeof s->rope, "%s", kvd_model_info_rope(&s->model, false));
    s->pairing = KVD_SHARED;
    s->n_tokens = kvd_corpus_n_tokens(j->corpus);
    s->seq_len = cfg->seq_len;
    s->n_layers = s->model.n_layers;
    if (kvd_h5_create(&out, cfg->common.output, &kvd_schema_spectrum, &j->run, err) || compute(j, err) ||
        kvd_spectrum_write(&out, s, err) || kvd_h5_finish(&out, err)) {
        kvd_h5_close(&out, false);
        return -1;
    }
    kvd_h5_close(&out, false);
    return print(j, err);
}

static void release(job *j)
{
    if (j->engine)
        j->engine->free(j->engine);
    free(j->id);
    free(j->offset);
    kvd_sensitivity_free(j->sums);
    kvd_spectrum_release(&j->spectrum);
    kvd_corpus_close(j->corpus);
    kvd_checkpoint_close(j->checkpoint);
    kvd_run_release(&j->run);
}

int main(int argc, char **argv)
{
    const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "MODEL (--text FILE... | --ids FILE.csv) -o OUT.h5",
        .children = kvd_common_options_child,
        .doc = "Projections of every head weighed by the Fisher information of the predictions (pairs fqk "
               "and fvw of a "
               "spectrum file), and singular values in nats, from one backward pass with tokens drawn from "
               "the model.\v"
               "Example:\n"
               "  kvdim-sensitivity data/models/kvdim-6m --text book.txt --tokens 16384 -o fisher.h5\n"
               "  kvdim-eval data/models/kvdim-6m --text other.txt --spectrum fisher.h5 --method "
               "fisher,p=0.5,ranks=loss -o accuracy.h5"};
    static config cfg = {.common = {.seed = 1}, .batch = 4096};
    static job j;
    kvd_err err = {""};
    kvd_args_parse(program, &argp, argc, argv, &cfg);
    j.cfg = &cfg;
    int status = kvd_run_start(&j.run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&j, &err);
    release(&j);
    return kvd_run_exit(program, status, &err);
}
