/*
 * Inputs that kvdim-eval and kvdim-tasks share: the checkpoint, the texts, the methods and the
 * files that methods read. A program's option structure must begin with kvd_inputs_options, so that
 * both programs can share its table of options.
 */
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
 * Command-line options that name the inputs. Must be the first member of a program's option
 * structure.
 */
typedef struct {
    kvd_common_options common;
    const char *model;
    const char *text[KVD_EVAL_TEXTS];
    size_t n_text;
    const char *ids, *label;
    /*
     * JSON keys or CSV columns that hold the text: one for all text files, or one for each. NULL
     * for a file of plain text.
     */
    const char *field[KVD_EVAL_TEXTS];
    size_t n_field;
    bool no_special;
    /*
     * True if all texts have equal weight in the results; `tokens` is then the number of tokens of
     * each text.
     */
    bool by_text;
    /* Values of --tokens, --seq-len and --batch; 0 if not given. */
    size_t tokens, seq_len, batch;
    /* Tokens of a sequence before the first decode step. */
    size_t prompt;
    /* True if every sequence has a prompt of its own, also if `prompt` is not given. */
    bool generates;
    /* Number of random seeds, for methods that draw random numbers. */
    size_t seeds;
    kvd_method method[KVD_EVAL_METHODS];
    const char *method_text[KVD_EVAL_METHODS];
    size_t n_methods;
    /* Strings in method_text that this structure owns. */
    char *own_text[KVD_EVAL_METHODS];
    size_t n_own;
    /* Paths of the --calibration and --fisher files; NULL if not given. */
    const char *calibration, *fisher;
    const char *spectrum[KVD_EVAL_FILES], *rates[KVD_EVAL_FILES], *table;
    size_t n_spectra, n_rates;
    kvd_dtype cache; /* number type of the keys and values in the cache */
} kvd_inputs_options;

typedef struct {
    kvd_inputs_options *cfg;
    kvd_run run;
    kvd_checkpoint *checkpoint;
    const kvd_config *model;
    kvd_model_info info;
    /* NULL if the program reads no texts. */
    kvd_corpus *corpus;
    /* NULL if the model has no tokenizer, in which case texts are token ids. */
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

/*
 * Appends the compression method that `text` describes to *cfg. `text` must live as long as *cfg.
 */
int kvd_inputs_add_method(kvd_inputs_options *cfg, const char *text, kvd_err *err);
/*
 * Callbacks of the options --method and --field. `config` points to a structure that begins with
 * kvd_inputs_options.
 */
int kvd_inputs_call_method(void *config, const char *spec, kvd_err *err);
int kvd_inputs_call_field(void *config, const char *text, kvd_err *err);
/* Frees the strings that the options --method and --field allocated. */
void kvd_inputs_options_release(kvd_inputs_options *cfg);

/* Records the checkpoint, the texts and the files of methods as inputs of the run (provenance). */
int kvd_inputs_record(kvd_inputs *in, kvd_err *err);
/* Loads the files that the methods read, and checks that they belong to the open checkpoint. */
int kvd_inputs_load(kvd_inputs *in, kvd_err *err);
/*
 * Completes the list of methods. Without --method, adds all methods whose rotations are in the
 * loaded files. Puts the uncompressed model first, because every result is compared with it.
 */
int kvd_inputs_resolve_methods(kvd_inputs *in, kvd_err *err);
/* Opens the tokenizer of the checkpoint. Warns on stderr if it seems to belong to another model. */
int kvd_inputs_open_tokenizer(kvd_inputs *in, const char *program, kvd_err *err);
/* Opens the texts (or token ids) to evaluate. Sets their label and the default of --seq-len. */
int kvd_inputs_open_corpus(kvd_inputs *in, kvd_err *err);
/* Selects the loaded files (rotations, numbers of kept dimensions, ...) that each method reads. */
int kvd_inputs_find_files(kvd_inputs *in, kvd_err *err);
/*
 * Creates the settings to evaluate of every method. If `none_is_error`, a method without any
 * setting is an error.
 */
int kvd_inputs_make_points(kvd_inputs *in, bool none_is_error, kvd_err *err);
/*
 * Prints warnings on stderr about three uses that are allowed but often a mistake. The calibration
 * text is also the evaluated text (in->same_text). Numbers of kept dimensions were chosen for other
 * rotations than those in use. A file or option is given that no method uses. The caller must call
 * kvd_inputs_find_files before.
 */
int kvd_inputs_warn(kvd_inputs *in, const char *program, kvd_err *err);
/* Checks before a long run that every setting can run. On failure names the method that cannot. */
int kvd_inputs_check_plans(kvd_inputs *in, kvd_err *err);
/*
 * Opens the cache plan (the compression that the cache applies) of setting *p; its random seed is
 * the run's seed plus k. The plan must not be moved in memory afterwards.
 */
int kvd_inputs_open_plan(kvd_inputs *in, const kvd_point *p, size_t k, kvd_plan *plan,
                         kvd_err *err);
/*
 * Adds everything that determines the results of a run to *key, so that --resume can compare it:
 * program, machine, seed, threads, texts, hashes of all inputs, and the recorded options.
 */
int kvd_inputs_add_key(const kvd_inputs *in, const char *gpu, kvd_run_key *key, kvd_err *err);
/*
 * Returns true if the output file is a complete result of a run with the same inputs and options
 * (*key).
 */
bool kvd_inputs_is_complete(const kvd_inputs *in, const kvd_schema *schema, const kvd_run_key *key);
/* Reports that the output file is already complete: on stderr and, with --json, on stdout. */
int kvd_inputs_nothing_to_do(const kvd_inputs *in, const char *program, kvd_err *err);
/* Writes the methods as the command line names them, separated by spaces. */
void kvd_inputs_methods_text(const kvd_inputs_options *cfg, char *text, size_t size);
/*
 * Writes the names of the text fields (--field), separated by spaces; '-' for a text without
 * fields.
 */
void kvd_inputs_fields_text(const kvd_inputs_options *cfg, char *text, size_t size);
void kvd_inputs_release(kvd_inputs *in);

#endif
