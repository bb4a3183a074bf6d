/* Inputs of kvdim-eval and kvdim-tasks: checkpoint, texts, methods and files that methods read. */
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

/*
 * Options that kvdim-eval and kvdim-tasks share. Must be the first member of a program's own
 * structure of options.
 */
typedef struct {
    kvd_common_options common;
    const char *model;
    const char *text[KVD_EVAL_TEXTS];
    size_t n_text;
    const char *ids, *label;
    /*
     * JSON keys or CSV columns that hold the text: one for all files, or one per file. NULL for
     * plain text.
     */
    const char *field[KVD_EVAL_TEXTS];
    size_t n_field;
    bool no_special;
    /* True if all texts have equal weight; `tokens` is then the number of tokens per text. */
    bool by_text;
    size_t tokens, seq_len, batch; /* 0 if not given */
    /* Number of tokens of a sequence that are a prompt; later tokens are decode steps. */
    size_t prompt;
    /* True if every sequence has a prompt even without the option that sets its length. */
    bool generates;
    size_t seeds;
    kvd_method method[KVD_EVAL_METHODS];
    const char *method_text[KVD_EVAL_METHODS];
    size_t n_methods;
    char *own_text[KVD_EVAL_METHODS]; /* strings in method_text that must be freed */
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
    /* Tokenizer; NULL if the model has none, so that texts must be token ids. */
    kvd_tokenizer *tokenizer;
    char label[64];
    kvd_spectrum spectrum[KVD_EVAL_FILES];
    kvd_rates rates[KVD_EVAL_FILES];
    kvd_error_table table;
    kvd_activations calibration;
    kvd_fisher fisher;
    /* True if rotations were calibrated on the text that is evaluated. */
    bool same_text;
    kvd_point *point[KVD_EVAL_METHODS];
    size_t n_points[KVD_EVAL_METHODS];
} kvd_inputs;

/* Appends a compression method. `text` must live as long as *cfg. */
int kvd_inputs_add_method(kvd_inputs_options *cfg, const char *text, kvd_err *err);
/*
 * Functions that parse the options --method and --field. `config` must begin with a
 * kvd_inputs_options.
 */
int kvd_inputs_call_method(void *config, const char *spec, kvd_err *err);
int kvd_inputs_call_field(void *config, const char *text, kvd_err *err);
void kvd_inputs_options_release(kvd_inputs_options *cfg);

/* Records the checkpoint, texts and files of methods as provenance of the run. */
int kvd_inputs_record(kvd_inputs *in, kvd_err *err);
/* Loads the files that methods read. Fails if one is not of the open checkpoint's model. */
int kvd_inputs_load(kvd_inputs *in, kvd_err *err);
/*
 * Completes the list of methods. Without --method, adds every method for which the loaded files
 * have rotations. Puts the uncompressed model first, because every result is compared with it.
 */
int kvd_inputs_resolve_methods(kvd_inputs *in, kvd_err *err);
/* Opens the tokenizer. Warns on stderr if it seems to belong to another model. */
int kvd_inputs_open_tokenizer(kvd_inputs *in, const char *program, kvd_err *err);
/* Opens the texts or token ids to evaluate. Sets their label, and --seq-len if it was not given. */
int kvd_inputs_open_corpus(kvd_inputs *in, kvd_err *err);
/* Finds for each method the loaded files that it reads. */
int kvd_inputs_find_files(kvd_inputs *in, kvd_err *err);
/*
 * Creates the compression settings of every method. If `none_is_error` is true, a method without
 * any setting is an error.
 */
int kvd_inputs_make_points(kvd_inputs *in, bool none_is_error, kvd_err *err);
/*
 * Warns on stderr about likely mistakes: evaluating the calibration text, numbers of kept
 * dimensions that were chosen for other rotations, and files or options that no method uses. Fails
 * if a calibration text has the label of the evaluated text but another content
 * (kvd_named_texts_agree). Must be called after kvd_inputs_find_files.
 */
int kvd_inputs_warn(kvd_inputs *in, const char *program, kvd_err *err);
/*
 * Checks, before a long run starts, that every method can run. On failure the message names the
 * method.
 */
int kvd_inputs_check_plans(kvd_inputs *in, kvd_err *err);
/*
 * Checks that every method can read all n prompts. Prompt s has at[s + 1] - at[s] tokens; the array
 * `at` is [n + 1]. No sequence may be longer than max_len tokens.
 */
int kvd_inputs_check_prompts(const kvd_inputs *in, const size_t *at, size_t n, size_t max_len,
                             kvd_err *err);
/*
 * Opens the compression plan for the setting *p. The random seed is the run's seed plus k. *plan
 * must not be moved in memory afterwards.
 */
int kvd_inputs_open_plan(kvd_inputs *in, const kvd_point *p, size_t k, kvd_plan *plan,
                         kvd_err *err);
/* Adds to *key all inputs and options that determine the results of the run, for --resume. */
int kvd_inputs_add_key(const kvd_inputs *in, const char *gpu, kvd_run_key *key, kvd_err *err);
/* Returns true if the output file is the complete result of a run with the same *key. */
bool kvd_inputs_is_complete(const kvd_inputs *in, const kvd_schema *schema, const kvd_run_key *key);
/* Reports that the output file is already complete: on stderr and, with --json, on stdout. */
int kvd_inputs_nothing_to_do(const kvd_inputs *in, const char *program, kvd_err *err);
void kvd_inputs_methods_text(const kvd_inputs_options *cfg, char *text, size_t size);
/* Writes the names given with --field, separated by spaces; '-' for a plain text. */
void kvd_inputs_fields_text(const kvd_inputs_options *cfg, char *text, size_t size);
void kvd_inputs_release(kvd_inputs *in);

#endif
