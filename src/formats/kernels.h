/*
 * kvdim/kernels: times of attention kernels, measured by kvdim-attn. One row per case,
 * implementation and scheduler with all its time samples, and the peak rates of the machine in the
 * same run.
 */
#ifndef KVD_FORMATS_KERNELS_H
#define KVD_FORMATS_KERNELS_H

#include "formats/rows.h"

extern const kvd_schema kvd_schema_kernels;

/* Measured peak rates of a CPU or GPU, per second; 0 if not measured. */
typedef struct {
    double copy_bytes; /* bytes read plus bytes written by a device copy */
    double read_bytes; /* bytes read by a kernel that only reads */
    /* FLOP of a matrix product in the type of the case: 16-bit on a GPU, float32 on a CPU */
    double flop;
    double exps; /* exponentials by the fastest method that was tried */
} kvd_rate_ceilings;

/*
 * Returns an empty table of the schema kvdim/kernels whose rows hold `samples` times in
 * microseconds (sample index 0). On failure returns NULL and fills *err. The caller frees it.
 */
kvd_rows *kvd_kernels_rows(int samples, kvd_err *err);

typedef struct {
    const kvd_rate_ceilings *cpu, *gpu; /* peak rates; NULL if not measured */
    const char *gpu_name, *driver;      /* "" without a GPU */
    /* implementations and cases that were left out, with the reason, one line each */
    const char *skipped;
    size_t cases, cases_done;
} kvd_kernels_facts;

/*
 * Writes the whole file `path`: rows, samples, the machine's rates as attributes of /ceilings, and
 * how many of the requested cases the file contains. Returns 0, or -1 and fills *err.
 */
int kvd_kernels_write(const kvd_rows *rows, const char *path, const kvd_kernels_facts *facts,
                      const kvd_run *run, kvd_err *err);

typedef struct {
    char device[200]; /* "" if its rates were not measured */
    kvd_rate_ceilings rate;
} kvd_machine_rates;

typedef struct {
    kvd_rows *rows;
    kvd_machine_rates machine[2]; /* CPU, GPU */
} kvd_kernels;

/*
 * Reads the open file f. Fails if a column that the report needs is missing, or a number is
 * infinite or negative. The caller frees k->rows, also on failure.
 */
int kvd_kernels_read(kvd_kernels *k, kvd_h5 *f, kvd_err *err);

#endif
