/* Times several implementations of attention in rounds. Each round runs every implementation once,
 * in shuffled order. */
#ifndef KVD_KERNELS_TIMING_BENCH_H
#define KVD_KERNELS_TIMING_BENCH_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct {
    int warmup, samples; /* numbers of warm-up and measured rounds */
    bool cold;           /* true if caches are filled with other data before each launch */
} kvd_bench_plan;

/* An implementation of attention whose launches are timed. `stream` is a cudaStream_t, or NULL on
 * the CPU. */
typedef struct {
    const char *name;
    bool cuda;
    int (*launch)(void *ctx, void *stream, kvd_err *err);
    /* Runs before each launch and is not timed. May be NULL. */
    int (*prepare)(void *ctx, void *stream, kvd_err *err);
    void *ctx;
    /* [samples] Microseconds per launch, owned by the caller; NaN if the GPU was throttled. */
    double *us;
    bool graph; /* true if launches were replayed as a CUDA graph */
    /* Number of samples dropped because the GPU was throttled, and number of launches at the GPU's
     * power limit. */
    int throttled, power_capped;
    /* Median clocks in MHz, and highest temperature in degrees Celsius. NaN if unknown. */
    double sm_clock_mhz, mem_clock_mhz, temperature;
} kvd_bench_rival;

typedef struct kvd_bench kvd_bench;

/* Opens *bench, which the caller must close. If `cuda`, GPU launches can be timed. */
int kvd_bench_open(bool cuda, kvd_bench **bench, kvd_err *err);
void kvd_bench_close(kvd_bench *bench);
void *kvd_bench_stream(const kvd_bench *bench);
/* Waits for all launches of the benchmark and reports errors of its stream. */
int kvd_bench_wait(kvd_bench *bench, kvd_err *err);

/* Returns the version of the GPU driver, or "" if unknown. */
const char *kvd_bench_driver(const kvd_bench *bench);

/* Times the implementations in rounds. If the user interrupts, fails at the end of the round. */
int kvd_bench_run(kvd_bench *bench, const kvd_bench_plan *plan, kvd_bench_rival *rival, int n,
                  kvd_err *err);

typedef struct {
    size_t n; /* number of samples that are not NaN */
    double median_us, mad_us, min_us, p05_us, p95_us;
    /* Warnings about the samples: slow-first, outliers, noise, short (time near the clock's
     * resolution), throttled. */
    char warnings[96];
} kvd_bench_stats;

/* Computes statistics of n samples (microseconds per launch), ignoring NaN. Without samples, the
 * statistics are NaN. */
int kvd_bench_summarise(const kvd_bench_rival *rival, int n, kvd_bench_stats *stats, kvd_err *err);

#endif
