/*
 * Timing of competing implementations, called rivals. In each round every rival launches once, in
 * shuffled order, so that clock changes affect all alike. Warm-up rounds are not counted.
 *
 * On a GPU, launches are timed by CUDA events and replayed as CUDA graphs if possible. No setting
 * of the GPU is changed. Functions with an argument `err` return 0, or -1 with *err filled.
 */
#ifndef KVD_KERNELS_TIMING_BENCH_H
#define KVD_KERNELS_TIMING_BENCH_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct {
    int warmup, samples; /* number of rounds */
    bool cold;           /* true if caches are filled with other data before each launch */
} kvd_bench_plan;

/*
 * One timed implementation. `stream` is a cudaStream_t. It is NULL for a CPU implementation, whose
 * work is complete when `launch` returns.
 */
typedef struct {
    const char *name;
    bool cuda;
    int (*launch)(void *ctx, void *stream, kvd_err *err);
    /* Runs before each launch and is not timed. May be NULL. */
    int (*prepare)(void *ctx, void *stream, kvd_err *err);
    void *ctx;
    bool no_graph; /* true if `launch` cannot be captured into a CUDA graph */
    /* [samples] Microseconds of each launch, owned by the caller. NaN if the GPU was throttled. */
    double *us;
    bool graph;      /* true if launches were replayed as a CUDA graph */
    double first_us; /* time of the very first launch */
    /*
     * Number of launches excluded from the samples because the GPU was throttled, and number of
     * launches while the power limit lowered the clock.
     */
    int throttled, power_capped;
    /* Median clocks, and highest temperature in degrees Celsius; NaN if unknown. */
    double sm_clock_mhz, mem_clock_mhz, temperature;
} kvd_bench_rival;

typedef struct kvd_bench kvd_bench;

/*
 * Opens *bench, which the caller must close. If `cuda` is true, GPU launches can be timed on the
 * current device.
 */
int kvd_bench_open(bool cuda, kvd_bench **bench, kvd_err *err);
void kvd_bench_close(kvd_bench *bench);
/* Returns a cudaStream_t. */
void *kvd_bench_stream(const kvd_bench *bench);
/* Waits for all launches. On failure *err holds the error of the work on the stream. */
int kvd_bench_wait(kvd_bench *bench, kvd_err *err);

/* Returns the driver's version, or "" if it is not known. */
const char *kvd_bench_driver(const kvd_bench *bench);

/*
 * Times the rivals as `plan` says. If the user interrupts, fails with "interrupted" after the
 * current round.
 */
int kvd_bench_run(kvd_bench *bench, const kvd_bench_plan *plan, kvd_bench_rival *rival, int n,
                  kvd_err *err);

typedef struct {
    size_t n; /* number of samples that are not NaN */
    double median_us, mad_us, min_us, p05_us, p95_us;
    /*
     * Warnings, words separated by blanks. slow-first: the first sample is much slower than the
     * median. outliers, noise: samples far from the median, or a large spread. short: the time is
     * near the resolution. throttled: samples were dropped because the GPU slowed its clock.
     */
    char warnings[96];
} kvd_bench_stats;

/*
 * Computes the statistics of the samples of each implementation in `rival`. NaN samples are
 * ignored. If no sample is left, all statistics are NaN.
 */
int kvd_bench_summarise(const kvd_bench_rival *rival, int n, kvd_bench_stats *stats, kvd_err *err);

#endif
