/* One run of kvdim-eval: what eval_inputs.c reads, kvdim_eval.c sets up, eval_rows.c evaluates, eval_search.c searches, eval_weights.c compares and eval_curve.c reads off the rows. Private to the program. */
#ifndef KVD_ANALYSIS_EVAL_RUN_H
#define KVD_ANALYSIS_EVAL_RUN_H

#include "analysis/accuracy.h"
#include "analysis/eval_options.h"
#include "analysis/free_run.h"
#include "analysis/saved_rows.h"
#include "analysis/target.h"
#include "common/run.h"

typedef struct {
    char name[80]; /* group of the file */
    size_t method; /* whose key is searched */
    kvd_method_rate rate;
    bool whole;                /* nothing but p of dims acts: p = 0 is the uncompressed model */
    size_t first_row, end_row; /* of its search */
    kvd_target found;
} kvd_eval_target;

typedef struct {
    kvd_eval_options *cfg;
    kvd_run run;
    kvd_checkpoint *checkpoint;
    const kvd_config *model;
    kvd_model_info info;
    kvd_corpus *corpus;
    kvd_tokenizer *tokenizer; /* NULL: the model comes without, and ids were given */
    kvd_free_run free_run;
    char label[64];
    char gpu[256]; /* empty: the CPU runs the model */
    kvd_model_runner *runner;
    size_t rows;         /* that a runner takes at a time */
    double weight_bytes; /* of the model as stored */
    kvd_evaluator evaluator;
    kvd_spectrum spectrum[KVD_EVAL_FILES];
    kvd_rates rates[KVD_EVAL_FILES];
    kvd_error_table table;
    kvd_activations calibration;
    kvd_fisher fisher;
    kvd_point_source source[KVD_EVAL_METHODS];
    double full_rank_error[KVD_EVAL_METHODS];
    bool same_text; /* some bases come from the very text that is evaluated */
    kvd_point *point[KVD_EVAL_METHODS];
    size_t n_points[KVD_EVAL_METHODS];
    kvd_accuracy accuracy;
    kvd_saved_rows saved; /* of --resume */
    size_t printed;       /* rows on stdout so far */
    kvd_eval_target target[KVD_EVAL_METHODS];
    size_t n_targets;
    kvd_h5 file;
} kvd_eval_run;

/* eval_inputs.c: all that the command line names, opened and checked against v->checkpoint, methods settled, provenance recorded. */
int kvd_eval_open_inputs(kvd_eval_run *v, const char *program, kvd_err *err);
/* The points of every method. A method without one is an error, unless a target is searched. */
int kvd_eval_make_points(kvd_eval_run *v, kvd_err *err);

/* eval_rows.c: all points into v->accuracy; with --resume one after another, each saved when it is done. */
int kvd_eval_points(kvd_eval_run *v, kvd_err *err);
/* Rows since the last call, to stdout unless that is quiet or JSON. */
void kvd_eval_print_new_rows(kvd_eval_run *v);
/* One point of a source, whose method may have been set to other values; *row is where it stands in v->accuracy. Its plan is opened and
 * closed. full_rank_error as of the row. */
int kvd_eval_one(kvd_eval_run *v, const char *purpose, const kvd_point_source *source, const kvd_point *point,
                 double full_rank_error, size_t *row, kvd_err *err);

/* eval_warn.c: on stderr, what is allowed and should not happen unawares: calibration on the text that is evaluated (v->same_text), widths
 * of other bases, files and options that no method has a use for. Sources are there. */
int kvd_eval_warn(kvd_eval_run *v, const char *program, kvd_err *err);

/* A runner of the evaluator's sizes for another checkpoint of the model's shape. NULL with *err. */
kvd_model_runner *kvd_eval_runner(const kvd_eval_run *v, const kvd_checkpoint *c, kvd_err *err);

/* eval_weights.c: --weights-bits; a row for each, behind all others. */
int kvd_eval_weights(kvd_eval_run *v, kvd_err *err);

/* eval_search.c: --target for every method that has something to search; writes /target/<name>. */
int kvd_eval_search(kvd_eval_run *v, kvd_err *err);

/* eval_curve.c. Whether two methods differ in nothing but the key of rate. */
bool kvd_eval_same_but_key(const kvd_method *a, const kvd_method *b, const kvd_method_rate *rate);
/* The answer of --points-only, from the rows of all methods that are alike but for the key; t->found. */
int kvd_eval_read_points(const kvd_eval_run *v, kvd_eval_target *t, kvd_err *err);
/* How much further in p than the first: printed and written. Both are whole. */
int kvd_eval_compare_targets(kvd_eval_run *v, const kvd_eval_target *first, const kvd_eval_target *t,
                             kvd_err *err);
/* What a row of v->accuracy keeps of each text [n_texts]. */
int kvd_eval_text_shares(kvd_eval_run *v, size_t row, kvd_interval *of_text, kvd_err *err);

#endif
