/* Inputs of kvdim-eval and kvdim-tasks: checkpoint, texts, methods and their files. */
#ifndef KVD_EVALUATE_INPUTS_H
#define KVD_EVALUATE_INPUTS_H

#include "common/half.h"
#include "common/options.h"
#include "common/run.h"
#include "common/run_key.h"
#include "formats/activations.h"
#include "formats/fisher.h"
#include "formats/model_info.h"
#include "methods/points.h"
#include "model/checkpoint/checkpoint.h"
#include "model/text/corpus.h"

enum { KVD_EVAL_TEXTS = 4096, KVD_EVAL_METHODS = 512, KVD_EVAL_FILES = 16 };

/* Options of kvdim-eval and kvdim-tasks. Must be the first member of a program's options. */
typedef struct {
    kvd_common_options common;
    const char *model;
    const char *text[KVD_EVAL_TEXTS];
    size_t n_text;
    const char *ids, *label;
    /* JSON key or CSV column, for all files or per file. NULL: plain text. */
    const char *field[KVD_EVAL_TEXTS];
    size_t n_field;
    bool no_special;
    /* True if texts have equal weight; `tokens` is per text. */
    bool by_text;
    size_t tokens, seq_len, batch; /* 0 if not given */
    /* Prompt tokens of a sequence. */
    size_t prompt;
    /* True if sequences have prompts even without their option. */
    bool generates;
    size_t seeds;
    kvd_method method[KVD_EVAL_METHODS];
    const char *method_text[KVD_EVAL_METHODS];
    size_t n_methods;
    char *own_text[KVD_EVAL_METHODS]; /* strings of method_text to free */
    size_t n_own;
    const char *calibration, *fisher; /* NULL if not given */
    const char *spectrum[KVD_EVAL_FILES], *rates[KVD_EVAL_FILES], *table;
    size_t n_spectra, n_rates;
    kvd_dtype cache;
} kvd_inputs_options;

typedef struct {
    kvd_inputs_options *cfg;
    kvd_run run;
    kvd_checkpoint *checkpoint;
    const kvd_config *model;
    kvd_model_info info;
    /* Texts to evaluate; NULL if the program reads none. */
    kvd_corpus *corpus;
    /* NULL: texts must be token ids. */
    kvd_tokenizer *tokenizer;
    char label[64];
    kvd_spectrum spectrum[KVD_EVAL_FILES];
    kvd_rates rates[KVD_EVAL_FILES];
    kvd_error_table table;
    kvd_activations calibration;
    kvd_fisher fisher;
    /* True if rotations were calibrated on the evaluated text. */
    bool same_text;
    kvd_point *point[KVD_EVAL_METHODS];
    size_t n_points[KVD_EVAL_METHODS];
} kvd_inputs;

/* `text` must live as long as *cfg. */
int kvd_inputs_add_method(kvd_inputs_options *cfg, const char *text, kvd_err *err);
/* `config` must begin with a kvd_inputs_options. */
int kvd_inputs_call_method(void *config, const char *spec, kvd_err *err);
int kvd_inputs_call_field(void *config, const char *text, kvd_err *err);
void kvd_inputs_options_release(kvd_inputs_options *cfg);

/* Records checkpoint, texts and method files as provenance. */
int kvd_inputs_record(kvd_inputs *in, kvd_err *err);
/* Fails if a file is not of the checkpoint's model. */
int kvd_inputs_load(kvd_inputs *in, kvd_err *err);
/* Without --method, adds all methods with rotations. The uncompressed model comes first. */
int kvd_inputs_resolve_methods(kvd_inputs *in, kvd_err *err);
/* Warns on stderr if the tokenizer seems to be another model's. */
int kvd_inputs_open_tokenizer(kvd_inputs *in, const char *program, kvd_err *err);
/* Opens texts or token ids; sets their label and a missing --seq-len. */
int kvd_inputs_open_corpus(kvd_inputs *in, kvd_err *err);
int kvd_inputs_find_files(kvd_inputs *in, kvd_err *err);
/* none_is_error: fails if a method has no setting. */
int kvd_inputs_make_points(kvd_inputs *in, bool none_is_error, kvd_err *err);
/*
 * Warns if the calibration text is evaluated, widths are of other rotations, or files are unused.
 * Fails for one label with different texts. Call after kvd_inputs_find_files.
 */
int kvd_inputs_warn(kvd_inputs *in, const char *program, kvd_err *err);
/* Fails, naming the method, if a method cannot run. */
int kvd_inputs_check_plans(kvd_inputs *in, kvd_err *err);
/*
 * Checks prompts s of at[s + 1] - at[s] tokens, at [n + 1]; no sequence may exceed max_len tokens.
 */
int kvd_inputs_check_prompts(const kvd_inputs *in, const size_t *at, size_t n, size_t max_len,
                             kvd_err *err);
/* seed: the run's plus k. *plan must not be moved afterwards. */
int kvd_inputs_open_plan(kvd_inputs *in, const kvd_point *p, size_t k, kvd_plan *plan,
                         kvd_err *err);
/* Adds all that determines the results to *key, for --resume. */
int kvd_inputs_add_key(const kvd_inputs *in, const char *gpu, kvd_run_key *key, kvd_err *err);
/* Returns true if the output is complete, with the same *key. */
bool kvd_inputs_is_complete(const kvd_inputs *in, const kvd_schema *schema, const kvd_run_key *key);
/* Reports a complete output file on stderr and, with --json, on stdout. */
int kvd_inputs_nothing_to_do(const kvd_inputs *in, const char *program, kvd_err *err);
void kvd_inputs_methods_text(const kvd_inputs_options *cfg, char *text, size_t size);
/* Writes the names of --field; '-' for plain text. */
void kvd_inputs_fields_text(const kvd_inputs_options *cfg, char *text, size_t size);
void kvd_inputs_release(kvd_inputs *in);

#endif
