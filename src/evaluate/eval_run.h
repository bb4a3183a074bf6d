/* State and functions of one run of kvdim-eval. Private to the program. */
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

/*
 * Results of a run: one row per compression setting, attention errors per head, and sums per
 * sequence. All means and intervals can be computed again from these sums.
 */

typedef struct {
    kvd_rows *rows;
    const kvd_config *config;
    char label[64];
    /* Name of the calibration text, set by the caller; "" if there is none. */
    char calibrated[64];
    size_t n_sequences, n_tokens;
    double *predictions; /* number of predicted tokens per sequence: [n_sequences] */
    bool seeds;
} kvd_accuracy;

/* Initialises empty results. `seeds` adds columns for statistics over several random seeds. */
int kvd_accuracy_init(kvd_accuracy *a, const kvd_config *config, const char *label,
                      size_t n_sequences, size_t n_tokens, bool seeds, kvd_err *err);
void kvd_accuracy_release(kvd_accuracy *a);

/* Bytes of a 16-bit number, on which columns with nominal bytes per token are based. */
enum { KVD_ACCURACY_ELEMENT_BYTES = 2 };

/*
 * Adds the results of one compression setting. full_rank_error is the error of the logits if the
 * projections keep all dimensions; NaN if not measured.
 */
int kvd_accuracy_add(kvd_accuracy *a, const char *purpose, const kvd_point *point,
                     const kvd_choice *choice, const kvd_quality_summary *summary,
                     double full_rank_error, kvd_err *err);

/*
 * Returns 1 - stored bytes / bytes that the uncompressed cache of this run would have stored. If
 * `read`, bytes that a step reads take the place of stored bytes (kvd_method_selects).
 */
double kvd_accuracy_saving(const kvd_accuracy *a, size_t row, bool read);
kvd_interval kvd_accuracy_top1_share(const kvd_accuracy *a, size_t row);

int kvd_accuracy_write(kvd_h5 *f, const kvd_accuracy *a, kvd_err *err);
/*
 * Reads a file of results into *a, which must be initialised and empty. Fails if the file has
 * another number of layers, heads or sequences.
 */
int kvd_accuracy_load(kvd_h5 *f, kvd_accuracy *a, kvd_err *err);
/* Appends one row of *from to *a. Both must be for equal numbers of layers, heads and sequences. */
int kvd_accuracy_take(kvd_accuracy *a, const kvd_accuracy *from, size_t row, kvd_err *err);

/*
 * Writes the difference between the results of two methods as attributes of the HDF5 group
 * /target/<name>.
 */
int kvd_accuracy_write_difference(kvd_h5 *f, const char *name, const char *versus,
                                  const kvd_target_difference_result *d, kvd_err *err);

/*
 * Writes the results of searches on each single text, as datasets [n_texts] in the HDF5 group
 * /target/<name>. Such results exist only if the search varied p, the removed fraction of
 * dimensions.
 */
int kvd_accuracy_write_target_texts(kvd_h5 *f, const char *name, const kvd_target *of_text,
                                    size_t n_texts, kvd_err *err);

typedef struct {
    /*
     * Options shared with kvdim-tasks; must be the first member. The program sets in.cache unless
     * --cache is given.
     */
    kvd_inputs_options in;
    /* Numbers of bits in --weights-bits, allocated. */
    size_t *weights_bits, n_weights_bits;
    size_t weights_group; /* number of weights that share a scale */
    /* Fraction of the uncompressed accuracy to keep; NaN means no search. */
    double target;
    /*
     * Name of the parameter that --target varies. NULL means the parameter by which the method
     * itself trades bytes for quality.
     */
    const char *target_key;
    /* Number of values of its parameter to try for each method (--sweep); 0 without --sweep. */
    size_t sweep;
    /*
     * True if --target may only use results of methods that the user listed, without new
     * measurements.
     */
    bool points_only;
    bool resume;
    bool scan;
    bool cache_given;
    kvd_dtype compute; /* number type of the forward pass: KVD_F32 or KVD_BF16 */
} kvd_eval_options;

/*
 * Parses the command line into *cfg, which must be zeroed. Wrong usage ends the program with status
 * 2.
 */
void kvd_eval_parse(int argc, char **argv, kvd_eval_options *cfg);

void kvd_eval_options_release(kvd_eval_options *cfg);

/*
 * Finished results of an unfinished run, in OUT.h5.rows next to OUT.h5. The file is rewritten after
 * every row of results, so a killed run loses only the row in progress.
 */

typedef struct {
    char *path; /* path of OUT.h5.rows; NULL if no results are saved */
    kvd_run_key key;
    kvd_accuracy from;
    /* Index of the next saved row of results to copy into the results of this run. */
    size_t next;
} kvd_saved_rows;

/*
 * Reads OUT.h5.rows if it exists. The caller must set s->key before. Fails if the file is damaged,
 * or was made with inputs or options that differ from s->key. `like` is an empty table of results
 * of this run.
 */
int kvd_saved_rows_open(kvd_saved_rows *s, const char *output, const kvd_accuracy *like,
                        kvd_err *err);
size_t kvd_saved_rows_count(const kvd_saved_rows *s);
void kvd_saved_rows_release(kvd_saved_rows *s);

/*
 * Appends the next saved row of results to *to and sets *taken to true, if a saved row is left.
 * Fails if this row is not for `point`.
 */
int kvd_saved_rows_take(kvd_saved_rows *s, const char *purpose, const kvd_point *point,
                        kvd_accuracy *to, bool *taken, kvd_err *err);

/*
 * Writes all rows of this run to OUT.h5.rows. Does nothing as long as rows saved by an earlier run
 * were not yet copied into this run's table.
 */
int kvd_saved_rows_save(const kvd_saved_rows *s, const kvd_run *run, const kvd_accuracy *rows,
                        kvd_err *err);
/* Removes OUT.h5.rows. To be called when OUT.h5 is complete. */
int kvd_saved_rows_remove(const kvd_saved_rows *s, kvd_err *err);

typedef struct {
    kvd_eval_options *cfg;
    kvd_inputs in;
    char gpu[256]; /* name of the GPU; "" if the model runs on the CPU */
    kvd_model_runner *runner;
    /* Largest number of tokens in one forward pass. */
    size_t rows;
    double weight_bytes;
    kvd_evaluator evaluator;
    double full_rank_error[KVD_EVAL_METHODS];
    kvd_accuracy accuracy;
    kvd_saved_rows saved; /* rows that an earlier run saved, for --resume */
    size_t printed;
    kvd_method_target target[KVD_EVAL_METHODS];
    size_t n_targets;
    kvd_h5 file;
} kvd_eval_run;

/* Opens all input files and texts. Fails if a file was not made from the model v->checkpoint. */
int kvd_eval_open_inputs(kvd_eval_run *v, const char *program, kvd_err *err);
/* Evaluates all compression settings of all methods into v->accuracy. */
int kvd_eval_points(kvd_eval_run *v, kvd_err *err);
/* Prints on stdout the results added since the last call. Prints nothing with --quiet or --json. */
void kvd_eval_print_new_rows(kvd_eval_run *v);
/*
 * Evaluates one compression setting. If an earlier run saved the result of this setting, copies
 * that result instead. point->method may be a copy of a method with other parameters. *row receives
 * the index of the result's row. full_rank_error is NaN if it was not measured.
 */
int kvd_eval_one(kvd_eval_run *v, const char *purpose, const kvd_point *point,
                 double full_rank_error, size_t *row, kvd_err *err);

/*
 * Returns a runner for another checkpoint of the same shape, with the batch sizes of v->evaluator.
 * On failure returns NULL and fills *err.
 */
kvd_model_runner *kvd_eval_runner(const kvd_eval_run *v, const kvd_checkpoint *c, kvd_err *err);

/* Implements --weights-bits: evaluates the model with weights quantised to each number of bits. */
int kvd_eval_weights(kvd_eval_run *v, kvd_err *err);

/*
 * Implements --target: for each method with a parameter to vary, searches the strongest compression
 * that keeps the accuracy. Writes each result to an HDF5 group /target/<name>.
 */
int kvd_eval_search(kvd_eval_run *v, kvd_err *err);

/*
 * Implements --points-only: finds the strongest compression without new measurements, and stores it
 * in t->found. Uses the measured results of the methods that differ from t->method only in the
 * value of the parameter that the search varies.
 */
int kvd_eval_read_points(const kvd_eval_run *v, kvd_method_target *t, kvd_err *err);
/*
 * Compares the fractions of dimensions that two methods can remove at the target accuracy. Prints
 * and stores the difference. The caller must give two methods that do nothing but remove
 * dimensions.
 */
int kvd_eval_compare_targets(kvd_eval_run *v, const kvd_method_target *first,
                             const kvd_method_target *t, kvd_err *err);
/*
 * Fills of_text [n_texts] with the fraction of the uncompressed model's accuracy that results row
 * `row` has on each text.
 */
int kvd_eval_text_shares(kvd_eval_run *v, size_t row, kvd_interval *of_text, kvd_err *err);

/*
 * Measures the loss if only Q and K, or only V, of a single head keep fewer dimensions: mean KL
 * divergence from the uncompressed model, in nats per predicted token. Covers every layer and KV
 * head. Numbers of kept dimensions are d/8, d/4, 3d/8, d/2, 5d/8, 3d/4 and d for heads of d
 * dimensions; the loss at d is 0. `type` is the number type of the projected K and V. The evaluator
 * must have keep_reference. On success the caller releases *t with kvd_error_table_release.
 */
int kvd_error_scan(kvd_evaluator *e, const kvd_method *m, const kvd_model_info *model,
                   kvd_dtype type, kvd_progress *progress, kvd_error_table *t, kvd_err *err);

/* Returns the number of forward passes of kvd_error_scan. */
size_t kvd_error_scan_runs(const kvd_config *c);

#endif
