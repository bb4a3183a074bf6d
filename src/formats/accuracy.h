/*
 * kvdim/accuracy files: quality of next-token predictions with compressed KV caches. Each line of
 * the results table is for one compression method with one set of parameters (docs/formats.md).
 */
#ifndef KVD_FORMATS_ACCURACY_H
#define KVD_FORMATS_ACCURACY_H

#include "formats/rows.h"

/*
 * Schemas of two kinds of file: complete accuracy results, and OUT.h5.rows, which keeps the
 * finished lines of a run that was interrupted.
 */
extern const kvd_schema kvd_schema_accuracy, kvd_schema_accuracy_rows;
/* Schema of the result files of kvdim-tasks (docs/formats.md). */
extern const kvd_schema kvd_schema_tasks;
/*
 * printf format of the name of a results line that is the mean over N tasks; the argument is N as
 * size_t.
 */
#define KVD_TASKS_MEAN_LABEL "mean of %zu tasks"
/* Returns true if `label` names a mean over tasks, that is, matches KVD_TASKS_MEAN_LABEL. */
bool kvd_tasks_label_is_mean(const char *label);

/*
 * Number of columns with which every results table of the schemas kvdim/accuracy and kvdim/tasks
 * begins. These columns name the compression method of a line and its parameters.
 */
enum { KVD_N_POINT_COLUMNS = 19 };
extern const kvd_column kvd_point_columns[KVD_N_POINT_COLUMNS];

/*
 * Indices of the arrays that a kvdim/accuracy file stores in addition to the results table.
 * RELATIVE and ZDC are attention errors for each line of the table, layer and head (NaN if not
 * measured). NLL, TOP1, KL and AGREE are sums over the next-token predictions of a text sequence,
 * for each line of the table and sequence.
 */
enum {
    KVD_ACCURACY_RELATIVE,
    KVD_ACCURACY_ZDC,
    KVD_ACCURACY_NLL,
    KVD_ACCURACY_TOP1,
    KVD_ACCURACY_KL,
    KVD_ACCURACY_AGREE,
    KVD_ACCURACY_SAMPLES
};

/*
 * Returns an empty results table of the schema kvdim/accuracy. If `seeds`, the table has columns
 * for statistics over random seeds. On failure returns NULL and fills *err. The caller frees the
 * table.
 */
kvd_rows *kvd_accuracy_rows(int n_layers, int n_heads, size_t n_sequences, bool seeds,
                            kvd_err *err);
/*
 * Writes the results table and its arrays: attention errors per head, and sums over the predictions
 * of each text sequence. predictions [n_sequences]: number of predicted tokens in each sequence.
 */
int kvd_accuracy_rows_write(kvd_h5 *f, const kvd_rows *r, const double *predictions, kvd_err *err);
/*
 * Returns the results table stored in f with its arrays (attention errors per head, sums per text
 * sequence), and fills predictions [n_sequences]. Fails if the shapes differ from those of `like`,
 * an empty table from kvd_accuracy_rows. The caller frees the returned table.
 */
kvd_rows *kvd_accuracy_rows_load(kvd_h5 *f, const kvd_rows *like, double *predictions,
                                 kvd_err *err);

/*
 * Result of a search for the strongest compression whose score is at least `target` times that of
 * the uncompressed model. The search varies one parameter, `key`, of a compression method.
 * It goes from weak to strong compression and stores four values of the parameter, NaN if there is
 * none:
 *
 *   value         the last one before the accuracy is below the target
 *   value_misses  the first one at which the accuracy is below the target
 *   value_lo      the last one before the lower end of the confidence interval is below the target
 *   value_hi      the first one at which the upper end of the confidence interval is below it
 */
typedef struct {
    /*
     * Name of the method, and name of its parameter that was varied. Early versions of kvdim could
     * vary only "p".
     */
    char name[96], key[64];
    /* Score of which a share is kept: KVD_TARGET_TOP1, or a measure of kvdim-tasks. */
    char metric[48];
    /* True if the score compares with the output of the uncompressed model, not with the truth. */
    bool own;
    double target, value, value_misses, value_lo, value_hi;
    /*
     * Fractions of cache bytes saved at the parameter values value, value_misses, value_lo and
     * value_hi; NaN in files of early versions.
     */
    double saving, saving_misses, saving_lo, saving_hi;
    bool monotone;
    int64_t n_points;
    /*
     * True if the evaluated combinations of parameters differ in more than one parameter. `value`
     * then has no meaning, and `saving` is the largest saving among the combinations that reach the
     * target accuracy.
     */
    bool grid;
} kvd_target_result;

/* Metric of the searches of kvdim-eval, and of files that do not name one. */
#define KVD_TARGET_TOP1 "top1"

/*
 * Returns false if the 95 % interval of a search allows every setting: none is surely kept
 * (saving_lo) that saves bytes, and none is surely lost (saving_hi).
 */
bool kvd_target_tells(double saving_lo, double saving_hi);

typedef struct {
    kvd_rows *rows;
    /*
     * Perplexity / perplexity of the uncompressed model, one per results line. NaN if the file has
     * no uncompressed model.
     */
    kvd_interval *ratio;
    size_t n_layers;
    /*
     * Attention errors, means over heads: [results line][n_layers]. With u the attention output of
     * an uncompressed head and v that of the compressed head, `norm` is ||v - u|| / ||u||, and
     * `zdc` is the mean of |v - u| / |u| over elements. NULL if not measured.
     */
    double *norm, *zdc;
    kvd_target_result *target;
    size_t n_targets;
    /* Number of needle prompts (a fact hidden in a long text); 0 if the file has none. */
    size_t n_needles;
    /*
     * needle_depth [n_needles]: position of the needle in the text, from 0 (beginning) to 1 (end).
     * The other three arrays are results for each line of the table and needle: [results
     * line][n_needles].
     */
    double *needle_depth, *needle_nll, *needle_agree, *needle_exact;
} kvd_accuracy_result;

/*
 * Reads the open file f. Computes the ratio of perplexities and its confidence interval from the
 * sums of negative log-likelihoods of each text sequence. Fails on numbers that no measurement
 * gives: an infinity, a negative number beyond rounding, a fraction above 1. The caller must call
 * kvd_accuracy_result_release, also on failure.
 */
int kvd_accuracy_read(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err);
void kvd_accuracy_result_release(kvd_accuracy_result *a);

#endif
