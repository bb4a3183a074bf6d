/*
 * Runs one benchmark case: every implementation that supports the case is opened, checked and
 * planned, and its launches are timed in turns with those of the others.
 */
#ifndef KVD_KERNELS_TIMING_ATTN_CASE_H
#define KVD_KERNELS_TIMING_ATTN_CASE_H

#include "formats/kernels.h"
#include "kernels/timing/bench.h"
#include "kernels/timing/impl.h"
#include "kernels/timing/row_check.h"

/* One row of a kvdim/kernels file from what kvdim-attn measured, and the table on stdout. */

typedef struct {
    int number; /* number of the case, from 0 */
    const kvd_problem *problem;
    const kvd_impl *impl;
    kvd_scheduler scheduler;
    const kvd_bench_plan *plan;
    const kvd_bench_rival *rival;
    const kvd_bench_stats *stats;
    const kvd_floors *floors;
    const kvd_row_error *error;
    const char *engine;
    double plan_us;  /* median microseconds per layer; NaN if there is nothing to plan */
    int plan_layers; /* number of layers planned at once */
    double busy_max_us, busy_mean_us, imbalance; /* NaN if not measured */
    /* time of `cudnn` in the same case divided by this row's time; NaN without `cudnn` */
    double speedup;
    bool ok; /* true if the error is within the tolerance or was not checked */
} kvd_kernels_row;

/*
 * Adds a copy of *row and of its samples to a table of kvd_kernels_rows. Returns 0, or -1 and fills
 * *err.
 */
int kvd_kernels_add(kvd_rows *r, const kvd_kernels_row *row, kvd_err *err);

/* Heading of the table on stdout, and the function that formats one line per row. */
enum { KVD_KERNELS_LINE = 256 };
extern const char kvd_kernels_heading[];
const char *kvd_kernels_line(const kvd_rows *r, size_t row, char line[KVD_KERNELS_LINE]);

enum { KVD_ATTN_ENTRIES = 64, KVD_ATTN_SKIPPED = 256 };

/* One implementation combined with one of its schedulers. */
typedef struct {
    const kvd_impl *impl;
    kvd_scheduler scheduler;
} kvd_attn_entry;

typedef struct {
    int number; /* number of the case */
    const kvd_problem *problem;
    const kvd_attn_entry *entry; /* [n] implementations to time */
    int n;
    const kvd_bench_plan *plan;
    kvd_check_mode check;
    const kvd_rate_ceilings *cpu, *gpu;
} kvd_attn_case;

/*
 * Times the case and adds one row per entry to *out. If an entry does not support the case, or if
 * memory or a library is missing, the entry is left out and `skipped` gets one line that says why.
 * Adds to *n_wrong the number of rows whose error is above the tolerance.
 *
 * Returns 0. Returns -1 and fills *err if a launch fails or the user interrupts; no row of the case
 * is added then.
 */
int kvd_attn_case_run(const kvd_attn_case *c, kvd_bench *bench, kvd_rows *out,
                      void (*skipped)(void *ctx, const char *line), void *ctx, size_t *n_wrong,
                      kvd_err *err);

#endif
