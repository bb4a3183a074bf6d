/* Inputs of kvdim-eval and kvdim-tasks: checkpoint, texts, methods and their files. */
#ifndef KVD_EVALUATE_INPUTS_H
#define KVD_EVALUATE_INPUTS_H

#include "common/half.h"
#include "common/options.h"
#include "common/run.h"
#include "common/run_key.h"
#include "formats/model_info.h"
#include "methods/points.h"
#include "model/checkpoint/checkpoint.h"
#include "model/text/corpus.h"

enum { KVD_EVAL_TEXTS = 4096, KVD_EVAL_METHODS = 512 };

/* options of both kvdim-eval and kvdim-tasks; must be the first member of each program's options */
typedef struct {
    kvd_common_options common;
    const char *model;
    const char *text[KVD_EVAL_TEXTS];
    size_t n_text;
    const char *ids, *label;
    /* JSON key or CSV column of the text, for all files or each; NULL: plain text */
    const char *field[KVD_EVAL_TEXTS];
    size_t n_field;
    bool no_special;
    /* true if texts have equal weight; `tokens` then limits each text */
    bool by_text;
    size_t tokens, seq_len, batch; /* 0 if not given */
    size_t prompt;                 /* number of prompt tokens of a sequence */
    /* true if sequences need prompts, so that a prompt length that is not given gets a default */
    bool generates;
    size_t seeds;
    kvd_method method[KVD_EVAL_METHODS];
    const char *method_text[KVD_EVAL_METHODS];
    size_t n_methods;
    char *own_text[KVD_EVAL_METHODS]; /* strings of method_text that must be freed */
    size_t n_own;
    kvd_method_paths files;
    /* number types of the forward pass and of the cache */
    kvd_dtype compute, cache;
    bool cache_given; /* false if the program chooses `cache` */
    /* share of the uncompressed score that --target keeps, or NaN */
    double target;
    /* parameter that a search varies; NULL: the method's usual one */
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
    /* texts to evaluate, or NULL */
    kvd_corpus *corpus;
    kvd_tokenizer *tokenizer; /* NULL if texts can only be token ids */
    char label[64];
    kvd_method_files files;
    /* true if rotations were calibrated on the evaluated text */
    bool same_text;
    kvd_point *point[KVD_EVAL_METHODS];
    size_t n_points[KVD_EVAL_METHODS];
    /* True if the latest failure is due to the parameter values of a method. */
    bool unsuited;
    /* error for which all parameter values of a method were left out, allocated; else NULL */
    char *left_out[KVD_EVAL_METHODS];
} kvd_inputs;

/* Adds a --method. `config` must begin with a kvd_inputs_options. */
int kvd_inputs_call_method(void *config, const char *spec, kvd_err *err);
int kvd_inputs_call_field(void *config, const char *text, kvd_err *err);
void kvd_inputs_options_release(kvd_inputs_options *cfg);

/* Fails if a rule must choose kept dimensions, but no option says how many in total. */
int kvd_inputs_check_ranks(const kvd_inputs_options *cfg, kvd_err *err);

/* Fails if no method has a parameter for --sweep to vary, or if --method gives its value. */
int kvd_inputs_check_sweep(const kvd_inputs_options *cfg, kvd_err *err);

int kvd_inputs_open_model(kvd_inputs *in, kvd_err *err);
/* Chooses device and number types. Opens checkpoint and method files, and records all inputs. Fails
 * if a file is of another model. */
int kvd_inputs_open(kvd_inputs *in, kvd_err *err);
/* With --sweep, replaces every method by copies of different strengths. Without --method, adds all
 * methods with rotations, or with --sweep all that save bytes. The uncompressed model comes
 * first. */
int kvd_inputs_resolve_methods(kvd_inputs *in, kvd_err *err);
/* Opens the model's tokenizer. Warns if it seems to be another model's. */
int kvd_inputs_open_tokenizer(kvd_inputs *in, const char *program, kvd_err *err);
/* Opens texts or token ids. Sets their label, and --seq-len if missing. */
int kvd_inputs_open_corpus(kvd_inputs *in, kvd_err *err);
int kvd_inputs_find_files(kvd_inputs *in, kvd_err *err);
/* Lists the parameters to evaluate each method at. none_is_error: a method without any fails. */
int kvd_inputs_make_points(kvd_inputs *in, bool none_is_error, kvd_err *err);
/* Warns if a calibration text is also evaluated, if kept dimensions were chosen for other
 * rotations, and of unused files. Fails if different texts have one label. Must follow
 * kvd_inputs_find_files. */
int kvd_inputs_warn(kvd_inputs *in, const char *program, kvd_err *err);
/* Fails if a method cannot run on this model and device. The message names the method. In a sweep,
 * leaves out the values that a method cannot take, and fails if a method has no other value. */
int kvd_inputs_check_plans(kvd_inputs *in, const char *program, kvd_err *err);
/* Call after method i failed. In a sweep, if in->unsuited is true, removes the points of method i,
 * prints the message in *err as a warning, and returns 0. Otherwise returns -1 and keeps *err. */
int kvd_inputs_leave_out(kvd_inputs *in, size_t i, const char *program, kvd_err *err);
/* Fails if --sweep has left out all parameter values of a method. If `every`, fails only if no
 * compressed method has a value left. */
int kvd_inputs_check_left(const kvd_inputs *in, bool every, kvd_err *err);
/* Fails if a method cannot run on a prompt; in a sweep, leaves out that method instead. Prompt s
 * has at[s + 1] - at[s] tokens, a sequence at most max_len tokens. */
int kvd_inputs_check_prompts(kvd_inputs *in, const size_t *at, size_t n, size_t max_len,
                             const char *program, kvd_err *err);
/* Opens the methods of `p` with the run's seed plus k. *plan must not be moved afterwards. On
 * failure sets in->unsuited, by which kvd_inputs_leave_out leaves out a method. */
int kvd_inputs_open_plan(kvd_inputs *in, const kvd_point *p, size_t k, kvd_plan *plan,
                         kvd_err *err);
/* Adds all that determines the results to *key, which --resume compares. */
int kvd_inputs_add_key(const kvd_inputs *in, kvd_run_key *key, kvd_err *err);
/* Returns true if the output file is complete and has an equal *key. */
bool kvd_inputs_is_complete(const kvd_inputs *in, const kvd_schema *schema, const kvd_run_key *key);
/* Reports that the output file is complete, with --json on stdout. */
int kvd_inputs_nothing_to_do(const kvd_inputs *in, const char *program, kvd_err *err);
void kvd_inputs_methods_text(const kvd_inputs_options *cfg, char *text, size_t size);
/* Writes the names given by --field (JSON keys, CSV columns), with '-' for plain text. */
void kvd_inputs_fields_text(const kvd_inputs_options *cfg, char *text, size_t size);
void kvd_inputs_release(kvd_inputs *in);

#endif
