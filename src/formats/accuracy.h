/*
 * kvdim/accuracy files: quality of next-token predictions. Each line of the results table holds one
 * setting of a compression method (docs/formats.md).
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
 * Number of leading columns that identify the compression method of a results line and its
 * settings. The schemas kvdim/accuracy and kvdim/tasks share these columns.
 */
enum { KVD_N_POINT_COLUMNS = 19 };
extern const kvd_column kvd_point_columns[KVD_N_POINT_COLUMNS];

/*
 * Indices of the datasets with finer values than a results line. The first two are attention errors
 * per layer and head (NaN if not measured). The others are sums over the predictions of each
 * sequence.
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
 * Writes the results lines and their values per head and per sequence. predictions [n_sequences]:
 * number of predicted tokens in each sequence.
 */
int kvd_accuracy_rows_write(kvd_h5 *f, const kvd_rows *r, const double *predictions, kvd_err *err);
/*
 * Returns the results table stored in f, with its values per head and per sequence, and fills
 * predictions [n_sequences]. Fails if the shapes differ from those of `like`, an empty table from
 * kvd_accuracy_rows. The caller frees the returned table.
 */
kvd_rows *kvd_accuracy_rows_load(kvd_h5 *f, const kvd_rows *like, double *predictions,
                                 kvd_err *err);

/*
 * Result of a search for the strongest compression that keeps a given fraction of top-1 accuracy.
 * The search varies one parameter `key` of the method. The result has the parameter's value and the
 * fraction of bytes saved at four settings. The first two are the last that meets the target and
 * the first that misses it. At the other two, an end of the confidence interval falls below the
 * target.
 */
typedef struct {
    /* Name of the method, and its parameter that was varied. Early versions could vary only "p". */
    char name[96], key[64];
    double target, value, value_misses, value_lo, value_hi;
    /*
     * Fractions of cache bytes saved at the settings of value, value_misses, value_lo and value_hi;
     * NaN in files of early versions.
     */
    double saving, saving_misses, saving_lo, saving_hi;
    bool monotone;
    int64_t n_points;
    /*
     * True if the evaluated settings differ in more than one parameter. The answer is then the
     * setting that saves most, and `value` has no meaning.
     */
    bool grid;
} kvd_target_result;

typedef struct {
    kvd_rows *rows;
    /*
     * Perplexity / perplexity of the uncompressed model, one per results line. NaN if the file has
     * no uncompressed model.
     */
    kvd_interval *ratio;
    size_t n_layers;
    /* Attention errors [results line][n_layers], means over heads. NULL if not measured. */
    double *norm, *zdc;
    kvd_target_result *target;
    size_t n_targets;
    size_t n_needles; /* number of needle prompts; 0 if the file has none */
    /*
     * needle_depth [n_needles]: where in the text the needle is. The other arrays are [results
     * line][n_needles].
     */
    double *needle_depth, *needle_nll, *needle_agree, *needle_exact;
} kvd_accuracy_result;

/*
 * Reads the open file f. Computes the ratio of perplexities and its confidence interval from the
 * sums of each sequence. Fails on numbers that no measurement gives: an infinity, a negative number
 * beyond rounding, a fraction above 1. The caller must call kvd_accuracy_result_release, also on
 * failure.
 */
int kvd_accuracy_read(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err);
void kvd_accuracy_result_release(kvd_accuracy_result *a);

#endif
