/*
 * Timing. Several rivals take turns, a launch each, in a new order every round, so that clocks and neighbours treat all alike:
 * warm-up rounds, then rounds that count. On a GPU each launch stands between two events, the L2 cache is emptied of what it reads (by reading other memory)
 * before it unless the plan says hot, and what can be captured is replayed as a CUDA graph. The card is read, never set.
 */
#ifndef KVD_KERNELS_BENCH_H
#define KVD_KERNELS_BENCH_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

typedef struct {
    int warmup, samples; /* rounds                                                                */
    bool cold;           /* caches hold other data before each launch                             */
} kvd_bench_plan;

/* One rival. launch puts its work on `stream` (a cudaStream_t; NULL for the CPU, where it has done it on return). */
typedef struct {
    const char *name;
    bool cuda;
    int (*launch)(void *ctx, void *stream, kvd_err *err);
    int (*prepare)(void *ctx, void *stream, kvd_err *err); /* before each launch, not timed; NULL: nothing */
    void *ctx;
    bool no_graph; /* launch cannot be captured */
    /* out */
    double *us;                  /* [samples], the caller's; NaN: dropped, the card was throttled      */
    bool graph;                  /* replayed as a graph                                                */
    double first_us;             /* the very first launch                                              */
    int throttled, power_capped; /* samples dropped, samples taken under the card's power limit       */
    double sm_clock_mhz, mem_clock_mhz, temperature; /* median, median, largest over rounds; NaN unknown */
} kvd_bench_rival;

typedef struct kvd_bench kvd_bench;

/* cuda: GPU launches will be timed on the current device. */
int kvd_bench_open(bool cuda, kvd_bench **bench, kvd_err *err);
void kvd_bench_close(kvd_bench *bench);
void *kvd_bench_stream(const kvd_bench *bench); /* a cudaStream_t */
/* Waits for what is on the stream, and says what failed there. */
int kvd_bench_wait(kvd_bench *bench, kvd_err *err);

/* The GPU driver's version, "" when not known. */
const char *kvd_bench_driver(const kvd_bench *bench);

/* Stops with "interrupted" between rounds when the user asks. */
int kvd_bench_run(kvd_bench *bench, const kvd_bench_plan *plan, kvd_bench_rival *rival, int n, kvd_err *err);

typedef struct {
    size_t n; /* samples kept */
    double median_us, mad_us, min_us, p05_us, p95_us;
    char warnings[96]; /* "" or words separated by blanks: slow-first outliers noise short throttled */
} kvd_bench_stats;

/* Of samples [n], NaN left out; all numbers NaN when none is left. */
int kvd_bench_summarise(const kvd_bench_rival *rival, int n, kvd_bench_stats *stats, kvd_err *err);

#endif
