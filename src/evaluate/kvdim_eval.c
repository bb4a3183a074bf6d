/* kvdim-eval: measures how compression of the KV cache changes next-token predictions. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files/fields.h"
#include "common/json.h"
#include "common/progress.h"
#include "common/run.h"
#include "common/stats.h"
#include "evaluate/accuracy_text.h"
#include "evaluate/eval_run.h"
#include "formats/rows.h"
#include "model/checkpoint/weights.h"

static const char program[] = "kvdim-eval";

kvd_model_runner *kvd_eval_runner(const kvd_eval_run *v, const kvd_checkpoint *c, kvd_err *err)
{
#ifdef KVD_CUDA
    if (v->in.run.gpu[0])
        return kvd_runner_cuda(c, v->cfg->in.compute, v->rows, v->cfg->in.seq_len, err);
#endif
    return kvd_runner_cpu(c, v->rows, v->cfg->in.seq_len, err);
}

static int make_runner(kvd_eval_run *v, kvd_err *err)
{
    return !(v->runner = kvd_eval_runner(v, v->in.checkpoint, err)) ||
           kvd_weights_bytes(v->in.checkpoint, &v->weight_bytes, err) ||
           kvd_run_parameter(&v->in.run, "engine", err, "%s", v->runner->describe(v->runner));
}

static int make_evaluator(kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    const bool again = cfg->scan || cfg->in.resume || !isnan(cfg->in.target) || cfg->n_weights_bits;
    v->rows = cfg->in.batch > cfg->in.seq_len ? cfg->in.batch : cfg->in.seq_len;
    if (v->rows > kvd_corpus_n_tokens(v->in.corpus))
        v->rows = kvd_corpus_n_tokens(v->in.corpus);
    if (make_runner(v, err) ||
        kvd_evaluator_init(&v->evaluator, v->runner, v->in.corpus, cfg->in.prompt, again, err) ||
        kvd_inputs_check_prompts(&v->in, v->evaluator.prompt_at, v->evaluator.n_sequences,
                                 cfg->in.seq_len, program, err) ||
        (cfg->in.resume && kvd_evaluator_keep_attention(&v->evaluator, err)))
        return -1;
    if (cfg->in.by_text) {
        v->evaluator.n_texts = kvd_corpus_n_texts(v->in.corpus);
        v->evaluator.text_first = kvd_corpus_text_first(v->in.corpus);
    }
    if (v->evaluator.bytes_not_kept)
        fprintf(
            stderr,
            "%s: the uncompressed rows of all tokens, %zu MB, do not fit on the device: that model runs "
            "again for every point\n",
            program, v->evaluator.bytes_not_kept / 1000000);
    return 0;
}

static int check_full_rank(kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    for (size_t i = 0; i < cfg->in.n_methods; i++) {
        const kvd_method *const m = &cfg->in.method[i];
        for (size_t j = 0; m->spectrum && j < i; j++) {
            const kvd_method *const other = &cfg->in.method[j];
            if (other->spectrum == m->spectrum && other->cut == m->cut &&
                other->dims->pair[0] == m->dims->pair[0] &&
                other->dims->pair[1] == m->dims->pair[1])
                v->full_rank_error[i] = v->full_rank_error[j];
        }
        if (!m->spectrum || !isnan(v->full_rank_error[i]))
            continue;
        kvd_dims full = {0};
        if (kvd_point_full(m, &full, err))
            return -1;
        const int status = kvd_evaluate_full_rank(
            &v->evaluator, &full, kvd_full_rank_tolerance(m->dims, v->runner->compute),
            &v->full_rank_error[i], err);
        kvd_dims_release(&full);
        if (status)
            return kvd_in(err, "'%s'", m->spectrum_path);
    }
    return 0;
}

static int print_json(const kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    json_t *const targets = kvd_accuracy_targets_json(v->target, v->n_targets, KVD_TARGET_TOP1);
    json_t *const all =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:o, s:o}", "program", program, "output",
                  cfg->in.common.output, "model", v->in.info.name, "label", v->in.label, "engine",
                  v->runner->describe(v->runner), "calibrated_on_same_text", v->in.same_text,
                  "rows", kvd_rows_json(v->accuracy.rows), "target", targets);
    return kvd_json_print(all, err);
}

static int describe_file(kvd_eval_run *v, kvd_err *err)
{
    kvd_h5 *const f = &v->file;
    return kvd_model_info_write(f, &v->in.info, err) ||
           (v->cfg->in.resume && kvd_h5_put_text(f, "/", "run_key", v->saved.key.text, err)) ||
           kvd_h5_put_text(f, "/", "label", v->in.label, err) ||
           kvd_field_write_corpus_hash(f, kvd_corpus_hash(v->in.corpus), err) ||
           kvd_h5_put_int(f, "/", "n_tokens", (int64_t)kvd_corpus_n_tokens(v->in.corpus), err) ||
           kvd_h5_put_int(f, "/", "seq_len", (int64_t)v->cfg->in.seq_len, err) ||
           kvd_h5_put_int(f, "/", "calibrated_on_same_text", v->in.same_text, err);
}

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
        const kvd_corpus_spec one = {.text = v->cfg->in.text + t, .n_text = 1};
        kvd_corpus_label(&one, NULL, label, sizeof label);
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

static int take_up(kvd_eval_run *v, kvd_err *err)
{
    const kvd_evaluator *const e = &v->evaluator;
    if (kvd_accuracy_init(&v->accuracy, v->in.model, v->in.label, e->n_sequences, e->n_tokens,
                          false, err) ||
        kvd_saved_rows_open(&v->saved, v->cfg->in.common.output, &v->accuracy, err))
        return -1;
    (void)snprintf(v->accuracy.calibrated, sizeof v->accuracy.calibrated, "%s",
                   v->in.files.calibration.label);
    if (kvd_saved_rows_count(&v->saved) && !v->cfg->in.common.quiet)
        fprintf(stderr, "%s: going on after %zu rows of '%s'\n", program,
                kvd_saved_rows_count(&v->saved), v->saved.path);
    return 0;
}

/* Warns of methods that reduce neither the stored bytes nor the bytes that a decode step reads. */
static void warn_of_bytes(const kvd_rows *rows)
{
    for (size_t i = 0; i < kvd_rows_count(rows); i++) {
        const double whole = kvd_row_real(rows, i, "bytes_per_token_dense") *
                             kvd_row_real(rows, i, "stored_element_bytes") /
                             kvd_row_real(rows, i, "element_bytes"),
                     stored = kvd_row_real(rows, i, "bytes_per_token_stored"),
                     read = kvd_row_real(rows, i, "bytes_per_token_read");
        const char *const method = kvd_row_text(rows, i, "method"), *const settings = kvd_row_text(
                                                                        rows, i, "settings");
        if (strcmp(method, "none") && strcmp(kvd_row_text(rows, i, "purpose"), "weights") &&
            stored >= whole && read >= whole)
            fprintf(stderr,
                    "%s: warning: '%s'%s%s: NOTHING SAVED: it stored %.6g bytes per token and read "
                    "%.6g, an uncompressed cache has %.6g\n",
                    program, method, *settings ? " with " : "", settings, stored, read, whole);
    }
}

static int evaluate(kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    if (cfg->in.resume && (kvd_inputs_add_key(&v->in, &v->saved.key, err) ||
                           kvd_run_key_add(&v->saved.key, err, "prompt", "%zu", cfg->in.prompt)))
        return -1;
    bool complete = false;
    if (cfg->in.resume &&
        kvd_inputs_find_complete(&v->in, &kvd_schema_accuracy, &v->saved.key, &complete, err))
        return -1;
    if (complete)
        return kvd_inputs_nothing_to_do(&v->in, program, err);
    if ((!cfg->in.resume && kvd_inputs_warn_saved(&v->in, ".rows", program, err)) ||
        kvd_inputs_make_points(&v->in, isnan(cfg->in.target), err) ||
        kvd_inputs_check_plans(&v->in, program, err) ||
        kvd_h5_create(&v->file, cfg->in.common.output, &kvd_schema_accuracy, &v->in.run, err) ||
        describe_file(v, err) || make_evaluator(v, err) || check_full_rank(v, err) ||
        (cfg->in.resume && take_up(v, err)) || kvd_eval_points(v, program, err) ||
        kvd_inputs_check_left(&v->in, err) || (!isnan(cfg->in.target) && kvd_eval_search(v, err)) ||
        kvd_eval_weights(v, err) || (cfg->in.by_text && write_texts(v, err)) ||
        kvd_accuracy_write(&v->file, &v->accuracy, err) || kvd_h5_finish(&v->file, err) ||
        kvd_saved_rows_remove(&v->saved, err))
        return -1;
    if (!cfg->in.common.quiet && !cfg->in.common.json)
        kvd_print_legend(kvd_accuracy_legend, &cfg->in);
    if (v->evaluator.n_sequences < KVD_BOOTSTRAP_CLUSTERS)
        fprintf(stderr,
                "%s: warning: no 95 %% intervals: they need %d sequences, and %s %zu%s with "
                "--seq-len %zu gives %zu\n",
                program, KVD_BOOTSTRAP_CLUSTERS, cfg->in.tokens ? "--tokens" : "text of",
                cfg->in.tokens ? cfg->in.tokens : v->evaluator.n_tokens,
                cfg->in.tokens ? "" : " tokens", cfg->in.seq_len, v->evaluator.n_sequences);
    warn_of_bytes(v->accuracy.rows);
    kvd_inputs_warn_left(&v->in);
    return cfg->in.common.json ? print_json(v, err) : 0;
}

static int scan(kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    const size_t runs = kvd_error_scan_runs(v->in.model);
    kvd_error_table found;
    kvd_progress progress;
    if (kvd_h5_create(&v->file, cfg->in.common.output, &kvd_schema_error_table, &v->in.run, err) ||
        make_evaluator(v, err) || check_full_rank(v, err))
        return -1;
    kvd_progress_start(&progress, "scan", "tokens", (double)v->evaluator.n_tokens * (double)runs,
                       cfg->in.common.quiet);
    int status = kvd_error_scan(&v->evaluator, &cfg->in.method[0], &v->in.info, cfg->in.cache,
                                &progress, &found, err);
    kvd_progress_end(&progress);
    if (status)
        return -1;
    status =
        kvd_spectrum_bases_hash(cfg->in.method[0].spectrum, found.pair, found.bases_hash, err) ||
        kvd_error_table_write(&v->file, &found, err) ||
        kvd_h5_put_text(&v->file, "/", "label", v->in.label, err) ||
        kvd_field_write_corpus_hash(&v->file, kvd_corpus_hash(v->in.corpus), err) ||
        kvd_h5_put_int(&v->file, "/", "n_tokens", (int64_t)v->evaluator.n_tokens, err) ||
        kvd_h5_put_int(&v->file, "/", "calibrated_on_same_text", v->in.same_text, err) ||
        kvd_h5_finish(&v->file, err);
    if (!status && cfg->in.common.json)
        printf("{\"program\": \"%s\", \"runs\": %zu, \"tokens\": %zu}\n", program, runs,
               v->evaluator.n_tokens);
    else if (!status && !cfg->in.common.quiet)
        printf("%s: %zu runs over %zu tokens, %d layers, %d KV heads, 2 pairs, %zu widths\n",
               cfg->in.common.output, runs, v->evaluator.n_tokens, found.n_layers, found.n_kv_heads,
               found.n_widths);
    kvd_error_table_release(&found);
    return status ? -1 : 0;
}

static int work(kvd_eval_run *v, kvd_err *err)
{
    const bool scans = v->cfg->scan;
    if (!kvd_eval_open_inputs(v, program, err) && !(scans ? scan(v, err) : evaluate(v, err)))
        return 0;
    return scans || !kvd_inputs_may_continue(&v->in)
               ? -1
               : kvd_in_kept(err, v->saved.n_kept, "row", v->saved.path, v->cfg->in.resume);
}

static void release(kvd_eval_run *v)
{
    kvd_h5_close(&v->file, false);
    kvd_accuracy_release(&v->accuracy);
    kvd_saved_rows_release(&v->saved);
    kvd_evaluator_release(&v->evaluator);
    if (v->runner)
        v->runner->free(v->runner);
    kvd_inputs_release(&v->in);
}

int main(int argc, char **argv)
{
    static kvd_eval_options cfg;
    static kvd_eval_run v;
    kvd_err err = {""};
    kvd_eval_parse(argc, argv, &cfg);
    v.cfg = &cfg;
    v.in.cfg = &cfg.in;
    v.in.searches = !isnan(cfg.in.target) && !cfg.points_only;
    int status = kvd_run_start(&v.in.run, program, argc, argv, &cfg.in.common, &err);
    if (!status)
        status = work(&v, &err);
    release(&v);
    kvd_eval_options_release(&cfg);
    return kvd_run_exit(program, status, &err);
}
