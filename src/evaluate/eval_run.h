/*
 * One run of kvdim-eval. eval_inputs.c reads its inputs and evaluates weights of few bits,
 * kvdim_eval.c sets it up, eval_rows.c evaluates its points, and eval_search.c searches targets and
 * reads curves from the rows. Private to the program.
 */
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
 * The kvdim/accuracy table: one row per evaluated point under /rows, attention errors per layer and
 * head, and the sums of every sequence, from which all means and intervals can be computed again.
 */

typedef struct {
    kvd_rows *rows;
    const kvd_config *config;
    char label[64];
    /*
     * Name of the text on which the calibration activations were collected, set by the caller;
     * empty means none.
     */
    char calibrated[64];
    size_t n_sequences, n_tokens;
    double *predictions; /* [n_sequences] */
    bool seeds;
} kvd_accuracy;

/*
 * Initialises an empty kvdim/accuracy table. If `seeds`, it has columns for statistics over seeds.
 */
int kvd_accuracy_init(kvd_accuracy *a, const kvd_config *config, const char *label,
                      size_t n_sequences, size_t n_tokens, bool seeds, kvd_err *err);
void kvd_accuracy_release(kvd_accuracy *a);

/* Bytes per element of a 16-bit cache, in which the nominal and padded columns count. */
enum { KVD_ACCURACY_ELEMENT_BYTES = 2 };

/* Adds a row for one evaluated choice. full_rank_error is NaN if it was not measured. */
int kvd_accuracy_add(kvd_accuracy *a, const char *purpose, const kvd_point *point,
                     const kvd_choice *choice, const kvd_quality_summary *summary,
                     double full_rank_error, kvd_err *err);

/*
 * Returns the share of bytes that a row saves: 1 - stored bytes / bytes that the uncompressed cache
 * of this run would have stored.
 */
double kvd_accuracy_saving(const kvd_accuracy *a, size_t row);
kvd_interval kvd_accuracy_top1_share(const kvd_accuracy *a, size_t row);

/* Writes the rows of an accuracy table and their raw samples. */
int kvd_accuracy_write(kvd_h5 *f, const kvd_accuracy *a, kvd_err *err);
/*
 * Reads rows and raw samples into *a, which must be initialised and without rows. Fails if the
 * shapes differ from those of *a.
 */
int kvd_accuracy_load(kvd_h5 *f, kvd_accuracy *a, kvd_err *err);
/* Copies a row of another accuracy table of the same shapes to the end of *a. */
int kvd_accuracy_take(kvd_accuracy *a, const kvd_accuracy *from, size_t row, kvd_err *err);

/*
 * Writes the difference between the targets of a method and of `versus` as attributes of
 * /target/<name>.
 */
int kvd_accuracy_write_difference(kvd_h5 *f, const char *name, const char *versus,
                                  const kvd_target_difference_result *d, kvd_err *err);

/*
 * Writes the answers of each text, if p was searched, as datasets [text] of the group
 * /target/<name>.
 */
int kvd_accuracy_write_target_texts(kvd_h5 *f, const char *name, const kvd_target *of_text,
                                    size_t n_texts, kvd_err *err);

/* Writes the answer of a search as attributes of /target/<name>. key: the key that was searched. */
int kvd_accuracy_write_target(kvd_h5 *f, const char *name, const kvd_method *m, const char *key,
                              const kvd_target *t, kvd_err *err);

/* Options of kvdim-eval's command line. */

typedef struct {
    kvd_inputs_options in;                /* first; in.cache: set by the program unless given */
    size_t *weights_bits, n_weights_bits; /* allocated */
    size_t weights_group;                 /* weights that share a scale */
    double target;                        /* share of the accuracy to keep; NaN means no search */
    const char *target_key;               /* NULL means the usual key of each method */
    size_t sweep;                         /* points per method; 0 means no sweep */
    bool points_only; /* the answer to --target is taken from the points asked for */
    bool resume;
    bool scan; /* --scan-errors */
    bool cache_given;
    kvd_dtype compute; /* KVD_F32 or KVD_BF16 */
} kvd_eval_options;

/* Reads argv into *cfg, which is zeroed; wrong usage ends the program with status 2. */
void kvd_eval_parse(int argc, char **argv, kvd_eval_options *cfg);

void kvd_eval_options_release(kvd_eval_options *cfg);

/*
 * Rows of an unfinished kvdim-eval run, in OUT.h5.rows next to OUT.h5. The file is replaced as a
 * whole after every row, so a run that is killed loses only the row in progress. A resumed run
 * takes the rows in the order in which it would compute them.
 */

typedef struct {
    char *path; /* path of the saved rows; NULL if rows are not saved */
    kvd_run_key key;
    /* Rows of result points that an earlier run saved. */
    kvd_accuracy from;
    /* Index in `from` of the next saved row to copy into this run's table. */
    size_t next;
} kvd_saved_rows;

/*
 * Reads OUT.rows if it exists. Fails if its key differs from s->key ("was X, is now Y") or if it is
 * damaged. `like` is an initialised kvd_accuracy of this run. The caller must set s->key before.
 */
int kvd_saved_rows_open(kvd_saved_rows *s, const char *output, const kvd_accuracy *like,
                        kvd_err *err);
/* Returns the number of rows that an earlier run saved. */
size_t kvd_saved_rows_count(const kvd_saved_rows *s);
void kvd_saved_rows_release(kvd_saved_rows *s);

/*
 * If a saved row is left, appends it to *to and sets *taken to true. Fails if the row is of another
 * point.
 */
int kvd_saved_rows_take(kvd_saved_rows *s, const char *purpose, const kvd_point *point,
                        kvd_accuracy *to, bool *taken, kvd_err *err);

/* Replaces OUT.rows with the current rows. Does nothing while saved rows are still being taken. */
int kvd_saved_rows_save(const kvd_saved_rows *s, const kvd_run *run, const kvd_accuracy *rows,
                        kvd_err *err);
/* Removes OUT.rows. Call it when OUT.h5 is complete. */
int kvd_saved_rows_remove(const kvd_saved_rows *s, kvd_err *err);

typedef struct {
    /* Name of this search's group in the result file, /target/<name>. */
    char name[80];
    /* Index of the method whose key is searched. */
    size_t method;
    kvd_method_tradeoff rate;
    /*
     * True if the method changes nothing but p of the dims axis: then p = 0 is the uncompressed
     * model.
     */
    bool whole;
    /* Rows of the accuracy table that this search added: first_row .. end_row - 1. */
    size_t first_row, end_row;
    kvd_target found;
} kvd_eval_target;

typedef struct {
    kvd_eval_options *cfg;
    kvd_inputs in;
    char gpu[256]; /* description of the GPU; empty if the CPU runs the model */
    kvd_model_runner *runner;
    /* Number of tokens (rows of the activations) that a runner processes at a time. */
    size_t rows;
    /* Bytes of the model's weights as stored. */
    double weight_bytes;
    kvd_evaluator evaluator;
    double full_rank_error[KVD_EVAL_METHODS];
    kvd_accuracy accuracy;
    kvd_saved_rows saved; /* rows saved by an earlier run, for --resume */
    size_t printed;       /* number of rows printed on stdout so far */
    kvd_eval_target target[KVD_EVAL_METHODS];
    size_t n_targets;
    kvd_h5 file;
} kvd_eval_run;

/*
 * Opens everything that the command line names (eval_inputs.c), checks it against v->checkpoint,
 * resolves the methods and records provenance.
 */
int kvd_eval_open_inputs(kvd_eval_run *v, const char *program, kvd_err *err);
/*
 * Evaluates all points into v->accuracy (eval_rows.c). With --resume, points run one after another
 * and each row is saved when it is complete.
 */
int kvd_eval_points(kvd_eval_run *v, kvd_err *err);
/* Prints the rows added since the last call on stdout, unless stdout is quiet or JSON. */
void kvd_eval_print_new_rows(kvd_eval_run *v);
/*
 * Evaluates one point, or takes its row from the saved rows. The point's method may be a copy with
 * other values. Writes the index of the row in v->accuracy to *row; full_rank_error is a column of
 * the row.
 */
int kvd_eval_one(kvd_eval_run *v, const char *purpose, const kvd_point *point,
                 double full_rank_error, size_t *row, kvd_err *err);

/*
 * Returns a runner of the evaluator's sizes for another checkpoint of the same shape. On failure
 * returns NULL and fills *err.
 */
kvd_model_runner *kvd_eval_runner(const kvd_eval_run *v, const kvd_checkpoint *c, kvd_err *err);

/*
 * Evaluates --weights-bits (eval_inputs.c): appends one row per number of bits after all other
 * rows.
 */
int kvd_eval_weights(kvd_eval_run *v, kvd_err *err);

/*
 * Runs the --target search for every method that has a parameter to search (eval_search.c). Writes
 * the answers to the group /target/<name>.
 */
int kvd_eval_search(kvd_eval_run *v, kvd_err *err);

/* Returns true if two methods differ in nothing but the key of `rate` (eval_search.c). */
bool kvd_eval_same_but_key(const kvd_method *a, const kvd_method *b,
                           const kvd_method_tradeoff *rate);
/*
 * Sets t->found to the answer of --points-only, read from the rows of all methods that differ only
 * in the key.
 */
int kvd_eval_read_points(const kvd_eval_run *v, kvd_eval_target *t, kvd_err *err);
/*
 * Compares how far in p two methods keep their target, and prints and writes the difference. Both
 * targets must be `whole`.
 */
int kvd_eval_compare_targets(kvd_eval_run *v, const kvd_eval_target *first,
                             const kvd_eval_target *t, kvd_err *err);
/*
 * Fills of_text [n_texts] with the share of the accuracy that a row of v->accuracy keeps on each
 * text.
 */
int kvd_eval_text_shares(kvd_eval_run *v, size_t row, kvd_interval *of_text, kvd_err *err);

/*
 * The table that kvd_widths_by_error reads: the loss of the predictions if a single head of a
 * single pair is cut to a width and everything else stays whole.
 */

/*
 * Fills *t with the mean KL divergence (nats per predicted token) from the uncompressed model, for
 * every layer, KV head and side at widths d/8, d/4, 3d/8, d/2, 5d/8, 3d/4 and d, at which it is 0
 * by definition. Layers below the cut layer are those of the uncompressed run, so each run starts
 * at its layer; runs of one layer share the residual stream below it and the uncompressed logits,
 * as far as memory has room for their rows. type: storage type of K' and V'. e must keep the
 * reference. *t is allocated; release it with kvd_error_table_release.
 */
int kvd_error_scan(kvd_evaluator *e, const kvd_method *m, const kvd_model_info *model,
                   kvd_dtype type, kvd_progress *progress, kvd_error_table *t, kvd_err *err);

/* Returns the number of forward passes of a scan, for the progress bar. */
size_t kvd_error_scan_runs(const kvd_config *c);

#endif
