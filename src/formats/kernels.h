/* kvdim/kernels files: times of attention kernels, measured by kvdim-attn. */
#ifndef KVD_FORMATS_KERNELS_H
#define KVD_FORMATS_KERNELS_H

#include "formats/rows.h"

extern const kvd_schema kvd_schema_kernels;

/* Measured peak rates of a CPU or GPU, per second; 0 if not measured. */
typedef struct {
    double copy_bytes; /* device copy, read plus written */
    double read_bytes; /* read by a kernel that writes nothing */
    /* matrix product, 16-bit on a GPU, float32 on a CPU */
    double flop;
    double exps;
} kvd_rate_ceilings;

/*
 * Returns an empty table, which the caller frees, with `samples` times in microseconds per row. On
 * failure returns NULL and fills *err.
 */
kvd_rows *kvd_kernels_rows(int samples, kvd_err *err);

typedef struct {
    const kvd_rate_ceilings *cpu, *gpu; /* measured peak rates; NULL if not measured */
    const char *gpu_name, *driver;      /* "" if there is no GPU */
    /* kernels and shapes that were not measured, a line with the reason each */
    const char *skipped;
    size_t cases, cases_done;
} kvd_kernels_facts;

/* Writes the table, the repeated times, and the peak rates as attributes of /ceilings. */
int kvd_kernels_write(const kvd_rows *rows, const char *path, const kvd_kernels_facts *facts,
                      const kvd_run *run, kvd_err *err);

typedef struct {
    /* name of the CPU or GPU; "" if not measured */
    char device[200];
    kvd_rate_ceilings rate;
} kvd_machine_rates;

typedef struct {
    kvd_rows *rows;
    kvd_machine_rates machine[2]; /* CPU, then GPU */
} kvd_kernels;

/*
 * Reads the open file f. Fails if a needed column is missing, or a number is infinite or negative.
 * The caller frees k->rows, also on failure.
 */
int kvd_kernels_read(kvd_kernels *k, kvd_h5 *f, kvd_err *err);

#endif
