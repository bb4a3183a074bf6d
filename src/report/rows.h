/* Result rows of all accuracy files in one list. Rows of one method on one text are adjacent. */
#ifndef KVD_REPORT_ROWS_H
#define KVD_REPORT_ROWS_H

#include "report/results.h"

typedef struct {
    const kvd_result *file;
    const kvd_rows *rows;
    size_t row;
    /* Name of the method, with a note if it removes dimensions only of Q and K or only of V. */
    char name[KVD_LABEL];
    /*
     * Name of the method for tables, with model, number type or prompt if these are not equal in
     * all rows.
     */
    char method[KVD_LABEL];
    /*
     * Name of the row's curve in figures: the method, and the calibration text if it is not equal
     * in all rows.
     */
    char series[KVD_LABEL];
    /* Indices of the first and the last row with the same evaluated text and `series`. */
    size_t first, last;
} kvd_accuracy_entry;

typedef struct {
    /* Rows, ordered by text, `series` and removed fraction. The uncompressed model comes first. */
    kvd_accuracy_entry *item;
    size_t n;
    const char **label; /* distinct evaluated texts, [n_labels] */
    size_t n_labels;
    bool models; /* true if the rows are of more than one model */
} kvd_accuracy_entries;

/* Collect the rows of kvdim-eval, or of kvdim-tasks. The caller releases *all, also on failure. */
int kvd_accuracy_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
int kvd_tasks_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
void kvd_accuracy_entries_release(kvd_accuracy_entries *all);

const char *kvd_entry_text(const kvd_accuracy_entry *e, const char *column);
double kvd_entry_real(const kvd_accuracy_entry *e, const char *column);
/* Returns the value of a column and its interval, from COLUMN_lo and COLUMN_hi. */
kvd_interval kvd_entry_interval(const kvd_accuracy_entry *e, const char *column);
/* Returns the perplexity of a row divided by that of the uncompressed model, with its interval. */
kvd_interval kvd_entry_ratio(const kvd_accuracy_entry *e);
/*
 * Returns true if the row was measured by a search for the strongest compression (kvdim-eval
 * --target).
 */
bool kvd_entry_is_search_point(const kvd_accuracy_entry *e);
bool kvd_entry_is_none(const kvd_accuracy_entry *e);
/*
 * Writes the parameter of the row's method that trades bytes for quality, such as "h2o.heavy =
 * 0.1", or "".
 */
void kvd_entry_setting(const kvd_accuracy_entry *e, char *text, size_t size);
/* Returns the saved fraction 1 - bytes / bytes of the uncompressed cache. */
double kvd_entry_saving(const kvd_accuracy_entry *e);
/* A row of a kvdim/jct, kvdim/kernels or kvdim/serving file. */
typedef struct {
    const kvd_result *file;
    const kvd_rows *rows;
    size_t row;
    /*
     * Kind of a row in a kvdim/serving file: "point" (one request rate), "max-rate" or
     * "validation". NULL in other files.
     */
    const char *kind;
    /*
     * Conditions of the measurement, such as "model on H200; batch 8". Rows with equal texts can be
     * compared.
     */
    char place[KVD_LABEL];
    /* Name of the row's curve in figures: the method, or "IMPLEMENTATION by SCHEDULE on WIDTHS". */
    char series[KVD_LABEL];
} kvd_report_row;

typedef struct {
    kvd_report_row *item;
    size_t n;
} kvd_report_rows;

/*
 * Returns true if row i of an accuracy file was measured with the method of a kvdim/jct row, `job`,
 * such as "zack,p=0.5".
 */
bool kvd_is_job_method(const kvd_rows *rows, size_t i, const char *job);

/* Return the value of a column in the row, or NaN or "" if there is no such column. */
double kvd_report_real(const kvd_report_row *e, const char *column);
const char *kvd_report_text(const kvd_report_row *e, const char *column);
void kvd_report_rows_release(kvd_report_rows *all);

/*
 * Fills *out with the rows "job", "iteration" or "request" (`kind`) of all kvdim/jct files, ordered
 * by kvd_report_row.place.
 */
int kvd_jct_collect(const kvd_results *r, const char *kind, kvd_report_rows *out, kvd_err *err);

/* Returns the job completion time of the uncompressed cache divided by that of `e`, or NaN. */
double kvd_jct_speed_up(const kvd_report_row *e);

/* Number of parts into which figures divide the time of an inference step. */
enum { KVD_JCT_PARTS = 11 };
extern const char *const kvd_jct_part_title[KVD_JCT_PARTS];
/* Returns the index of the part to which a phase, such as "mlp", belongs. */
int kvd_jct_part_of(const char *phase);
/*
 * Returns the seconds that one part of a job (such as attention) takes in the phase `side`:
 * "prefill", "decode", or NULL for both.
 */
double kvd_jct_part(const kvd_report_row *e, int part, const char *side);

int kvd_kernels_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/*
 * Fills *out with all rows of all kvdim/serving files, ordered by kvd_report_row.place (conditions
 * of the measurement).
 */
int kvd_serving_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/*
 * Returns the result row of the uncompressed cache that has the same conditions and kind as `e`
 * (kvd_rows_differ), or NULL. For kind "point" it must also have the same request rate; `attention`
 * may differ.
 */
const kvd_report_row *kvd_serving_uncompressed(const kvd_report_rows *all, const kvd_report_row *e);

/*
 * Compares the conditions of row a of file x and row b of file y (accuracy, serving or jct).
 * Returns NULL if they are equal, else the first column that differs, "model" or "schema". `but`
 * lists conditions that may differ, separated by commas: columns, "model", or
 *
 * - "widths": overall_p, overall_p_qk, overall_p_v, low_p_qk, low_p_v
 * - "sample": n_tokens, n_sequences, n_predictions
 * - "bases": calibration, pair_qk and pair_v, if one method has no calibration
 * - a key of `settings`, such as "hetero.k"
 *
 * Numbers are equal if they differ by less than 1e-9. Only device and number type of an engine are
 * compared.
 */
const char *kvd_rows_differ(const kvd_result *x, size_t a, const kvd_result *y, size_t b,
                            const char *but);

/*
 * Fails if two files of one model give the same label to texts of different content. Two texts
 * conflict if label, token count and sequence length (if recorded) are equal and the content hashes
 * are not. Also fails if two serving files name their requests alike, or two tasks files their
 * items, but read files of different content. `also` is a second set of results, or NULL. Must be
 * called before kvd_results_name, which may change labels.
 */
int kvd_results_same_texts(const kvd_results *r, const kvd_results *also, kvd_err *err);

#endif
