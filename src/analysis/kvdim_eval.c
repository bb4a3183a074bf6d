/*
 * kvdim-eval: what compressing the KV cache costs in predictions.
 *
 * Reads a checkpoint, texts, kvdim/spectrum, kvdim/rates, kvdim/error-table, kvdim/activations, kvdim/fisher. Writes kvdim/accuracy; with
 * --scan-errors kvdim/error-table instead.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "analysis/accuracy_text.h"
#include "analysis/error_scan.h"
#include "analysis/eval_run.h"
#include "common/blas.h"
#include "common/device.h"
#include "common/progress.h"
#include "common/run.h"
#include "formats/rows_json.h"
#include "model/weights.h"

static const char program[] = "kvdim-eval";

/* ---- one run ---------------------------------------------------------------------------------- */

/* What --device and --compute come to. */
static int settle_device(kvd_eval_run *v, kvd_err *err)
{
    kvd_eval_options *const cfg = v->cfg;
    if (kvd_device_settle(&cfg->common, v->gpu, sizeof v->gpu, err))
        return -1;
    if (cfg->compute != KVD_F32 && !v->gpu[0])
        return kvd_fail(err, "--compute %s needs a GPU, and this run has none", kvd_dtype_name(cfg->compute));
    if (!cfg->cache_given)
        cfg->cache = cfg->compute;
    return 0;
}

kvd_model_runner *kvd_eval_runner(const kvd_eval_run *v, const kvd_checkpoint *c, kvd_err *err)
{
#ifdef KVD_CUDA
    if (v->gpu[0])
        return kvd_runner_cuda(c, v->cfg->compute, v->rows, v->cfg->seq_len, err);
#endif
    return kvd_runner_cpu(c, v->rows, v->cfg->seq_len, err);
}

static int make_runner(kvd_eval_run *v, kvd_err *err)
{
    if (!(v->runner = kvd_eval_runner(v, v->checkpoint, err)) ||
        kvd_weights_bytes(v->checkpoint, &v->weight_bytes, err))
        return -1;
    return kvd_run_parameter(&v->run, "engine", err, "%s", v->runner->describe(v->runner));
}

static int make_evaluator(kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    /* Whether the corpus is run many times. */
    const bool again = cfg->scan || cfg->resume || !isnan(cfg->target) || cfg->n_weights_bits;
    v->rows = cfg->batch > cfg->seq_len ? cfg->batch : cfg->seq_len;
    if (v->rows > kvd_corpus_n_tokens(v->corpus))
        v->rows = kvd_corpus_n_tokens(v->corpus);
    if (make_runner(v, err) ||
        kvd_evaluator_init(&v->evaluator, v->runner, v->corpus, cfg->prompt, again, err) ||
        (cfg->resume && kvd_evaluator_keep_attention(&v->evaluator, err)))
        return -1;
    if (cfg->by_text) {
        v->evaluator.n_texts = kvd_corpus_n_texts(v->corpus);
        v->evaluator.text_first = kvd_corpus_text_first(v->corpus);
    }
    if (v->evaluator.bytes_not_kept)
        fprintf(stderr,
                "%s: the uncompressed rows of all tokens, %zu MB, do not fit on the device: that model runs "
                "again for every point\n",
                program, v->evaluator.bytes_not_kept / 1000000);
    return 0;
}

/* Each set of bases once, however many points it serves. */
static int check_full_rank(kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const kvd_point_source *const s = &v->source[i];
        for (size_t j = 0; s->spectrum && j < i; j++)
            if (v->source[j].spectrum == s->spectrum && cfg->method[j].cut == cfg->method[i].cut &&
                cfg->method[j].dims->pair[0] == cfg->method[i].dims->pair[0] &&
                cfg->method[j].dims->pair[1] == cfg->method[i].dims->pair[1])
                v->full_rank_error[i] = v->full_rank_error[j];
        if (!s->spectrum || !isnan(v->full_rank_error[i]))
            continue;
        kvd_dims full = {0};
        if (kvd_point_full(s, &full, err))
            return -1;
        const int status = kvd_evaluate_full_rank(
            &v->evaluator, &full, kvd_full_rank_tolerance(cfg->method[i].dims, v->runner->compute),
            &v->full_rank_error[i], err);
        kvd_dims_release(&full);
        if (status)
            return kvd_in(err, "'%s'", s->spectrum_path);
    }
    return 0;
}

/* ---- results ---------------------------------------------------------------------------------- */

static int print_json(const kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    json_t *const targets = json_object();
    for (size_t i = 0; i < v->n_targets; i++)
        json_object_set_new(targets, v->target[i].name,
                            kvd_accuracy_target_json(v->target[i].rate.name, &v->target[i].found));
    json_t *const all = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:o, s:o}", "program", program, "output",
                                  cfg->common.output, "model", v->info.name, "label", v->label, "engine",
                                  v->runner->describe(v->runner), "calibrated_on_same_text", v->same_text,
                                  "rows", kvd_rows_json(v->accuracy.rows), "target", targets);
    const int failed =
        !all || json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) || puts("") < 0;
    json_decref(all);
    return failed ? kvd_fail(err, "cannot write the JSON summary") : 0;
}

static int describe_gpu(kvd_eval_run *v, kvd_err *err)
{
    char driver[80];
    if (!v->gpu[0])
        return 0;
    kvd_cuda_driver(driver, sizeof driver);
    return kvd_h5_put_text(&v->file, "/provenance", "gpu", v->gpu, err) ||
                   kvd_h5_put_text(&v->file, "/provenance", "driver", driver, err)
               ? -1
               : 0;
}

static int describe_file(kvd_eval_run *v, kvd_err *err)
{
    kvd_h5 *const f = &v->file;
    return describe_gpu(v, err) || kvd_model_info_write(f, &v->info, err) ||
                   (v->cfg->resume && kvd_h5_put_text(f, "/", "run_key", v->saved.key.text, err)) ||
                   kvd_h5_put_text(f, "/", "label", v->label, err) ||
                   kvd_h5_put_text(f, "/", "corpus_hash", kvd_corpus_hash(v->corpus), err) ||
                   kvd_h5_put_int(f, "/", "n_tokens", (int64_t)kvd_corpus_n_tokens(v->corpus), err) ||
                   kvd_h5_put_int(f, "/", "seq_len", (int64_t)v->cfg->seq_len, err) ||
                   kvd_h5_put_int(f, "/", "calibrated_on_same_text", v->same_text, err)
               ? -1
               : 0;
}

/* Which sequences are whose: /texts/label, /texts/n_sequences. */
static int write_texts(kvd_eval_run *v, kvd_err *err)
{
    const size_t n = v->evaluator.n_texts;
    uint64_t *const count = calloc(n, sizeof *count);
    char all[500] = "";
    if (!count)
        return kvd_no_memory(err, "texts", n * sizeof *count);
    for (size_t t = 0; t < n; t++) {
        const size_t used = strlen(all);
        char label[64];
        const kvd_corpus_spec one = {.text = v->cfg->text + t, .n_text = 1};
        kvd_corpus_label(&one, label, sizeof label);
        count[t] = v->evaluator.text_first[t + 1] - v->evaluator.text_first[t];
        snprintf(all + used, sizeof all - used, "%s%s", t ? " " : "", label);
    }
    const kvd_h5_spec spec = {"/texts/n_sequences",
                              "sequences of each text, in the order of /sequences",
                              "1",
                              H5T_STD_U64LE,
                              1,
                              {n},
                              {"text"}};
    const int status = kvd_h5_write(&v->file, &spec, H5T_NATIVE_UINT64, count, err) ||
                       kvd_h5_put_text(&v->file, "/texts", "label", all, err);
    free(count);
    return status ? -1 : 0;
}

/* What decides the numbers of the rows. */
static int make_key(kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_run_key *const key = &v->saved.key;
    if (kvd_run_key_add(key, err, "program", "%s", kvd_git_revision()) ||
        kvd_run_key_add(key, err, "cpu", "%s", kvd_cpu_name()) ||
        kvd_run_key_add(key, err, "blas", "%s", kvd_blas_core()) ||
        kvd_run_key_add(key, err, "gpu", "%s", v->gpu) ||
        kvd_run_key_add(key, err, "threads", "%d", v->run.threads) ||
        kvd_run_key_add(key, err, "seed", "%llu", (unsigned long long)v->run.seed) ||
        kvd_run_key_add(key, err, "corpus", "%s", kvd_corpus_hash(v->corpus)) ||
        kvd_run_key_add(key, err, "prompt", "%zu", cfg->prompt))
        return -1;
    for (int i = 0; i < v->run.n_inputs; i++)
        if (kvd_run_key_add(key, err, "input", "%s", v->run.inputs[i].hash))
            return -1;
    for (int i = 0; i < v->run.n_parameters; i++)
        if (kvd_run_key_add(key, err, v->run.parameters[i][0], "%s", v->run.parameters[i][1]))
            return -1;
    return 0;
}

/* Whether OUT.h5 is what this run would write. */
static bool is_complete(const kvd_eval_run *v)
{
    kvd_h5 f;
    kvd_err ignored;
    char *key = NULL;
    if (access(v->cfg->common.output, F_OK) ||
        kvd_h5_open(&f, v->cfg->common.output, &kvd_schema_accuracy, &ignored))
        return false;
    const bool same = !kvd_h5_get_text(&f, "/", "run_key", &key, &ignored) && !strcmp(key, v->saved.key.text);
    free(key);
    kvd_h5_close(&f, false);
    return same;
}

static int nothing_to_do(const kvd_eval_run *v, kvd_err *err)
{
    const kvd_common_options *const o = &v->cfg->common;
    if (!o->quiet)
        fprintf(stderr, "%s: '%s' is complete: nothing to do\n", program, o->output);
    json_t *const said =
        o->json ? json_pack("{s:s, s:s, s:b}", "program", program, "output", o->output, "complete", 1) : NULL;
    const int failed = o->json && (!said || json_dumpf(said, stdout, JSON_INDENT(2)) || puts("") < 0);
    json_decref(said);
    return failed ? kvd_fail(err, "cannot write the JSON summary") : 0;
}

/* Rows that an interrupted run left. */
static int take_up(kvd_eval_run *v, kvd_err *err)
{
    const kvd_evaluator *const e = &v->evaluator;
    if (kvd_accuracy_init(&v->accuracy, v->model, v->label, e->n_sequences, e->n_tokens, NULL, false,
                          v->run.seed, err) ||
        kvd_saved_rows_open(&v->saved, v->cfg->common.output, &v->accuracy, err))
        return -1;
    (void)snprintf(v->accuracy.calibrated, sizeof v->accuracy.calibrated, "%s", v->calibration.label);
    if (v->saved.from.n && !v->cfg->common.quiet)
        fprintf(stderr, "%s: going on after %zu rows of '%s'\n", program, v->saved.from.n, v->saved.path);
    return 0;
}

static int evaluate(kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    if (cfg->resume && make_key(v, err))
        return -1;
    if (cfg->resume && is_complete(v))
        return nothing_to_do(v, err);
    if (kvd_eval_make_points(v, err) ||
        kvd_h5_create(&v->file, cfg->common.output, &kvd_schema_accuracy, &v->run, err) ||
        describe_file(v, err) || make_evaluator(v, err) || check_full_rank(v, err) ||
        (cfg->resume && take_up(v, err)) || kvd_eval_points(v, err))
        return -1;
    if (!isnan(cfg->target) && kvd_eval_search(v, err))
        return -1;
    if (kvd_eval_weights(v, err))
        return -1;
    if (cfg->by_text && write_texts(v, err))
        return -1;
    if (kvd_accuracy_write(&v->file, &v->accuracy, err) || kvd_h5_finish(&v->file, err) ||
        kvd_saved_rows_remove(&v->saved, err))
        return -1;
    return cfg->common.json ? print_json(v, err) : 0;
}

static int scan(kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    const size_t runs = kvd_error_scan_runs(v->model);
    kvd_error_table found;
    kvd_progress progress;
    if (kvd_h5_create(&v->file, cfg->common.output, &kvd_schema_error_table, &v->run, err) ||
        describe_gpu(v, err) || make_evaluator(v, err) || check_full_rank(v, err))
        return -1;
    kvd_progress_start(&progress, "scan", "tokens", (double)v->evaluator.n_tokens * (double)runs,
                       cfg->common.quiet);
    int status = kvd_error_scan(&v->evaluator, &v->source[0], &v->info, cfg->cache, &progress, &found, err);
    kvd_progress_end(&progress);
    if (status)
        return -1;
    status = kvd_spectrum_bases_hash(v->source[0].spectrum, found.pair, found.bases_hash, err) ||
             kvd_error_table_write(&v->file, &found, err) ||
             kvd_h5_put_text(&v->file, "/", "label", v->label, err) ||
             kvd_h5_put_text(&v->file, "/", "corpus_hash", kvd_corpus_hash(v->corpus), err) ||
             kvd_h5_put_int(&v->file, "/", "n_tokens", (int64_t)v->evaluator.n_tokens, err) ||
             kvd_h5_put_int(&v->file, "/", "calibrated_on_same_text", v->same_text, err) ||
             kvd_h5_finish(&v->file, err);
    if (!status && cfg->common.json)
        printf("{\"program\": \"%s\", \"runs\": %zu, \"tokens\": %zu}\n", program, runs,
               v->evaluator.n_tokens);
    else if (!status && !cfg->common.quiet)
        printf("%s: %zu runs over %zu tokens, %d layers, %d KV heads, 2 pairs, %zu widths\n",
               cfg->common.output, runs, v->evaluator.n_tokens, found.n_layers, found.n_kv_heads,
               found.n_widths);
    kvd_error_table_release(&found);
    return status ? -1 : 0;
}

static int work(kvd_eval_run *v, kvd_err *err)
{
    kvd_eval_options *const cfg = v->cfg;
    if (settle_device(v, err) || !(v->checkpoint = kvd_checkpoint_open(cfg->model, err)))
        return -1;
    v->model = kvd_checkpoint_config(v->checkpoint);
    if (kvd_eval_open_inputs(v, program, err))
        return -1;
    return cfg->scan ? scan(v, err) : evaluate(v, err);
}

static void release(kvd_eval_run *v)
{
    kvd_h5_close(&v->file, false);
    kvd_accuracy_release(&v->accuracy);
    kvd_saved_rows_release(&v->saved);
    kvd_evaluator_release(&v->evaluator);
    if (v->runner)
        v->runner->free(v->runner);
    for (size_t i = 0; i < KVD_EVAL_METHODS; i++)
        kvd_points_free(v->point[i], v->n_points[i]);
    for (size_t i = 0; i < KVD_EVAL_FILES; i++) {
        kvd_spectrum_release(&v->spectrum[i]);
        kvd_rates_release(&v->rates[i]);
    }
    kvd_error_table_release(&v->table);
    kvd_activations_close(&v->calibration);
    kvd_fisher_close(&v->fisher);
    kvd_free_run_release(&v->free_run);
    kvd_corpus_close(v->corpus);
    kvd_tokenizer_free(v->tokenizer);
    kvd_checkpoint_close(v->checkpoint);
    kvd_run_release(&v->run);
}

int main(int argc, char **argv)
{
    static kvd_eval_options cfg = {
        .common = {.seed = 1}, .target = NAN, .seeds = 1, .weights_group = 128, .cache = KVD_F32};
    static kvd_eval_run v;
    kvd_err err = {""};
    kvd_eval_parse(program, argc, argv, &cfg);
    v.cfg = &cfg;
    int status = kvd_run_start(&v.run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&v, &err);
    release(&v);
    kvd_eval_options_release(&cfg);
    return kvd_run_exit(program, status, &err);
}
