/*
 * Rows of all accuracy files in one list, sorted into series that figures draw. The list leaves out
 * rows calibrated on fewer rows by a spectrum among the results, which have a section of their own
 * (report/measures/calibration.h); single seeds of a point, whose mean is a row; and weights of few
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

#endif
