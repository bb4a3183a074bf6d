/* Lists the results of all files, sorted so that the results of each curve in a figure are
 * adjacent. */
#ifndef KVD_REPORT_ROWS_H
#define KVD_REPORT_ROWS_H

#include "methods/method.h"
#include "report/results.h"

typedef struct {
    const kvd_result *file;
    const kvd_rows *rows;
    size_t row;
    /* name of the compression method, with a note if only Q and K, or only V, lose dimensions */
    char name[KVD_LABEL];
    /* name of the method in tables; includes model, number type and prompt length if results differ
     * in them */
    char method[KVD_LABEL];
    /* name of the result's curve in figures: "METHOD" or "METHOD calibrated on TEXT" */
    char series[KVD_LABEL];
    /* length of "MODEL: " at the start of `method` and `series`; 0 if all results are of one
     * model */
    size_t model_prefix;
    /* indices, in the list of results, of the first and last result of the curve (one method on one
     * text) that contains this result */
    size_t first, last;
} kvd_accuracy_entry;

typedef struct {
    /* accuracy results, ordered by evaluated text (the uncompressed model first), then by curve
     * (`series`), then by the fraction of dimensions that is removed */
    kvd_accuracy_entry *item;
    size_t n;
    const char **label; /* distinct evaluated texts, [n_labels] */
    size_t n_labels;
    bool models; /* true if the rows are of more than one model */
    /* caches: true if the number type of the cache is not the same in all results; prompts: true if
     * results on one text have different prompt lengths */
    bool caches, prompts;
} kvd_accuracy_entries;

/* Collects all results of kvdim-eval. The caller releases *all, also after a failure. */
int kvd_accuracy_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
/* Collects all results of kvdim-tasks. The caller releases *all, also after a failure. */
int kvd_tasks_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
void kvd_accuracy_entries_release(kvd_accuracy_entries *all);

const char *kvd_entry_text(const kvd_accuracy_entry *e, const char *column);
double kvd_entry_real(const kvd_accuracy_entry *e, const char *column);
/* Returns the accuracy result's value in `column`, with the interval from columns COLUMN_lo and
 * COLUMN_hi. */
kvd_interval kvd_entry_interval(const kvd_accuracy_entry *e, const char *column);
/* Returns the accuracy result's perplexity divided by that of the uncompressed model, with a 95 %
 * interval. */
kvd_interval kvd_entry_ratio(const kvd_accuracy_entry *e);
/* Returns true if the accuracy result was measured in a search for the strongest compression at a
 * given accuracy (kvdim-eval --target). */
bool kvd_entry_is_search_point(const kvd_accuracy_entry *e);
bool kvd_entry_is_none(const kvd_accuracy_entry *e);
/* Writes the parameter by which the method trades cache bytes for accuracy, such as "h2o.heavy =
 * 0.1", or "" if it has none. */
void kvd_entry_setting(const kvd_accuracy_entry *e, char *text, size_t size);
/* Returns true if the row and *x, the result of a search for the strongest compression, have the
 * same method. */
bool kvd_row_is_of_target(const kvd_rows *rows, size_t row, const kvd_target_result *x);
/* Returns true if the cache of the row's method holds quantised numbers, or if the method is
 * unknown. */
bool kvd_row_has_codes(const kvd_rows *rows, size_t row);
/* Returns the fraction of the bytes of a 16-bit cache that the row's method saves. saving: fraction
 * that the method saves of a cache in the run's number type, such as f32. */
double kvd_row_saving_of_16_bits(const kvd_rows *rows, size_t row, double saving);
/* Returns the fraction of the bytes of an uncompressed 16-bit cache that the method saves. */
double kvd_entry_saving(const kvd_accuracy_entry *e);
/* a row of a result file of schema kvdim/jct (job times), kvdim/kernels or kvdim/serving */
typedef struct {
    const kvd_result *file;
    const kvd_rows *rows;
    size_t row;
    /* kind of a row in a file of simulated serving: "point" (serving at a given request rate),
     * "max-rate" (the highest request rate within a latency bound) or "validation" (comparison with
     * measured times); NULL for other files */
    const char *kind;
    /* conditions of the measurement, such as "model on H200; batch 8"; results with equal texts can
     * be compared */
    char place[KVD_LABEL];
    /* name of the result's curve in figures: the method; for attention kernels, the implementation,
     * its scheduler and the file of kept dimensions */
    char series[KVD_LABEL];
} kvd_report_row;

typedef struct {
    kvd_report_row *item;
    size_t n;
} kvd_report_rows;

/* Returns true if row i of the table has the name and parameters of the method `m`, such as
 * "zack,p=0.5". */
bool kvd_is_job_method(const kvd_rows *rows, size_t i, const kvd_method *m);

/* Returns the number in `column` of the row, or NaN if the file lacks the column. */
double kvd_report_real(const kvd_report_row *e, const char *column);
/* Returns the text in `column` of the row, or "" if the file lacks the column. */
const char *kvd_report_text(const kvd_report_row *e, const char *column);
void kvd_report_rows_release(kvd_report_rows *all);

/* Fills *out with all job-time results of one kind ("job", "iteration" or "request"), ordered by
 * their label `place`, such as "model on H200; batch 8". */
int kvd_jct_collect(const kvd_results *r, const char *kind, kvd_report_rows *out, kvd_err *err);

/* Returns the job time with the uncompressed cache divided by the job time of `e`, or NaN if the
 * uncompressed job was not measured. */
double kvd_jct_speed_up(const kvd_report_row *e);

/* number of parts, such as "attention of prompts", into which bar charts divide the time of a
 * job */
enum { KVD_JCT_PARTS = 11 };
extern const char *const kvd_jct_part_title[KVD_JCT_PARTS];
/* Returns the part of a job's time, as an index of kvd_jct_part_title, to which a phase such as
 * "mlp" belongs. */
int kvd_jct_part_of(const char *phase);
/* Returns how many seconds a job spends on kvd_jct_part_title[part], such as "MLP". side: counts
 * only "prefill" or only "decode"; NULL: counts the whole job. */
double kvd_jct_part(const kvd_report_row *e, int part, const char *side);

int kvd_kernels_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/* Fills *out with all results of simulated serving, ordered by their label `place`, which names
 * model, GPU and request trace. */
int kvd_serving_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/* Returns the result of the uncompressed cache that `e` can be compared with: of the same kind,
 * model, device, trace and server limits. Returns NULL if there is none. The attention
 * implementation may differ. */
const kvd_report_row *kvd_serving_uncompressed(const kvd_report_rows *all, const kvd_report_row *e);

/* Compares the conditions under which row `a` of file x and row `b` of file y were measured.
 * Returns NULL if they are equal, else the name of the first column that differs, or "model" or
 * "schema". `but` names conditions that are not compared, separated by commas:
 *
 * - a column, "model", or a parameter of the method, such as "hetero.k"
 * - "widths": all columns of p, the fraction of dimensions that is removed
 * - "sample": number of tokens, sequences, predictions and benchmark items, and prompt lengths
 * - "bases": rotations and calibration text, if only one of the two rows used rotations
 *
 * Numbers are equal if they differ by less than 1e-9. In the description of an engine, only device
 * and number type are compared. */
const char *kvd_rows_differ(const kvd_result *x, size_t a, const kvd_result *y, size_t b,
                            const char *but);

/* Fails if two results use one name for different input data (texts, requests or benchmark items).
 *
 * `also`: a second set of results, or NULL. Call this function before kvd_results_name, which may
 * change names. */
int kvd_results_same_texts(const kvd_results *r, const kvd_results *also, kvd_err *err);

#endif
