/* Reads what kvdim-attn writes, and one row of it as the report sees it. */
#ifndef KVD_REPORT_KERNELS_ROWS_H
#define KVD_REPORT_KERNELS_ROWS_H

#include "report/results.h"

/* f is open. Columns that the report cannot do without must be there; numbers must be finite or NaN and not negative. */
int kvd_kernels_read(kvd_kernels_result *k, kvd_h5 *f, kvd_err *err);

typedef struct {
    const kvd_result *file;
    size_t row;
    char place[KVD_LABEL];  /* "decode 64 x 8192 bf16 cold": rows that can be compared   */
    char series[KVD_LABEL]; /* "cuda by ours on kvdim25m": what a curve over p consists of */
} kvd_kernels_entry;

typedef struct {
    kvd_kernels_entry *item;
    size_t n;
} kvd_kernels_entries;

/* All rows of all files in order; texts are made fit for legends. *out is empty when there are none. */
int kvd_kernels_collect(const kvd_results *r, kvd_kernels_entries *out, kvd_err *err);
void kvd_kernels_entries_release(kvd_kernels_entries *e);

/* A value of the row: NaN or "" when the file has no such column. */
double kvd_kernels_real(const kvd_kernels_entry *e, const char *column);
const char *kvd_kernels_text(const kvd_kernels_entry *e, const char *column);

#endif
