/*
 * Timing of competing implementations, called rivals. In each round every rival launches once, in
 * an order that is shuffled every round, so that clock changes and neighbouring launches affect all
 * rivals alike. Warm-up rounds come first and are not counted.
 *
 * On a GPU, a CUDA event is recorded before and after each launch. Unless the plan asks for hot
 * caches, the L2 cache is filled with other memory before the launch. A launch that can be captured
 * is replayed as a CUDA graph. The clocks and temperature of the GPU are read; no setting of the
 * GPU is changed.
 */
#ifndef KVD_KERNELS_TIMING_BENCH_H
#define KVD_KERNELS_TIMING_BENCH_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct {
    int warmup, samples; /* number of warm-up rounds and of measured rounds */
    bool cold;           /* true: the caches are filled with other data before each launch */
} kvd_bench_plan;

/*
 * One timed implementation. `launch` enqueues its work on `stream`, a cudaStream_t. For a CPU
 * implementation `stream` is NULL and the work is complete when `launch` returns.
 */
typedef struct {
    const char *name;
    bool cuda;
    int (*launch)(void *ctx, void *stream, kvd_err *err);
    /* Runs before each launch and is not timed; NULL: nothing to run. */
    int (*prepare)(void *ctx, void *stream, kvd_err *err);
    void *ctx;
    bool no_graph; /* true: `launch` cannot be captured into a CUDA graph */
    /*
     * Results, filled by kvd_bench_run. us [samples]: microseconds of each launch, owned by the
     * caller; NaN if the GPU was throttled during the launch.
     */
    double *us;
    bool graph;      /* true: the launches were replayed as a CUDA graph */
    double first_us; /* microseconds of the very first launch */
    /*
     * Number of launches not counted because the GPU was throttled, and number taken under the
     * GPU's power limit.
     */
    int throttled, power_capped;
    /*
     * Median clock of the SMs, median clock of the memory, and highest temperature in degrees
     * Celsius, over the rounds; NaN if unknown.
     */
    double sm_clock_mhz, mem_clock_mhz, temperature;
} kvd_bench_rival;

typedef struct kvd_bench kvd_bench;

/*
 * Opens a benchmark. If `cuda` is true, it can time GPU launches on the current device. Returns 0,
 * or -1 and fills *err. The caller must close *bench.
 */
int kvd_bench_open(bool cuda, kvd_bench **bench, kvd_err *err);
void kvd_bench_close(kvd_bench *bench);
/* Returns the stream of the benchmark, a cudaStream_t. */
void *kvd_bench_stream(const kvd_bench *bench);
/*
 * Waits for the work on the stream. Returns 0, or -1 and fills *err with the failure of that work.
 */
int kvd_bench_wait(kvd_bench *bench, kvd_err *err);

/* Returns the version of the GPU driver, or "" if it is not known. */
const char *kvd_bench_driver(const kvd_bench *bench);

/*
 * Times the `n` rivals and fills their result fields. Returns 0. Returns -1 and fills *err if a
 * launch fails, or with "interrupted" after the current round if the user interrupts.
 */
int kvd_bench_run(kvd_bench *bench, const kvd_bench_plan *plan, kvd_bench_rival *rival, int n,
                  kvd_err *err);

typedef struct {
    size_t n; /* number of samples that are not NaN */
    double median_us, mad_us, min_us, p05_us, p95_us;
    /*
     * Warnings about the samples, separated by blanks: slow-first outliers noise short throttled;
     * "" if there are none.
     */
    char warnings[96];
} kvd_bench_stats;

/*
 * Fills *stats from the n time samples of an implementation, ignoring NaN. If no sample is left,
 * all statistics are NaN.
 */
int kvd_bench_summarise(const kvd_bench_rival *rival, int n, kvd_bench_stats *stats, kvd_err *err);

#endif
