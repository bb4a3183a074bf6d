/* Inputs of kvdim-eval and kvdim-tasks: checkpoint, texts, compression methods, and files that the
 * methods read. */
#ifndef KVD_EVALUATE_INPUTS_H
#define KVD_EVALUATE_INPUTS_H

#include "common/half.h"
#include "common/options.h"
#include "common/run.h"
#include "common/run_key.h"
#include "evaluate/target.h"
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
    /* [n_field] JSON key or CSV column to read from each text file; a single element applies to all
     * files. NULL means that the file is plain text. */
    const char *field[KVD_EVAL_TEXTS];
    size_t n_field;
    bool no_special;
    /* true if texts have equal weight in mean scores; `tokens` is then the limit of each text */
    bool by_text;
    size_t tokens, seq_len, batch; /* 0 if not given */
    size_t prompt;                 /* number of prompt tokens of a sequence */
    /* true if the program generates text after prompts; every sequence then has its own prompt
     * length, unless `prompt` gives the same length for all */
    bool generates;
    size_t seeds;
    kvd_method method[KVD_EVAL_METHODS];
    const char *method_text[KVD_EVAL_METHODS];
    size_t n_methods;
    char *own_text[KVD_EVAL_METHODS]; /* strings of method_text that must be freed */
    size_t n_own;
    kvd_method_paths files;
    /* number type of the forward pass, and number type of the cache */
    kvd_dtype compute, cache;
    bool cache_given; /* false if the program chooses `cache` */
    /* option --target, the share of the uncompressed model's score to keep; NaN if the option is
     * not given */
    double target;
    /* parameter that option --target varies to find the strongest compression; NULL means the usual
     * parameter of each method */
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
    /* texts to evaluate; NULL if the program was given none */
    kvd_corpus *corpus;
    kvd_tokenizer *tokenizer; /* NULL if texts can only be token ids */
    char label[64];
    kvd_method_files files;
    /* true if a method was calibrated on the evaluated text, or on one with the same beginning */
    bool same_text;
    /* true after the warning that calibration sequences are shorter than evaluated ones */
    bool short_calibration;
    kvd_point *point[KVD_EVAL_METHODS];
    size_t n_points[KVD_EVAL_METHODS];
    /* true if the latest failure came from the parameter values of a method, not from the inputs */
    bool unsuited;
    /* true if the latest failure was that a method changed no cached token */
    bool inert;
    /* true if option --target tries parameter values of its own, in addition to the values in
     * --method */
    bool searches;
    /* for each method: why it is left out, as an allocated message; NULL if it is not left out */
    char *left_out[KVD_EVAL_METHODS];
} kvd_inputs;

/* Adds the compression methods that `spec`, the value of an option --method, names. `config` must
 * point to a structure that begins with a kvd_inputs_options. */
int kvd_inputs_call_method(void *config, const char *spec, kvd_err *err);
int kvd_inputs_call_field(void *config, const char *text, kvd_err *err);
void kvd_inputs_options_release(kvd_inputs_options *cfg);

/* Fails if a method chooses each head's kept dimensions by a rule, but no option says how many
 * dimensions to keep in all. */
int kvd_inputs_check_ranks(const kvd_inputs_options *cfg, kvd_err *err);

/* Fails if no method has a parameter that --sweep can vary, or if --method already gives a value of
 * that parameter. */
int kvd_inputs_check_sweep(const kvd_inputs_options *cfg, kvd_err *err);

int kvd_inputs_open_model(kvd_inputs *in, kvd_err *err);
/* Chooses device and number types, opens checkpoint and method files, and records all inputs. Fails
 * if a method file belongs to another model. */
int kvd_inputs_open(kvd_inputs *in, kvd_err *err);
/* Completes the list of compression methods, and puts the uncompressed model first. Without
 * --method, adds each method whose rotation matrices are in the input files. With --sweep, lists
 * each given method, or else every method, at several strengths. */
int kvd_inputs_resolve_methods(kvd_inputs *in, kvd_err *err);
/* Opens the model's tokenizer. Warns if the tokenizer seems to belong to another model. */
int kvd_inputs_open_tokenizer(kvd_inputs *in, const char *program, kvd_err *err);
/* Opens the texts, or the files of token ids, that are evaluated. Sets in->label to their name.
 * Sets the sequence length if option --seq-len is not given. */
int kvd_inputs_open_corpus(kvd_inputs *in, kvd_err *err);
int kvd_inputs_find_files(kvd_inputs *in, kvd_err *err);
/* Lists the parameter values at which to evaluate each method. With none_is_error, fails if a
 * method has no such values. */
int kvd_inputs_make_points(kvd_inputs *in, bool none_is_error, kvd_err *err);
/* Warns if evaluated texts were also used for calibration, if a file is unused, or if numbers of
 * kept dimensions were chosen for other rotations than this run uses. Fails if different texts have
 * the same label. Call kvd_inputs_find_files before. */
int kvd_inputs_warn(kvd_inputs *in, const char *program, kvd_err *err);
/* Warns, once in a run, if rotations of keys after RoPE were calibrated on sequences shorter than
 * `longest`, the number of tokens of the longest evaluated sequence. */
void kvd_inputs_warn_positions(kvd_inputs *in, size_t longest, const char *program);
/* Fails if a method cannot run on this model and device; the message names the method. With
 * --sweep, leaves out parameter values that a method cannot take, and fails only if no value is
 * left. */
int kvd_inputs_check_plans(kvd_inputs *in, const char *program, kvd_err *err);
/* Call it after method i failed with *err, to continue without this method. Prints *err as a
 * warning, removes the parameter values of the method and returns 0.
 *
 * - Returns -1 if in->unsuited is false. Without --sweep, also if compression had an effect or no
 *   other compression method is left.
 * - Without --sweep, keeps the parameter values if in->inert and in->searches are true. */
int kvd_inputs_leave_out(kvd_inputs *in, size_t i, const char *program, kvd_err *err);
/* Fails if methods were removed from the run and no compression method is left. */
int kvd_inputs_check_left(const kvd_inputs *in, kvd_err *err);
/* Prints the last warnings of a run: without --sweep, how many methods failed and were left out;
 * with --sweep, which methods failed at all their parameter values. The exit status stays 0. */
void kvd_inputs_warn_left(const kvd_inputs *in);
/* Call it after --target failed to evaluate one parameter value of a method. If compression had no
 * effect at that value, prints *err as a warning, sets out->inert and returns 0. Otherwise returns
 * -1. */
int kvd_inputs_pass_value(kvd_inputs *in, const kvd_method_target *t, const kvd_point *point,
                          kvd_target_sample *out, kvd_err *err);
/* Ends search `t` of option --target. `status`: return value of kvd_method_target_search. If no
 * value of the searched parameter changes a cached token, prints a warning, sets t->failed and
 * returns 0. */
int kvd_inputs_end_search(kvd_inputs *in, kvd_method_target *t, int status, kvd_err *err);
/* t [n]: finished searches of option --target. Fails if n > 0 and all searches failed; the error
 * message includes that of the last search, *err. */
int kvd_inputs_check_searched(kvd_inputs *in, const kvd_method_target *t, size_t n, kvd_err *err);
/* Returns true if the same command may continue a failed run. Returns false if it would fail again,
 * because parameters are wrong or all compression methods were left out. */
bool kvd_inputs_may_continue(const kvd_inputs *in);
/* Fails if a method cannot run on one of n prompts. With --sweep, leaves out such a method instead.
 * Prompt s has at[s + 1] - at[s] tokens. A prompt and its generated tokens are at most max_len
 * tokens. */
int kvd_inputs_check_prompts(kvd_inputs *in, const size_t *at, size_t n, size_t max_len,
                             const char *program, kvd_err *err);
/* Prepares *plan, the compression at the parameter values *p, with random seed in->run.seed + k.
 * *plan must not be moved afterwards. On failure sets in->unsuited, which means that the run may
 * continue without this method. */
int kvd_inputs_open_plan(kvd_inputs *in, const kvd_point *p, size_t k, kvd_plan *plan,
                         kvd_err *err);
/* Warns if a file with the name of the output file and the added `ending` exists. It has results of
 * an interrupted run, which a run without --resume ignores. */
int kvd_inputs_warn_saved(const kvd_inputs *in, const char *ending, const char *program,
                          kvd_err *err);
/* Adds all on which the results depend (inputs, options, seed, hardware) to *key. --resume compares
 * *key with the key of the earlier run. */
int kvd_inputs_add_key(const kvd_inputs *in, kvd_run_key *key, kvd_err *err);
/* For --resume: *complete receives true if the output file is complete and was made with the inputs
 * and options in *key, or false if it is missing or empty. Fails if the file has other contents. */
int kvd_inputs_find_complete(const kvd_inputs *in, const kvd_schema *schema, const kvd_run_key *key,
                             bool *complete, kvd_err *err);
/* Reports on stderr that the output file is already complete. With --json, also prints this as JSON
 * on stdout. */
int kvd_inputs_nothing_to_do(const kvd_inputs *in, const char *program, kvd_err *err);
void kvd_inputs_methods_text(const kvd_inputs_options *cfg, char *text, size_t size);
/* Writes the values of option --field to `text`, separated by blanks. A value is a JSON key or CSV
 * column to read, or "-" for a plain text file. */
void kvd_inputs_fields_text(const kvd_inputs_options *cfg, char *text, size_t size);
void kvd_inputs_release(kvd_inputs *in);

#endif
