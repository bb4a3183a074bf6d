/* Results of all accuracy files in one list, those of a method and text adjacent. */
#ifndef KVD_REPORT_ROWS_H
#define KVD_REPORT_ROWS_H

#include "methods/method.h"
#include "report/results.h"

typedef struct {
    const kvd_result *file;
    const kvd_rows *rows;
    size_t row;
    /* method, with a note if only Q and K or only V lose dimensions */
    char name[KVD_LABEL];
    /* method for tables, with model, number type or prompt if these vary */
    char method[KVD_LABEL];
    /* curve in figures: method, and calibration text if it varies */
    char series[KVD_LABEL];
    /* indices of the first and last result with this result's evaluated text and curve
     * (`series`) */
    size_t first, last;
} kvd_accuracy_entry;

typedef struct {
    /* accuracy results, ordered by evaluated text (uncompressed model first), curve (`series`) and
     * removed fraction of dimensions */
    kvd_accuracy_entry *item;
    size_t n;
    const char **label; /* distinct evaluated texts, [n_labels] */
    size_t n_labels;
    bool models; /* true if the rows are of more than one model */
} kvd_accuracy_entries;

/* Collect results of kvdim-eval, or of kvdim-tasks. The caller releases *all, also on failure. */
int kvd_accuracy_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
int kvd_tasks_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
void kvd_accuracy_entries_release(kvd_accuracy_entries *all);

const char *kvd_entry_text(const kvd_accuracy_entry *e, const char *column);
double kvd_entry_real(const kvd_accuracy_entry *e, const char *column);
/* Returns a column's value, COLUMN_lo and COLUMN_hi. */
kvd_interval kvd_entry_interval(const kvd_accuracy_entry *e, const char *column);
/* Returns the perplexity divided by the uncompressed model's, with its 95 % interval. */
kvd_interval kvd_entry_ratio(const kvd_accuracy_entry *e);
/* Returns true for a result measured during a search for the strongest compression at a given
 * accuracy (kvdim-eval --target). */
bool kvd_entry_is_search_point(const kvd_accuracy_entry *e);
bool kvd_entry_is_none(const kvd_accuracy_entry *e);
/* Writes the parameter that trades bytes for quality, such as "h2o.heavy = 0.1", or "". */
void kvd_entry_setting(const kvd_accuracy_entry *e, char *text, size_t size);
/* Returns 1 - bytes / bytes of the uncompressed cache. */
double kvd_entry_saving(const kvd_accuracy_entry *e);
/* a result of a kvdim/jct, kvdim/kernels or kvdim/serving file */
typedef struct {
    const kvd_result *file;
    const kvd_rows *rows;
    size_t row;
    /* kind in serving files: "point" (one request rate), "max-rate" or "validation"; else NULL */
    const char *kind;
    /* conditions, such as "model on H200; batch 8"; results with equal texts can be compared */
    char place[KVD_LABEL];
    /* name of the result's curve in figures: the method, or for kernels "IMPLEMENTATION by SCHEDULE
     * on WIDTHS" (WIDTHS: file of kept dimensions) */
    char series[KVD_LABEL];
} kvd_report_row;

typedef struct {
    kvd_report_row *item;
    size_t n;
} kvd_report_rows;

/* Returns true if result i of the table has the name, settings and removed fraction of `m`, the
 * parsed method of a job, such as "zack,p=0.5". */
bool kvd_is_job_method(const kvd_rows *rows, size_t i, const kvd_method *m);

/* Return a column's value, or NaN or "" if it is missing. */
double kvd_report_real(const kvd_report_row *e, const char *column);
const char *kvd_report_text(const kvd_report_row *e, const char *column);
void kvd_report_rows_release(kvd_report_rows *all);

/* Fills *out with all job-time results of a kind ("job", "iteration", "request"), ordered by
 * `place` (model, device, batch and so on). */
int kvd_jct_collect(const kvd_results *r, const char *kind, kvd_report_rows *out, kvd_err *err);

/* Returns the uncompressed cache's job time divided by that of `e`, or NaN. */
double kvd_jct_speed_up(const kvd_report_row *e);

/* number of parts of a step's time in figures */
enum { KVD_JCT_PARTS = 11 };
extern const char *const kvd_jct_part_title[KVD_JCT_PARTS];
/* Returns the index of the part of a job's time that includes a phase such as "mlp". */
int kvd_jct_part_of(const char *phase);
/* Returns the seconds that part `part` (index in kvd_jct_part_title) takes in a job: in its
 * "prefill", in its "decode", or in both (`side` NULL). */
double kvd_jct_part(const kvd_report_row *e, int part, const char *side);

int kvd_kernels_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/* Fills *out with results of simulated serving, ordered by `place` (model, device, trace ...). */
int kvd_serving_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/* Returns the uncompressed cache's result of the same kind ("point", "max-rate", "validation") as
 * `e`, with equal model, device, trace and limits, or NULL. The attention implementation may
 * differ. */
const kvd_report_row *kvd_serving_uncompressed(const kvd_report_rows *all, const kvd_report_row *e);

/* Compares the conditions of row a of file x and row b of file y (accuracy, serving or jct).
 * Returns NULL if they are equal, else the first column that differs, "model" or "schema". `but`
 * lists conditions that may differ, separated by commas: columns, "model", or
 *
 * - "widths": overall_p, overall_p_qk, overall_p_v, low_p_qk, low_p_v
 * - "sample": n_tokens, n_sequences, n_predictions
 * - "bases": calibration, pair_qk and pair_v, if one method has no calibration
 * - a key of `settings`, such as "hetero.k"
 *
 * Numbers are equal if they differ by less than 1e-9. Only device and number type of an engine are
 * compared. */
const char *kvd_rows_differ(const kvd_result *x, size_t a, const kvd_result *y, size_t b,
                            const char *but);

/* Fails if one label is used for texts of different content (kvd_named_texts_agree), or one name
 * for different files of requests or items.
 *
 * `also`: a second set of results, or NULL. Call before kvd_results_name, which may change
 * labels. */
int kvd_results_same_texts(const kvd_results *r, const kvd_results *also, kvd_err *err);

#endif
