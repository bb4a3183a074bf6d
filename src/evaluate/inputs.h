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

/* Options that kvdim-eval and kvdim-tasks share. Must be the first member of their options. */
typedef struct {
    kvd_common_options common;
    const char *model;
    const char *text[KVD_EVAL_TEXTS];
    size_t n_text;
    const char *ids, *label;
    /*
     * Name of the JSON key or CSV column of the text, one for all files or one per file. NULL:
     * plain text.
     */
    const char *field[KVD_EVAL_TEXTS];
    size_t n_field;
    bool no_special;
    /* True if every text has equal weight; `tokens` then limits each text. */
    bool by_text;
    size_t tokens, seq_len, batch; /* 0 if not given */
    size_t prompt;                 /* number of prompt tokens of a sequence */
    /* True if sequences have prompts even if no option gives the prompt's length. */
    bool generates;
    size_t seeds;
    kvd_method method[KVD_EVAL_METHODS];
    const char *method_text[KVD_EVAL_METHODS];
    size_t n_methods;
    char *own_text[KVD_EVAL_METHODS]; /* strings of method_text that must be freed */
    size_t n_own;
    const char *calibration, *fisher; /* NULL if not given */
    const char *spectrum[KVD_EVAL_FILES], *rates[KVD_EVAL_FILES], *table;
    size_t n_spectra, n_rates;
    /* Number types of the forward pass (KVD_F32 or KVD_BF16), and of the stored cache. */
    kvd_dtype compute, cache;
    bool cache_given; /* false if the program chooses `cache` */
    /*
     * Fraction of the uncompressed model's score that a method must keep in a search (--target), or
     * NaN without a search.
     */
    double target;
    /*
     * Parameter whose value a search (--target) varies, or NULL for the usual one of each method.
     */
    const char *target_key;
    size_t sweep; /* parameter values to try of each method; 0 without --sweep */
    bool resume;
} kvd_inputs_options;

typedef struct {
    kvd_inputs_options *cfg;
    kvd_run run;
    kvd_checkpoint *checkpoint;
    const kvd_config *model;
    kvd_model_info info;
    /* Texts to evaluate; NULL if the program reads none. */
    kvd_corpus *corpus;
    kvd_tokenizer *tokenizer; /* NULL if texts can only be token ids */
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

/* Adds the value of --method. `config` must begin with a kvd_inputs_options. */
int kvd_inputs_call_method(void *config, const char *spec, kvd_err *err);
int kvd_inputs_call_field(void *config, const char *text, kvd_err *err);
void kvd_inputs_options_release(kvd_inputs_options *cfg);

/*
 * Fails if a method chooses the kept dimensions of each head by a rule, but no option says how many
 * to keep in total.
 */
int kvd_inputs_check_ranks(const kvd_inputs_options *cfg, kvd_err *err);

/* Fails if no method has a parameter for --sweep to vary, or if --method gives its value. */
int kvd_inputs_check_sweep(const kvd_inputs_options *cfg, kvd_err *err);

/* Opens the checkpoint of --model. */
int kvd_inputs_open_model(kvd_inputs *in, kvd_err *err);
/*
 * Chooses the device, which in->run.gpu names, and the number types. Opens the checkpoint and the
 * method files, and records all inputs. Fails if a file is of another model.
 */
int kvd_inputs_open(kvd_inputs *in, kvd_err *err);
/*
 * With --sweep, replaces every method by copies with different strengths of compression. Without
 * --method, takes all methods that save bytes (--sweep) or that have rotations. Puts the
 * uncompressed model first.
 */
int kvd_inputs_resolve_methods(kvd_inputs *in, kvd_err *err);
/* Warns on stderr if the tokenizer seems to be another model's. */
int kvd_inputs_open_tokenizer(kvd_inputs *in, const char *program, kvd_err *err);
/* Opens texts or token ids. Sets their label, and --seq-len if missing. */
int kvd_inputs_open_corpus(kvd_inputs *in, kvd_err *err);
int kvd_inputs_find_files(kvd_inputs *in, kvd_err *err);
/*
 * Lists the parameter values at which each method is evaluated. If none_is_error, fails if a method
 * has none.
 */
int kvd_inputs_make_points(kvd_inputs *in, bool none_is_error, kvd_err *err);
/*
 * Warns if the calibration text is evaluated, if kept dimensions were chosen for other rotations,
 * or if files are unused. Fails if two texts of one label differ. Must follow
 * kvd_inputs_find_files.
 */
int kvd_inputs_warn(kvd_inputs *in, const char *program, kvd_err *err);
/* Fails if a method cannot run on this model and device. The message names the method. */
int kvd_inputs_check_plans(kvd_inputs *in, kvd_err *err);
/*
 * Fails if a method cannot run on one of n prompts. Prompt s has at[s + 1] - at[s] tokens.
 * Sequences have at most max_len tokens.
 */
int kvd_inputs_check_prompts(const kvd_inputs *in, const size_t *at, size_t n, size_t max_len,
                             kvd_err *err);
/*
 * Opens the compression method that `p` describes; its seed is the run's plus k. *plan must not be
 * moved afterwards.
 */
int kvd_inputs_open_plan(kvd_inputs *in, const kvd_point *p, size_t k, kvd_plan *plan,
                         kvd_err *err);
/* Adds all options and inputs that determine the results to *key, which --resume compares. */
int kvd_inputs_add_key(const kvd_inputs *in, kvd_run_key *key, kvd_err *err);
/* Returns true if the output file is complete and was made with an equal *key. */
bool kvd_inputs_is_complete(const kvd_inputs *in, const kvd_schema *schema, const kvd_run_key *key);
/* Reports that the output file is already complete: on stderr, and with --json on stdout. */
int kvd_inputs_nothing_to_do(const kvd_inputs *in, const char *program, kvd_err *err);
void kvd_inputs_methods_text(const kvd_inputs_options *cfg, char *text, size_t size);
/* Writes the names given to --field to `text`, with '-' for plain text. */
void kvd_inputs_fields_text(const kvd_inputs_options *cfg, char *text, size_t size);
void kvd_inputs_release(kvd_inputs *in);

#endif
