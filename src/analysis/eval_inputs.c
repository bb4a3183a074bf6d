/* What kvdim-eval reads before it evaluates: files, methods and their settings, the text; and what the result will say of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/eval_run.h"

/* ---- files and methods --------------------------------------------------------------------------- */

static int load_files(kvd_eval_run *v, kvd_err *err)
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

static bool has_pairs(const kvd_eval_run *v, const kvd_dims_method *m)
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

/* A method at up to cfg->sweep values of its key, behind those that are there. */
static int sweep_method(kvd_eval_options *cfg, const kvd_method *m, const char *text, kvd_err *err)
{
    kvd_method_rate rate;
    double last = NAN;
    if (kvd_method_is_none(m))
        return 0;
    if (kvd_method_rate_find(m, NULL, &rate, err))
        return -1;
    for (size_t k = 0; k < cfg->sweep; k++) {
        const double value =
            kvd_method_rate_at(&rate, cfg->sweep > 1 ? (double)k / (double)(cfg->sweep - 1) : 0.5);
        if (value <= last && value >= last)
            continue;
        if (cfg->n_methods == KVD_EVAL_METHODS)
            return kvd_fail(err, "more than %d points in a sweep", KVD_EVAL_METHODS - 1);
        last = value;
        kvd_method_set_rate(m, &rate, value, &cfg->method[cfg->n_methods]);
        cfg->method_text[cfg->n_methods++] = text;
    }
    return 0;
}

/* --sweep: the given methods, without any all of the registry that store less by themselves. */
static int sweep_methods(kvd_eval_options *cfg, kvd_err *err)
{
    static kvd_method given[KVD_EVAL_METHODS];
    static const char *text[KVD_EVAL_METHODS];
    const size_t n = cfg->n_methods;
    kvd_preset p;
    memcpy(given, cfg->method, n * sizeof *given);
    memcpy(text, cfg->method_text, n * sizeof *text);
    cfg->n_methods = 0;
    for (size_t i = 0; i < n; i++)
        if (sweep_method(cfg, &given[i], text[i], err))
            return -1;
    for (int i = 0; !n && kvd_preset_at(i, &p); i++)
        if (p.alone &&
            (kvd_method_parse(p.name, &given[0], err) || sweep_method(cfg, &given[0], p.name, err)))
            return -1;
    return 0;
}

/* The uncompressed model is what every row is read against, so it is always there, and first. */
static int settle_methods(kvd_eval_run *v, kvd_err *err)
{
    kvd_eval_options *const cfg = v->cfg;
    if (cfg->scan)
        return 0;
    if (cfg->sweep && sweep_methods(cfg, err))
        return -1;
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

static int find_sources(kvd_eval_run *v, kvd_err *err)
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
    }
    return 0;
}

int kvd_eval_make_points(kvd_eval_run *v, kvd_err *err)
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

/* ---- the text ------------------------------------------------------------------------------------ */

static int open_corpus(kvd_eval_run *v, const char *program, kvd_err *err)
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

/* ---- provenance ---------------------------------------------------------------------------------- */

static int record_inputs(kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_run *const r = &v->run;
    if (kvd_run_add_model(r, cfg->model, err))
        return -1;
    for (size_t i = 0; i < cfg->n_text; i++)
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

static int record_free(kvd_eval_run *v, kvd_err *err)
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

static int record_options(kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_run *const r = &v->run;
    char methods[500] = "", fields[200] = "", weights[40] = "";
    for (size_t i = 0; i < cfg->n_weights_bits; i++)
        snprintf(weights + strlen(weights), sizeof weights - strlen(weights), "%s%zu", i ? "," : "",
                 cfg->weights_bits[i]);
    for (size_t i = 0; i < cfg->n_field; i++) {
        const size_t used = strlen(fields);
        snprintf(fields + used, sizeof fields - used, "%s%s", i ? " " : "",
                 cfg->field[i] ? cfg->field[i] : "-");
    }
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const size_t used = strlen(methods);
        if (!i || strcmp(cfg->method_text[i], cfg->method_text[i - 1]))
            snprintf(methods + used, sizeof methods - used, "%s%s", i ? " " : "", cfg->method_text[i]);
    }
    return kvd_run_parameter(r, "method", err, "%s", methods) ||
                   kvd_run_parameter(r, "sweep", err, "%zu", cfg->sweep) ||
                   kvd_run_parameter(r, "weights-bits", err, "%s", weights) ||
                   kvd_run_parameter(r, "weights-group", err, "%zu", cfg->weights_group) ||
                   kvd_run_parameter(r, "target-key", err, "%s", cfg->target_key ? cfg->target_key : "") ||
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

/* ---- all of it --------------------------------------------------------------------------------- */

int kvd_eval_open_inputs(kvd_eval_run *v, const char *program, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    if (record_inputs(v, err))
        return -1;
    kvd_model_info_set(&v->info, v->model, cfg->model, v->run.inputs[0].hash,
                       kvd_checkpoint_dtype(v->checkpoint));
    return load_files(v, err) || settle_methods(v, err) || open_corpus(v, program, err) ||
                   find_sources(v, err) || kvd_eval_warn(v, program, err) || record_options(v, err)
               ? -1
               : 0;
}
