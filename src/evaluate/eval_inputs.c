/* Opens kvdim-eval's model, texts, calibration files, and the code that runs the model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "evaluate/eval_run.h"
#include "model/checkpoint/weights.h"

static int record_options(kvd_eval_run *v, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_run *const r = &v->in.run;
    char methods[500], fields[200], weights[40] = "";
    for (size_t i = 0; i < cfg->n_weights_bits; i++)
        snprintf(weights + strlen(weights), sizeof weights - strlen(weights), "%s%zu", i ? "," : "",
                 cfg->weights_bits[i]);
    kvd_inputs_fields_text(&cfg->in, fields, sizeof fields);
    kvd_inputs_methods_text(&cfg->in, methods, sizeof methods);
    return kvd_run_parameter(r, "method", err, "%s", methods) ||
           kvd_run_parameter(r, "sweep", err, "%zu", cfg->in.sweep) ||
           kvd_run_parameter(r, "weights-bits", err, "%s", weights) ||
           kvd_run_parameter(r, "weights-group", err, "%zu", cfg->weights_group) ||
           kvd_run_parameter(r, "target-key", err, "%s",
                             cfg->in.target_key ? cfg->in.target_key : "") ||
           kvd_run_parameter(r, "tokens", err, "%zu", kvd_corpus_n_tokens(v->in.corpus)) ||
           kvd_run_parameter(r, "seq-len", err, "%zu", cfg->in.seq_len) ||
           kvd_run_parameter(r, "label", err, "%s", v->in.label) ||
           kvd_run_parameter(r, "field", err, "%s", fields) ||
           kvd_run_parameter(r, "by-text", err, "%s", cfg->in.by_text ? "yes" : "no") ||
           kvd_run_parameter(r, "no-special", err, "%s", cfg->in.no_special ? "yes" : "no") ||
           kvd_run_parameter(r, "target", err, "%g", cfg->in.target) ||
           kvd_run_parameter(r, "points-only", err, "%s", cfg->points_only ? "yes" : "no") ||
           kvd_run_parameter(r, "scan-errors", err, "%s", cfg->scan ? "yes" : "no") ||
           kvd_run_parameter(r, "cache", err, "%s", kvd_dtype_name(cfg->in.cache)) ||
           kvd_run_parameter(r, "device", err, "%s", v->in.run.gpu[0] ? "cuda" : "cpu") ||
           kvd_run_parameter(r, "compute", err, "%s", kvd_dtype_name(cfg->in.compute)) ||
           kvd_run_parameter(r, "batch", err, "%zu", cfg->in.batch) ||
           kvd_run_parameter(r, "seeds", err, "%zu", cfg->in.seeds);
}

static int open_texts(kvd_eval_run *v, const char *program, kvd_err *err)
{
    kvd_eval_options *const cfg = v->cfg;
    if (cfg->scan && !cfg->in.tokens)
        cfg->in.tokens = 2048;
    return (cfg->in.n_text && kvd_inputs_open_tokenizer(&v->in, program, err)) ||
           kvd_inputs_open_corpus(&v->in, err);
}

int kvd_eval_open_inputs(kvd_eval_run *v, const char *program, kvd_err *err)
{
    for (size_t i = 0; i < KVD_EVAL_METHODS; i++)
        v->full_rank_error[i] = NAN;
    return kvd_status(kvd_inputs_open(&v->in, err) ||
                      (!v->cfg->scan && kvd_inputs_resolve_methods(&v->in, err)) ||
                      open_texts(v, program, err) || kvd_inputs_find_files(&v->in, err) ||
                      kvd_inputs_warn(&v->in, program, err) || record_options(v, err));
}

static void name_row(int bits, size_t group, kvd_method *m)
{
    kvd_err none;
    (void)kvd_method_parse("none", m, &none);
    snprintf(m->name, sizeof m->name, "weights-%dbit", bits);
    snprintf(m->settings, sizeof m->settings, "weights.bits=%d,weights.group=%zu", bits, group);
}

static int evaluate(kvd_eval_run *v, const kvd_method *m, kvd_model_runner *runner, double bytes,
                    kvd_err *err)
{
    const kvd_point point = {
        .method = m, .rule = "none", .removal_rate = NAN, .p_wanted = NAN, .low_p = {NAN, NAN}};
    kvd_choice c = {
        .method = m->name,
        .runner = runner,
        .weight_bytes = bytes,
        .plan = {.type = v->cfg->in.cache, .prompt = v->cfg->in.prompt, .seed = v->in.run.seed},
    };
    kvd_quality_summary summary;
    const int status = kvd_evaluate(&v->evaluator, &c, 1, 0, false, NULL, err) ||
                       kvd_evaluator_compare(&v->evaluator, &c, v->in.run.seed, &summary, err) ||
                       kvd_accuracy_add(&v->accuracy, "weights", &point, &c, &summary, NAN, err);
    kvd_choice_release(&c);
    return status ? -1 : 0;
}

static int one(kvd_eval_run *v, int bits, kvd_err *err)
{
    const kvd_eval_options *const cfg = v->cfg;
    kvd_method m;
    double bytes;
    kvd_checkpoint *const few = kvd_checkpoint_open(cfg->in.model, err);
    kvd_model_runner *runner = NULL;
    int status = -1;
    name_row(bits, cfg->weights_group, &m);
    if (few) {
        kvd_checkpoint_quantise(few, bits, cfg->weights_group);
        status = kvd_weights_bytes(few, &bytes, err) || !(runner = kvd_eval_runner(v, few, err)) ||
                         evaluate(v, &m, runner, bytes, err)
                     ? -1
                     : 0;
    }
    if (runner)
        runner->free(runner);
    kvd_checkpoint_close(few);
    return status ? kvd_in(err, "weights of %d bits", bits) : 0;
}

int kvd_eval_weights(kvd_eval_run *v, kvd_err *err)
{
    for (size_t i = 0; i < v->cfg->n_weights_bits; i++)
        if (one(v, (int)v->cfg->weights_bits[i], err))
            return -1;
    if (v->cfg->n_weights_bits)
        kvd_eval_print_new_rows(v);
    return 0;
}
