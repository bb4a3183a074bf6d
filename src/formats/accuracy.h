/*
 * kvdim/accuracy files: quality of next-token predictions with compressed KV caches, a row per
 * method and parameters (docs/formats.md).
 */
#ifndef KVD_FORMATS_ACCURACY_H
#define KVD_FORMATS_ACCURACY_H

#include "formats/rows.h"

/* Schemas of OUT.h5 and of OUT.h5.rows, the finished rows of an interrupted run. */
extern const kvd_schema kvd_schema_accuracy, kvd_schema_accuracy_rows;
/* Schema of kvdim-tasks results. */
extern const kvd_schema kvd_schema_tasks;
/* printf format of the row name for means over N benchmark tasks, a size_t. */
#define KVD_TASKS_MEAN_LABEL "mean of %zu tasks"
/* Returns true if `label` matches KVD_TASKS_MEAN_LABEL. */
bool kvd_tasks_label_is_mean(const char *label);

/* First columns of every table of results: method and parameters. */
enum { KVD_N_POINT_COLUMNS = 19 };
extern const kvd_column kvd_point_columns[KVD_N_POINT_COLUMNS];

/*
 * Arrays in addition to the table. RELATIVE, ZDC: attention errors per row, layer and head (NaN:
 * not measured). Others: sums per row and sequence.
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
 * Returns an empty table, which the caller frees; `seeds` adds columns for several random seeds. On
 * failure returns NULL and fills *err.
 */
kvd_rows *kvd_accuracy_rows(int n_layers, int n_heads, size_t n_sequences, bool seeds,
                            kvd_err *err);
/* Writes the table. predictions [n_sequences]: predicted tokens of each sequence. */
int kvd_accuracy_rows_write(kvd_h5 *f, const kvd_rows *r, const double *predictions, kvd_err *err);
/*
 * Reads the table, which the caller frees, and predictions [n_sequences]. Fails if a shape differs
 * from that in `like`, an empty kvd_accuracy_rows.
 */
kvd_rows *kvd_accuracy_rows_load(kvd_h5 *f, const kvd_rows *like, double *predictions,
                                 kvd_err *err);

/*
 * Result of a search, from weak to strong compression by parameter `key`, for a score of at least
 * `target` times the uncompressed one. NaN: not found.
 *
 * - value: last value of `key` before the score falls below the target
 * - value_misses: first value below the target
 * - value_lo: last value before the confidence interval's lower end falls below the target
 * - value_hi: first value at which the upper end is below the target
 */
typedef struct {
    char name[96], key[64];
    /* Score that is compared with the target: KVD_TARGET_TOP1 or a measure of kvdim-tasks. */
    char metric[48];
    /* True if the score compares with the uncompressed model, not with the truth. */
    bool own;
    double target, value, value_misses, value_lo, value_hi;
    /* Fractions of bytes saved at value, value_misses, value_lo and value_hi; NaN in old files. */
    double saving, saving_misses, saving_lo, saving_hi;
    bool monotone;
    int64_t n_points;
    /*
     * True if several parameters were varied: `value` has no meaning, `saving` is the largest that
     * reaches the target.
     */
    bool grid;
} kvd_target_result;

/* Metric of kvdim-eval's searches, and of files that name none. */
#define KVD_TARGET_TOP1 "top1"

/* Returns false if the interval covers everything: no setting surely keeps or loses the score. */
bool kvd_target_tells(double saving_lo, double saving_hi);

typedef struct {
    kvd_rows *rows;
    /* [row] Perplexity over that of the uncompressed model; NaN without one. */
    kvd_interval *ratio;
    /*
     * sequence_n [n_sequences]: predictions. sequence_kl [row][n_sequences]: KL divergence summed
     * over predictions, NaN if not measured. NULL if absent.
     */
    size_t n_sequences;
    double *sequence_n, *sequence_kl;
    size_t n_layers;
    /*
     * [row][n_layers] Attention errors, means over heads: `norm` ||v - u|| / ||u||, `zdc` mean of
     * |v - u| / |u|; u uncompressed, v compressed. NULL if absent.
     */
    double *norm, *zdc;
    kvd_target_result *target;
    size_t n_targets;
    /* Prompts that hide a fact (needle) in a long text; 0 if absent. */
    size_t n_needles;
    /*
     * needle_depth [n_needles]: position of the fact, 0 .. 1. Others: [row][n_needles], NaN if not
     * measured.
     */
    double *needle_depth, *needle_nll, *needle_agree, *needle_exact;
} kvd_accuracy_result;

/*
 * Reads the open file f and computes perplexity ratios. Fails on infinity, clearly negative numbers
 * and fractions above 1. The caller calls kvd_accuracy_result_release, also on failure.
 */
int kvd_accuracy_read(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err);
void kvd_accuracy_result_release(kvd_accuracy_result *a);

#endif
