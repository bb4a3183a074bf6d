/*
 * Inputs that kvdim-eval and kvdim-tasks share: the checkpoint, the texts, the methods and the
 * files that methods read. The structure of a program's options begins with the options that name
 * these inputs, so both programs can use the option rows of kvd_inputs_options.
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
     * JSON keys or CSV columns that hold the text: one for all texts, or one for each; NULL for a
     * text without fields.
     */
    const char *field[KVD_EVAL_TEXTS];
    size_t n_field;
    bool no_special;
    bool by_text;                  /* texts have equal weight, and `tokens` is a number per text */
    size_t tokens, seq_len, batch; /* 0 if not given */
    size_t prompt;                 /* rows of a sequence before the first step */
    bool generates; /* every sequence has a prompt of its own, also without `prompt` */
    size_t seeds;   /* seeds of methods that draw random numbers */
    kvd_method method[KVD_EVAL_METHODS];
    const char *method_text[KVD_EVAL_METHODS];
    size_t n_methods;
    char *own_text[KVD_EVAL_METHODS]; /* texts in method_text that this structure owns */
    size_t n_own;
    const char *calibration, *fisher; /* NULL if not given */
    const char *spectrum[KVD_EVAL_FILES], *rates[KVD_EVAL_FILES], *table;
    size_t n_spectra, n_rates;
    kvd_dtype cache; /* type in which K' and V' are stored */
} kvd_inputs_options;

typedef struct {
    kvd_inputs_options *cfg;
    kvd_run run;
    kvd_checkpoint *checkpoint;
    const kvd_config *model;
    kvd_model_info info;
    kvd_corpus *corpus; /* NULL means the program reads no texts */
    /* NULL if the model has no tokenizer; the text was then given as token ids. */
    kvd_tokenizer *tokenizer;
    char label[64];
    kvd_spectrum spectrum[KVD_EVAL_FILES];
    kvd_rates rates[KVD_EVAL_FILES];
    kvd_error_table table;
    kvd_activations calibration;
    kvd_fisher fisher;
    /* True if some bases were calibrated on the text that is evaluated. */
    bool same_text;
    kvd_point *point[KVD_EVAL_METHODS];
    size_t n_points[KVD_EVAL_METHODS];
} kvd_inputs;

/*
 * Appends one compression method, described by `text`, to *cfg. `text` must live as long as *cfg.
 */
int kvd_inputs_add_method(kvd_inputs_options *cfg, const char *text, kvd_err *err);
/* Callbacks of --method and --field (KVD_OPT_CALL); config begins with a kvd_inputs_options. */
int kvd_inputs_call_method(void *config, const char *spec, kvd_err *err);
int kvd_inputs_call_field(void *config, const char *text, kvd_err *err);
/* Frees the strings that the callbacks of --method and --field allocated. */
void kvd_inputs_options_release(kvd_inputs_options *cfg);

/* Lists the checkpoint, the texts and the files of methods as inputs of the run. */
int kvd_inputs_record(kvd_inputs *in, kvd_err *err);
/* Loads the files that the methods read, and checks that they belong to the open checkpoint. */
int kvd_inputs_load(kvd_inputs *in, kvd_err *err);
/*
 * Completes the list of methods. Without --method, adds all methods whose pairs are in the files.
 * Puts the uncompressed model first, because every row is compared with it.
 */
int kvd_inputs_resolve_methods(kvd_inputs *in, kvd_err *err);
/* Opens the tokenizer of the checkpoint, and warns on stderr if it seems to be another model's. */
int kvd_inputs_open_tokenizer(kvd_inputs *in, const char *program, kvd_err *err);
/* Opens the texts (or token ids) to evaluate, and sets their label and the default of --seq-len. */
int kvd_inputs_open_corpus(kvd_inputs *in, kvd_err *err);
/* Selects the loaded files (bases, widths, ...) that each method reads. */
int kvd_inputs_find_files(kvd_inputs *in, kvd_err *err);
/*
 * Creates the points (settings to evaluate) of every method. `none_is_error`: a method without a
 * point is an error.
 */
int kvd_inputs_make_points(kvd_inputs *in, bool none_is_error, kvd_err *err);
/*
 * Prints warnings on stderr about uses that are allowed but often a mistake: calibration on the
 * text that is evaluated (in->same_text), widths that belong to other bases, files and options that
 * no method uses. Call it after kvd_inputs_find_files.
 */
int kvd_inputs_warn(kvd_inputs *in, const char *program, kvd_err *err);
/* Checks before a long run that every point can run. On failure names the method that cannot. */
int kvd_inputs_check_plans(kvd_inputs *in, kvd_err *err);
/*
 * Opens the cache plan of a point, with the run's seed plus k. The plan must not be moved in memory
 * afterwards.
 */
int kvd_inputs_open_plan(kvd_inputs *in, const kvd_point *p, size_t k, kvd_plan *plan,
                         kvd_err *err);
/*
 * Adds everything that determines the numbers of a run, so that --resume can compare it: the
 * program, the machine, seed, threads, the texts, the hashes of all inputs, and the recorded
 * options.
 */
int kvd_inputs_add_key(const kvd_inputs *in, const char *gpu, kvd_run_key *key, kvd_err *err);
/*
 * Returns true if the output file is a complete result of a run with the same key (all inputs and
 * options).
 */
bool kvd_inputs_is_complete(const kvd_inputs *in, const kvd_schema *schema, const kvd_run_key *key);
/* Prints on stderr, and with --json on stdout, that the output file is complete. */
int kvd_inputs_nothing_to_do(const kvd_inputs *in, const char *program, kvd_err *err);
/* Writes the methods as the command line names them, separated by spaces. */
void kvd_inputs_methods_text(const kvd_inputs_options *cfg, char *text, size_t size);
/* Writes the fields of the texts, separated by spaces; '-' for a text without fields. */
void kvd_inputs_fields_text(const kvd_inputs_options *cfg, char *text, size_t size);
void kvd_inputs_release(kvd_inputs *in);

#endif
