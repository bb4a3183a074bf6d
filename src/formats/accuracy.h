/* kvdim/accuracy files: quality of predictions with compressed caches, one row per method. */
#ifndef KVD_FORMATS_ACCURACY_H
#define KVD_FORMATS_ACCURACY_H

#include "formats/rows.h"

/* Schemas of the result file OUT.h5, and of OUT.h5.rows, which holds the results of an interrupted
 * run. */
extern const kvd_schema kvd_schema_accuracy, kvd_schema_accuracy_rows;
extern const kvd_schema kvd_schema_tasks;
/* Label of a mean over benchmark tasks, a printf format for the number of tasks (size_t). */
#define KVD_TASKS_MEAN_LABEL "mean of %zu tasks"
/* Returns true for labels such as "mean of 9 tasks" and "mean of 2 tasks: A, B". */
bool kvd_tasks_label_is_mean(const char *label);

/* Number of columns that describe the compression method and its parameters; every accuracy table
 * begins with them. */
enum { KVD_N_POINT_COLUMNS = 19 };
extern const kvd_column kvd_point_columns[KVD_N_POINT_COLUMNS];

/* Arrays with several values for each row of the accuracy table. A row belongs to one method. */
enum {
    /* [n_layers][n_heads] error ||v - u|| / ||u|| of the compressed model's attention outputs v,
     * where u are the uncompressed model's outputs */
    KVD_ACCURACY_RELATIVE,
    /* [n_layers][n_heads] mean of |v - u| / |u| over the elements of the compressed model's
     * attention outputs v, where u are the uncompressed model's outputs */
    KVD_ACCURACY_ZDC,
    /* [n_sequences] -log p(next token) in nats, summed over a sequence */
    KVD_ACCURACY_NLL,
    /* [n_sequences] number of tokens of a sequence that were predicted correctly */
    KVD_ACCURACY_TOP1,
    /* [n_sequences] KL divergence from the uncompressed model in nats, summed over a sequence */
    KVD_ACCURACY_KL,
    /* [n_sequences] number of predictions in a sequence that equal the uncompressed model's */
    KVD_ACCURACY_AGREE,
    KVD_ACCURACY_SAMPLES
};

/* Returns an empty table, which the caller frees. `seeds` adds columns for random seeds. */
kvd_rows *kvd_accuracy_rows(int n_layers, int n_heads, size_t n_sequences, bool seeds,
                            kvd_err *err);
/* Writes the accuracy table, and the number of predicted tokens of each sequence. */
int kvd_accuracy_rows_write(kvd_h5 *f, const kvd_rows *r, const double *predictions, kvd_err *err);
/* Reads the accuracy table, which the caller frees, and the number of predicted tokens of each
 * sequence. Fails if an array in the file has another shape than in the table `like`. */
kvd_rows *kvd_accuracy_rows_load(kvd_h5 *f, const kvd_rows *like, double *predictions,
                                 kvd_err *err);

/* Result of a search for the strongest compression that keeps a share `target` of the uncompressed
 * score. `key` is the parameter that was varied. NaN means not found.
 *
 * - value: last value of `key` before the score falls below that share
 * - value_misses: first value of `key` at which the score is below that share
 * - value_lo: last value of `key` with the whole 95 % interval of the score above that share
 * - value_hi: first value of `key` with the whole 95 % interval of the score below that share */
typedef struct {
    char name[96], key[64];
    /* score that the strongest compression must keep: top-1 accuracy (KVD_TARGET_TOP1) or a score
     * of the benchmark program kvdim-tasks */
    char metric[48];
    /* true if the score counts outputs that equal the uncompressed model's, false if it counts
     * right answers */
    bool own;
    double target, value, value_misses, value_lo, value_hi;
    /* fraction of the cache's bytes that is saved at parameter value `value`, `value_misses`,
     * `value_lo` or `value_hi` (fields above); NaN in old files */
    double saving, saving_misses, saving_lo, saving_hi;
    bool monotone;
    int64_t n_points;
    bool grid; /* True if several parameters were varied. `value` then has no meaning. */
} kvd_target_result;

/* Name of top-1 accuracy. With --target, kvdim-eval finds the strongest compression that keeps a
 * share of this score. */
#define KVD_TARGET_TOP1 "top1"

/* Returns true if the 95 % interval of the saved fraction of cache bytes is informative: its lower
 * end `saving_lo` is above 0, or its upper end `saving_hi` is known (not NaN). */
bool kvd_target_tells(double saving_lo, double saving_hi);

typedef struct {
    kvd_rows *rows;
    /* [row] perplexity divided by the uncompressed model's perplexity; NaN if the table lacks the
     * uncompressed model */
    kvd_interval *ratio;
    /* n_sequences: number of predicted texts. sequence_n [n_sequences]: number of predicted tokens
     * of each text. sequence_kl [row][n_sequences]: KL divergence from the uncompressed model in
     * nats, summed over the tokens of a text. */
    size_t n_sequences;
    double *sequence_n, *sequence_kl;
    size_t n_layers;
    /* [row][n_layers] error of compressed attention outputs v against uncompressed ones u, mean
     * over heads. norm: ||v - u|| / ||u||; zdc: mean over elements of |v - u| / |u|. NULL if
     * absent. */
    double *norm, *zdc;
    kvd_target_result *target;
    size_t n_targets;
    size_t n_needles; /* number of prompts that hide a fact (needle) in a long text */
    /* needle_depth [n_needles]: place of each hidden fact in its text, 0 .. 1. needle_nll,
     * needle_agree, needle_exact [row][n_needles]: loss in nats per token, agreement with the
     * uncompressed model, and 1 for an exact answer. */
    double *needle_depth, *needle_nll, *needle_agree, *needle_exact;
} kvd_accuracy_result;

/* Reads an accuracy file and divides each method's perplexity by the uncompressed model's. Call
 * kvd_accuracy_result_release, also on failure. */
int kvd_accuracy_read(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err);
void kvd_accuracy_result_release(kvd_accuracy_result *a);

#endif
