/* kvdim/kernels: one row per timed implementation, scheduler and case, and every sample of it. */
#ifndef KVD_KERNELS_KERNELS_FILE_H
#define KVD_KERNELS_KERNELS_FILE_H

#include "formats/rows.h"
#include "kernels/timing/bench.h"
#include "kernels/timing/impl.h"
#include "kernels/timing/row_check.h"

extern const kvd_schema kvd_schema_kernels;

typedef struct {
    int number; /* of the case, from 0 */
    const kvd_problem *problem;
    const kvd_impl *impl;
    kvd_scheduler scheduler;
    const kvd_bench_plan *plan;
    const kvd_bench_rival *rival;
    const kvd_bench_stats *stats;
    const kvd_floors *floors;
    const kvd_row_error *error;
    const char *engine;
    double plan_us;                              /* median, per layer; NaN: nothing to plan */
    int plan_layers;                             /* planned at once */
    double busy_max_us, busy_mean_us, imbalance; /* NaN: not measured                                    */
    double speedup; /* time of `cudnn` in the same case over this; NaN without it      */
    bool ok;        /* within tolerance, or not checked                                */
} kvd_kernels_row;

typedef struct {
    kvd_rows *rows;
    int samples;
    size_t n, capacity;
    double *us; /* [n][samples] */
} kvd_kernels;

int kvd_kernels_init(kvd_kernels *k, int samples, kvd_err *err);
void kvd_kernels_release(kvd_kernels *k);
int kvd_kernels_add(kvd_kernels *k, const kvd_kernels_row *row, kvd_err *err);

typedef struct {
    const kvd_rate_ceilings *cpu, *gpu; /* NULL: not measured                   */
    const char *gpu_name, *driver;      /* "" without one                            */
    const char *skipped;                /* what was left out and why, a line each    */
    size_t cases, cases_done;
} kvd_kernels_facts;

/* Writes PATH whole: rows, samples, rates of the machine as attributes of /ceilings, and how many of the cases asked for are
 * there. */
int kvd_kernels_write(const kvd_kernels *k, const char *path, const kvd_kernels_facts *facts,
                      const kvd_run *run, kvd_err *err);

/* The table on stdout: its heading, and a line per row. */
enum { KVD_KERNELS_LINE = 256 };
extern const char kvd_kernels_heading[];
const char *kvd_kernels_line(const kvd_rows *r, size_t row, char line[KVD_KERNELS_LINE]);

#endif
