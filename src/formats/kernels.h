/* HDF5 files of type kvdim/kernels: times of attention kernels, measured by kvdim-attn. */
#ifndef KVD_FORMATS_KERNELS_H
#define KVD_FORMATS_KERNELS_H

#include "formats/rows.h"

extern const kvd_schema kvd_schema_kernels;

/* measured peak rates of a CPU or GPU per second; 0 if not measured */
typedef struct {
    double copy_bytes; /* bytes per second of a device copy, read plus written */
    double read_bytes; /* bytes per second read by a kernel that writes nothing */
    /* FLOP per second of matrix products, with 16-bit numbers on a GPU, with float32 on a CPU */
    double flop;
    double exps;
} kvd_rate_ceilings;

/* Returns an empty table of kernel times, which the caller frees. A row holds the times, in us, of
 * `samples` repetitions. */
kvd_rows *kvd_kernels_rows(int samples, kvd_err *err);

typedef struct {
    const kvd_rate_ceilings *cpu, *gpu; /* measured peak rates; NULL if not measured */
    const char *gpu_name, *driver;      /* "" if there is no GPU */
    /* kernels and shapes that were not measured: one per line, with the reason */
    const char *skipped;
    size_t cases, cases_done;
} kvd_kernels_facts;

/* Writes the time of each kernel and of each of its repetitions, and the peak rates of CPU and
 * GPU. */
int kvd_kernels_write(const kvd_rows *rows, const char *path, const kvd_kernels_facts *facts,
                      const kvd_run *run, kvd_err *err);

typedef struct {
    /* name of the CPU or GPU; "" if not measured */
    char device[200];
    kvd_rate_ceilings rate;
} kvd_machine_rates;

typedef struct {
    kvd_rows *rows;
    kvd_machine_rates machine[2]; /* rates of the CPU, then of the GPU */
} kvd_kernels;

/* Reads kernel times. Fails on a missing column or bad number. The caller frees k->rows. */
int kvd_kernels_read(kvd_kernels *k, kvd_h5 *f, kvd_err *err);

#endif
