/*
 * kvdim/accuracy files: quality of next-token predictions with compressed KV caches. Each row of
 * the table is for one compression method with one set of parameters (docs/formats.md).
 */
#ifndef KVD_FORMATS_ACCURACY_H
#define KVD_FORMATS_ACCURACY_H

#include "formats/rows.h"

/*
 * Schemas of the result OUT.h5, and of OUT.h5.rows, which holds the finished rows of an interrupted
 * run.
 */
extern const kvd_schema kvd_schema_accuracy, kvd_schema_accuracy_rows;
/* Schema of the result files of kvdim-tasks. */
extern const kvd_schema kvd_schema_tasks;
/*
 * printf format for the name of a row that holds means over N benchmark tasks; the argument N is a
 * size_t.
 */
#define KVD_TASKS_MEAN_LABEL "mean of %zu tasks"
/* Returns true if `label` matches KVD_TASKS_MEAN_LABEL. */
bool kvd_tasks_label_is_mean(const char *label);

/* Every table of results begins with these columns, which name the method and its parameters. */
enum { KVD_N_POINT_COLUMNS = 19 };
extern const kvd_column kvd_point_columns[KVD_N_POINT_COLUMNS];

/*
 * Arrays that a kvdim/accuracy file stores in addition to the table. RELATIVE and ZDC are attention
 * errors per row, layer and head; NaN if not measured. NLL, TOP1, KL and AGREE are sums over the
 * predictions of a sequence, per row and sequence.
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
 * Returns an empty table of results. `seeds` adds columns for statistics over several random seeds.
 * On failure returns NULL and fills *err. The caller frees the table.
 */
kvd_rows *kvd_accuracy_rows(int n_layers, int n_heads, size_t n_sequences, bool seeds,
                            kvd_err *err);
/*
 * Writes the table. predictions [n_sequences] has the number of predicted tokens of each sequence.
 */
int kvd_accuracy_rows_write(kvd_h5 *f, const kvd_rows *r, const double *predictions, kvd_err *err);
/*
 * Reads the table, and fills predictions [n_sequences]. Fails if a shape differs from that in
 * `like`, an empty table from kvd_accuracy_rows. The caller frees the table.
 */
kvd_rows *kvd_accuracy_rows_load(kvd_h5 *f, const kvd_rows *like, double *predictions,
                                 kvd_err *err);

/*
 * Result of a search for the strongest compression whose score is at least `target` times that of
 * the uncompressed model. The search varies the parameter `key` of a method, from weak to strong
 * compression. NaN marks a value that was not found:
 *
 *   value         last value of `key` before the score falls below the target
 *   value_misses  first value of `key` at which the score is below the target
 *   value_lo      last value before the lower end of the confidence interval falls below the target
 *   value_hi      first value at which the upper end of the confidence interval is below the target
 */
typedef struct {
    char name[96], key[64];
    /*
     * Name of the score that the search compares with the target: KVD_TARGET_TOP1, or a measure of
     * kvdim-tasks. The found setting keeps at least the fraction `target` of this score.
     */
    char metric[48];
    /* True if the score compares with the output of the uncompressed model, not with the truth. */
    bool own;
    double target, value, value_misses, value_lo, value_hi;
    /*
     * Fractions of bytes saved with the parameter `key` set to `value`, to `value_misses`, to
     * `value_lo` and to `value_hi`; NaN in old files.
     */
    double saving, saving_misses, saving_lo, saving_hi;
    bool monotone;
    int64_t n_points;
    /*
     * True if several parameters of the method were varied, not only `key`. `value` then has no
     * meaning. `saving` is the largest fraction of bytes saved by a measured setting that reaches
     * the target.
     */
    bool grid;
} kvd_target_result;

/* Metric of the searches of kvdim-eval, and of files that do not name one. */
#define KVD_TARGET_TOP1 "top1"

/*
 * Returns false if the 95 % interval of a search covers everything. Then no setting that saves
 * bytes is sure to keep the score (saving_lo), and no setting is sure to lose it (saving_hi is
 * NaN).
 */
bool kvd_target_tells(double saving_lo, double saving_hi);

typedef struct {
    kvd_rows *rows;
    /* Perplexity / perplexity of the uncompressed model, per row; NaN without such a model. */
    kvd_interval *ratio;
    /*
     * `sequence_n` [n_sequences] is the number of predictions in each evaluated sequence.
     * `sequence_kl` [row of the table][n_sequences] is the KL divergence summed over these
     * predictions, NaN if not measured. If the file has no such arrays, both pointers are NULL.
     */
    size_t n_sequences;
    double *sequence_n, *sequence_kl;
    size_t n_layers;
    /*
     * Attention errors, means over heads: [row of the table][n_layers]. `norm` is ||v - u|| / ||u||
     * and `zdc` the mean of |v - u| / |u|, for outputs u (uncompressed) and v (compressed). NULL if
     * not measured.
     */
    double *norm, *zdc;
    kvd_target_result *target;
    size_t n_targets;
    /* Number of prompts that hide a fact (needle) in a long text; 0 if the file has none. */
    size_t n_needles;
    /*
     * needle_depth [n_needles] is the position of the hidden fact, from 0 (beginning) to 1 (end).
     * The other arrays are [row of the table][n_needles]; NaN if not measured.
     */
    double *needle_depth, *needle_nll, *needle_agree, *needle_exact;
} kvd_accuracy_result;

/*
 * Reads the open file f and computes, for each row, the ratio of its perplexity to that of the
 * uncompressed cache. Fails on infinity, on negative numbers beyond rounding, and on fractions
 * above 1. The caller must call kvd_accuracy_result_release, also on failure.
 */
int kvd_accuracy_read(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err);
void kvd_accuracy_result_release(kvd_accuracy_result *a);

#endif
