/*
 * Rows of all accuracy files in one list, sorted into series that figures draw. The list leaves out
 * rows calibrated on fewer rows by a spectrum among the results, which have a section of their own
 * (report/measures/measures.h); single seeds of a point, whose mean is a row; and weights of few
 * bits, which are not a method of the cache.
 */
#ifndef KVD_REPORT_ROWS_H
#define KVD_REPORT_ROWS_H

#include "report/results.h"

typedef struct {
    const kvd_result *file;
    size_t row;
    char name
        /* method, with the side if it cuts one alone, and with the rule if it is not the default */
        [KVD_LABEL];
    /* name, with model, cache type, prompt or number of predictions if rows differ in it */
    char method[KVD_LABEL];
    char series[KVD_LABEL]; /* method, with the calibration if rows differ in it */
} kvd_accuracy_entry;

typedef struct {
    kvd_accuracy_entry *item; /* by label, series, p; the uncompressed model first */
    size_t n;
    const char **label; /* distinct evaluated texts */
    size_t n_labels;
} kvd_accuracy_entries;

/*
 * These functions collect the rows of all files of kvdim-eval, or of kvdim-tasks. The caller
 * releases *all, also after a failure.
 */
int kvd_accuracy_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
int kvd_tasks_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
void kvd_accuracy_entries_release(kvd_accuracy_entries *all);

const char *kvd_entry_text(const kvd_accuracy_entry *e, const char *column);
double kvd_entry_real(const kvd_accuracy_entry *e, const char *column);
/* Returns true for a point of a search of kvdim-eval --target. */
bool kvd_entry_is_search_point(const kvd_accuracy_entry *e);
/* Returns true for a row of the uncompressed model. */
bool kvd_entry_is_none(const kvd_accuracy_entry *e);
/*
 * Writes the value of the key that trades bytes for quality, such as "h2o.heavy = 0.1"; an empty
 * text if the row has none.
 */
void kvd_entry_setting(const kvd_accuracy_entry *e, char *text, size_t size);
/* Returns 1 - bytes stored / bytes that the uncompressed cache of the run would have stored. */
double kvd_entry_saving(const kvd_accuracy_entry *e);
/* Returns the last item of the series and label that item `first` begins. */
size_t kvd_entry_last(const kvd_accuracy_entries *all, size_t first);

/*
 * Rows of kvdim/jct, kvdim/kernels and kvdim/serving files as the report shows them. Texts have the
 * form that legends need.
 */
typedef struct {
    const kvd_result *file;
    const kvd_rows *rows; /* rows of the file */
    size_t row;
    const char *kind; /* "point", "max-rate", "validation" of kvdim/serving; otherwise NULL */
    /*
     * conditions under which rows can be compared: "model on H200; batch 8", "decode 64 x 8192 bf16
     * cold", "model on H200: trace; 2 replicas; chunks of 512"
     */
    char place[KVD_LABEL];
    /* method as the legend shows it; of kernels the name of a curve over p: "cuda by ours on kvdim25m" */
    char series[KVD_LABEL];
} kvd_report_row;

typedef struct {
    kvd_report_row *item;
    size_t n;
} kvd_report_rows;

/* Returns a value of the row: NaN or "" if the file has no such column. */
double kvd_report_real(const kvd_report_row *e, const char *column);
const char *kvd_report_text(const kvd_report_row *e, const char *column);
void kvd_report_rows_release(kvd_report_rows *all);

/*
 * Fills *out with the rows of one kind of kvdim/jct files, by place, and in the order of the files
 * within a place. *out is empty if there are none.
 */
int kvd_jct_collect(const kvd_results *r, const char *kind, kvd_report_rows *out, kvd_err *err);

/*
 * Returns the JCT of none in the file and sizes of the row, divided by that of the row; NaN if none
 * was not run there.
 */
double kvd_jct_speed_up(const kvd_report_row *e);

/* Parts of an inference step in the figures. A part consists of several phases. */
enum { KVD_JCT_PARTS = 11 };
/* titles of the parts: "QKV generation", ... */
extern const char *const kvd_jct_part_title[KVD_JCT_PARTS];
/* Returns the part that a phase, such as "mlp", belongs to. */
int kvd_jct_part_of(const char *phase);
/*
 * Returns the seconds of a part, for prefill and decode together or for one of them ("prefill",
 * "decode"). The last part is the remainder of the time, including the residue.
 */
double kvd_jct_part(const kvd_report_row *e, int part, const char *side);

/* Fills *out with all rows of kvdim/kernels files in order. *out is empty if there are none. */
int kvd_kernels_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/*
 * Fills *out with all rows of kvdim/serving files by place, and in the order of the files within a
 * place. *out is empty if there are none.
 */
int kvd_serving_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/*
 * Returns the row of method none with the place and kind of this row and, for a point, its rate;
 * NULL if there is none.
 */
const kvd_report_row *kvd_serving_uncompressed(const kvd_report_rows *all, const kvd_report_row *e);

/*
 * Decides which rows may be compared or pooled: those that were measured under equal conditions.
 * Every measure of the ledger that sets two rows against each other asks this file.
 */

/*
 * Returns NULL if row a of x and row b of y, which are both accuracy, serving or jct files, were
 * measured under equal conditions; else the name of the first condition that differs, as the
 * columns of the files are named, "model" or "schema".
 *
 * `but` names conditions that may differ, separated by commas. Two names mean several columns:
 *   "widths"  what a method removes: overall_p, overall_p_qk, overall_p_v, low_p_qk, low_p_v
 *   "sample"  how much was evaluated: n_tokens, n_sequences, n_predictions
 * A number that neither row has is equal; one that only one row has differs, except that files
 * without the column `prompt` have no prompt. Numbers are equal to 1e-9. Of an engine the device
 * and the type of numbers count, not the kernels that a method brings with it.
 */
const char *kvd_rows_differ(const kvd_result *x, size_t a, const kvd_result *y, size_t b,
                            const char *but);

/*
 * Fails if two files give one label to texts of different content: among spectra, similarities,
 * accuracies and tokens of one model, a label with equal token count and sequence length must have
 * one content hash. The error names the label, both hashes and both files. The caller must not have
 * named the results yet (kvd_results_name), because names change labels. `also` is a second set
 * of results, or NULL.
 */
int kvd_results_same_texts(const kvd_results *r, const kvd_results *also, kvd_err *err);

#endif
