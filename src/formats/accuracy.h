/*
 * kvdim/accuracy files: quality of predictions with compressed KV caches. The table has a row per
 * method with its parameters.
 */
#ifndef KVD_FORMATS_ACCURACY_H
#define KVD_FORMATS_ACCURACY_H

#include "formats/rows.h"

/* Schemas of OUT.h5 and of OUT.h5.rows, the finished rows of an interrupted run. */
extern const kvd_schema kvd_schema_accuracy, kvd_schema_accuracy_rows;
extern const kvd_schema kvd_schema_tasks;
/* Name of the row that holds the means over N benchmark tasks. N is a size_t. */
#define KVD_TASKS_MEAN_LABEL "mean of %zu tasks"
/* Returns true if `label` names a mean over tasks ("mean of 9 tasks"). */
bool kvd_tasks_label_is_mean(const char *label);

/*
 * Number of columns that describe method and parameters. Every table of results begins with them.
 */
enum { KVD_N_POINT_COLUMNS = 19 };
extern const kvd_column kvd_point_columns[KVD_N_POINT_COLUMNS];

/*
 * Arrays that are stored in addition to the table. RELATIVE and ZDC are attention errors
 * [row][layer][head], all others are [row][sequence].
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

/* Returns an empty table, which the caller frees. `seeds` adds columns for random seeds. */
kvd_rows *kvd_accuracy_rows(int n_layers, int n_heads, size_t n_sequences, bool seeds,
                            kvd_err *err);
/* Writes the table. predictions [n_sequences]: number of predicted tokens of each sequence. */
int kvd_accuracy_rows_write(kvd_h5 *f, const kvd_rows *r, const double *predictions, kvd_err *err);
/*
 * Reads the table, which the caller frees, and predictions [n_sequences]. Shapes must agree with
 * the table `like`.
 */
kvd_rows *kvd_accuracy_rows_load(kvd_h5 *f, const kvd_rows *like, double *predictions,
                                 kvd_err *err);

/*
 * Result of a search for the strongest compression whose score is at least `target` times the
 * uncompressed model's score. The parameter `key` varies. NaN means not found.
 *
 * - value: last value of `key` before the score falls below the target
 * - value_misses: first value below the target
 * - value_lo: last value before the lower end of the confidence interval is below the target
 * - value_hi: first value at which the upper end is below the target
 */
typedef struct {
    char name[96], key[64];
    /* Score of which the search keeps a share: KVD_TARGET_TOP1 or a measure of kvdim-tasks. */
    char metric[48];
    /*
     * True if the score compares with the uncompressed model's output, false if with right answers.
     */
    bool own;
    double target, value, value_misses, value_lo, value_hi;
    /* fractions of bytes saved at value, value_misses, value_lo and value_hi; NaN in old files */
    double saving, saving_misses, saving_lo, saving_hi;
    bool monotone;
    int64_t n_points;
    bool grid; /* True if several parameters were varied. `value` then has no meaning. */
} kvd_target_result;

/* Name of the score (top-1 accuracy) that the searches of kvdim-eval use. */
#define KVD_TARGET_TOP1 "top1"

/*
 * Returns false if the saved fractions at both ends of the 95 % interval cover everything, so that
 * the search found nothing.
 */
bool kvd_target_tells(double saving_lo, double saving_hi);

typedef struct {
    kvd_rows *rows;
    /*
     * Perplexity of each row divided by that of the uncompressed model; NaN without such a model.
     */
    kvd_interval *ratio;
    /*
     * Number of predictions of each sequence, and sums of their KL divergence [row][n_sequences].
     * NULL if absent.
     */
    size_t n_sequences;
    double *sequence_n, *sequence_kl;
    size_t n_layers;
    /*
     * [row][n_layers] Mean over heads of two errors of attention outputs (u uncompressed, v
     * compressed): ||v - u|| / ||u||, and mean |v - u| / |u|. NULL if absent.
     */
    double *norm, *zdc;
    kvd_target_result *target;
    size_t n_targets;
    size_t n_needles; /* number of prompts that hide a fact (needle) in a long text */
    /*
     * needle_depth is the position of the hidden fact in the text, 0 .. 1. The other arrays are
     * [row][n_needles], NaN if not measured.
     */
    double *needle_depth, *needle_nll, *needle_agree, *needle_exact;
} kvd_accuracy_result;

/* Reads f and computes perplexity ratios. Call kvd_accuracy_result_release, also on failure. */
int kvd_accuracy_read(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err);
void kvd_accuracy_result_release(kvd_accuracy_result *a);

#endif
