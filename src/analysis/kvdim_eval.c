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

#include "analysis/accuracy.h"
#include "analysis/accuracy_text.h"
#include "analysis/error_scan.h"
#include "analysis/eval_free.h"
#include "analysis/eval_options.h"
#include "analysis/seeds.h"
#include "analysis/target.h"
#include "analysis/target_difference.h"
#include "common/device.h"
#include "common/progress.h"
#include "common/run.h"
#include "formats/rows_json.h"

static const char program[] = "kvdim-eval";

/* ---- one run ---------------------------------------------------------------------------------- */

typedef struct {
    kvd_eval_options *cfg;
    kvd_run run;
    kvd_checkpoint *checkpoint;
    const kvd_config *model;
    kvd_model_info info;
    kvd_corpus *corpus;
    kvd_tokenizer *tokenizer; /* NULL: the model comes without, and ids were given */
    kvd_free_run free_run;
    char label[64];
    char gpu[256]; /* empty: the CPU runs the model */
    kvd_model_runner *runner;
    kvd_evaluator evaluator;
    kvd_spectrum spectrum[KVD_EVAL_FILES];
    kvd_rates rates[KVD_EVAL_FILES];
    kvd_error_table table;
    kvd_activations calibration;
    kvd_fisher fisher;
    kvd_point_source source[KVD_EVAL_METHODS];
    double full_rank_error[KVD_EVAL_METHODS];
    bool same_text; /* some bases come from the very text that is evaluated */
    kvd_point *point[KVD_EVAL_METHODS];
    size_t n_points[KVD_EVAL_METHODS];
    kvd_accuracy accuracy;
    size_t printed; /* rows on stdout so far */
    kvd_target target[KVD_EVAL_METHODS];
    bool searched[KVD_EVAL_METHODS];
    kvd_target *by_text; /* [n_methods][n_texts]; NULL without --by-text */
    kvd_h5 file;
} evaluation;

static int load_files(evaluation *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    for (size_t i = 0; i < cfg->n_spectra; i++)
        if (kvd_spectrum_load(&v->spectrum[i], cfg->spectrum[i], err) ||
            kvd_model_info_same(&v->info, cfg->model, &v->spectrum[i].model, cfg->spectrum[i], err))
            return -1;
    for (size_t i = 0; i < cfg->n_rates; i++)
        if (kvd_rates_load(&v->rates[i], cfg->rates[i], err) ||
            kvd_model_info_same(&v->info, cfg->model, &v->rates[i].model, cfg->rates[i], err))
            return -1;
    if (cfg->calibration &&
        (kvd_activations_open(&v->calibration, cfg->calibration, err) ||
         kvd_model_info_same(&v->info, cfg->model, &v->calibration.model, cfg->calibration, err)))
        return -1;
    if (cfg->fisher && (kvd_fisher_open(&v->fisher, cfg->fisher, err) ||
                        kvd_model_info_same(&v->info, cfg->model, &v->fisher.model, cfg->fisher, err)))
        return -1;
    if (cfg->table && (kvd_error_table_load(&v->table, cfg->table, err) ||
                       kvd_model_info_same(&v->info, cfg->model, &v->table.model, cfg->table, err)))
        return -1;
    return 0;
}

static bool has_pairs(const evaluation *v, const kvd_dims_method *m)
{
    const kvd_eval_options *const cfg = v->cfg;
    for (size_t i = 0; i < cfg->n_rates; i++)
        if (v->rates[i].pair[0] == m->pair[0] && v->rates[i].pair[1] == m->pair[1])
            return true;
    for (size_t i = 0; !cfg->n_rates && i < cfg->n_spectra; i++)
        if (v->spectrum[i].pair[m->pair[0]].present && v->spectrum[i].pair[m->pair[1]].present)
            return true;
    return false;
}

/* The uncompressed model is what every row is read against, so it is always there, and first. */
static int settle_methods(evaluation *v, kvd_err *err)
{
    kvd_eval_options *const cfg = v->cfg;
    if (cfg->scan)
        return 0;
    const bool given = cfg->n_methods > 0;
    for (int i = 0; !given && i < kvd_method_count(); i++)
        if (has_pairs(v, kvd_method_at(i)) && kvd_eval_add_method(cfg, kvd_method_at(i)->name, err))
            return -1;
    for (size_t i = 0; cfg->fisher && i < cfg->n_methods; i++)
        kvd_method_with_fisher(&cfg->method[i]);
    for (size_t i = 0; i < cfg->n_methods; i++)
        if (kvd_method_is_none(&cfg->method[i]))
            return 0;
    if (cfg->n_methods == KVD_EVAL_METHODS)
        return kvd_fail(err, "more than %d methods", KVD_EVAL_METHODS - 1);
    memmove(&cfg->method[1], &cfg->method[0], cfg->n_methods * sizeof *cfg->method);
    memmove(&cfg->method_text[1], &cfg->method_text[0], cfg->n_methods * sizeof *cfg->method_text);
    cfg->n_methods++;
    cfg->method_text[0] = "none";
    return kvd_method_parse("none", &cfg->method[0], err);
}

static int find_sources(evaluation *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    const kvd_point_files files = {v->spectrum,
                                   cfg->spectrum,
                                   cfg->n_spectra,
                                   v->rates,
                                   cfg->rates,
                                   cfg->n_rates,
                                   cfg->table ? &v->table : NULL,
                                   cfg->table};
    for (size_t i = 0; i < cfg->n_methods; i++) {
        kvd_point_source *const s = &v->source[i];
        v->full_rank_error[i] = NAN;
        if (kvd_point_source_find(s, &cfg->method[i], &files, err))
            return -1;
        if (s->spectrum && !strcmp(s->spectrum->corpus_hash, kvd_corpus_hash(v->corpus))) {
            if (!v->same_text)
                fprintf(stderr, "%s: warning: '%s' was calibrated on the very text that is evaluated\n",
                        program, s->spectrum_path);
            v->same_text = true;
        }
    }
    return 0;
}

/* Widths for other bases can be used, to see what that costs, but nobody should do it unawares. */
static int warn_of_other_bases(const evaluation *v, kvd_err *err)
{
    for (size_t i = 0; i < v->cfg->n_methods; i++) {
        const kvd_point_source *const s = &v->source[i];
        char hash[KVD_BASES_HASH];
        if (s->table && !s->table->bases_hash[0])
            fprintf(stderr, "%s: warning: '%s' does not say which bases it was measured with\n", program,
                    s->table_path);
        if (!s->rates || !isnan(s->method->p) || !isnan(s->method->r) || s->method->dims->one_p)
            continue;
        if (kvd_spectrum_bases_hash(s->spectrum, s->rates->pair, hash, err))
            return -1;
        if (s->rates->bases_hash[0] && strcmp(hash, s->rates->bases_hash))
            fprintf(stderr, "%s: warning: '%s' was fitted to other bases of %s and %s than '%s' holds\n",
                    program, s->rates_path, kvd_pair_name[s->rates->pair[0]],
                    kvd_pair_name[s->rates->pair[1]], s->spectrum_path);
    }
    return 0;
}

static int make_points(evaluation *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    for (size_t i = 0; i < cfg->n_methods; i++) {
        if (kvd_points_make(&v->source[i], &v->point[i], &v->n_points[i], err))
            return -1;
        if (!v->n_points[i] && isnan(cfg->target))
            return kvd_fail(err, "method '%s' has nothing to evaluate: give p=, r=, --rates or --target",
                            kvd_method_name(&cfg->method[i]));
    }
    return 0;
}

static int open_corpus(evaluation *v, kvd_err *err)
{
    kvd_eval_options *const cfg = v->cfg;
    const size_t longest = (size_t)v->model->max_positions;
    if (!cfg->seq_len)
        cfg->seq_len = longest < 512 ? longest : 512;
    if (cfg->seq_len > longest)
        return kvd_fail(err, "--seq-len %zu: the model was made for at most %zu positions", cfg->seq_len,
                        longest);
    if (!cfg->batch)
        cfg->batch = v->gpu[0] ? 8192 : 2048;
    if (cfg->scan && !cfg->tokens)
        cfg->tokens = 2048;
    const kvd_corpus_spec spec = {.text = cfg->text,
                                  .n_text = cfg->n_text,
                                  .field = cfg->field[0],
                                  .fields = cfg->n_field > 1 ? cfg->field : NULL,
                                  .by_text = cfg->by_text,
                                  .no_special = cfg->no_special,
                                  .ids = cfg->ids,
                                  .max_tokens = cfg->tokens,
                                  .seq_len = cfg->seq_len,
                                  .vocab_size = (size_t)v->model->vocab_size};
    if (cfg->n_text || cfg->generate) {
        char *const path = kvd_checkpoint_tokenizer_path(v->checkpoint, err);
        v->tokenizer = path ? kvd_tokenizer_open(path, spec.vocab_size, err) : NULL;
        free(path);
        if (!v->tokenizer && cfg->n_text)
            return -1;
    }
    if (!v->tokenizer && cfg->generate)
        fprintf(stderr, "%s: generated tokens are compared, their texts are not: %s\n", program, err->msg);
    v->corpus = kvd_corpus_open(&spec, v->tokenizer, err);
    if (!v->corpus)
        return -1;
    if (cfg->label)
        snprintf(v->label, sizeof v->label, "%s", cfg->label);
    else
        kvd_corpus_label(&spec, v->label, sizeof v->label);
    return 0;
}

static int record_inputs(evaluation *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_run *const r = &v->run;
    if (kvd_run_add_input(r, cfg->model, err))
        return -1;
    for (int i = 0; i < cfg->n_text; i++)
        if (kvd_run_add_input(r, cfg->text[i], err))
            return -1;
    if (cfg->ids && kvd_run_add_input(r, cfg->ids, err))
        return -1;
    for (size_t i = 0; i < cfg->n_spectra; i++)
        if (kvd_run_add_input(r, cfg->spectrum[i], err))
            return -1;
    for (size_t i = 0; i < cfg->n_rates; i++)
        if (kvd_run_add_input(r, cfg->rates[i], err))
            return -1;
    if (cfg->calibration && kvd_run_add_input(r, cfg->calibration, err))
        return -1;
    if (cfg->fisher && kvd_run_add_input(r, cfg->fisher, err))
        return -1;
    return cfg->table ? kvd_run_add_input(r, cfg->table, err) : 0;
}

static int record_free(evaluation *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_run *const r = &v->run;
    return kvd_run_parameter(r, "generate", err, "%zu", cfg->generate) ||
           kvd_run_parameter(r, "reference", err, "%s", cfg->reference ? cfg->reference : "") ||
           kvd_run_parameter(r, "needle", err, "%zu", cfg->needle) ||
           kvd_run_parameter(r, "classify", err, "%s", cfg->classify ? cfg->classify : "") ||
           kvd_run_parameter(r, "classes", err, "%s", cfg->classes ? cfg->classes : "") ||
           kvd_run_parameter(r, "ask", err, "%s", cfg->ask ? cfg->ask : "") ||
           kvd_run_parameter(r, "items", err, "%zu", cfg->items) ||
           kvd_run_parameter(r, "seeds", err, "%zu", cfg->seeds);
}

static int record_options(evaluation *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_run *const r = &v->run;
    char methods[500] = "", fields[200] = "";
    for (int i = 0; i < cfg->n_field; i++) {
        const size_t used = strlen(fields);
        snprintf(fields + used, sizeof fields - used, "%s%s", i ? " " : "",
                 cfg->field[i] ? cfg->field[i] : "-");
    }
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const size_t used = strlen(methods);
        snprintf(methods + used, sizeof methods - used, "%s%s", i ? " " : "", cfg->method_text[i]);
    }
    return kvd_run_parameter(r, "method", err, "%s", methods) ||
                   kvd_run_parameter(r, "tokens", err, "%zu", kvd_corpus_n_tokens(v->corpus)) ||
                   kvd_run_parameter(r, "seq-len", err, "%zu", cfg->seq_len) ||
                   kvd_run_parameter(r, "label", err, "%s", v->label) ||
                   kvd_run_parameter(r, "field", err, "%s", fields) ||
                   kvd_run_parameter(r, "by-text", err, "%s", cfg->by_text ? "yes" : "no") ||
                   kvd_run_parameter(r, "no-special", err, "%s", cfg->no_special ? "yes" : "no") ||
                   kvd_run_parameter(r, "target", err, "%g", cfg->target) ||
                   kvd_run_parameter(r, "points-only", err, "%s", cfg->points_only ? "yes" : "no") ||
                   kvd_run_parameter(r, "scan-errors", err, "%s", cfg->scan ? "yes" : "no") ||
                   kvd_run_parameter(r, "cache", err, "%s", kvd_dtype_name(cfg->cache)) ||
                   kvd_run_parameter(r, "device", err, "%s", v->gpu[0] ? "cuda" : "cpu") ||
                   kvd_run_parameter(r, "compute", err, "%s", kvd_dtype_name(cfg->compute)) ||
                   kvd_run_parameter(r, "batch", err, "%zu", cfg->batch) || record_free(v, err)
               ? -1
               : 0;
}

/* What --device and --compute come to. */
static int settle_device(evaluation *v, kvd_err *err)
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

static int make_runner(evaluation *v, size_t rows, kvd_err *err)
{
#ifdef KVD_CUDA
    if (v->gpu[0])
        v->runner = kvd_runner_cuda(v->checkpoint, v->cfg->compute, rows, v->cfg->seq_len, err);
    else
#endif
        v->runner = kvd_runner_cpu(v->checkpoint, rows, v->cfg->seq_len, err);
    if (!v->runner)
        return -1;
    return kvd_run_parameter(&v->run, "engine", err, "%s", v->runner->describe(v->runner));
}

static int make_evaluator(evaluation *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    const bool again = cfg->scan || !isnan(cfg->target); /* the corpus is run many times */
    size_t rows = cfg->batch > cfg->seq_len ? cfg->batch : cfg->seq_len;
    if (rows > kvd_corpus_n_tokens(v->corpus))
        rows = kvd_corpus_n_tokens(v->corpus);
    if (make_runner(v, rows, err) ||
        kvd_evaluator_init(&v->evaluator, v->runner, v->corpus, cfg->prompt, again, err))
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
static int check_full_rank(evaluation *v, kvd_err *err)
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

/* ---- rows ------------------------------------------------------------------------------------- */

static void print_new_rows(evaluation *v)
{
    const kvd_rows *const r = v->accuracy.rows;
    const bool shown = !v->cfg->common.quiet && !v->cfg->common.json;
    char line[4 * KVD_ACCURACY_LINE];
    const size_t first = v->printed;
    for (; v->printed < kvd_rows_count(r); v->printed++) {
        if (!shown)
            continue;
        if (!v->printed)
            puts(kvd_accuracy_heading);
        puts(kvd_accuracy_line(r, v->printed, line));
    }
    for (size_t i = first; shown && v->accuracy.free_columns && i < v->printed; i++)
        if (kvd_accuracy_free_line(r, i, line))
            puts(line);
    fflush(stdout);
}

static kvd_method_setup setup_of(evaluation *v, size_t i)
{
    return (kvd_method_setup){.config = v->model,
                              .spectrum = v->source[i].spectrum,
                              .calibration = v->cfg->calibration ? &v->calibration : NULL,
                              .fisher = v->cfg->fisher ? &v->fisher : NULL,
                              .seed = v->run.seed};
}

/* Point j of method i as a choice, under the k-th seed; its plan stays where it is opened. */
static int open_choice(evaluation *v, size_t i, size_t j, size_t k, kvd_choice *c, kvd_err *err)
{
    const kvd_method *const m = &v->cfg->method[i];
    const kvd_point *const p = &v->point[i][j];
    kvd_method_setup setup = setup_of(v, i);
    setup.seed += k;
    *c = (kvd_choice){.method = kvd_method_name(m),
                      .overall_p = p->overall_p,
                      .plan = {.dims = p->cut ? &p->dims : NULL,
                               .dims_low = p->low.head ? &p->low : NULL,
                               .type = v->cfg->cache,
                               .prompt = v->cfg->prompt,
                               .seed = setup.seed}};
    kvd_method_plan(m, &c->plan);
    return kvd_plan_open(&c->plan, &setup, err);
}

/* How many choices point of method i has: one for every seed if it draws. */
static size_t seeds_of(const evaluation *v, size_t i)
{
    kvd_plan plan = {.dims = NULL};
    kvd_method_plan(&v->cfg->method[i], &plan);
    return kvd_plan_draws(&plan) ? v->cfg->seeds : 1;
}

static size_t choices_of(const evaluation *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->cfg->n_methods; i++)
        n += v->n_points[i] * seeds_of(v, i);
    return n;
}

/* What runs free, and the uncompressed model's part of it. */
static int start_free(evaluation *v, kvd_progress *progress, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_free_run *const f = &v->free_run;
    if (kvd_eval_free_items(cfg, v->corpus, v->tokenizer, v->run.seed, f, err))
        return -1;
    if (v->gpu[0] && !cfg->common.quiet)
        fprintf(stderr, "%s: what runs free runs on the CPU\n", program);
    kvd_progress_start(progress, "free-running", "sequences",
                       (double)kvd_free_run_sequences(f) * (double)(choices_of(v) + 1), cfg->common.quiet);
    return kvd_free_run_init(f, v->checkpoint, v->tokenizer, cfg->batch, progress, err);
}

static int run_free(evaluation *v, kvd_choice *choice, size_t n, kvd_err *err)
{
    kvd_progress progress;
    if (!kvd_eval_runs_free(v->cfg))
        return 0;
    int status = start_free(v, &progress, err);
    for (size_t k = 0; !status && k < n; k++)
        if (kvd_free_run_plan(&v->free_run, &choice[k].plan, &choice[k].free_run, &progress, err))
            status = kvd_in(err, "free-running, method '%s'", choice[k].method);
    if (v->free_run.items[0].n_items + v->free_run.items[1].n_items + v->free_run.items[2].n_items)
        kvd_progress_end(&progress);
    return status;
}

static int add_row(evaluation *v, const char *purpose, size_t i, size_t j, const kvd_choice *c, kvd_err *err)
{
    kvd_quality_summary summary;
    return kvd_evaluator_compare(&v->evaluator, c, v->run.seed, &summary, err) ||
                   kvd_accuracy_add(&v->accuracy, purpose, &v->source[i], &v->point[i][j], c, &summary,
                                    v->full_rank_error[i], err)
               ? -1
               : 0;
}

/* The rows of one point: of several seeds the mean first. */
static int add_point(evaluation *v, size_t i, size_t j, const kvd_choice *c, size_t n, kvd_err *err)
{
    kvd_choice mean = {.method = NULL};
    if (n == 1)
        return add_row(v, "point", i, j, c, err);
    const kvd_free_run *const f = kvd_eval_runs_free(v->cfg) ? &v->free_run : NULL;
    int status = kvd_choice_mean(c, n, &v->evaluator, f, &mean, err) || add_row(v, "point", i, j, &mean, err);
    kvd_choice_release(&mean);
    for (size_t k = 0; !status && k < n; k++)
        status = add_row(v, "seed", i, j, &c[k], err);
    return status ? -1 : 0;
}

static int evaluate_choices(evaluation *v, kvd_choice *choice, size_t n, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_evaluator *const e = &v->evaluator;
    size_t k = 0;
    for (size_t i = 0; i < cfg->n_methods; i++)
        for (size_t j = 0; j < v->n_points[i]; j++)
            for (size_t s = 0; s < seeds_of(v, i); s++)
                if (open_choice(v, i, j, s, &choice[k++], err))
                    return -1;
    kvd_progress progress;
    kvd_progress_start(&progress, "eval", "tokens", (double)e->n_tokens * (double)n, cfg->common.quiet);
    const int status = kvd_evaluate(e, choice, n, 0, true, &progress, err);
    kvd_progress_end(&progress);
    if (status || run_free(v, choice, n, err) ||
        kvd_accuracy_init(&v->accuracy, v->model, v->label, e->n_sequences, e->n_tokens,
                          kvd_eval_runs_free(cfg) ? &v->free_run : NULL, cfg->seeds > 1, v->run.seed, err))
        return -1;
    k = 0;
    for (size_t i = 0; i < cfg->n_methods; i++)
        for (size_t j = 0; j < v->n_points[i]; j++, k += seeds_of(v, i))
            if (add_point(v, i, j, &choice[k], seeds_of(v, i), err))
                return -1;
    return 0;
}

static int evaluate_points(evaluation *v, kvd_err *err)
{
    const size_t n = choices_of(v);
    kvd_choice *const choice = calloc(n ? n : 1, sizeof *choice);
    if (!choice)
        return kvd_no_memory(err, "points", (unsigned long long)n * sizeof *choice);
    const int status = evaluate_choices(v, choice, n, err);
    for (size_t k = 0; k < n; k++) {
        kvd_plan_close(&choice[k].plan);
        kvd_choice_release(&choice[k]);
    }
    free(choice);
    if (!status)
        print_new_rows(v);
    return status;
}

/* ---- the search ------------------------------------------------------------------------------- */

static int on_point(void *ctx, const kvd_point_source *s, const kvd_point *point, const kvd_choice *choice,
                    const kvd_quality_summary *summary, kvd_err *err)
{
    evaluation *const v = ctx;
    const double full_rank_error = v->full_rank_error[s - v->source];
    if (kvd_accuracy_add(&v->accuracy, "target-search", s, point, choice, summary, full_rank_error, err))
        return -1;
    print_new_rows(v);
    return 0;
}

static void target_name(const kvd_method *m, char *name, size_t size)
{
    snprintf(name, size, "%s%s%s", m->dims->name, m->ranks == KVD_RANKS_EQ6 ? "" : "-",
             m->ranks == KVD_RANKS_EQ6 ? "" : kvd_ranks_name[m->ranks]);
}

/* Prints and writes what the search found for each text alone. */
static int settle_texts(evaluation *v, const char *name, const kvd_target *of_text, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    char line[2 * KVD_ACCURACY_LINE], label[64];
    for (size_t t = 0; t < v->evaluator.n_texts; t++) {
        const kvd_corpus_spec one = {.text = cfg->text + t, .n_text = 1};
        kvd_corpus_label(&one, label, sizeof label);
        if (!cfg->common.quiet && !cfg->common.json)
            printf("  %s: %s\n", label, kvd_accuracy_target_line(name, &of_text[t], line));
    }
    return kvd_accuracy_write_target_texts(&v->file, name, of_text, v->evaluator.n_texts, err);
}

/* Points of one method by rising p, whatever asked for them. */
typedef struct {
    size_t n, *row;
    double *p;
    const double **top1;
} curve;

static void curve_release(curve *c)
{
    free(c->row);
    free(c->p);
    free((void *)c->top1);
    memset(c, 0, sizeof *c);
}

static int curve_of(const evaluation *v, const kvd_method *m, curve *c, kvd_err *err)
{
    const kvd_rows *const r = v->accuracy.rows;
    const size_t rows = kvd_rows_count(r), room = rows + 1;
    const int name = kvd_rows_find(r, "method"), rule = kvd_rows_find(r, "rule"),
              p_of = kvd_rows_find(r, "overall_p"), purpose = kvd_rows_find(r, "purpose");
    const char *const ranks = m->dims->one_p ? "uniform" : kvd_ranks_name[m->ranks];
    *c = (curve){0, malloc(room * sizeof *c->row), malloc(room * sizeof *c->p),
                 malloc(room * sizeof *c->top1)};
    if (!c->row || !c->p || !c->top1) {
        curve_release(c);
        return kvd_no_memory(err, "points of a method", room * sizeof *c->p);
    }
    for (size_t i = 0; i < rows; i++) {
        const double p = kvd_rows_get_real(r, i, p_of);
        size_t at = 0;
        if (strcmp(kvd_rows_get_text(r, i, name), kvd_method_name(m)) != 0 ||
            strcmp(kvd_rows_get_text(r, i, rule), ranks) != 0 ||
            !strcmp(kvd_rows_get_text(r, i, purpose), "seed") || !(p > 0))
            continue;
        while (at < c->n && c->p[at] < p)
            at++;
        if (at < c->n && c->p[at] == p)
            continue;
        memmove(c->p + at + 1, c->p + at, (c->n - at) * sizeof *c->p);
        memmove(c->row + at + 1, c->row + at, (c->n - at) * sizeof *c->row);
        memmove((void *)(c->top1 + at + 1), (const void *)(c->top1 + at), (c->n - at) * sizeof *c->top1);
        c->p[at] = p;
        c->row[at] = i;
        c->top1[at] = v->accuracy.top1 + i * v->accuracy.n_sequences;
        c->n++;
    }
    return 0;
}

/* The answer of --points-only. */
static int read_points(evaluation *v, size_t i, kvd_err *err)
{
    const kvd_rows *const r = v->accuracy.rows;
    curve c;
    if (curve_of(v, &v->cfg->method[i], &c, err))
        return -1;
    kvd_target_sample *const sample = malloc((c.n + 1) * sizeof *sample);
    if (!sample) {
        curve_release(&c);
        return kvd_no_memory(err, "points of a method", (c.n + 1) * sizeof *sample);
    }
    sample[0] = (kvd_target_sample){0, {1, 1, 1}};
    for (size_t k = 0; k < c.n; k++)
        sample[k + 1] =
            (kvd_target_sample){c.p[k],
                                {kvd_rows_get_real(r, c.row[k], kvd_rows_find(r, "top1_share")),
                                 kvd_rows_get_real(r, c.row[k], kvd_rows_find(r, "top1_share_lo")),
                                 kvd_rows_get_real(r, c.row[k], kvd_rows_find(r, "top1_share_hi"))}};
    kvd_target_read(sample, c.n + 1, v->cfg->target, &v->target[i]);
    free(sample);
    curve_release(&c);
    return 0;
}

/* How much further method i keeps the target than the first method that was searched. */
static int compare_targets(evaluation *v, size_t first, size_t i, const char *name, kvd_err *err)
{
    const kvd_evaluator *const e = &v->evaluator;
    const size_t all[2] = {0, e->n_sequences};
    double *const reference = malloc(e->n_sequences * sizeof *reference);
    curve a = {0}, b = {0};
    kvd_target_difference_result d;
    char versus[64];
    int status = -1;
    if (!reference) {
        kvd_no_memory(err, "predictions of the uncompressed model", e->n_sequences * sizeof *reference);
        goto done;
    }
    for (size_t s = 0; s < e->n_sequences; s++)
        reference[s] = e->reference[s].top1;
    if (curve_of(v, &v->cfg->method[first], &a, err) || curve_of(v, &v->cfg->method[i], &b, err))
        goto done;
    const kvd_target_curve ca = {a.n, a.p, a.top1}, cb = {b.n, b.p, b.top1};
    if (kvd_target_difference(&ca, &cb, reference, e->n_texts ? e->text_first : all,
                              e->n_texts ? e->n_texts : 1, v->cfg->target, v->run.seed, &d, err))
        goto done;
    target_name(&v->cfg->method[first], versus, sizeof versus);
    if (!v->cfg->common.quiet && !v->cfg->common.json)
        printf("%s against %s: p = %.4f [%.4f, %.4f] against %.4f [%.4f, %.4f], %+.4f [%+.4f, %+.4f]\n", name,
               versus, d.b.value, d.b.lo, d.b.hi, d.a.value, d.a.lo, d.a.hi, d.difference.value,
               d.difference.lo, d.difference.hi);
    status = kvd_accuracy_write_difference(&v->file, name, versus, &d, err);
done:
    curve_release(&a);
    curve_release(&b);
    free(reference);
    return status;
}

static int search_one(evaluation *v, size_t i, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    const kvd_method *const m = &cfg->method[i];
    const kvd_method_setup setup = setup_of(v, i);
    kvd_target *const of_text =
        v->by_text && !cfg->points_only ? v->by_text + i * v->evaluator.n_texts : NULL;
    char name[64], line[2 * KVD_ACCURACY_LINE];
    if (cfg->points_only ? read_points(v, i, err)
                         : kvd_target_search(&v->evaluator, &v->source[i], &setup, cfg->cache, cfg->target,
                                             v->run.seed, on_point, v, &v->target[i], of_text, err))
        return -1;
    target_name(m, name, sizeof name);
    v->searched[i] = true;
    if (!cfg->common.quiet && !cfg->common.json)
        puts(kvd_accuracy_target_line(name, &v->target[i], line));
    return kvd_accuracy_write_target(&v->file, name, m->dims->one_p ? "uniform" : kvd_ranks_name[m->ranks],
                                     &v->target[i], err) ||
                   (of_text && settle_texts(v, name, of_text, err))
               ? -1
               : 0;
}

static int search_targets(evaluation *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    size_t first = cfg->n_methods;
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const kvd_method *const m = &cfg->method[i];
        char name[64];
        bool again = !m->dims;
        for (size_t j = 0; j < i; j++)
            again = again || (cfg->method[j].dims == m->dims && cfg->method[j].ranks == m->ranks);
        if (again)
            continue;
        if (search_one(v, i, err))
            return -1;
        target_name(m, name, sizeof name);
        if (first == cfg->n_methods)
            first = i;
        else if (v->evaluator.n_sequences > 1 && compare_targets(v, first, i, name, err))
            return -1;
    }
    return 0;
}

/* ---- results ---------------------------------------------------------------------------------- */

static int print_json(const evaluation *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    json_t *const targets = json_object();
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const kvd_target *const t = &v->target[i];
        char name[64];
        if (!v->searched[i])
            continue;
        target_name(&cfg->method[i], name, sizeof name);
        json_object_set_new(targets, name, kvd_accuracy_target_json(t));
    }
    json_t *const all = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:o, s:o}", "program", program, "output",
                                  cfg->common.output, "model", v->info.name, "label", v->label, "engine",
                                  v->runner->describe(v->runner), "calibrated_on_same_text", v->same_text,
                                  "rows", kvd_rows_json(v->accuracy.rows), "target", targets);
    const int failed =
        !all || json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) || puts("") < 0;
    json_decref(all);
    return failed ? kvd_fail(err, "cannot write the JSON summary") : 0;
}

static int describe_gpu(evaluation *v, kvd_err *err)
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

static int describe_file(evaluation *v, kvd_err *err)
{
    kvd_h5 *const f = &v->file;
    return describe_gpu(v, err) || kvd_model_info_write(f, &v->info, err) ||
                   kvd_h5_put_text(f, "/", "label", v->label, err) ||
                   kvd_h5_put_text(f, "/", "corpus_hash", kvd_corpus_hash(v->corpus), err) ||
                   kvd_h5_put_int(f, "/", "n_tokens", (int64_t)kvd_corpus_n_tokens(v->corpus), err) ||
                   kvd_h5_put_int(f, "/", "seq_len", (int64_t)v->cfg->seq_len, err) ||
                   kvd_h5_put_int(f, "/", "calibrated_on_same_text", v->same_text, err)
               ? -1
               : 0;
}

/* Which sequences are whose: /texts/label, /texts/n_sequences. */
static int write_texts(evaluation *v, kvd_err *err)
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

static int evaluate(evaluation *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    if (make_points(v, err) ||
        kvd_h5_create(&v->file, cfg->common.output, &kvd_schema_accuracy, &v->run, err) ||
        describe_file(v, err) || make_evaluator(v, err) || check_full_rank(v, err) || evaluate_points(v, err))
        return -1;
    const size_t answers = cfg->n_methods * v->evaluator.n_texts;
    if (cfg->by_text && !(v->by_text = calloc(answers, sizeof *v->by_text)))
        return kvd_no_memory(err, "targets of the texts", answers * sizeof *v->by_text);
    if (!isnan(cfg->target) && search_targets(v, err))
        return -1;
    if (cfg->by_text && write_texts(v, err))
        return -1;
    if (kvd_accuracy_write(&v->file, &v->accuracy, err) || kvd_h5_finish(&v->file, err))
        return -1;
    return cfg->common.json ? print_json(v, err) : 0;
}

static int scan(evaluation *v, kvd_err *err)
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
    int status = kvd_error_scan(&v->evaluator, &v->source[0], &v->info, &progress, &found, err);
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

static int work(evaluation *v, kvd_err *err)
{
    kvd_eval_options *const cfg = v->cfg;
    if (settle_device(v, err) || !(v->checkpoint = kvd_checkpoint_open(cfg->model, err)))
        return -1;
    v->model = kvd_checkpoint_config(v->checkpoint);
    if (record_inputs(v, err))
        return -1;
    kvd_model_info_set(&v->info, v->model, cfg->model, v->run.inputs[0].hash,
                       kvd_checkpoint_dtype(v->checkpoint));
    if (load_files(v, err) || settle_methods(v, err) || open_corpus(v, err) || find_sources(v, err) ||
        warn_of_other_bases(v, err) || record_options(v, err))
        return -1;
    return cfg->scan ? scan(v, err) : evaluate(v, err);
}

static void release(evaluation *v)
{
    kvd_h5_close(&v->file, false);
    kvd_accuracy_release(&v->accuracy);
    kvd_evaluator_release(&v->evaluator);
    if (v->runner)
        v->runner->free(v->runner);
    for (size_t i = 0; i < KVD_EVAL_METHODS; i++)
        kvd_points_free(v->point[i], v->n_points[i]);
    for (size_t i = 0; i < KVD_EVAL_FILES; i++) {
        kvd_spectrum_release(&v->spectrum[i]);
        kvd_rates_release(&v->rates[i]);
    }
    free(v->by_text);
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
    static kvd_eval_options cfg = {.common = {.seed = 1}, .target = NAN, .seeds = 1, .cache = KVD_F32};
    static evaluation v;
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
