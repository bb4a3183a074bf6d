/* One case: every implementation that takes it is opened, checked, planned, and timed in turns with the others. */
#ifndef KVD_KERNELS_ATTN_CASE_H
#define KVD_KERNELS_ATTN_CASE_H

#include "kernels/timing/kernels_file.h"

enum { KVD_ATTN_ENTRIES = 64, KVD_ATTN_SKIPPED = 256 };

/* An implementation with one of its schedulers. */
typedef struct {
    const kvd_impl *impl;
    kvd_scheduler scheduler;
} kvd_attn_entry;

typedef struct {
    int number; /* of the case */
    const kvd_problem *problem;
    const kvd_attn_entry *entry; /* [n] */
    int n;
    const kvd_bench_plan *plan;
    kvd_check_mode check;
    const kvd_rate_ceilings *cpu, *gpu;
} kvd_attn_case;

/*
 * Adds a row per entry to *out. An entry that does not take the case, or for which memory or a library is missing, is
 * reported through `skipped` (one line) and left out; *n_wrong counts rows above the tolerance.
 *
 * Returns 0, or -1 with *err when a launch fails or the user interrupts; no row of the case is added then.
 */
int kvd_attn_case_run(const kvd_attn_case *c, kvd_bench *bench, kvd_kernels *out,
                      void (*skipped)(void *ctx, const char *line), void *ctx, size_t *n_wrong, kvd_err *err);

#endif
