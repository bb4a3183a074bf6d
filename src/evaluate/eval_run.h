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

/* Creates an empty results table. `seeds`: true to add columns for standard deviations over random
 * seeds. */
int kvd_accuracy_init(kvd_accuracy *a, const kvd_config *config, const char *label,
                      size_t n_sequences, size_t n_tokens, bool seeds, kvd_err *err);
void kvd_accuracy_release(kvd_accuracy *a);

/* bytes per number in an uncompressed cache */
enum { KVD_ACCURACY_ELEMENT_BYTES = 2 };

/* Adds a row with a method's results. full_rank_error: change of the logits when the method's
 * projections keep all dimensions (rounding errors only); NaN if not measured. */
int kvd_accuracy_add(kvd_accuracy *a, const char *purpose, const kvd_point *point,
                     const kvd_choice *choice, const kvd_quality_summary *summary,
                     double full_rank_error, kvd_err *err);

/* Returns the saved fraction of bytes, 1 - stored bytes / uncompressed bytes. With `read`, compares
 * the bytes that a decode step reads, not the stored bytes. */
double kvd_accuracy_saving(const kvd_accuracy *a, size_t row, bool read);
kvd_interval kvd_accuracy_top1_share(const kvd_accuracy *a, size_t row);

int kvd_accuracy_write(kvd_h5 *f, const kvd_accuracy *a, kvd_err *err);
/* Reads the results in file `f` into *a, which must be an empty table for the numbers of layers,
 * heads and sequences in the file. */
int kvd_accuracy_load(kvd_h5 *f, kvd_accuracy *a, kvd_err *err);
/* Appends row `row` of *from to *a. Both tables must have the same numbers of layers, heads and
 * sequences. */
int kvd_accuracy_take(kvd_accuracy *a, const kvd_accuracy *from, size_t row, kvd_err *err);

/* Writes the difference between the strongest compressions found for methods `name` and `versus`,
 * as attributes of the HDF5 group /target/<name>. */
int kvd_accuracy_write_difference(kvd_h5 *f, const char *name, const char *versus,
                                  const kvd_target_difference_result *d, kvd_err *err);

/* Writes the results of searches on single texts to HDF5 group /target/<name>. of_text [n_texts]:
 * for each text, the strongest compression with which the model keeps the fraction --target of its
 * accuracy. */
int kvd_accuracy_write_target_texts(kvd_h5 *f, const char *name, const kvd_target *of_text,
                                    size_t n_texts, kvd_err *err);

typedef struct {
    /* must be first: kvd_inputs_call_method gets a pointer to the whole structure and uses it as a
     * pointer to this member */
    kvd_inputs_options in;
    /* array of the numbers given by --weights-bits, allocated, and its length */
    size_t *weights_bits, n_weights_bits;
    size_t weights_group; /* number of weights that share a scale (--weights-bits) */
    /* true with --points-only: option --target chooses only among parameter values that the user
     * gave */
    bool points_only;
    bool scan;
} kvd_eval_options;

/* Parses the command line into *cfg, which must be zeroed. On wrong usage exits with status 2. */
void kvd_eval_parse(int argc, char **argv, kvd_eval_options *cfg);

void kvd_eval_options_release(kvd_eval_options *cfg);

/* Results of an earlier, unfinished run, which it saved in OUT.h5.rows. */

typedef struct {
    char *path; /* path of OUT.h5.rows, or NULL if nothing is saved */
    kvd_run_key key;
    kvd_accuracy from;
    size_t next;   /* index of the next saved row to copy */
    size_t n_kept; /* number of rows in OUT.h5.rows */
} kvd_saved_rows;

/* Reads the results that an earlier run saved in file OUT.h5.rows, if it exists. Fails if the file
 * is damaged, or if that run had other inputs or options than this run. The caller must have set
 * s->key, the text of this run's inputs and options. `like`: empty results table of this run. */
int kvd_saved_rows_open(kvd_saved_rows *s, const char *output, const kvd_accuracy *like,
                        kvd_err *err);
size_t kvd_saved_rows_count(const kvd_saved_rows *s);
void kvd_saved_rows_release(kvd_saved_rows *s);

/* Removes OUT.h5.rows, the file of saved results. Call it when the output file OUT.h5 is
 * complete. */
int kvd_saved_rows_remove(kvd_saved_rows *s, kvd_err *err);

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

/* Opens model, texts and calibration files. Lists the parameter values at which to evaluate each
 * method. */
int kvd_eval_open_inputs(kvd_eval_run *v, const char *program, kvd_err *err);
/* Evaluates each compression method of *v at each of its parameter values. With --sweep, warns
 * of values that a method cannot take or at which it changed no cached token, and leaves these
 * values out. */
int kvd_eval_points(kvd_eval_run *v, const char *program, kvd_err *err);
/* Prints the rows that were added to the result table since the last call; prints nothing with
 * --quiet or --json. */
void kvd_eval_print_new_rows(kvd_eval_run *v);
/* Evaluates a method with one set of parameters, or copies its saved result. *row: index of the new
 * table row. full_rank_error: change of the logits when the method's projections keep all
 * dimensions, or NaN if not measured. */
int kvd_eval_one(kvd_eval_run *v, const char *purpose, const kvd_point *point,
                 double full_rank_error, size_t *row, kvd_err *err);

/* Returns a runner (code that runs a model) for another checkpoint with matrices of the same
 * shapes. The caller frees it. */
kvd_model_runner *kvd_eval_runner(const kvd_eval_run *v, const kvd_checkpoint *c, kvd_err *err);

int kvd_eval_weights(kvd_eval_run *v, kvd_err *err);

/* Finds each method's strongest compression with which the model keeps the fraction --target of its
 * accuracy. Writes it to HDF5 group /target/<name>. */
int kvd_eval_search(kvd_eval_run *v, kvd_err *err);

/* Measures the mean KL divergence (nats per token) from the uncompressed model when one head keeps
 * fewer dimensions of Q and K, or of V. `type`: number type of projected K and V. `e` must be
 * initialised with keep_reference. The caller releases *t. */
int kvd_error_scan(kvd_evaluator *e, const kvd_method *m, const kvd_model_info *model,
                   kvd_dtype type, kvd_progress *progress, kvd_error_table *t, kvd_err *err);

/* Returns how many forward passes over the texts kvd_error_scan makes. */
size_t kvd_error_scan_runs(const kvd_config *c);

#endif
