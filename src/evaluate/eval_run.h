/* State and functions of one run of kvdim-eval. */
#ifndef KVD_EVALUATE_EVAL_RUN_H
#define KVD_EVALUATE_EVAL_RUN_H

#include "common/run_key.h"
#include "evaluate/evaluate.h"
#include "evaluate/inputs.h"
#include "evaluate/point_columns.h"
#include "evaluate/target.h"
#include "formats/accuracy.h"
#include "formats/error_table.h"
#include "formats/rows.h"
#include "methods/points.h"

/* Results of kvdim-eval: a table row per method and parameter set, attention errors per head, and
 * sums of scores (such as correct predictions) per sequence. */

typedef struct {
    kvd_rows *rows;
    const kvd_config *config;
    char label[64];
    char calibrated[64]; /* name of the calibration text, or "" */
    size_t n_sequences, n_tokens;
    double *predictions; /* [n_sequences] predicted tokens */
    bool seeds;
} kvd_accuracy;

/* Creates an empty table of scores. `seeds` adds columns for standard deviations over seeds. */
int kvd_accuracy_init(kvd_accuracy *a, const kvd_config *config, const char *label,
                      size_t n_sequences, size_t n_tokens, bool seeds, kvd_err *err);
void kvd_accuracy_release(kvd_accuracy *a);

/* bytes of a number in an uncompressed cache */
enum { KVD_ACCURACY_ELEMENT_BYTES = 2 };

/* Adds a result. full_rank_error: error of logits with all dimensions kept, or NaN. */
int kvd_accuracy_add(kvd_accuracy *a, const char *purpose, const kvd_point *point,
                     const kvd_choice *choice, const kvd_quality_summary *summary,
                     double full_rank_error, kvd_err *err);

/* Returns 1 - stored bytes / uncompressed bytes; with `read`, of bytes read per decode step. */
double kvd_accuracy_saving(const kvd_accuracy *a, size_t row, bool read);
kvd_interval kvd_accuracy_top1_share(const kvd_accuracy *a, size_t row);

int kvd_accuracy_write(kvd_h5 *f, const kvd_accuracy *a, kvd_err *err);
/* Reads results into empty *a, which must have the same layers, heads and sequences. */
int kvd_accuracy_load(kvd_h5 *f, kvd_accuracy *a, kvd_err *err);
/* Appends result `row` of *from. Layers, heads and sequences must agree. */
int kvd_accuracy_take(kvd_accuracy *a, const kvd_accuracy *from, size_t row, kvd_err *err);

/* Writes how the strongest compressions of two methods differ as attributes of /target/<name>. */
int kvd_accuracy_write_difference(kvd_h5 *f, const char *name, const char *versus,
                                  const kvd_target_difference_result *d, kvd_err *err);

/* Writes the strongest compression that meets --target on each text alone to /target/<name>, if the
 * search varied the removed fraction p of dimensions. */
int kvd_accuracy_write_target_texts(kvd_h5 *f, const char *name, const kvd_target *of_text,
                                    size_t n_texts, kvd_err *err);

typedef struct {
    /* first, because kvd_inputs_call_method reads a pointer to all options as this member */
    kvd_inputs_options in;
    /* values of --weights-bits, allocated */
    size_t *weights_bits, n_weights_bits;
    size_t weights_group; /* number of weights that share a scale (--weights-bits) */
    /* true with --points-only: --target searches only among the given parameter values */
    bool points_only;
    bool scan;
} kvd_eval_options;

/* Parses the command line into zeroed *cfg. Wrong usage exits with status 2. */
void kvd_eval_parse(int argc, char **argv, kvd_eval_options *cfg);

void kvd_eval_options_release(kvd_eval_options *cfg);

/* Results of an unfinished run, kept in OUT.h5.rows. */

typedef struct {
    char *path; /* path of OUT.h5.rows, or NULL if nothing is saved */
    kvd_run_key key;
    kvd_accuracy from;
    size_t next; /* index of the next saved row to copy */
} kvd_saved_rows;

/* Reads saved results from OUT.h5.rows if it exists. The caller sets s->key. Fails if the file is
 * damaged or belongs to a run with other inputs or options (another key). `like`: empty table of
 * this run. */
int kvd_saved_rows_open(kvd_saved_rows *s, const char *output, const kvd_accuracy *like,
                        kvd_err *err);
size_t kvd_saved_rows_count(const kvd_saved_rows *s);
void kvd_saved_rows_release(kvd_saved_rows *s);

/* Removes OUT.h5.rows, the file of saved results. Call when the output file OUT.h5 is complete. */
int kvd_saved_rows_remove(const kvd_saved_rows *s, kvd_err *err);

typedef struct {
    kvd_eval_options *cfg;
    kvd_inputs in;
    kvd_model_runner *runner;
    size_t rows; /* largest number of tokens in one forward pass */
    double weight_bytes;
    kvd_evaluator evaluator;
    double full_rank_error[KVD_EVAL_METHODS];
    kvd_accuracy accuracy;
    kvd_saved_rows saved; /* rows of an earlier run (--resume) */
    size_t printed;
    kvd_method_target target[KVD_EVAL_METHODS];
    size_t n_targets;
    kvd_h5 file;
} kvd_eval_run;

/* Opens model, texts and calibration files, and lists the parameters to evaluate. */
int kvd_eval_open_inputs(kvd_eval_run *v, const char *program, kvd_err *err);
/* Evaluates all methods with all their parameter values. In a sweep, warns of the values that a
 * method cannot take or at which it changed no cached token, and leaves them out
 * (kvd_inputs_leave_out). */
int kvd_eval_points(kvd_eval_run *v, const char *program, kvd_err *err);
/* Prints results added since the last call, except with --quiet or --json. */
void kvd_eval_print_new_rows(kvd_eval_run *v);
/* Evaluates a method with one set of parameters, or copies its saved result. *row receives the
 * result's row in the table. full_rank_error: error of the logits with all dimensions kept, or
 * NaN. */
int kvd_eval_one(kvd_eval_run *v, const char *purpose, const kvd_point *point,
                 double full_rank_error, size_t *row, kvd_err *err);

/* Returns a runner for another checkpoint of equal shape. The caller frees it. */
kvd_model_runner *kvd_eval_runner(const kvd_eval_run *v, const kvd_checkpoint *c, kvd_err *err);

int kvd_eval_weights(kvd_eval_run *v, kvd_err *err);

/* Finds each method's strongest compression that meets --target. Writes /target/<name>. */
int kvd_eval_search(kvd_eval_run *v, kvd_err *err);

/* Measures the mean KL divergence (nats per token) when Q-K or V of one head keeps fewer
 * dimensions. `type`: number type of projected K and V. Requires keep_reference. The caller
 * releases *t. */
int kvd_error_scan(kvd_evaluator *e, const kvd_method *m, const kvd_model_info *model,
                   kvd_dtype type, kvd_progress *progress, kvd_error_table *t, kvd_err *err);

/* Returns the number of forward passes of kvd_error_scan. */
size_t kvd_error_scan_runs(const kvd_config *c);

#endif
