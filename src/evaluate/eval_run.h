/*
 * State and functions of one run of kvdim-eval. eval_inputs.c reads its inputs and evaluates
 * quantised weights, kvdim_eval.c sets it up, eval_rows.c evaluates the settings of methods,
 * eval_search.c searches for target accuracies. Private to the program.
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
 * Results of a run (file kvdim/accuracy): one line per evaluated setting, attention errors per
 * layer and head, and sums per text sequence. All means and intervals can be computed again from
 * the sums.
 */

typedef struct {
    kvd_rows *rows;
    const kvd_config *config;
    char label[64];
    /*
     * Name of the calibration text from which activations were recorded, set by the caller; "" if
     * there is none.
     */
    char calibrated[64];
    size_t n_sequences, n_tokens;
    double *predictions; /* number of predicted tokens per sequence: [n_sequences] */
    bool seeds;
} kvd_accuracy;

/*
 * Initialises an empty results table of schema kvdim/accuracy. If `seeds`, the table has columns
 * for statistics over random seeds.
 */
int kvd_accuracy_init(kvd_accuracy *a, const kvd_config *config, const char *label,
                      size_t n_sequences, size_t n_tokens, bool seeds, kvd_err *err);
void kvd_accuracy_release(kvd_accuracy *a);

/*
 * Bytes per cached number that two columns of the results table assume, those of the bytes per
 * token before and after padding to multiples of 16 dimensions. 2 means a 16-bit cache.
 */
enum { KVD_ACCURACY_ELEMENT_BYTES = 2 };

/*
 * Adds a results line for one evaluated setting. full_rank_error is the error of the logits that
 * the method's projections cause if they keep all dimensions; NaN if it was not measured.
 */
int kvd_accuracy_add(kvd_accuracy *a, const char *purpose, const kvd_point *point,
                     const kvd_choice *choice, const kvd_quality_summary *summary,
                     double full_rank_error, kvd_err *err);

/*
 * Returns the fraction of bytes that the setting of a results line saves: 1 - stored bytes / bytes
 * that the uncompressed cache of this run would have stored.
 */
double kvd_accuracy_saving(const kvd_accuracy *a, size_t row);
kvd_interval kvd_accuracy_top1_share(const kvd_accuracy *a, size_t row);

/*
 * Writes the results table to file f, with the attention errors per head and the quality sums per
 * sequence.
 */
int kvd_accuracy_write(kvd_h5 *f, const kvd_accuracy *a, kvd_err *err);
/*
 * Reads a results table, with the attention errors per head and the quality sums per sequence, into
 * *a, which must be initialised and empty. Fails if the numbers of layers, heads or sequences
 * differ from those of *a.
 */
int kvd_accuracy_load(kvd_h5 *f, kvd_accuracy *a, kvd_err *err);
/*
 * Appends a copy of line `row` of the results table *from to *a. Both tables must have the same
 * numbers of layers, heads and sequences.
 */
int kvd_accuracy_take(kvd_accuracy *a, const kvd_accuracy *from, size_t row, kvd_err *err);

/*
 * Writes the difference between how far two methods, `name` and `versus`, can compress at the
 * target accuracy, as attributes of /target/<name>.
 */
int kvd_accuracy_write_difference(kvd_h5 *f, const char *name, const char *versus,
                                  const kvd_target_difference_result *d, kvd_err *err);

/*
 * Writes the results of a search for a target accuracy on each text alone, as datasets of n_texts
 * values in the group /target/<name>. Only a search for the removed fraction p is also done on each
 * text.
 */
int kvd_accuracy_write_target_texts(kvd_h5 *f, const char *name, const kvd_target *of_text,
                                    size_t n_texts, kvd_err *err);

/* Options of kvdim-eval's command line. */

typedef struct {
    /*
     * Options that name inputs; must be the first member. The program sets in.cache unless it is
     * given.
     */
    kvd_inputs_options in;
    /* Numbers of bits of --weights-bits; the array is allocated. */
    size_t *weights_bits, n_weights_bits;
    size_t weights_group; /* number of weights that share a scale with --weights-bits */
    /* Fraction of the uncompressed accuracy to keep; NaN means no search. */
    double target;
    /* Parameter of the method to search; NULL means the usual one of each method. */
    const char *target_key;
    /* Number of values of the parameter to try per method (--sweep); 0 without --sweep. */
    size_t sweep;
    /* The search for --target only uses settings that the user asked for. */
    bool points_only;
    bool resume;
    bool scan; /* --scan-errors: measure the loss of cutting single heads */
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
 * Finished results lines of an unfinished kvdim-eval run, in the file OUT.h5.rows next to OUT.h5.
 * The file is replaced as a whole after every line, so a run that is killed loses only the line in
 * progress. A resumed run copies the lines in the order in which it would compute them.
 */

typedef struct {
    char *path; /* path of the file OUT.h5.rows; NULL if lines are not saved */
    kvd_run_key key;
    /* Table of the results lines that an earlier run saved. */
    kvd_accuracy from;
    /*
     * Index, in the table of saved results lines, of the next line to copy into this run's table.
     */
    size_t next;
} kvd_saved_rows;

/*
 * Reads the file of saved results lines, OUT.h5.rows, if it exists. Fails if the file is damaged.
 * Fails too if the file was made with inputs or options that differ from those in s->key, which the
 * caller must set before; the message shows the first difference. `like` is an initialised, empty
 * table of this run.
 */
int kvd_saved_rows_open(kvd_saved_rows *s, const char *output, const kvd_accuracy *like,
                        kvd_err *err);
/* Returns the number of results lines that an earlier run saved. */
size_t kvd_saved_rows_count(const kvd_saved_rows *s);
void kvd_saved_rows_release(kvd_saved_rows *s);

/*
 * If a saved results line is left, appends it to the table *to and sets *taken to true. Fails if
 * the saved line belongs to another setting than `point`.
 */
int kvd_saved_rows_take(kvd_saved_rows *s, const char *purpose, const kvd_point *point,
                        kvd_accuracy *to, bool *taken, kvd_err *err);

/*
 * Writes all results lines of this run to the file OUT.h5.rows. Does nothing while the run still
 * copies lines that an earlier run saved there, because the file has more lines then.
 */
int kvd_saved_rows_save(const kvd_saved_rows *s, const kvd_run *run, const kvd_accuracy *rows,
                        kvd_err *err);
/* Removes OUT.h5.rows. The caller calls it when OUT.h5 is complete. */
int kvd_saved_rows_remove(const kvd_saved_rows *s, kvd_err *err);

typedef struct {
    kvd_eval_options *cfg;
    kvd_inputs in;
    char gpu[256]; /* description of the GPU; "" if the CPU runs the model */
    kvd_model_runner *runner;
    /* Largest number of tokens in one forward pass. */
    size_t rows;
    /* Bytes of the model's weights as stored in the checkpoint. */
    double weight_bytes;
    kvd_evaluator evaluator;
    double full_rank_error[KVD_EVAL_METHODS];
    kvd_accuracy accuracy;
    kvd_saved_rows saved; /* results lines saved by an earlier run, for --resume */
    size_t printed;       /* number of results lines printed so far */
    kvd_method_target target[KVD_EVAL_METHODS];
    size_t n_targets;
    kvd_h5 file;
} kvd_eval_run;

/*
 * Opens all files and texts that the command line names, checks them against v->checkpoint,
 * resolves the methods and records provenance.
 */
int kvd_eval_open_inputs(kvd_eval_run *v, const char *program, kvd_err *err);
/*
 * Evaluates all settings of all methods into v->accuracy. With --resume, settings run one after
 * another and each results line is saved when it is complete.
 */
int kvd_eval_points(kvd_eval_run *v, kvd_err *err);
/*
 * Prints the results lines added since the last call on stdout. Prints nothing with --quiet or
 * --json.
 */
void kvd_eval_print_new_rows(kvd_eval_run *v);
/*
 * Evaluates one setting, or copies its results line from those saved by an earlier run. The
 * setting's method, point->method, may be a copy of a method of the command line with other values.
 * Writes the index of the results line to *row. full_rank_error (error of the logits if the
 * method's projections keep all dimensions; NaN if unknown) is stored in the line.
 */
int kvd_eval_one(kvd_eval_run *v, const char *purpose, const kvd_point *point,
                 double full_rank_error, size_t *row, kvd_err *err);

/*
 * Returns a model runner for another checkpoint of the same shape, with the evaluator's batch
 * sizes. On failure returns NULL and fills *err.
 */
kvd_model_runner *kvd_eval_runner(const kvd_eval_run *v, const kvd_checkpoint *c, kvd_err *err);

/*
 * Evaluates the model with quantised weights (--weights-bits). Appends one results line per number
 * of bits.
 */
int kvd_eval_weights(kvd_eval_run *v, kvd_err *err);

/*
 * Searches the strongest compression that keeps the accuracy --target, for every method that has a
 * parameter to search. Writes the result of each search to a group /target/<name>.
 */
int kvd_eval_search(kvd_eval_run *v, kvd_err *err);

/*
 * Implements --points-only: finds the strongest compression that keeps the target accuracy without
 * new evaluations, and stores it in t->found. Uses the results lines of all methods that differ
 * from the method of *t in nothing but the searched parameter.
 */
int kvd_eval_read_points(const kvd_eval_run *v, kvd_method_target *t, kvd_err *err);
/*
 * Compares how large a fraction p of dimensions two methods can remove at the target accuracy.
 * Prints the difference and writes it to the result file. Both searches must be of methods that
 * only remove dimensions (first->whole and t->whole are true).
 */
int kvd_eval_compare_targets(kvd_eval_run *v, const kvd_method_target *first,
                             const kvd_method_target *t, kvd_err *err);
/*
 * Fills of_text [n_texts] with the fraction of the uncompressed accuracy that a results line of
 * v->accuracy keeps on each text.
 */
int kvd_eval_text_shares(kvd_eval_run *v, size_t row, kvd_interval *of_text, kvd_err *err);

/*
 * Table of the loss of prediction quality if a single head keeps only some dimensions and
 * everything else stays whole. kvd_widths_by_error reads it.
 */

/*
 * Measures the loss if one head alone keeps fewer dimensions: mean KL divergence (nats per
 * predicted token) from the uncompressed model. Measured for every layer and KV head, for Q and K
 * and for V separately. Numbers of kept dimensions are d/8, d/4, 3d/8, d/2, 5d/8, 3d/4 and d, at
 * which the loss is 0 by definition.
 *
 * Layers below that of the head are those of the uncompressed model, so each run starts at its
 * layer. Runs of one layer share the residual stream that enters it and the uncompressed logits, as
 * far as memory allows. `type` is the number type of the projected K and V. The evaluator must keep
 * the uncompressed hidden states (keep_reference). On success the caller releases *t with
 * kvd_error_table_release.
 */
int kvd_error_scan(kvd_evaluator *e, const kvd_method *m, const kvd_model_info *model,
                   kvd_dtype type, kvd_progress *progress, kvd_error_table *t, kvd_err *err);

/* Returns the number of forward passes of kvd_error_scan, for the progress bar. */
size_t kvd_error_scan_runs(const kvd_config *c);

#endif
