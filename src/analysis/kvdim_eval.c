/*
 * kvdim-eval: what compressing the KV cache costs in predictions.
 *
 * Reads a checkpoint, texts, kvdim/spectrum, kvdim/rates, kvdim/error-table. Writes kvdim/accuracy; with
 * --scan-errors kvdim/error-table instead.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/accuracy.h"
#include "analysis/error_scan.h"
#include "analysis/target.h"
#include "common/args.h"
#include "common/progress.h"
#include "common/run.h"

static const char program[] = "kvdim-eval";

enum { MAX_TEXTS = 4096, MAX_METHODS = 64, MAX_FILES = 16 };

typedef struct {
    kvd_common_options common;
    const char *model;
    const char *text[MAX_TEXTS];
    int n_text;
    const char *ids, *field, *label;
    bool no_special;
    size_t tokens, seq_len, batch; /* 0: not given */
    kvd_method method[MAX_METHODS];
    const char *method_text[MAX_METHODS];
    size_t n_methods;
    const char *spectrum[MAX_FILES], *rates[MAX_FILES], *table;
    size_t n_spectra, n_rates;
    double target; /* NaN: no search */
    bool scan;
    kvd_dtype cache;
} config;

/* ---- options ---------------------------------------------------------------------------------- */

enum {
    OPT_TEXT = 0x100,
    OPT_IDS,
    OPT_FIELD,
    OPT_NO_SPECIAL,
    OPT_TOKENS,
    OPT_SEQ_LEN,
    OPT_LABEL,
    OPT_METHOD,
    OPT_SPECTRUM,
    OPT_RATES,
    OPT_TABLE,
    OPT_TARGET,
    OPT_SCAN,
    OPT_CACHE,
    OPT_BATCH
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "On which data:", 1},
    {"text", OPT_TEXT, "FILE", 0,
     "Text: .jsonl, .json (a list), .csv (header row), anything else one plain document. May be repeated; "
     "further arguments after MODEL are texts too",
     1},
    {"ids", OPT_IDS, "FILE.csv", 0, "Token ids instead, one sequence per line", 1},
    {"field", OPT_FIELD, "NAME", 0, "JSON key or CSV column of the text (default text); A,B joins two", 1},
    {"no-special", OPT_NO_SPECIAL, 0, 0, "Leave out the special tokens around a document", 1},
    {"tokens", OPT_TOKENS, "N", 0, "Stop after N tokens (default: all; 2048 with --scan-errors)", 1},
    {"seq-len", OPT_SEQ_LEN, "N", 0,
     "Documents are cut into sequences of N tokens (default: 512, or the model's longest)", 1},
    {"label", OPT_LABEL, "NAME", 0, "What tables call these texts (default: from the file names)", 1},
    {0, 0, 0, 0, "What to evaluate:", 2},
    {"method", OPT_METHOD, "NAME[,p=P|,r=R][,ranks=RULE]", 0,
     "May be repeated. p: overall fraction removed; r: removal rate of Eq. 6; neither: every point of the "
     "method's --rates file. RULE eq6 (default), eq6-energy, or error, which takes widths from "
     "--error-table. "
     "The uncompressed model, none, is always evaluated too. Default: every method whose pairs a --rates "
     "file "
     "has, without one every method whose pairs a --spectrum has (for --target)",
     2},
    {"spectrum", OPT_SPECTRUM, "FILE", 0, "Bases; may be repeated, a method takes the one with its pairs", 2},
    {"rates", OPT_RATES, "FILE", 0, "Points from kvdim-fit; may be repeated, as --spectrum", 2},
    {"error-table", OPT_TABLE, "FILE", 0, "Made by --scan-errors, for ranks=error", 2},
    {"target", OPT_TARGET, "SHARE", 0,
     "For each method, search the largest overall p that keeps this share of the uncompressed top-1 accuracy",
     2},
    {"scan-errors", OPT_SCAN, 0, 0,
     "Measure what cutting each single head of one --method costs, and write that table to -o", 2},
    {0, 0, 0, 0, "How to run:", 3},
    {"cache", OPT_CACHE, "f32|f16|bf16", 0, "Type in which K' and V' are stored (default f32)", 3},
    {"batch", OPT_BATCH, "N", 0, "Tokens in one pass (default 2048, at least one sequence)", 3},
    {0},
};

static int add_file(const char *option, const char *path, const char **list, size_t *n, kvd_err *err)
{
    if (*n == MAX_FILES)
        return kvd_fail(err, "%s: more than %d files", option, (int)MAX_FILES);
    list[(*n)++] = path;
    return 0;
}

static int add_text(config *cfg, const char *path, kvd_err *err)
{
    if (cfg->n_text == MAX_TEXTS)
        return kvd_fail(err, "more than %d texts", (int)MAX_TEXTS);
    cfg->text[cfg->n_text++] = path;
    return 0;
}

static int add_method(config *cfg, const char *text, kvd_err *err)
{
    if (cfg->n_methods == MAX_METHODS)
        return kvd_fail(err, "more than %d methods", (int)MAX_METHODS);
    cfg->method_text[cfg->n_methods] = text;
    return kvd_method_parse(text, &cfg->method[cfg->n_methods++], err);
}

static int check_methods(const config *cfg, kvd_err *err)
{
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const kvd_method *const m = &cfg->method[i];
        if (m->ranks != KVD_RANKS_EQ6 && isnan(m->p) && isnan(m->r) && isnan(cfg->target) && !cfg->scan)
            return kvd_fail(err, "--method %s: ranks goes with p, r or --target; a rates file has its own",
                            cfg->method_text[i]);
    }
    if (!cfg->scan)
        return 0;
    if (cfg->n_methods != 1 || !cfg->method[0].dims || cfg->method[0].dims->one_p)
        return kvd_fail(err, "--scan-errors takes one --method whose heads may have widths of their own");
    if (!isnan(cfg->method[0].p) || !isnan(cfg->method[0].r) || cfg->method[0].ranks != KVD_RANKS_EQ6)
        return kvd_fail(err, "--scan-errors tries widths of its own, --method %s takes no key",
                        cfg->method_text[0]);
    if (!isnan(cfg->target) || cfg->n_rates || cfg->table)
        return kvd_fail(err, "--scan-errors goes without --target, --rates and --error-table");
    return 0;
}

static int check_usage(const config *cfg, kvd_err *err)
{
    if (!cfg->model)
        return kvd_fail(err, "no MODEL given");
    if (!cfg->common.output)
        return kvd_fail(err, "no -o OUT.h5 given");
    if ((cfg->n_text > 0) + (cfg->ids != NULL) != 1)
        return kvd_fail(err, "give one of --text and --ids");
    if (cfg->field && !cfg->n_text)
        return kvd_fail(err, "--field goes with --text");
    return check_methods(cfg, err);
}

static int parse_cache(const char *text, kvd_dtype *out, kvd_err *err)
{
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, kvd_dtype_name((kvd_dtype)i))) {
            *out = (kvd_dtype)i;
            return 0;
        }
    return kvd_fail(err, "--cache: '%s' is none of f32, f16, bf16", text);
}

static int parse_one(int key, char *arg, struct argp_state *state, kvd_err *err)
{
    config *cfg = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &cfg->common;
        return 0;
    case ARGP_KEY_ARG:
        if (cfg->model)
            return add_text(cfg, arg, err);
        cfg->model = arg;
        return 0;
    case ARGP_KEY_END:
        return check_usage(cfg, err);
    case OPT_TEXT:
        return add_text(cfg, arg, err);
    case OPT_IDS:
        cfg->ids = arg;
        return 0;
    case OPT_FIELD:
        cfg->field = arg;
        return 0;
    case OPT_NO_SPECIAL:
        cfg->no_special = true;
        return 0;
    case OPT_TOKENS:
        return kvd_arg_size("--tokens", arg, 2, (size_t)1 << 48, &cfg->tokens, err);
    case OPT_SEQ_LEN:
        return kvd_arg_size("--seq-len", arg, 2, 1 << 30, &cfg->seq_len, err);
    case OPT_BATCH:
        return kvd_arg_size("--batch", arg, 1, 1 << 30, &cfg->batch, err);
    case OPT_LABEL:
        if (!*arg || strlen(arg) > 63)
            return kvd_fail(err, "--label '%s': 1 to 63 bytes", arg);
        cfg->label = arg;
        return 0;
    case OPT_METHOD:
        return add_method(cfg, arg, err);
    case OPT_SPECTRUM:
        return add_file("--spectrum", arg, cfg->spectrum, &cfg->n_spectra, err);
    case OPT_RATES:
        return add_file("--rates", arg, cfg->rates, &cfg->n_rates, err);
    case OPT_TABLE:
        cfg->table = arg;
        return 0;
    case OPT_TARGET:
        if (kvd_arg_double("--target", arg, 0, 1, &cfg->target, err))
            return -1;
        return cfg->target > 0 ? 0 : kvd_fail(err, "--target: a share of 0 is kept by everything");
    case OPT_SCAN:
        cfg->scan = true;
        return 0;
    case OPT_CACHE:
        return parse_cache(arg, &cfg->cache, err);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    kvd_err err = {""};
    const int status = parse_one(key, arg, state, &err);
    if (status == ARGP_ERR_UNKNOWN)
        return ARGP_ERR_UNKNOWN;
    if (status)
        argp_error(state, "%s", err.msg);
    return 0;
}

/* ---- one run ---------------------------------------------------------------------------------- */

typedef struct {
    config *cfg;
    kvd_run run;
    kvd_checkpoint *checkpoint;
    const kvd_config *model;
    kvd_model_info info;
    kvd_corpus *corpus;
    char label[64];
    kvd_forward *forward;
    kvd_evaluator evaluator;
    kvd_spectrum spectrum[MAX_FILES];
    kvd_rates rates[MAX_FILES];
    kvd_error_table table;
    kvd_point_source source[MAX_METHODS];
    double full_rank_error[MAX_METHODS];
    bool same_text; /* some bases come from the very text that is evaluated */
    kvd_point *point[MAX_METHODS];
    size_t n_points[MAX_METHODS];
    kvd_accuracy accuracy;
    size_t printed; /* rows on stdout so far */
    kvd_target target[MAX_METHODS];
    bool searched[MAX_METHODS];
    kvd_h5 file;
} evaluation;

static int load_files(evaluation *v, kvd_err *err)
{
    const config *const cfg = v->cfg;
    for (size_t i = 0; i < cfg->n_spectra; i++)
        if (kvd_spectrum_load(&v->spectrum[i], cfg->spectrum[i], err) ||
            kvd_model_info_same(&v->info, cfg->model, &v->spectrum[i].model, cfg->spectrum[i], err))
            return -1;
    for (size_t i = 0; i < cfg->n_rates; i++)
        if (kvd_rates_load(&v->rates[i], cfg->rates[i], err) ||
            kvd_model_info_same(&v->info, cfg->model, &v->rates[i].model, cfg->rates[i], err))
            return -1;
    if (cfg->table && (kvd_error_table_load(&v->table, cfg->table, err) ||
                       kvd_model_info_same(&v->info, cfg->model, &v->table.model, cfg->table, err)))
        return -1;
    return 0;
}

static bool has_pairs(const evaluation *v, const kvd_dims_method *m)
{
    const config *const cfg = v->cfg;
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
    config *const cfg = v->cfg;
    if (cfg->scan)
        return 0;
    const bool given = cfg->n_methods > 0;
    for (int i = 0; !given && i < kvd_method_count(); i++)
        if (has_pairs(v, kvd_method_at(i)) && add_method(cfg, kvd_method_at(i)->name, err))
            return -1;
    for (size_t i = 0; i < cfg->n_methods; i++)
        if (!cfg->method[i].dims)
            return 0;
    if (cfg->n_methods == MAX_METHODS)
        return kvd_fail(err, "more than %d methods", MAX_METHODS - 1);
    memmove(&cfg->method[1], &cfg->method[0], cfg->n_methods * sizeof *cfg->method);
    memmove(&cfg->method_text[1], &cfg->method_text[0], cfg->n_methods * sizeof *cfg->method_text);
    cfg->n_methods++;
    cfg->method_text[0] = "none";
    return kvd_method_parse("none", &cfg->method[0], err);
}

static int find_sources(evaluation *v, kvd_err *err)
{
    const config *const cfg = v->cfg;
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

static int make_points(evaluation *v, kvd_err *err)
{
    const config *const cfg = v->cfg;
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
    config *const cfg = v->cfg;
    const size_t longest = (size_t)v->model->max_positions;
    if (!cfg->seq_len)
        cfg->seq_len = longest < 512 ? longest : 512;
    if (cfg->seq_len > longest)
        return kvd_fail(err, "--seq-len %zu: the model was made for at most %zu positions", cfg->seq_len,
                        longest);
    if (!cfg->batch)
        cfg->batch = 2048;
    if (cfg->scan && !cfg->tokens)
        cfg->tokens = 2048;
    const kvd_corpus_spec spec = {.text = cfg->text,
                                  .n_text = cfg->n_text,
                                  .field = cfg->field,
                                  .no_special = cfg->no_special,
                                  .ids = cfg->ids,
                                  .max_tokens = cfg->tokens,
                                  .seq_len = cfg->seq_len,
                                  .vocab_size = (size_t)v->model->vocab_size};
    kvd_tokenizer *tok = NULL;
    if (cfg->n_text) {
        char *path = kvd_checkpoint_tokenizer_path(v->checkpoint, err);
        tok = path ? kvd_tokenizer_open(path, spec.vocab_size, err) : NULL;
        free(path);
        if (!tok)
            return -1;
    }
    v->corpus = kvd_corpus_open(&spec, tok, err);
    kvd_tokenizer_free(tok);
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
    const config *const cfg = v->cfg;
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
    return cfg->table ? kvd_run_add_input(r, cfg->table, err) : 0;
}

static int record_options(evaluation *v, kvd_err *err)
{
    const config *const cfg = v->cfg;
    kvd_run *const r = &v->run;
    char methods[500] = "";
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const size_t used = strlen(methods);
        snprintf(methods + used, sizeof methods - used, "%s%s", i ? " " : "", cfg->method_text[i]);
    }
    return kvd_run_parameter(r, "method", err, "%s", methods) ||
                   kvd_run_parameter(r, "tokens", err, "%zu", kvd_corpus_n_tokens(v->corpus)) ||
                   kvd_run_parameter(r, "seq-len", err, "%zu", cfg->seq_len) ||
                   kvd_run_parameter(r, "label", err, "%s", v->label) ||
                   kvd_run_parameter(r, "field", err, "%s", cfg->field ? cfg->field : "") ||
                   kvd_run_parameter(r, "no-special", err, "%s", cfg->no_special ? "yes" : "no") ||
                   kvd_run_parameter(r, "target", err, "%g", cfg->target) ||
                   kvd_run_parameter(r, "scan-errors", err, "%s", cfg->scan ? "yes" : "no") ||
                   kvd_run_parameter(r, "cache", err, "%s", kvd_dtype_name(cfg->cache)) ||
                   kvd_run_parameter(r, "batch", err, "%zu", cfg->batch)
               ? -1
               : 0;
}

static int make_evaluator(evaluation *v, kvd_err *err)
{
    const config *const cfg = v->cfg;
    size_t rows = cfg->batch > cfg->seq_len ? cfg->batch : cfg->seq_len;
    if (rows > kvd_corpus_n_tokens(v->corpus))
        rows = kvd_corpus_n_tokens(v->corpus);
    v->forward = kvd_forward_new(v->checkpoint, rows, cfg->seq_len, err);
    if (!v->forward)
        return -1;
    return kvd_evaluator_init(&v->evaluator, v->forward, v->model, v->corpus, rows, cfg->seq_len,
                              cfg->scan || !isnan(cfg->target), err);
}

/* Each set of bases once, however many points it serves. */
static int check_full_rank(evaluation *v, kvd_err *err)
{
    const config *const cfg = v->cfg;
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const kvd_point_source *const s = &v->source[i];
        for (size_t j = 0; s->spectrum && j < i; j++)
            if (v->source[j].spectrum == s->spectrum &&
                cfg->method[j].dims->pair[0] == cfg->method[i].dims->pair[0] &&
                cfg->method[j].dims->pair[1] == cfg->method[i].dims->pair[1])
                v->full_rank_error[i] = v->full_rank_error[j];
        if (!s->spectrum || !isnan(v->full_rank_error[i]))
            continue;
        kvd_dims full = {0};
        if (kvd_point_full(s, &full, err))
            return -1;
        const int status = kvd_evaluate_full_rank(
            &v->evaluator, &full, kvd_full_rank_tolerance(cfg->method[i].dims), &v->full_rank_error[i], err);
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
    const config *const cfg = v->cfg;
    if (cfg->common.quiet || cfg->common.json) {
        v->printed = kvd_rows_count(r);
        return;
    }
    if (!v->printed)
        printf("%-9s %-10s %6s %6s  %9s %-19s %6s %6s %-15s %9s %6s %8s %8s %8s\n", "method", "rule", "p",
               "p16", "ppl", "95 %", "top1", "share", "95 %", "KL/nat", "agree", "att.err", "B/token",
               "stored");
    for (; v->printed < kvd_rows_count(r); v->printed++) {
        const size_t i = v->printed;
        char ppl[40], share[40];
#define REAL(name) kvd_rows_get_real(r, i, kvd_rows_find(r, name))
        snprintf(ppl, sizeof ppl, "[%.4g, %.4g]", REAL("perplexity_lo"), REAL("perplexity_hi"));
        snprintf(share, sizeof share, "[%.3f, %.3f]", REAL("top1_share_lo"), REAL("top1_share_hi"));
        printf("%-9s %-10s %6.4f %6.4f  %9.4g %-19s %6.4f %6.4f %-15s %9.3g %6.4f %8.3g %8.0f %8.0f\n",
               kvd_rows_get_text(r, i, kvd_rows_find(r, "method")),
               kvd_rows_get_text(r, i, kvd_rows_find(r, "rule")), REAL("overall_p"), REAL("overall_p16"),
               REAL("perplexity"), ppl, REAL("top1"), REAL("top1_share"), share, REAL("kl"), REAL("agree"),
               REAL("attention_error"), REAL("bytes_per_token_nominal"), REAL("bytes_per_token_stored"));
#undef REAL
    }
    fflush(stdout);
}

static int evaluate_points(evaluation *v, kvd_err *err)
{
    const config *const cfg = v->cfg;
    kvd_evaluator *const e = &v->evaluator;
    size_t n = 0, k = 0;
    for (size_t i = 0; i < cfg->n_methods; i++)
        n += v->n_points[i];
    kvd_choice *const choice = calloc(n ? n : 1, sizeof *choice);
    if (!choice)
        return kvd_no_memory(err, "points", (unsigned long long)n * sizeof *choice);
    for (size_t i = 0; i < cfg->n_methods; i++)
        for (size_t j = 0; j < v->n_points[i]; j++) {
            const kvd_point *const p = &v->point[i][j];
            choice[k++] = (kvd_choice){.method = kvd_method_name(&cfg->method[i]),
                                       .overall_p = p->overall_p,
                                       .dims = p->cut ? &p->dims : NULL,
                                       .type = cfg->cache};
        }
    kvd_progress progress;
    kvd_progress_start(&progress, "eval", "tokens", (double)e->n_tokens * (double)n, cfg->common.quiet);
    int status = kvd_evaluate(e, choice, n, 0, true, &progress, err);
    kvd_progress_end(&progress);
    k = 0;
    for (size_t i = 0; !status && i < cfg->n_methods; i++)
        for (size_t j = 0; !status && j < v->n_points[i]; j++, k++) {
            kvd_quality_summary summary;
            status = kvd_quality_compare(choice[k].per_sequence, e->reference, e->n_sequences, v->run.seed,
                                         &summary, err) ||
                     kvd_accuracy_add(&v->accuracy, "point", &v->source[i], &v->point[i][j], &choice[k],
                                      &summary, v->full_rank_error[i], err);
        }
    for (k = 0; k < n; k++)
        kvd_choice_release(&choice[k]);
    free(choice);
    if (!status)
        print_new_rows(v);
    return status ? -1 : 0;
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

static void print_target(const config *cfg, const char *name, const kvd_target *t)
{
    if (cfg->common.quiet || cfg->common.json)
        return;
    if (isnan(t->p_misses)) {
        printf("%s keeps %g of the accuracy at every p tried, up to %.4f\n", name, t->target, t->p);
        return;
    }
    printf("%s keeps %g of the accuracy up to p = %.4f (missed at %.4f)", name, t->target, t->p, t->p_misses);
    if (!isnan(t->p_lo))
        printf("; surely kept up to %.4f, surely lost from %.4f", t->p_lo, t->p_hi);
    printf("; %zu points%s\n", t->n_points, t->monotone ? "" : ", not monotone");
    if (!t->monotone)
        printf("%s: kept again beyond a miss, last at p = %.4f: the text is too short or the method uneven\n",
               name, t->p_last_kept);
}

static int search_targets(evaluation *v, kvd_err *err)
{
    const config *const cfg = v->cfg;
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const kvd_method *const m = &cfg->method[i];
        bool again = !m->dims;
        for (size_t j = 0; j < i; j++)
            again = again || (cfg->method[j].dims == m->dims && cfg->method[j].ranks == m->ranks);
        if (again)
            continue;
        if (kvd_target_search(&v->evaluator, &v->source[i], cfg->cache, cfg->target, v->run.seed, on_point, v,
                              &v->target[i], err))
            return -1;
        char name[64];
        target_name(m, name, sizeof name);
        v->searched[i] = true;
        print_target(cfg, name, &v->target[i]);
        if (kvd_accuracy_write_target(&v->file, name, m->dims->one_p ? "uniform" : kvd_ranks_name[m->ranks],
                                      &v->target[i], err))
            return -1;
    }
    return 0;
}

/* ---- results ---------------------------------------------------------------------------------- */

/* JSON knows no NaN. */
static json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *rows_json(const kvd_rows *r)
{
    json_t *const list = json_array();
    for (size_t i = 0; i < kvd_rows_count(r); i++) {
        json_t *const row = json_object();
        for (int c = 0; c < kvd_rows_columns(r); c++) {
            const kvd_column *const col = kvd_rows_column(r, c);
            json_object_set_new(row, col->name,
                                col->kind == KVD_COL_TEXT  ? json_string(kvd_rows_get_text(r, i, c))
                                : col->kind == KVD_COL_INT ? json_integer(kvd_rows_get_int(r, i, c))
                                                           : real(kvd_rows_get_real(r, i, c)));
        }
        json_array_append_new(list, row);
    }
    return list;
}

static int print_json(const evaluation *v, kvd_err *err)
{
    const config *const cfg = v->cfg;
    json_t *const targets = json_object();
    for (size_t i = 0; i < cfg->n_methods; i++) {
        const kvd_target *const t = &v->target[i];
        char name[64];
        if (!v->searched[i])
            continue;
        target_name(&cfg->method[i], name, sizeof name);
        json_object_set_new(targets, name,
                            json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:I}", "target", real(t->target),
                                      "p", real(t->p), "p_misses", real(t->p_misses), "p_lo", real(t->p_lo),
                                      "p_hi", real(t->p_hi), "p_last_kept", real(t->p_last_kept), "monotone",
                                      t->monotone, "n_points", (json_int_t)t->n_points));
    }
    json_t *const all =
        json_pack("{s:s, s:s, s:s, s:s, s:b, s:o, s:o}", "program", program, "output", cfg->common.output,
                  "model", v->info.name, "label", v->label, "calibrated_on_same_text", v->same_text, "rows",
                  rows_json(v->accuracy.rows), "target", targets);
    const int failed =
        !all || json_dumpf(all, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(10)) || puts("") < 0;
    json_decref(all);
    return failed ? kvd_fail(err, "cannot write the JSON summary") : 0;
}

static int describe_file(evaluation *v, kvd_err *err)
{
    kvd_h5 *const f = &v->file;
    return kvd_model_info_write(f, &v->info, err) || kvd_h5_put_text(f, "/", "label", v->label, err) ||
                   kvd_h5_put_text(f, "/", "corpus_hash", kvd_corpus_hash(v->corpus), err) ||
                   kvd_h5_put_int(f, "/", "n_tokens", (int64_t)kvd_corpus_n_tokens(v->corpus), err) ||
                   kvd_h5_put_int(f, "/", "seq_len", (int64_t)v->cfg->seq_len, err) ||
                   kvd_h5_put_int(f, "/", "calibrated_on_same_text", v->same_text, err)
               ? -1
               : 0;
}

static int evaluate(evaluation *v, kvd_err *err)
{
    const config *const cfg = v->cfg;
    const kvd_evaluator *const e = &v->evaluator;
    if (make_points(v, err) ||
        kvd_h5_create(&v->file, cfg->common.output, &kvd_schema_accuracy, &v->run, err) ||
        describe_file(v, err) || make_evaluator(v, err) || check_full_rank(v, err) ||
        kvd_accuracy_init(&v->accuracy, v->model, v->label, e->n_sequences, e->n_tokens, err) ||
        evaluate_points(v, err))
        return -1;
    if (!isnan(cfg->target) && search_targets(v, err))
        return -1;
    if (kvd_accuracy_write(&v->file, &v->accuracy, err) || kvd_h5_finish(&v->file, err))
        return -1;
    return cfg->common.json ? print_json(v, err) : 0;
}

static int scan(evaluation *v, kvd_err *err)
{
    const config *const cfg = v->cfg;
    const size_t runs = kvd_error_scan_runs(v->model);
    kvd_error_table found;
    kvd_progress progress;
    if (kvd_h5_create(&v->file, cfg->common.output, &kvd_schema_error_table, &v->run, err) ||
        make_evaluator(v, err) || check_full_rank(v, err))
        return -1;
    kvd_progress_start(&progress, "scan", "tokens", (double)v->evaluator.n_tokens * (double)runs,
                       cfg->common.quiet);
    int status = kvd_error_scan(&v->evaluator, &v->source[0], &v->info, &progress, &found, err);
    kvd_progress_end(&progress);
    if (status)
        return -1;
    status = kvd_error_table_write(&v->file, &found, err) ||
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
    config *const cfg = v->cfg;
    if (kvd_device_cpu_only(&cfg->common, err) || !(v->checkpoint = kvd_checkpoint_open(cfg->model, err)))
        return -1;
    v->model = kvd_checkpoint_config(v->checkpoint);
    if (record_inputs(v, err))
        return -1;
    kvd_model_info_set(&v->info, v->model, cfg->model, v->run.inputs[0].hash,
                       kvd_dtype_name(kvd_checkpoint_dtype(v->checkpoint)));
    if (load_files(v, err) || settle_methods(v, err) || open_corpus(v, err) || find_sources(v, err) ||
        record_options(v, err))
        return -1;
    return cfg->scan ? scan(v, err) : evaluate(v, err);
}

static void release(evaluation *v)
{
    kvd_h5_close(&v->file, false);
    kvd_accuracy_release(&v->accuracy);
    kvd_evaluator_release(&v->evaluator);
    kvd_forward_free(v->forward);
    for (size_t i = 0; i < MAX_METHODS; i++)
        kvd_points_free(v->point[i], v->n_points[i]);
    for (size_t i = 0; i < MAX_FILES; i++) {
        kvd_spectrum_release(&v->spectrum[i]);
        kvd_rates_release(&v->rates[i]);
    }
    kvd_error_table_release(&v->table);
    kvd_corpus_close(v->corpus);
    kvd_checkpoint_close(v->checkpoint);
    kvd_run_release(&v->run);
}

int main(int argc, char **argv)
{
    static const struct argp_child children[] = {{&kvd_common_argp, 0, "Common options:", 9}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = children,
        .args_doc = "MODEL (--text FILE... | --ids FILE.csv) -o OUT.h5",
        .doc = "Evaluate next-token predictions with compressed KV caches against the uncompressed model.\v"
               "Methods: none, zack, fdc, uniform, balanced.\n\n"
               "Example:\n"
               "  kvdim-eval data/models/kvdim-6m --text book.txt --spectrum spectrum.h5 --rates rates.h5 "
               "-o accuracy.h5\n"
               "  kvdim-eval data/models/kvdim-6m --text book.txt --spectrum spectrum.h5 --method zack,p=0.5 "
               "--method uniform,p=0.5 -o accuracy.h5\n"
               "  kvdim-eval data/models/kvdim-6m --text book.txt --spectrum spectrum.h5 --method zack "
               "--target 0.99 -o target.h5\n\n"
               "Before a method is believed, its projections at full width must reproduce the uncompressed "
               "logits; every point must show that each sequence and layer was compressed."};
    static config cfg = {.common = {.seed = 1}, .target = NAN, .cache = KVD_F32};
    static evaluation v;
    kvd_err err = {""};
    kvd_args_parse(program, &argp, argc, argv, &cfg);
    v.cfg = &cfg;
    int status = kvd_run_start(&v.run, program, argc, argv, &cfg.common, &err);
    if (!status)
        status = work(&v, &err);
    release(&v);
    return kvd_run_exit(program, status, &err);
}
