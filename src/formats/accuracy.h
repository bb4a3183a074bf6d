/*
 * kvdim/accuracy: quality of next-token predictions, one row per evaluated point
 * (docs/formats.md).
 */
#ifndef KVD_FORMATS_ACCURACY_H
#define KVD_FORMATS_ACCURACY_H

#include "formats/rows.h"

/*
 * Schemas of kvdim/accuracy files: complete results, and OUT.h5.rows, the rows of an unfinished
 * run.
 */
extern const kvd_schema kvd_schema_accuracy, kvd_schema_accuracy_rows;
/* Schema of the result files of kvdim-tasks (docs/formats.md). */
extern const kvd_schema kvd_schema_tasks;
/*
 * printf format of the label of a row that holds the mean over N tasks; the argument is N as
 * size_t.
 */
#define KVD_TASKS_MEAN_LABEL "mean of %zu tasks"
/* Returns true if the label of a row is KVD_TASKS_MEAN_LABEL with some N. */
bool kvd_tasks_label_is_mean(const char *label);

/*
 * Number of columns that identify the compression method of a row and its settings. Schemas
 * kvdim/accuracy and kvdim/tasks share these columns.
 */
enum { KVD_N_POINT_COLUMNS = 19 };
extern const kvd_column kvd_point_columns[KVD_N_POINT_COLUMNS];

/*
 * Samples of a row: attention errors of every layer and head, NaN if not measured; sums over the
 * predictions of every sequence.
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
 * Returns an empty table of the schema kvdim/accuracy. If `seeds`, it has columns for statistics
 * over seeds. On failure returns NULL and fills *err. The caller frees it.
 */
kvd_rows *kvd_accuracy_rows(int n_layers, int n_heads, size_t n_sequences, bool seeds,
                            kvd_err *err);
/*
 * Writes the rows and their samples. predictions [n_sequences]: number of predicted tokens in each
 * sequence.
 */
int kvd_accuracy_rows_write(kvd_h5 *f, const kvd_rows *r, const double *predictions, kvd_err *err);
/*
 * Returns the rows of a file with their samples, and fills predictions. Fails if the shapes differ
 * from those of `like`, which kvd_accuracy_rows made. The caller frees the table.
 */
kvd_rows *kvd_accuracy_rows_load(kvd_h5 *f, const kvd_rows *like, double *predictions,
                                 kvd_err *err);

/*
 * Answer of a search for the fewest bytes that keep a share of top-1 accuracy: value of the key and
 * share of bytes saved at the last point that keeps the share, at the first that misses it, and at
 * the two ends of the interval.
 */
typedef struct {
    char name[96], key[64]; /* key is "p" for files of versions that could search p only */
    double target, value, value_misses, value_lo, value_hi;
    /*
     * shares of bytes saved at these four points; NaN in files of versions that could search p only
     */
    double saving, saving_misses, saving_lo, saving_hi;
    bool monotone;
    int64_t n_points;
    /*
     * true if the evaluated settings differ in more than one key. The answer is then the setting
     * that saves most, and the values of the key have no meaning.
     */
    bool grid;
} kvd_target_result;

typedef struct {
    kvd_rows *rows;
    kvd_interval *ratio; /* [row] perplexity over that of the uncompressed model; NaN without one */
    size_t n_layers;
    /* [row][n_layers] attention errors, means over heads; NULL if not measured */
    double *norm, *zdc;
    kvd_target_result *target;
    size_t n_targets;
    size_t n_needles; /* number of needles; 0 if the file has none */
    /* needle_depth [n_needles]; the other arrays [row][n_needles] */
    double *needle_depth, *needle_nll, *needle_agree, *needle_exact;
} kvd_accuracy_result;

/*
 * Reads the open file f. Computes the ratios of perplexity and their intervals from the sums of
 * every sequence. Fails on numbers that no measurement gives: an infinity, a negative number beyond
 * rounding, a share above 1. The caller must call kvd_accuracy_result_release, also on failure.
 */
int kvd_accuracy_read(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err);
void kvd_accuracy_result_release(kvd_accuracy_result *a);

#endif
