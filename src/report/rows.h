/*
 * Result rows of all accuracy files, those of one method and text adjacent.
 *
 * Without rows of reduced calibrations, single random seeds and quantised weights.
 */
#ifndef KVD_REPORT_ROWS_H
#define KVD_REPORT_ROWS_H

#include "report/results.h"

typedef struct {
    const kvd_result *file;
    size_t row;
    /*
     * method, "(Q-K alone)" or "(V alone)" if only these lose dimensions, and a rule that is not
     * the default
     */
    char name[KVD_LABEL];
    /* method name for tables, with model, number type, prompt or predictions if rows differ */
    char method[KVD_LABEL];
    /* curve in figures: method, and calibration text if rows differ */
    char series[KVD_LABEL];
    /* first and last row with the same evaluated text and `series` */
    size_t first, last;
} kvd_accuracy_entry;

typedef struct {
    /* Ordered by evaluated text, then `series`, then p; the uncompressed model first. */
    kvd_accuracy_entry *item;
    size_t n;
    const char **label; /* [n_labels] distinct evaluated texts */
    size_t n_labels;
    bool models; /* true if the rows are of more than one model */
} kvd_accuracy_entries;

/*
 * Collect the rows of all files of kvdim-eval, or of kvdim-tasks. The caller releases *all, also
 * after a failure.
 */
int kvd_accuracy_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
int kvd_tasks_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
void kvd_accuracy_entries_release(kvd_accuracy_entries *all);

const char *kvd_entry_text(const kvd_accuracy_entry *e, const char *column);
double kvd_entry_real(const kvd_accuracy_entry *e, const char *column);
/* Returns a column's value and interval, from COLUMN_lo and COLUMN_hi. */
kvd_interval kvd_entry_interval(const kvd_accuracy_entry *e, const char *column);
/* Returns true if kvdim-eval --target measured the row. */
bool kvd_entry_is_search_point(const kvd_accuracy_entry *e);
bool kvd_entry_is_none(const kvd_accuracy_entry *e);
/* Writes the parameter that trades bytes for quality, such as "h2o.heavy = 0.1", or "". */
void kvd_entry_setting(const kvd_accuracy_entry *e, char *text, size_t size);
/*
 * Returns 1 - bytes / uncompressed bytes: stored, or read if the method selects what a step reads.
 */
double kvd_entry_saving(const kvd_accuracy_entry *e);
/* Row of a kvdim/jct, kvdim/kernels or kvdim/serving file. */
typedef struct {
    const kvd_result *file;
    const kvd_rows *rows;
    size_t row;
    /* kvdim/serving: "point" (one rate), "max-rate" (search) or "validation"; else NULL */
    const char *kind;
    /* conditions, such as "model on H200; batch 8"; rows with equal texts are comparable */
    char place[KVD_LABEL];
    /* curve in figures: the method; for kernels "IMPLEMENTATION by SCHEDULE on WIDTHS" */
    char series[KVD_LABEL];
} kvd_report_row;

typedef struct {
    kvd_report_row *item;
    size_t n;
} kvd_report_rows;

/*
 * Returns true if row i of an accuracy file has the method of a kvdim/jct row, such as
 * "zack,p=0.5".
 */
bool kvd_is_job_method(const kvd_rows *rows, size_t i, const char *job);

/* Return a column's value; NaN or "" without such a column. */
double kvd_report_real(const kvd_report_row *e, const char *column);
const char *kvd_report_text(const kvd_report_row *e, const char *column);
void kvd_report_rows_release(kvd_report_rows *all);

/* Fills *out with rows of one kind of all kvdim/jct files, by `place`, then file. */
int kvd_jct_collect(const kvd_results *r, const char *kind, kvd_report_rows *out, kvd_err *err);

/*
 * Returns the uncompressed job completion time / that of `e`, for equal sizes in the same file, or
 * NaN.
 */
double kvd_jct_speed_up(const kvd_report_row *e);

/* Parts, of several phases each, of an inference step's time in figures. */
enum { KVD_JCT_PARTS = 11 };
extern const char *const kvd_jct_part_title[KVD_JCT_PARTS];
/* Returns the part of a phase, such as "mlp". */
int kvd_jct_part_of(const char *phase);
/*
 * Returns the seconds of one part of a job; the last part is the rest. `side`: "prefill", "decode",
 * or NULL for both.
 */
double kvd_jct_part(const kvd_report_row *e, int part, const char *side);

/* Fills *out with all rows of the kvdim/kernels files, by file. */
int kvd_kernels_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/* Fills *out with all rows of the kvdim/serving files, by `place`, then file. */
int kvd_serving_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/*
 * Returns the uncompressed cache's row with the conditions and kind of `e` (for "point": also the
 * rate), or NULL.
 */
const kvd_report_row *kvd_serving_uncompressed(const kvd_report_rows *all, const kvd_report_row *e);

/*
 * Compares the conditions of row a of file x and row b of file y (accuracy, serving or jct).
 * Returns NULL, or the first different column, "model" or "schema". `but` lists exceptions,
 * separated by commas: columns, "model", or
 *
 * - "widths": overall_p, overall_p_qk, overall_p_v, low_p_qk, low_p_v
 * - "sample": n_tokens, n_sequences, n_predictions
 * - "bases": calibration, pair_qk and pair_v, if one method has no calibration
 *
 * Numbers are equal within 1e-9 or if both are missing; a missing `prompt` is 0. Engines: device
 * and number type only.
 */
const char *kvd_rows_differ(const kvd_result *x, size_t a, const kvd_result *y, size_t b,
                            const char *but);

/*
 * Fails if one label is given to texts of different content (equal tokens and sequence length) of
 * one model. `also`: a second set of results, or NULL. Call before kvd_results_name.
 */
int kvd_results_same_texts(const kvd_results *r, const kvd_results *also, kvd_err *err);

#endif
