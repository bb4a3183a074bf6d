#include "evaluate/inputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/blas.h"
#include "common/device.h"
#include "common/json.h"
#include "methods/grid.h"
#include "methods/prompts.h"
#include "model/model_info.h"

/* Adds the compression method that an option --method gives as `text`, which must outlive *cfg. */
static int add_method(kvd_inputs_options *cfg, const char *text, kvd_err *err)
{
    if (cfg->n_methods == KVD_EVAL_METHODS)
        return kvd_fail(err, "more than %d methods", (int)KVD_EVAL_METHODS);
    cfg->method_text[cfg->n_methods] = text;
    return kvd_method_parse(text, &cfg->method[cfg->n_methods++], err);
}

int kvd_inputs_call_method(void *config, const char *spec, kvd_err *err)
{
    kvd_inputs_options *const cfg = config;
    size_t i = cfg->n_own;
    if (kvd_methods_add(spec, NULL, cfg->own_text, &cfg->n_own, KVD_EVAL_METHODS, err))
        return -1;
    for (; i < cfg->n_own; i++)
        if (add_method(cfg, cfg->own_text[i], err))
            return -1;
    return 0;
}

/* Stores the argument of an option --field: a JSON key or CSV column. An empty argument means plain
 * text and is stored as NULL. */
int kvd_inputs_call_field(void *config, const char *text, kvd_err *err)
{
    kvd_inputs_options *const cfg = config;
    if (cfg->n_field == KVD_EVAL_TEXTS)
        return kvd_fail(err, "--field: more than %d are given", KVD_EVAL_TEXTS);
    cfg->field[cfg->n_field++] = *text ? text : NULL;
    return 0;
}

void kvd_inputs_options_release(kvd_inputs_options *cfg)
{
    while (cfg->n_own)
        free(cfg->own_text[--cfg->n_own]);
}

int kvd_inputs_check_ranks(const kvd_inputs_options *cfg, kvd_err *err)
{
    for (size_t i = 0; i < cfg->n_methods; i++)
        if (cfg->method[i].ranks != KVD_WIDTH_RULE_EQ6 && !kvd_method_has_point(&cfg->method[i]))
            return kvd_fail(
                err, "--method %s: ranks requires p, r or --target; a rates file has its own",
                cfg->method_text[i]);
    return 0;
}

int kvd_inputs_check_sweep(const kvd_inputs_options *cfg, kvd_err *err)
{
    size_t tried = 0;
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const kvd_method *const m = &cfg->method[i];
        kvd_method_tradeoff rate;
        if (kvd_method_is_none(m))
            continue;
        tried++;
        if (kvd_method_tradeoff_find(m, NULL, &rate, err))
            return -1;
        if (kvd_method_tradeoff_given(m, &rate))
            return kvd_fail(err, "--sweep tries values of %s, of which --method %s gives one",
                            rate.name, cfg->method_text[i]);
        if (rate.p && kvd_method_has_sides(m))
            return kvd_fail(err, "--sweep takes one p for both pairs, --method %s has one for each",
                            cfg->method_text[i]);
    }
    if (cfg->n_methods && !tried)
        return kvd_fail(err, "--sweep of nothing: the uncompressed model has no key that trades "
                             "bytes for quality");
    return 0;
}

/* Appends up to cfg->sweep copies of a method, each with another value of the parameter that sets
 * its strength of compression. */
static int sweep_method(kvd_inputs_options *cfg, const kvd_method *m, const char *text,
                        kvd_err *err)
{
    kvd_method_tradeoff rate;
    double last = NAN;
    if (kvd_method_is_none(m))
        return 0;
    if (kvd_method_tradeoff_find(m, NULL, &rate, err))
        return -1;
    for (size_t k = 0; k < cfg->sweep; k++) {
        const double value = kvd_method_tradeoff_at(
            &rate, cfg->sweep > 1 ? (double)k / (double)(cfg->sweep - 1) : 0.5);
        if (value <= last && value >= last)
            continue;
        if (cfg->n_methods == KVD_EVAL_METHODS)
            return kvd_fail(err, "more than %d points in a sweep", KVD_EVAL_METHODS - 1);
        last = value;
        kvd_method_tradeoff_set(m, &rate, value, &cfg->method[cfg->n_methods]);
        cfg->method_text[cfg->n_methods++] = text;
    }
    return 0;
}

/* Replaces each compression method by copies with different values of the parameter that --sweep
 * varies. Without option --method, adds such copies of every method that saves bytes. */
static int sweep_methods(kvd_inputs_options *cfg, kvd_err *err)
{
    static kvd_method given[KVD_EVAL_METHODS];
    static const char *text[KVD_EVAL_METHODS];
    const size_t n = cfg->n_methods;
    kvd_method_entry p;
    memcpy(given, cfg->method, n * sizeof *given);
    memcpy(text, cfg->method_text, n * sizeof *text);
    cfg->n_methods = 0;
    for (size_t i = 0; i < n; i++)
        if (sweep_method(cfg, &given[i], text[i], err))
            return -1;
    for (int i = 0; !n && kvd_method_entry_at(i, &p); i++)
        if (p.alone && (p.dims || p.info->tradeoff) &&
            (kvd_method_parse(p.info->name, &given[0], err) ||
             sweep_method(cfg, &given[0], p.info->name, err)))
            return -1;
    return 0;
}

static int resolve_device(kvd_inputs *in, kvd_err *err)
{
    kvd_inputs_options *const cfg = in->cfg;
    char gpu[128];
    if (kvd_device_resolve(&cfg->common, gpu, sizeof gpu, err))
        return -1;
    kvd_device_note(gpu, &in->run);
    if (cfg->compute != KVD_F32 && !*gpu)
        return kvd_fail(err, "--compute %s needs a GPU, and this run has none",
                        kvd_dtype_name(cfg->compute));
    if (!cfg->cache_given)
        cfg->cache = cfg->compute;
    if (!cfg->batch)
        cfg->batch = *gpu ? 8192 : 2048;
    return 0;
}

int kvd_inputs_open_model(kvd_inputs *in, kvd_err *err)
{
    if (!(in->checkpoint = kvd_checkpoint_open(in->cfg->model, err)))
        return -1;
    in->model = kvd_checkpoint_config(in->checkpoint);
    return 0;
}

static int record(kvd_inputs *in, kvd_err *err)
{
    const kvd_inputs_options *const cfg = in->cfg;
    kvd_run *const r = &in->run;
    return kvd_run_add_model(r, cfg->model, err) ||
           kvd_run_add_inputs(r, cfg->text, cfg->n_text, err) ||
           kvd_run_add_inputs(r, &cfg->ids, 1, err) ||
           kvd_method_paths_add_inputs(&cfg->files, r, err) ||
           kvd_methods_add_inputs(cfg->method, cfg->n_methods, r, err);
}

static int load(kvd_inputs *in, kvd_err *err)
{
    const kvd_inputs_options *const cfg = in->cfg;
    kvd_model_info_set(&in->info, in->model, cfg->model, in->run.inputs[0].hash,
                       kvd_checkpoint_dtype(in->checkpoint));
    return kvd_method_files_load(&in->files, &cfg->files, &in->info, cfg->model, err);
}

int kvd_inputs_open(kvd_inputs *in, kvd_err *err)
{
    return kvd_status(resolve_device(in, err) || kvd_inputs_open_model(in, err) ||
                      record(in, err) || load(in, err));
}

static bool has_pairs(const kvd_inputs *in, const kvd_dims_method *m)
{
    const kvd_inputs_options *const cfg = in->cfg;
    for (size_t i = 0; i < cfg->files.n_rates; i++)
        if (in->files.rates[i].pair[0] == m->pair[0] && in->files.rates[i].pair[1] == m->pair[1])
            return true;
    for (size_t i = 0; !cfg->files.n_rates && i < cfg->files.n_spectra; i++)
        if (in->files.spectrum[i].pair[m->pair[0]].present &&
            in->files.spectrum[i].pair[m->pair[1]].present)
            return true;
    return false;
}

int kvd_inputs_resolve_methods(kvd_inputs *in, kvd_err *err)
{
    kvd_inputs_options *const cfg = in->cfg;
    const bool given = cfg->n_methods > 0 || cfg->sweep;
    kvd_method_entry e;
    if (cfg->sweep && sweep_methods(cfg, err))
        return -1;
    for (int i = 0; !given && kvd_method_entry_at(i, &e); i++)
        if (e.dims && has_pairs(in, e.dims) && add_method(cfg, e.info->name, err))
            return -1;
    for (size_t i = 0; cfg->files.fisher && i < cfg->n_methods; i++)
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

int kvd_inputs_find_files(kvd_inputs *in, kvd_err *err)
{
    kvd_inputs_options *const cfg = in->cfg;
    for (size_t i = 0; i < cfg->n_methods; i++)
        if (kvd_method_find_files(&cfg->method[i], &in->files, err))
            return -1;
    return 0;
}

int kvd_inputs_make_points(kvd_inputs *in, bool none_is_error, kvd_err *err)
{
    const kvd_inputs_options *const cfg = in->cfg;
    for (size_t i = 0; i < cfg->n_methods; i++) {
        if (kvd_points_make(&cfg->method[i], &in->point[i], &in->n_points[i], err))
            return -1;
        if (!in->n_points[i] && none_is_error)
            return kvd_fail(err,
                            "method '%s' has nothing to evaluate: give p=, r=, --rates or --target",
                            kvd_method_name(&cfg->method[i]));
    }
    return 0;
}

/* Fills *plan with the compression method and parameter values of `p` and the k-th random seed.
 * Returns the arguments with which to open *plan. */
static kvd_method_setup make_plan(kvd_inputs *in, const kvd_point *p, size_t k, kvd_plan *plan)
{
    const kvd_method_setup setup = {.config = in->model,
                                    .model = &in->info,
                                    .model_path = in->cfg->model,
                                    .checkpoint = in->checkpoint,
                                    .spectrum = p->method->spectrum,
                                    .calibration =
                                        in->cfg->files.calibration ? &in->files.calibration : NULL,
                                    .fisher = in->cfg->files.fisher ? &in->files.fisher : NULL,
                                    .seed = in->run.seed + k};
    *plan = kvd_point_plan(p);
    plan->type = in->cfg->cache;
    plan->prompt =
        in->cfg->generates && !in->cfg->prompt ? KVD_PROMPT_OF_SEQUENCE : in->cfg->prompt;
    plan->seed = setup.seed;
    return setup;
}

static int check_plan(void *ctx, const kvd_point *p, kvd_err *err)
{
    kvd_inputs *const in = ctx;
    kvd_plan plan = {0};
    const kvd_method_setup setup = make_plan(in, p, 0, &plan);
    if (!kvd_plan_check(&plan, &setup, err))
        return 0;
    in->unsuited = true;
    return kvd_in(err, "method '%s'", kvd_method_name(p->method));
}

/* Returns true if --sweep still has a parameter value at which to evaluate method i. Values that
 * the method cannot take have been removed. */
static bool has_points(const kvd_inputs *in, size_t i)
{
    bool found = false;
    for (size_t k = 0; k < in->cfg->n_methods && !found; k++)
        found = in->cfg->method_text[k] == in->cfg->method_text[i] && in->n_points[k] > 0;
    return found;
}

int kvd_inputs_check_plans(kvd_inputs *in, const char *program, kvd_err *err)
{
    const kvd_inputs_options *const cfg = in->cfg;
    for (size_t i = 0; i < cfg->n_methods; i++)
        if (!in->n_points[i] && in->searches && !kvd_method_is_none(&cfg->method[i]) &&
            kvd_target_check_value(&cfg->method[i], cfg->target_key, check_plan, in, err))
            return -1;
    for (size_t i = 0; i < cfg->n_methods; i++)
        for (size_t j = 0; j < in->n_points[i]; j++)
            if (check_plan(in, &in->point[i][j], err) &&
                (!cfg->sweep || kvd_inputs_leave_out(in, i, program, err)))
                return -1;
    for (size_t i = 0; i < cfg->n_methods; i++)
        if (in->left_out[i] && !has_points(in, i))
            return kvd_fail(err, "--sweep: no value is left of a method: %s", in->left_out[i]);
    return 0;
}

/* Returns true if at least one compression method other than method i remains in the run. */
static bool has_others(const kvd_inputs *in, size_t i)
{
    bool found = false;
    for (size_t k = 0; k < in->cfg->n_methods && !found; k++)
        found = k != i && !in->left_out[k] && !kvd_method_is_none(&in->cfg->method[k]);
    return found;
}

int kvd_inputs_leave_out(kvd_inputs *in, size_t i, const char *program, kvd_err *err)
{
    const kvd_method *const m = &in->cfg->method[i];
    const bool searched = in->inert && in->searches && !in->cfg->sweep;
    kvd_method_tradeoff rate;
    kvd_err unused;
    if (!in->unsuited || kvd_method_is_none(m) || (!in->cfg->sweep && !in->inert) ||
        (in->cfg->sweep ? kvd_method_tradeoff_find(m, NULL, &rate, &unused)
                        : !searched && !has_others(in, i)))
        return -1;
    in->inert = in->unsuited = false;
    if (in->cfg->sweep)
        fprintf(stderr, "%s: warning: %s=%.6g is left out of the sweep: %s\n", program, rate.name,
                kvd_method_tradeoff_value(m, &rate), err->msg);
    else
        fprintf(stderr, "%s: warning: '%s' is left out: %s\n", program,
                m->settings[0] ? m->settings : kvd_method_name(m), err->msg);
    if (searched)
        return 0;
    if (!(in->left_out[i] = strdup(err->msg)))
        return kvd_no_memory(err, "a message", strlen(err->msg));
    kvd_points_free(in->point[i], in->n_points[i]);
    in->point[i] = NULL;
    in->n_points[i] = 0;
    return 0;
}

int kvd_inputs_check_left(const kvd_inputs *in, kvd_err *err)
{
    const char *why = NULL;
    for (size_t i = 0; i < in->cfg->n_methods; i++)
        if (in->left_out[i])
            why = in->left_out[i];
    return why && !has_others(in, in->cfg->n_methods)
               ? kvd_fail(err, "--sweep: no value is left of a method: %s", why)
               : 0;
}

void kvd_inputs_warn_left(const kvd_inputs *in)
{
    const kvd_inputs_options *const cfg = in->cfg;
    size_t n = 0, n_compressed = 0;
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const bool first = !i || cfg->method_text[i] != cfg->method_text[i - 1];
        n_compressed += !kvd_method_is_none(&cfg->method[i]);
        n += in->left_out[i] != NULL;
        if (cfg->sweep && first && in->left_out[i] && !has_points(in, i))
            fprintf(stderr, "%s: warning: no value is left of a method: %s\n", in->run.program,
                    in->left_out[i]);
    }
    if (n && !cfg->sweep)
        fprintf(stderr, "%s: warning: %zu of %zu methods %s left out, see above\n", in->run.program,
                n, n_compressed, n > 1 ? "were" : "was");
}

int kvd_inputs_pass_value(kvd_inputs *in, const kvd_method_target *t, const kvd_point *point,
                          kvd_target_sample *out, kvd_err *err)
{
    if (!in->inert)
        return -1;
    in->inert = in->unsuited = false;
    out->inert = true;
    fprintf(stderr, "%s: warning: %s=%.6g is left out of the search: %s\n", in->run.program,
            t->rate.name,
            t->rate.p ? point->overall_p : kvd_method_tradeoff_value(point->method, &t->rate),
            err->msg);
    return 0;
}

int kvd_inputs_end_search(kvd_inputs *in, kvd_method_target *t, int status, kvd_err *err)
{
    if (!status && t->found.n_points)
        return 0;
    if (!status)
        kvd_fail(err, "method '%s': no value of %s changes a cached token",
                 kvd_method_name(t->method), t->rate.name);
    else
        return -1;
    t->failed = true;
    fprintf(stderr, "%s: warning: '%s' is not searched: %s\n", in->run.program, t->name, err->msg);
    return 0;
}

int kvd_inputs_check_searched(kvd_inputs *in, const kvd_method_target *t, size_t n, kvd_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (!t[i].failed)
            return 0;
    in->unsuited = n > 0;
    return n ? kvd_in(err, "--target: no method is left to search") : 0;
}

bool kvd_inputs_may_continue(const kvd_inputs *in)
{
    kvd_err unused;
    return !in->unsuited && !kvd_inputs_check_left(in, &unused);
}

int kvd_inputs_check_prompts(kvd_inputs *in, const size_t *at, size_t n, size_t max_len,
                             const char *program, kvd_err *err)
{
    for (size_t i = 0; i < in->cfg->n_methods; i++)
        for (size_t s = 0; s < n && !in->left_out[i]; s++)
            if (kvd_prompts_check(&in->cfg->method[i].plan, in->model, s, at[s + 1] - at[s],
                                  max_len, err)) {
                in->unsuited = true;
                if (!in->cfg->sweep || kvd_inputs_leave_out(in, i, program, err))
                    return -1;
            }
    return 0;
}

int kvd_inputs_open_plan(kvd_inputs *in, const kvd_point *p, size_t k, kvd_plan *plan, kvd_err *err)
{
    const kvd_method_setup setup = make_plan(in, p, k, plan);
    if (!kvd_plan_open(plan, &setup, err))
        return 0;
    in->unsuited = true;
    return -1;
}

int kvd_inputs_open_tokenizer(kvd_inputs *in, const char *program, kvd_err *err)
{
    in->tokenizer = kvd_model_tokenizer(in->checkpoint, program, err);
    return in->tokenizer ? 0 : -1;
}

int kvd_inputs_open_corpus(kvd_inputs *in, kvd_err *err)
{
    kvd_inputs_options *const cfg = in->cfg;
    if (kvd_model_seq_len(in->model, &cfg->seq_len, err))
        return -1;
    const kvd_corpus_spec spec = {.text = cfg->text,
                                  .n_text = cfg->n_text,
                                  .field = cfg->field[0],
                                  .fields = cfg->n_field > 1 ? cfg->field : NULL,
                                  .by_text = cfg->by_text,
                                  .no_special = cfg->no_special,
                                  .ids = cfg->ids,
                                  .max_tokens = cfg->tokens,
                                  .seq_len = cfg->seq_len,
                                  .vocab_size = (size_t)in->model->vocab_size};
    kvd_corpus_label(&spec, cfg->label, in->label, sizeof in->label);
    in->corpus = kvd_corpus_open(&spec, in->tokenizer, err);
    return in->corpus ? 0 : -1;
}

void kvd_inputs_methods_text(const kvd_inputs_options *cfg, char *text, size_t size)
{
    *text = '\0';
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const size_t used = strlen(text);
        if (!i || strcmp(cfg->method_text[i], cfg->method_text[i - 1]))
            snprintf(text + used, size - used, "%s%s", i ? " " : "", cfg->method_text[i]);
    }
}

void kvd_inputs_fields_text(const kvd_inputs_options *cfg, char *text, size_t size)
{
    *text = '\0';
    for (size_t i = 0; i < cfg->n_field; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", i ? " " : "",
                 cfg->field[i] ? cfg->field[i] : "-");
    }
}

/* Warns if the calibration text is also the evaluated text or begins as it does. Fails if these two
 * texts differ but have the same label. */
static int check_text(kvd_inputs *in, const char *program, const kvd_named_text *calibration,
                      kvd_err *err)
{
    const kvd_inputs_options *const cfg = in->cfg;
    if (!in->corpus)
        return 0;
    const kvd_named_text text = {.path = cfg->ids ? cfg->ids : cfg->text[0],
                                 .label = in->label,
                                 .hash = kvd_corpus_hash(in->corpus),
                                 .n_tokens = kvd_corpus_n_tokens(in->corpus),
                                 .seq_len = cfg->seq_len};
    if (kvd_named_texts_agree(calibration, &text, err))
        return -1;
    const bool same = kvd_corpus_hash_same(calibration->hash, text.hash);
    if (!same && !kvd_corpus_hash_begins_alike(calibration->hash, text.hash))
        return 0;
    if (!in->same_text)
        fprintf(stderr, "%s: warning: '%s' was calibrated on %s\n", program, calibration->path,
                same ? "the very text that is evaluated"
                     : "a text with the same first 256 bytes as the text that is evaluated");
    in->same_text = true;
    return 0;
}

static int check_texts(kvd_inputs *in, const char *program, const kvd_method *m, kvd_err *err)
{
    const kvd_inputs_options *const cfg = in->cfg;
    const kvd_spectrum *const s = m->spectrum;
    const kvd_activations *const a = &in->files.calibration;
    const kvd_fisher *const f = &in->files.fisher;
    kvd_named_text of[3];
    size_t n = 0;
    if (s)
        of[n++] = kvd_spectrum_text(s, m->spectrum_path);
    if (kvd_plan_needs(&m->plan) & KVD_NEEDS_ACTIVATIONS && cfg->files.calibration)
        of[n++] = (kvd_named_text){cfg->files.calibration, a->label, a->corpus_hash, a->n_tokens,
                                   a->seq_len};
    if (kvd_method_reads_fisher(m) && cfg->files.fisher)
        of[n++] =
            (kvd_named_text){cfg->files.fisher, f->label, f->corpus_hash, f->n_tokens, f->seq_len};
    while (n > 0)
        if (check_text(in, program, &of[--n], err))
            return -1;
    return 0;
}

static void unused(kvd_inputs *in, const char *program)
{
    const kvd_inputs_options *const cfg = in->cfg;
    bool draws = false;
    kvd_method_files_say_unused(&in->files, &cfg->files, cfg->method, cfg->n_methods, program);
    for (size_t i = 0; i < cfg->n_methods; i++)
        draws |= kvd_plan_draws(&cfg->method[i].plan);
    if (cfg->seeds > 1 && !draws)
        fprintf(stderr,
                "%s: warning: no method here draws random numbers: --seeds %zu changes nothing\n",
                program, cfg->seeds);
    kvd_err note;
    if (in->corpus && kvd_corpus_is_partial(in->corpus, cfg->text, cfg->n_text, &note))
        fprintf(stderr, "%s: warning: %s\n", program, note.msg);
}

/* Returns the file of calibration sequences shorter than `longest` tokens from which method m takes
 * rotations of keys after RoPE, or codes of such keys. Returns NULL if there is none.
 * Writes the largest possible length of its sequences to *length. */
static const char *short_calibration(const kvd_inputs *in, const kvd_method *m, size_t longest,
                                     size_t *length)
{
    const kvd_spectrum *const s = m->spectrum;
    const kvd_activations *const a = &in->files.calibration;
    if (!s || strcmp(s->rope, "after") || m->cut == KVD_CUT_V || m->p_side[0] == 0)
        return NULL;
    *length = s->seq_len < s->n_tokens ? s->seq_len : s->n_tokens;
    if (*length && *length < longest)
        return m->spectrum_path;
    if (!(kvd_plan_needs(&m->plan) & KVD_NEEDS_ACTIVATIONS) || !in->cfg->files.calibration)
        return NULL;
    *length = a->seq_len < a->n_tokens ? a->seq_len : a->n_tokens;
    return *length && *length < longest ? in->cfg->files.calibration : NULL;
}

void kvd_inputs_warn_positions(kvd_inputs *in, size_t longest, const char *program)
{
    for (size_t i = 0; i < in->cfg->n_methods && !in->short_calibration; i++) {
        size_t length;
        const char *const path = short_calibration(in, &in->cfg->method[i], longest, &length);
        if (!path)
            continue;
        in->short_calibration = true;
        fprintf(stderr,
                "%s: warning: '%s' was calibrated on sequences of at most %zu tokens, the longest "
                "here has %zu: rotations of keys after RoPE lose more at later positions; "
                "kvdim-collect --seq-len %zu reaches them "
                "(docs/methods.md#sequences-of-the-calibration)\n",
                program, path, length, longest, longest);
    }
}

int kvd_inputs_warn(kvd_inputs *in, const char *program, kvd_err *err)
{
    size_t longest = 0;
    for (size_t s = 0; in->corpus && s < kvd_corpus_n_sequences(in->corpus); s++)
        if (kvd_corpus_length(in->corpus, s) > longest)
            longest = kvd_corpus_length(in->corpus, s);
    kvd_inputs_warn_positions(in, longest, program);
    const kvd_inputs_options *const cfg = in->cfg;
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const kvd_method *const m = &cfg->method[i];
        if (check_texts(in, program, m, err) || kvd_method_warn_bases(m, program, err))
            return -1;
    }
    unused(in, program);
    return 0;
}

int kvd_inputs_warn_saved(const kvd_inputs *in, const char *ending, const char *program,
                          kvd_err *err)
{
    const char *const output = in->cfg->common.output;
    char *path;
    if (asprintf(&path, "%s%s", output, ending) < 0)
        return kvd_no_memory(err, "a path", strlen(output));
    if (!access(path, F_OK))
        fprintf(stderr,
                "%s: warning: '%s' has results of an interrupted run; this run does not use them "
                "(--resume does) and does not remove them\n",
                program, path);
    free(path);
    return 0;
}

int kvd_inputs_add_key(const kvd_inputs *in, kvd_run_key *key, kvd_err *err)
{
    if (kvd_run_key_add(key, err, "program", "%s", kvd_git_revision()) ||
        kvd_run_key_add(key, err, "cpu", "%s", kvd_cpu_name()) ||
        kvd_run_key_add(key, err, "blas", "%s", kvd_blas_core()) ||
        kvd_run_key_add(key, err, "gpu", "%s", in->run.gpu) ||
        kvd_run_key_add(key, err, "threads", "%d", in->run.threads) ||
        kvd_run_key_add(key, err, "seed", "%llu", (unsigned long long)in->run.seed) ||
        (in->corpus && kvd_run_key_add(key, err, "corpus", "%s", kvd_corpus_hash(in->corpus))))
        return -1;
    for (int i = 0; i < in->run.n_inputs; i++)
        if (kvd_run_key_add(key, err, "input", "%s", in->run.inputs[i].hash))
            return -1;
    for (int i = 0; i < in->run.n_parameters; i++)
        if (kvd_run_key_add(key, err, in->run.parameters[i][0], "%s", in->run.parameters[i][1]))
            return -1;
    return 0;
}

int kvd_inputs_find_complete(const kvd_inputs *in, const kvd_schema *schema, const kvd_run_key *key,
                             bool *complete, kvd_err *err)
{
    const char *const path = in->cfg->common.output;
    kvd_h5 f;
    kvd_err why;
    char *then = NULL;
    struct stat s;
    *complete = false;
    if (stat(path, &s) || s.st_size == 0)
        return 0;
    if (!kvd_h5_open(&f, path, schema, &why)) {
        if (kvd_h5_get_text(&f, "/", "run_key", &then, &why))
            kvd_fail(&why, "'%s' was made without --resume", path);
        else
            *complete =
                !kvd_run_key_same(path, "is complete, but not from this run", then, key, &why);
    }
    free(then);
    kvd_h5_close(&f, false);
    return *complete ? 0
                     : kvd_fail(err,
                                "nothing to resume: %.380s; write to another file, or replace this "
                                "one by running without --resume",
                                why.msg);
}

int kvd_inputs_nothing_to_do(const kvd_inputs *in, const char *program, kvd_err *err)
{
    const kvd_common_options *const o = &in->cfg->common;
    if (!o->quiet)
        fprintf(stderr, "%s: '%s' is complete: nothing to do\n", program, o->output);
    return o->json ? kvd_json_print(json_pack("{s:s, s:s, s:b}", "program", program, "output",
                                              o->output, "complete", 1),
                                    err)
                   : 0;
}

void kvd_inputs_release(kvd_inputs *in)
{
    for (size_t i = 0; i < KVD_EVAL_METHODS; i++) {
        kvd_points_free(in->point[i], in->n_points[i]);
        free(in->left_out[i]);
    }
    kvd_method_files_release(&in->files);
    kvd_corpus_close(in->corpus);
    kvd_tokenizer_free(in->tokenizer);
    kvd_checkpoint_close(in->checkpoint);
    kvd_run_release(&in->run);
}
