/*
 * Results lines of all accuracy files in one list. Lines of one method on one text are adjacent, so
 * that a figure can draw them as a curve. The list leaves out lines whose calibration used pruned
 * or clustered vectors, which have a section of their own (report/measures/measures.h); lines of
 * single random seeds, because their mean has a line; and quantised weights, which do not compress
 * the cache.
 */
#ifndef KVD_REPORT_ROWS_H
#define KVD_REPORT_ROWS_H

#include "report/results.h"

typedef struct {
    const kvd_result *file;
    size_t row;
    /*
     * Name of the method. If dimensions are removed from K only or from V only, the name says so.
     * It also has the rule that chose the kept dimensions, if that is not the default.
     */
    char name[KVD_LABEL];
    /*
     * Method name for tables. Includes model, number type of the cache, prompt or number of
     * predictions if these differ between results lines.
     */
    char method[KVD_LABEL];
    /*
     * Name of the curve in figures: the method, and the calibration text if results lines differ in
     * it.
     */
    char series[KVD_LABEL];
} kvd_accuracy_entry;

typedef struct {
    /*
     * Results lines. They are ordered by evaluated text, then by method (`series`, with the
     * calibration text), then by removed fraction p. For each text the uncompressed model comes
     * first.
     */
    kvd_accuracy_entry *item;
    size_t n;
    const char **label; /* names of the distinct evaluated texts: [n_labels] */
    size_t n_labels;
} kvd_accuracy_entries;

/*
 * Collect the results lines of all files of kvdim-eval, or of kvdim-tasks. The caller releases
 * *all, also after a failure.
 */
int kvd_accuracy_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
int kvd_tasks_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
void kvd_accuracy_entries_release(kvd_accuracy_entries *all);

const char *kvd_entry_text(const kvd_accuracy_entry *e, const char *column);
double kvd_entry_real(const kvd_accuracy_entry *e, const char *column);
/* Returns true if kvdim-eval --target measured the results line while it searched for a setting. */
bool kvd_entry_is_search_point(const kvd_accuracy_entry *e);
/* Returns true for a results line of the uncompressed model. */
bool kvd_entry_is_none(const kvd_accuracy_entry *e);
/*
 * Writes the parameter that trades bytes for quality and its value, such as "h2o.heavy = 0.1", or
 * an empty text if the results line has none.
 */
void kvd_entry_setting(const kvd_accuracy_entry *e, char *text, size_t size);
/* Returns the fraction of bytes saved: 1 - stored bytes / bytes of the uncompressed cache. */
double kvd_entry_saving(const kvd_accuracy_entry *e);
/*
 * Returns the index of the last of the results lines that follow line `first` and have the same
 * evaluated text and the same method (`series`, with the calibration text).
 */
size_t kvd_entry_last(const kvd_accuracy_entries *all, size_t first);

/* A results line of a kvdim/jct, kvdim/kernels or kvdim/serving file, with texts for legends. */
typedef struct {
    const kvd_result *file;
    const kvd_rows *rows; /* results table of the file */
    size_t row;
    /*
     * Kind of a kvdim/serving line: "point" (simulation at one request rate), "max-rate" (search
     * for the highest rate) or "validation"; NULL for other files.
     */
    const char *kind;
    /*
     * Text that describes the conditions of the measurement, such as "model on H200; batch 8",
     * "decode 64 x 8192 bf16 cold" or "model on H200: trace; 2 replicas; chunks of 512". Lines with
     * equal texts can be compared.
     */
    char place[KVD_LABEL];
    /*
     * Name of the curve in figures: the method. For kernels: "IMPLEMENTATION by SCHEDULE on
     * WIDTHS", such as "cuda by ours on kvdim25m". WIDTHS names the set of kept dimensions per
     * head.
     */
    char series[KVD_LABEL];
} kvd_report_row;

typedef struct {
    kvd_report_row *item;
    size_t n;
} kvd_report_rows;

/* Return the value of a column of the results line; NaN or "" if the file has no such column. */
double kvd_report_real(const kvd_report_row *e, const char *column);
const char *kvd_report_text(const kvd_report_row *e, const char *column);
void kvd_report_rows_release(kvd_report_rows *all);

/*
 * Fills *out with the results lines of one kind of all kvdim/jct files, ordered by the text that
 * describes their conditions (model, device, batch size), then by file. *out is empty if there are
 * none.
 */
int kvd_jct_collect(const kvd_results *r, const char *kind, kvd_report_rows *out, kvd_err *err);

/*
 * Returns how many times faster a job is than with the uncompressed cache, for equal sizes in the
 * same file: the ratio of job completion times. NaN if the uncompressed cache was not measured.
 */
double kvd_jct_speed_up(const kvd_report_row *e);

/*
 * Number of parts into which figures divide the time of an inference step. A part consists of
 * several phases.
 */
enum { KVD_JCT_PARTS = 11 };
/* Titles of the parts of an inference step in figures: "QKV generation", ... */
extern const char *const kvd_jct_part_title[KVD_JCT_PARTS];
/* Returns the index of the part to which a phase of the inference step, such as "mlp", belongs. */
int kvd_jct_part_of(const char *phase);
/*
 * Returns the seconds of one part of a job's time, in prefill and decode together or in one of them
 * (`side` "prefill" or "decode"). The last part is the remainder of the time.
 */
double kvd_jct_part(const kvd_report_row *e, int part, const char *side);

/*
 * Fills *out with all results lines of the kvdim/kernels files, in the order of the files. *out is
 * empty if there are none.
 */
int kvd_kernels_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/*
 * Fills *out with all results lines of the kvdim/serving files, ordered by the text that describes
 * their conditions (`place`), then by file. *out is empty if there are none.
 */
int kvd_serving_collect(const kvd_results *r, kvd_report_rows *out, kvd_err *err);

/*
 * Returns the results line of the uncompressed cache with the conditions and kind of `e` and, for
 * kind "point", its request rate; NULL if there is none.
 */
const kvd_report_row *kvd_serving_uncompressed(const kvd_report_rows *all, const kvd_report_row *e);

/*
 * Compares the conditions of line a of file x and line b of file y, which are accuracy, serving or
 * jct files. Returns NULL if they were measured under equal conditions, so that they may be
 * compared or averaged. Else returns the name of the column with the first condition that differs,
 * "model" or "schema".
 *
 * `but` lists conditions that may differ, separated by commas: columns, "model", or one of two
 * groups of columns:
 *   "widths"  removed fractions: overall_p, overall_p_qk, overall_p_v, low_p_qk, low_p_v
 *   "sample"  how much was evaluated: n_tokens, n_sequences, n_predictions
 *
 * Numbers are equal if they differ by less than 1e-9, or if neither line has a value. A missing
 * value differs from any number; only in column `prompt` it counts as 0 (no prompt). For an engine,
 * only device and number type are compared, because its kernels depend on the method.
 */
const char *kvd_rows_differ(const kvd_result *x, size_t a, const kvd_result *y, size_t b,
                            const char *but);

/*
 * Fails if two files give the same label to texts of different content. Compared are the texts of
 * spectrum, similarity, accuracy and tasks, and tokens files of one model. Two texts conflict if
 * label, token count and sequence length are equal and the content hashes are not. The error names
 * the label, both hashes and both files. `also` is a second set of results, or NULL.
 *
 * Must be called before kvd_results_name, which may put the model's name in front of labels.
 */
int kvd_results_same_texts(const kvd_results *r, const kvd_results *also, kvd_err *err);

#endif
