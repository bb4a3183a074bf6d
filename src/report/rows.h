/*
 * Result rows of all accuracy files in one list. Result rows of one method on one text are
 * adjacent, so that a figure can draw them as a curve. Result rows with pruned or clustered
 * calibration, of single random seeds, and of quantised weights are left out.
 */
#ifndef KVD_REPORT_ROWS_H
#define KVD_REPORT_ROWS_H

#include "report/results.h"

typedef struct {
    const kvd_result *file;
    size_t row;
    /*
     * Method, followed by "(Q-K alone)" or "(V alone)" if dimensions are removed only from Q and K
     * or only from V, and by the rule for kept dimensions if it is not the default.
     */
    char name[KVD_LABEL];
    /*
     * Method name for tables. If result rows of the table differ in model, number type, prompt or
     * number of predictions, the name includes these.
     */
    char method[KVD_LABEL];
    /*
     * Name of the curve in figures: the method, and the calibration text if result rows differ in
     * it.
     */
    char series[KVD_LABEL];
    /* Indices of the first and the last result row with the same evaluated text and `series`. */
    size_t first, last;
} kvd_accuracy_entry;

typedef struct {
    /*
     * Result rows ordered by evaluated text, then by `series`, then by removed fraction p. For each
     * text the uncompressed model comes first.
     */
    kvd_accuracy_entry *item;
    size_t n;
    const char **label; /* distinct evaluated texts, [n_labels] */
    size_t n_labels;
    bool models; /* true if the rows are of more than one model */
} kvd_accuracy_entries;

/*
 * Collect the result rows of all files of kvdim-eval, or of kvdim-tasks. The caller releases *all,
 * also after a failure.
 */
int kvd_accuracy_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
int kvd_tasks_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
void kvd_accuracy_entries_release(kvd_accuracy_entries *all);

const char *kvd_entry_text(const kvd_accuracy_entry *e, const char *column);
double kvd_entry_real(const kvd_accuracy_entry *e, const char *column);
/* Returns the value of a column and the ends of its interval, from COLUMN_lo and COLUMN_hi. */
kvd_interval kvd_entry_interval(const kvd_accuracy_entry *e, const char *column);
/* Returns true if the result row was measured during a search by kvdim-eval --target. */
bool kvd_entry_is_search_point(const kvd_accuracy_entry *e);
bool kvd_entry_is_none(const kvd_accuracy_entry *e);
/*
 * Writes the parameter that trades bytes for quality, such as "h2o.heavy = 0.1", or "" if there is
 * none.
 */
void kvd_entry_setting(const kvd_accuracy_entry *e, char *text, size_t size);
/*
 * Returns 1 - bytes / bytes of the uncompressed cache: stored bytes or, of methods that select what
 * a step reads, the bytes read.
 */
double kvd_entry_saving(const kvd_accuracy_entry *e);
/* A result row of a kvdim/jct, kvdim/kernels or kvdim/serving file, with texts for legends. */
typedef struct {
    const kvd_result *file;
    const kvd_rows *rows;
    size_t row;
    /*
     * Kind of a kvdim/serving result row: "point" (one request rate), "max-rate" (search for the
     * highest rate) or "validation"; NULL for other files.
     */
    const char *kind;
    /*
     * Conditions of the measurement, such as "model on H200; batch 8" or "decode 64 x 8192 bf16
     * cold". Result rows with equal texts can be compared.
     */
    char place[KVD_LABEL];
    /*
     * Name of the curve in figures: the method. For kernels it is "IMPLEMENTATION by SCHEDULE on
     * WIDTHS": who wrote the kernel, how it divides the work, and the name of the set of kept
     * dimensions per head.
     */
    char series[KVD_LABEL];
} kvd_report_row;

typedef struct {
    kvd_report_row *item;
    size_t n;
} kvd_report_rows;

/*
 * Returns true if row i of an accuracy file is of the method of a kvdim/jct row, such as
 * "zack,p=0.5". Both kinds of file write parameters in the form of kvd_method.settings.
 */
bool kvd_is_job_method(const kvd_rows *rows, size_t i, const char *job);

/* Return the value of a column; NaN or "" if the file has no such column. */
double kvd_report_real(const kvd_report_row *e, const char *column);
const char *kvd_report_text(const kvd_report_row *e, const char *column);
void kvd_report_rows_release(kvd_report_rows *all);

/*
 * Fills *out with the result rows of one kind of all kvdim/jct files, ordered by `place`, then by
 * file.
 */
int kvd_jct_collect(const kvd_results *r, const char *kind, kvd_report_rows *out, kvd_err *err);

/*
 * Returns the job completion time with the uncompressed cache divided by the job completion time in
 * result row `e`, for equal sizes in the same file. Returns NaN if the uncompressed cache was not
 * measured.
 */
double kvd_jct_speed_up(const kvd_report_row *e);

/*
 * Number of parts into which figures divide the time of an inference step. A part consists of
 * several phases.
 */
enum { KVD_JCT_PARTS = 11 };
extern const char *const kvd_jct_part_title[KVD_JCT_PARTS];
/* Returns the index of the part to which a phase, such as "mlp", belongs. */
int kvd_jct_part_of(const char *phase);
/*
 * Returns the seconds of one part of a job. `side` is "prefill", "decode", or NULL for both
 * together. The last part is the time that belongs to no other part.
 */
double kvd_jct_part(const kvd_report_row *e, int part, const char *side);

/* Fills *out with all result rows of the kvdim/kernels files, in the order of the files. */
int kvd_kernels_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/* Fills *out with all result rows of the kvdim/serving files, ordered by `place`, then by file. */
int kvd_serving_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/*
 * Returns the result row of the uncompressed cache that has the same conditions and kind as `e`, or
 * NULL. For kind "point" it must also have the same request rate.
 */
const kvd_report_row *kvd_serving_uncompressed(const kvd_report_rows *all, const kvd_report_row *e);

/*
 * Compares the conditions of result row a of file x and result row b of file y, which are accuracy,
 * serving or jct files. Returns NULL if all conditions are equal. Otherwise returns the name of the
 * first column that differs, "model" or "schema".
 *
 * `but` lists conditions that may differ, separated by commas: columns, "model", or a group:
 *
 *   "widths"  removed fractions: overall_p, overall_p_qk, overall_p_v, low_p_qk, low_p_v
 *   "sample"  how much was evaluated: n_tokens, n_sequences, n_predictions
 *   "bases"   calibration, pair_qk and pair_v; may differ if one method has no calibration
 *
 * Numbers are equal if they differ by less than 1e-9, or if neither result row has a value. A
 * missing value differs from any number, but a missing `prompt` counts as 0. Only device and number
 * type of an engine are compared.
 */
const char *kvd_rows_differ(const kvd_result *x, size_t a, const kvd_result *y, size_t b,
                            const char *but);

/*
 * Fails if two files of one model give the same label to texts of different content. Two texts
 * conflict if label, token count and sequence length (if recorded) are equal and the content hashes
 * are not. `also` is a second set of results, or NULL. Must be called before kvd_results_name,
 * which may change labels.
 */
int kvd_results_same_texts(const kvd_results *r, const kvd_results *also, kvd_err *err);

#endif
