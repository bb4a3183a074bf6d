/* kvdim/accuracy files: quality of predictions with compressed KV caches; a row per setting. */
#ifndef KVD_FORMATS_ACCURACY_H
#define KVD_FORMATS_ACCURACY_H

#include "formats/rows.h"

/* Schemas of OUT.h5 and of OUT.h5.rows, the finished rows of an interrupted run. */
extern const kvd_schema kvd_schema_accuracy, kvd_schema_accuracy_rows;
extern const kvd_schema kvd_schema_tasks;
/* name of the row with means over N benchmark tasks; N is a size_t */
#define KVD_TASKS_MEAN_LABEL "mean of %zu tasks"
/* Returns true if `label` names a mean over tasks ("mean of 9 tasks"). */
bool kvd_tasks_label_is_mean(const char *label);

/* Every table of results begins with these columns: method and parameters. */
enum { KVD_N_POINT_COLUMNS = 19 };
extern const kvd_column kvd_point_columns[KVD_N_POINT_COLUMNS];

/* Further arrays. RELATIVE, ZDC: attention errors [row][layer][head]; the rest: [row][sequence]. */
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
/* Reads the table, which the caller frees, and predictions [n_sequences]; shapes as in `like`. */
kvd_rows *kvd_accuracy_rows_load(kvd_h5 *f, const kvd_rows *like, double *predictions,
                                 kvd_err *err);

/*
 * Result of a search for the strongest compression that keeps a score of `target` times the
 * uncompressed one. The parameter `key` varies. NaN means not found.
 *
 * - value: last value of `key` before the score falls below the target
 * - value_misses: first value below the target
 * - value_lo: last value before the lower end of the confidence interval is below the target
 * - value_hi: first value at which the upper end is below the target
 */
typedef struct {
    char name[96], key[64];
    /* score that is compared with the target: KVD_TARGET_TOP1 or a measure of kvdim-tasks */
    char metric[48];
    /* true if the score compares with the uncompressed model, not with the truth */
    bool own;
    double target, value, value_misses, value_lo, value_hi;
    /* fractions of bytes saved at value, value_misses, value_lo and value_hi; NaN in old files */
    double saving, saving_misses, saving_lo, saving_hi;
    bool monotone;
    int64_t n_points;
    bool grid; /* True if several parameters were varied. `value` then has no meaning. */
} kvd_target_result;

/* metric of the searches of kvdim-eval */
#define KVD_TARGET_TOP1 "top1"

/* Returns false if the 95 % interval covers everything, so that the search found nothing. */
bool kvd_target_tells(double saving_lo, double saving_hi);

typedef struct {
    kvd_rows *rows;
    /* perplexity / perplexity of the uncompressed model, per row; NaN without such a model */
    kvd_interval *ratio;
    /* Predictions per sequence, and their summed KL [row][n_sequences]. NULL if absent. */
    size_t n_sequences;
    double *sequence_n, *sequence_kl;
    size_t n_layers;
    /* [row][n_layers] means over heads of ||v - u|| / ||u|| and of |v - u| / |u|; NULL if absent */
    double *norm, *zdc;
    kvd_target_result *target;
    size_t n_targets;
    size_t n_needles; /* number of prompts that hide a fact (needle) in a long text */
    /* Position of the hidden fact, 0 .. 1. Other arrays: [row][n_needles], NaN if not measured. */
    double *needle_depth, *needle_nll, *needle_agree, *needle_exact;
} kvd_accuracy_result;

/* Reads f and computes perplexity ratios. Call kvd_accuracy_result_release, also on failure. */
int kvd_accuracy_read(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err);
void kvd_accuracy_result_release(kvd_accuracy_result *a);

#endif
