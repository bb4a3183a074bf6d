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
    /*
     * method name for tables; adds model, cache type, prompt or number of predictions if they
     * differ between rows
     */
    char method[KVD_LABEL];
    /* name of the curve: the method; adds the calibration if rows differ in it */
    char series[KVD_LABEL];
} kvd_accuracy_entry;

typedef struct {
    /* ordered by label, series and p; the uncompressed model comes first */
    kvd_accuracy_entry *item;
    size_t n;
    const char **label; /* labels of the distinct evaluated texts */
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
/* Returns true if kvdim-eval --target measured the row while it searched for a setting. */
bool kvd_entry_is_search_point(const kvd_accuracy_entry *e);
/* Returns true for a row of the uncompressed model. */
bool kvd_entry_is_none(const kvd_accuracy_entry *e);
/*
 * Writes the setting that trades bytes for quality, such as "h2o.heavy = 0.1", or an empty text if
 * the row has none.
 */
void kvd_entry_setting(const kvd_accuracy_entry *e, char *text, size_t size);
/*
 * Returns the share of bytes saved: 1 - bytes stored / bytes that the uncompressed cache would have
 * stored.
 */
double kvd_entry_saving(const kvd_accuracy_entry *e);
/* Returns the index of the last item with the series and label of item `first`. */
size_t kvd_entry_last(const kvd_accuracy_entries *all, size_t first);

/*
 * Row of a kvdim/jct, kvdim/kernels or kvdim/serving file, with texts in the form that legends
 * need.
 */
typedef struct {
    const kvd_result *file;
    const kvd_rows *rows; /* rows of the file */
    size_t row;
    /* kind of a kvdim/serving row: "point", "max-rate" or "validation"; otherwise NULL */
    const char *kind;
    /*
     * conditions under which rows can be compared: "model on H200; batch 8", "decode 64 x 8192 bf16
     * cold", "model on H200: trace; 2 replicas; chunks of 512"
     */
    char place[KVD_LABEL];
    /*
     * name of the curve: the method; of kernels the kernel and its widths, "cuda by ours on
     * kvdim25m"
     */
    char series[KVD_LABEL];
} kvd_report_row;

typedef struct {
    kvd_report_row *item;
    size_t n;
} kvd_report_rows;

/* Returns the value of a column of the row, or NaN or "" if the file has no such column. */
double kvd_report_real(const kvd_report_row *e, const char *column);
const char *kvd_report_text(const kvd_report_row *e, const char *column);
void kvd_report_rows_release(kvd_report_rows *all);

/*
 * Fills *out with the rows of one kind of all kvdim/jct files, ordered by place and, within a
 * place, by file. *out is empty if there are none.
 */
int kvd_jct_collect(const kvd_results *r, const char *kind, kvd_report_rows *out, kvd_err *err);

/*
 * Returns the job completion time (JCT) of the uncompressed cache for jobs of equal sizes in the
 * same file, divided by that of the row; NaN if it was not measured.
 */
double kvd_jct_speed_up(const kvd_report_row *e);

/*
 * Number of parts into which figures divide the time of an inference step. A part consists of
 * several phases.
 */
enum { KVD_JCT_PARTS = 11 };
/* titles of the parts: "QKV generation", ... */
extern const char *const kvd_jct_part_title[KVD_JCT_PARTS];
/* Returns the index of the part to which a phase, such as "mlp", belongs. */
int kvd_jct_part_of(const char *phase);
/*
 * Returns the seconds of a part, in prefill and decode together or in one of them ("prefill",
 * "decode"). The last part is the remainder of the time.
 */
double kvd_jct_part(const kvd_report_row *e, int part, const char *side);

/* Fills *out with all rows of the kvdim/kernels files in order. *out is empty if there are none. */
int kvd_kernels_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/*
 * Fills *out with all rows of the kvdim/serving files, ordered by place and, within a place, by
 * file. *out is empty if there are none.
 */
int kvd_serving_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/*
 * Returns the row of the uncompressed cache with the place and kind of this row and, for kind
 * "point", its request rate; NULL if there is none.
 */
const kvd_report_row *kvd_serving_uncompressed(const kvd_report_rows *all, const kvd_report_row *e);

/*
 * Tests if two rows of result files were measured under equal conditions, so that they may be
 * compared or pooled. All measures of the ledger that compare two rows use it.
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
