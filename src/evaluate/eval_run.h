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

/* A row per setting, attention errors per head, sums per sequence. */

typedef struct {
    kvd_rows *rows;
    const kvd_config *config;
    char label[64];
    /* Name of the calibration text; "" for none. */
    char calibrated[64];
    size_t n_sequences, n_tokens;
    double *predictions; /* [n_sequences] predicted tokens */
    bool seeds;
} kvd_accuracy;

/* seeds: adds columns for statistics over seeds. */
int kvd_accuracy_init(kvd_accuracy *a, const kvd_config *config, const char *label,
                      size_t n_sequences, size_t n_tokens, bool seeds, kvd_err *err);
void kvd_accuracy_release(kvd_accuracy *a);

/* Bytes of a number in nominal bytes per token. */
enum { KVD_ACCURACY_ELEMENT_BYTES = 2 };

/* full_rank_error: logit error with all dimensions kept; NaN if not measured. */
int kvd_accuracy_add(kvd_accuracy *a, const char *purpose, const kvd_point *point,
                     const kvd_choice *choice, const kvd_quality_summary *summary,
                     double full_rank_error, kvd_err *err);

/*
 * Returns 1 - stored bytes / uncompressed bytes. read: bytes that a step reads
 * (kvd_method_selects).
 */
double kvd_accuracy_saving(const kvd_accuracy *a, size_t row, bool read);
kvd_interval kvd_accuracy_top1_share(const kvd_accuracy *a, size_t row);

int kvd_accuracy_write(kvd_h5 *f, const kvd_accuracy *a, kvd_err *err);
/* Reads results into empty *a. Fails for other layers, heads or sequences. */
int kvd_accuracy_load(kvd_h5 *f, kvd_accuracy *a, kvd_err *err);
/* Appends a row of *from, which must have equal layers, heads and sequences. */
int kvd_accuracy_take(kvd_accuracy *a, const kvd_accuracy *from, size_t row, kvd_err *err);

/* Writes attributes of HDF5 group /target/<name>. */
int kvd_accuracy_write_difference(kvd_h5 *f, const char *name, const char *versus,
                                  const kvd_target_difference_result *d, kvd_err *err);

/* Writes searches of single texts to /target/<name>, if p was searched. */
int kvd_accuracy_write_target_texts(kvd_h5 *f, const char *name, const kvd_target *of_text,
                                    size_t n_texts, kvd_err *err);

typedef struct {
    /* Must be the first member. */
    kvd_inputs_options in;
    /* Allocated values of --weights-bits. */
    size_t *weights_bits, n_weights_bits;
    size_t weights_group; /* weights that share a scale */
    /* Share of the uncompressed accuracy to keep; NaN: no search. */
    double target;
    /* Parameter of --target; NULL: each method's usual one. */
    const char *target_key;
    /* Values per method (--sweep); 0 without. */
    size_t sweep;
    /* True if --target uses results of listed methods only. */
    bool points_only;
    bool resume;
    bool scan;
    bool cache_given;
    kvd_dtype compute; /* forward pass: KVD_F32 or KVD_BF16 */
} kvd_eval_options;

/* *cfg must be zeroed. Wrong usage ends the program with status 2. */
void kvd_eval_parse(int argc, char **argv, kvd_eval_options *cfg);

void kvd_eval_options_release(kvd_eval_options *cfg);

/* Results of an unfinished run, in OUT.h5.rows, rewritten after every row. */

typedef struct {
    char *path; /* OUT.h5.rows; NULL if nothing is saved */
    kvd_run_key key;
    kvd_accuracy from;
    /* Index of the next saved row to copy. */
    size_t next;
} kvd_saved_rows;

/*
 * Reads OUT.h5.rows if present. Requires s->key; fails for another key or damage. like: empty table
 * of this run.
 */
int kvd_saved_rows_open(kvd_saved_rows *s, const char *output, const kvd_accuracy *like,
                        kvd_err *err);
size_t kvd_saved_rows_count(const kvd_saved_rows *s);
void kvd_saved_rows_release(kvd_saved_rows *s);

/* Copies the next saved row, if any, and sets *taken. Fails if the row is not for `point`. */
int kvd_saved_rows_take(kvd_saved_rows *s, const char *purpose, const kvd_point *point,
                        kvd_accuracy *to, bool *taken, kvd_err *err);

/* Writes OUT.h5.rows, unless saved rows are not yet copied. */
int kvd_saved_rows_save(const kvd_saved_rows *s, const kvd_run *run, const kvd_accuracy *rows,
                        kvd_err *err);
/* Removes OUT.h5.rows. Call when OUT.h5 is complete. */
int kvd_saved_rows_remove(const kvd_saved_rows *s, kvd_err *err);

typedef struct {
    kvd_eval_options *cfg;
    kvd_inputs in;
    char gpu[256]; /* name of the GPU; "" on the CPU */
    kvd_model_runner *runner;
    /* Most tokens in one forward pass. */
    size_t rows;
    double weight_bytes;
    kvd_evaluator evaluator;
    double full_rank_error[KVD_EVAL_METHODS];
    kvd_accuracy accuracy;
    kvd_saved_rows saved; /* rows of an earlier run, for --resume */
    size_t printed;
    kvd_method_target target[KVD_EVAL_METHODS];
    size_t n_targets;
    kvd_h5 file;
} kvd_eval_run;

/* Fails if a file is not of v->checkpoint's model. */
int kvd_eval_open_inputs(kvd_eval_run *v, const char *program, kvd_err *err);
int kvd_eval_points(kvd_eval_run *v, kvd_err *err);
/* Prints new results, except with --quiet or --json. */
void kvd_eval_print_new_rows(kvd_eval_run *v);
/*
 * Evaluates a setting or copies a saved result. *row: index of the result. full_rank_error: NaN if
 * not measured.
 */
int kvd_eval_one(kvd_eval_run *v, const char *purpose, const kvd_point *point,
                 double full_rank_error, size_t *row, kvd_err *err);

/* Returns a runner for another checkpoint of equal shape. */
kvd_model_runner *kvd_eval_runner(const kvd_eval_run *v, const kvd_checkpoint *c, kvd_err *err);

/* --weights-bits: evaluates quantised weights. */
int kvd_eval_weights(kvd_eval_run *v, kvd_err *err);

/* --target: searches each method's strongest compression; writes groups /target/<name>. */
int kvd_eval_search(kvd_eval_run *v, kvd_err *err);

/*
 * --points-only: sets t->found from results of methods that differ only in the searched parameter.
 */
int kvd_eval_read_points(const kvd_eval_run *v, kvd_method_target *t, kvd_err *err);
/*
 * Prints and stores the difference of removable dimensions; both methods must only remove
 * dimensions.
 */
int kvd_eval_compare_targets(kvd_eval_run *v, const kvd_method_target *first,
                             const kvd_method_target *t, kvd_err *err);
/* of_text [n_texts]: row `row`'s share of the uncompressed accuracy. */
int kvd_eval_text_shares(kvd_eval_run *v, size_t row, kvd_interval *of_text, kvd_err *err);

/*
 * Mean KL divergence (nats per predicted token) if Q-K or V of one head keeps d/8, d/4, 3d/8, d/2,
 * 5d/8, 3d/4 of d dimensions. type: of projected K and V. Requires keep_reference. The caller
 * releases *t with kvd_error_table_release.
 */
int kvd_error_scan(kvd_evaluator *e, const kvd_method *m, const kvd_model_info *model,
                   kvd_dtype type, kvd_progress *progress, kvd_error_table *t, kvd_err *err);

/* Returns the number of forward passes of kvd_error_scan. */
size_t kvd_error_scan_runs(const kvd_config *c);

#endif
