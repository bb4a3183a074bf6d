/* kvdim-sensitivity: estimates the KL divergence of predictions if heads lose dimensions. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/sensitivity.h"
#include "common/device.h"
#include "common/json.h"
#include "common/options.h"
#include "common/progress.h"
#include "common/run.h"
#include "methods/widths.h"
#include "model/model_info.h"
#include "model/text/text_options.h"

static const char program[] = "kvdim-sensitivity";

enum { MAX_TEXTS = 4096 };

typedef struct {
    kvd_common_options common;
    const char *model, *text[MAX_TEXTS], *ids, *field, *label;
    size_t n_text;
    bool no_special, by_text;
    /* values of --tokens and --seq-len; 0 if not given */
    size_t tokens, seq_len;
    size_t batch;
    kvd_dtype compute;
} config;

#define T config

static const kvd_option options[] = {
    {.help = "Input"},
    KVD_OPTION_MODEL(T),
    KVD_OPTIONS_TEXT(T, "ids"),
    KVD_OPTION_IDS(T, NULL),
    KVD_OPTION_FIELD(T),
    KVD_OPTION_NO_SPECIAL(T),
    KVD_OPTION_TOKENS(T, "all", "Stop after N tokens"),
    {"by-text", .type = KVD_OPT_FLAG, KVD_INTO(T, by_text), .requires = "text",
     .help = "Count --tokens for each text"},
    KVD_OPTION_SEQ_LEN(T),
    KVD_OPTION_LABEL(T, "from the file names"),

    {.help = "Run"},
    {"batch", .type = KVD_OPT_WHOLE, KVD_INTO(T, batch), .low = 1, .high = 1 << 30,
     .initial = "4096", .unit = "tokens", .help = "Tokens in one pass, at least one sequence"},
    KVD_OPTION_COMPUTE(T),
    KVD_OPTIONS_COMMON(T, "OUT.h5", "Write the result to OUT.h5, whole or not at all"),
    {0}};

static const kvd_program description = {
    .name = program,
    .summary = "Compute projections of every head weighted by the Fisher information of the "
               "predictions (pairs fqk and fvw of a spectrum file), and singular values in nats, "
               "from one backward pass with tokens drawn from the model.",
    .usage = {"MODEL (--text FILE... | --ids FILE.csv) -o OUT.h5 [OPTION...]"},
    .any_of = {"MODEL", "output", "text ids"},
    .examples = {"kvdim-sensitivity data/models/kvdim-6m --text book.txt --tokens 16384 -o "
                 "fisher.h5",
                 "kvdim-eval data/models/kvdim-6m --text other.txt --spectrum fisher.h5 --method "
                 "fisher,p=0.5,ranks=loss -o accuracy.h5"},
    .options = options};

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

static int resolve_device(job *j, kvd_err *err)
{
    config *const cfg = j->cfg;
    char name[sizeof j->run.gpu];
    if (kvd_device_resolve(&cfg->common, name, sizeof name, err))
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
    if (kvd_model_seq_len(model, &cfg->seq_len, err))
        return -1;
    const kvd_corpus_spec spec = {.text = cfg->text,
                                  .n_text = cfg->n_text,
                                  .field = cfg->field,
                                  .no_special = cfg->no_special,
                                  .ids = cfg->ids,
                                  .max_tokens = cfg->tokens,
                                  .by_text = cfg->by_text,
                                  .seq_len = cfg->seq_len,
                                  .vocab_size = (size_t)model->vocab_size};
    kvd_corpus_label(&spec, cfg->label, j->spectrum.label, sizeof j->spectrum.label);
    j->corpus = kvd_model_corpus(j->checkpoint, &spec, program, err);
    return j->corpus ? 0 : -1;
}

static int record(job *j, kvd_err *err)
{
    const config *const cfg = j->cfg;
    kvd_run *const r = &j->run;
    return kvd_status(
        kvd_run_add_model(r, cfg->model, err) ||
        kvd_run_add_inputs(r, cfg->text, cfg->n_text, err) ||
        kvd_run_add_inputs(r, &cfg->ids, 1, err) ||
        kvd_run_parameter(r, "tokens", err, "%zu", kvd_corpus_n_tokens(j->corpus)) ||
        kvd_run_parameter(r, "by-text", err, "%s", cfg->by_text ? "yes" : "no") ||
        kvd_run_parameter(r, "seq-len", err, "%zu", cfg->seq_len) ||
        kvd_run_parameter(r, "label", err, "%s", j->spectrum.label) ||
        kvd_run_parameter(r, "field", err, "%s", cfg->field ? cfg->field : "") ||
        kvd_run_parameter(r, "no-special", err, "%s", cfg->no_special ? "yes" : "no") ||
        kvd_run_parameter(r, "batch", err, "%zu", cfg->batch) ||
        kvd_run_parameter(r, "device", err, "%s",
                          cfg->common.device == KVD_DEVICE_CUDA ? "cuda" : "cpu") ||
        kvd_run_parameter(r, "compute", err, "%s", kvd_dtype_name(cfg->compute)));
}

static int stop_when_asked(kvd_err *err)
{
    return kvd_interrupted() ? kvd_fail_interrupted(err) : 0;
}

static size_t load_batch(job *j, size_t first, size_t most, kvd_batch *b, kvd_err *err)
{
    const size_t n = kvd_corpus_batch(j->corpus, first, most);
    kvd_corpus_offsets(j->corpus, first, n, j->offset);
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
            kvd_progress_step(&progress,
                              (double)(kvd_corpus_offset(j->corpus, first) + b.offset[n]));
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
    return j->engine
               ? kvd_run_parameter(&j->run, "engine", err, "%s", j->engine->describe(j->engine))
               : -1;
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
    return make_engine(j, most, err) || run_corpus(j, most, err) || j->engine->flush(j->engine, err)
               ? -1
               : kvd_sensitivity_bases(j->sums, kvd_corpus_n_tokens(j->corpus), &j->spectrum, err);
}

static int print(const job *j, kvd_err *err)
{
    static const kvd_pair pair[2] = {KVD_PAIR_FQK, KVD_PAIR_FVW};
    const kvd_spectrum *const s = &j->spectrum;
    json_t *const rows = json_array();
    if (!j->cfg->common.quiet && !j->cfg->common.json)
        printf(
            "%s: %zu tokens of '%s', %s; mean -log p of the tokens drawn from its predictions, which "
            "estimates their entropy: %.4f nats\nwidths by loss, and the KL divergence that they are "
            "predicted to cost\n     p   nats/token\n",
            j->cfg->common.output, s->n_tokens, s->label, s->model.name,
            j->engine->loss / (double)j->engine->n_predicted);
    for (int i = 1; i < 9; i++) {
        kvd_widths w = {0};
        double loss;
        const int status = kvd_widths_by_loss(s, pair, KVD_BOTH_SIDES, i / 10.0, &loss, &w, err);
        kvd_widths_release(&w);
        if (status)
            /* Ends the loop, because removing the fraction i / 10 of the dimensions leaves too
             * few. */
            break;
        json_array_append_new(rows, json_pack("{s:f, s:f}", "p", i / 10.0, "predicted_kl", loss));
        if (!j->cfg->common.quiet && !j->cfg->common.json)
            printf("  %4.1f   %.6f\n", i / 10.0, loss);
    }
    json_t *const bound = json_array();
    if (!j->cfg->common.quiet && !j->cfg->common.json)
        printf("fewest bits per number of ideal codes (rate-distortion function)\n"
               "nats/token   bits   of 16 bits\n");
    for (int i = 1; i < 4; i++) {
        const double loss = pow(10, -i), bits = kvd_sensitivity_bits(s, loss);
        json_array_append_new(bound, json_pack("{s:f, s:f}", "loss", loss, "bits", bits));
        if (!j->cfg->common.quiet && !j->cfg->common.json)
            printf("  %8g   %.3f   %.4f\n", loss, bits, bits / 16);
    }
    json_t *const all =
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:o, s:o}", "program", program, "output",
                  j->cfg->common.output, "model", s->model.name, "label", s->label, "tokens",
                  (json_int_t)s->n_tokens, "by_loss", rows, "rate_distortion", bound);
    if (j->cfg->common.json)
        return kvd_json_print(all, err);
    json_decref(all);
    return 0;
}

static int work(job *j, kvd_err *err)
{
    config *const cfg = j->cfg;
    kvd_spectrum *const s = &j->spectrum;
    kvd_h5 out = {.id = H5I_INVALID_HID};
    if (resolve_device(j, err) || !(j->checkpoint = kvd_checkpoint_open(cfg->model, err)) ||
        open_corpus(j, err) || record(j, err))
        return -1;
    kvd_model_info_set(&s->model, kvd_checkpoint_config(j->checkpoint), cfg->model,
                       j->run.inputs[0].hash, kvd_checkpoint_dtype(j->checkpoint));
    memcpy(s->corpus_hash, kvd_corpus_hash(j->corpus), sizeof s->corpus_hash);
    snprintf(s->method, sizeof s->method, "gram");
    snprintf(s->rope, sizeof s->rope, "%s", kvd_model_info_rope(&s->model, false));
    s->pairing = KVD_SHARED;
    s->n_tokens = kvd_corpus_n_tokens(j->corpus);
    s->seq_len = cfg->seq_len;
    s->n_layers = s->model.n_layers;
    if (kvd_h5_create(&out, cfg->common.output, &kvd_schema_spectrum, &j->run, err) ||
        compute(j, err) || kvd_spectrum_write(&out, s, err) || kvd_h5_finish(&out, err)) {
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
    static config cfg;
    static job j;
    kvd_err err = {""};
    kvd_options_parse(&description, argc, argv, &cfg);
    j.cfg = &cfg;
    int status = kvd_run_start(&j.run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&j, &err);
    release(&j);
    return kvd_run_exit(program, status, &err);
}
