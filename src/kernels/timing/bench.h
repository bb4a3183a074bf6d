/*
 * Times competing implementations (rivals), each once per round in shuffled order.
 *
 * GPU launches are timed by CUDA events and replayed as CUDA graphs if possible. Functions with
 * `err` return 0, or -1 with *err filled.
 */
#ifndef KVD_KERNELS_TIMING_BENCH_H
#define KVD_KERNELS_TIMING_BENCH_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct {
    int warmup, samples; /* numbers of rounds */
    bool cold;           /* true if caches are filled with other data before each launch */
} kvd_bench_plan;

/*
 * One timed implementation. `stream` is a cudaStream_t, NULL on the CPU, where `launch` computes
 * synchronously.
 */
typedef struct {
    const char *name;
    bool cuda;
    int (*launch)(void *ctx, void *stream, kvd_err *err);
    /* Runs untimed before each launch. May be NULL. */
    int (*prepare)(void *ctx, void *stream, kvd_err *err);
    void *ctx;
    bool no_graph; /* true if `launch` cannot be captured into a CUDA graph */
    /* [samples] Microseconds per launch, owned by the caller; NaN if the GPU was throttled. */
    double *us;
    bool graph;      /* true if launches were replayed as a CUDA graph */
    double first_us; /* time of the very first launch */
    /* Launches excluded because the GPU was throttled; launches at the power limit. */
    int throttled, power_capped;
    /* Median clocks, highest temperature in degrees Celsius; NaN if unknown. */
    double sm_clock_mhz, mem_clock_mhz, temperature;
} kvd_bench_rival;

typedef struct kvd_bench kvd_bench;

/* Opens *bench, which the caller must close. `cuda`: for GPU launches on the current device. */
int kvd_bench_open(bool cuda, kvd_bench **bench, kvd_err *err);
void kvd_bench_close(kvd_bench *bench);
/* Returns a cudaStream_t. */
void *kvd_bench_stream(const kvd_bench *bench);
/* Waits for all launches and reports errors of the stream. */
int kvd_bench_wait(kvd_bench *bench, kvd_err *err);

/* Returns the driver's version, or "" if unknown. */
const char *kvd_bench_driver(const kvd_bench *bench);

/*
 * Times the rivals as `plan` says. On interruption, fails with "interrupted" after the current
 * round.
 */
int kvd_bench_run(kvd_bench *bench, const kvd_bench_plan *plan, kvd_bench_rival *rival, int n,
                  kvd_err *err);

typedef struct {
    size_t n; /* number of samples that are not NaN */
    double median_us, mad_us, min_us, p05_us, p95_us;
    /*
     * Words: slow-first (first sample slow), outliers, noise (large spread), short (near the
     * resolution), throttled (samples dropped).
     */
    char warnings[96];
} kvd_bench_stats;

/* Computes the statistics of each implementation's samples, without NaN. No samples: NaN. */
int kvd_bench_summarise(const kvd_bench_rival *rival, int n, kvd_bench_stats *stats, kvd_err *err);

#endif
