/* Reads what kvdim-jct writes, and one job of it as the report sees it. */
#ifndef KVD_REPORT_JCT_ROWS_H
#define KVD_REPORT_JCT_ROWS_H

#include "report/results.h"

/* f is open; the caller frees *rows. Columns that the report cannot do without must be there; times must not be negative (beyond
 * a clock's noise) or infinite. */
int kvd_jct_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

typedef struct {
    const kvd_result *file;
    size_t row;
    char place[KVD_LABEL];  /* "model on H200; batch 8": rows that can be compared */
    char series[KVD_LABEL]; /* the method, fit for a legend                       */
} kvd_jct_entry;

typedef struct {
    kvd_jct_entry *item;
    size_t n;
} kvd_jct_entries;

/* Rows of one kind of all files, by place, in the order of the files within it. *out is empty when there are none. */
int kvd_jct_collect(const kvd_results *r, const char *kind, kvd_jct_entries *out, kvd_err *err);
void kvd_jct_entries_release(kvd_jct_entries *e);

/* A value of the row: NaN or "" when the file has no such column. */
double kvd_jct_real(const kvd_jct_entry *e, const char *column);
const char *kvd_jct_text(const kvd_jct_entry *e, const char *column);

/* JCT of none in the same file and sizes over that of the row; NaN without one. */
double kvd_jct_speed_up(const kvd_jct_entry *e);

/* Parts of an inference step as figures show them: several phases each. */
enum { KVD_JCT_PARTS = 11 };
extern const char *const kvd_jct_part_title[KVD_JCT_PARTS]; /* "QKV generation", ... */
/* The one that a phase ("mlp") belongs to. */
int kvd_jct_part_of(const char *phase);
/* Seconds of it, of prefill and decode together, or of one side ("prefill", "decode"). The last one is everything else, the residue included. */
double kvd_jct_part(const kvd_jct_entry *e, int part, const char *side);

#endif
