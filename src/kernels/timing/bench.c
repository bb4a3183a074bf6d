#include "kernels/timing/bench.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/rng.h"
#include "common/run.h"
#include "common/stats.h"

#ifdef KVD_CUDA
#include <cuda_runtime_api.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/fill.h"
#endif

enum { RIVALS_MAX = 256 };

struct kvd_bench {
    bool cuda;
    size_t cpu_flush_bytes;
    unsigned char *cpu_flush;
    char driver[80];
#ifdef KVD_CUDA
    int device;
    cudaStream_t stream;
    void *flush;
    size_t flush_bytes;
    cudaEvent_t event[RIVALS_MAX][2];
    cudaGraphExec_t graph[RIVALS_MAX];
#endif
};

#ifdef KVD_CUDA
static int cuda_fail(cudaError_t e, const char *what, kvd_err *err)
{
    return kvd_fail(err, "%s: %s", what, cudaGetErrorString(e));
}

static int open_cuda(kvd_bench *b, kvd_err *err)
{
    kvd_device_info info;
    cudaError_t e = cudaGetDevice(&b->device);
    if (!e && kvd_device_read(b->device, &info, err))
        return -1;
    if (!e)
        e = cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking);
    if (!e) {
        memcpy(b->driver, info.driver, sizeof b->driver);
        b->flush_bytes = 4 * info.l2_bytes;
        e = cudaMalloc(&b->flush, b->flush_bytes);
        if (!e)
            e = cudaMemsetAsync(b->flush, 1, b->flush_bytes, b->stream);
    }
    for (int i = 0; !e && i < RIVALS_MAX; i++)
        for (int k = 0; !e && k < 2; k++)
            e = cudaEventCreate(&b->event[i][k]);
    if (e)
        return cuda_fail(e, "cannot set up timing", err);
    return 0;
}

static void drop_graphs(kvd_bench *b, int n)
{
    for (int i = 0; i < n; i++)
        if (b->graph[i]) {
            (void)cudaGraphExecDestroy(b->graph[i]);
            b->graph[i] = NULL;
        }
}

static void close_cuda(kvd_bench *b)
{
    drop_graphs(b, RIVALS_MAX);
    for (int i = 0; i < RIVALS_MAX; i++)
        for (int k = 0; k < 2; k++)
            if (b->event[i][k])
                (void)cudaEventDestroy(b->event[i][k]);
    (void)cudaFree(b->flush);
    if (b->stream)
        (void)cudaStreamDestroy(b->stream);
}
#endif

int kvd_bench_open(bool cuda, kvd_bench **bench, kvd_err *err)
{
    enum { FLUSH_LEAST = 64 << 20, FLUSH_MOST = 512 << 20 };
    kvd_bench *const b = *bench = calloc(1, sizeof *b);
    if (!b)
        return kvd_no_memory(err, "timing", sizeof *b);
    b->cuda = cuda;
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const size_t wanted = l3 > 0 ? 2 * (size_t)l3 : 0;
    b->cpu_flush_bytes = wanted < FLUSH_LEAST  ? FLUSH_LEAST
                         : wanted > FLUSH_MOST ? FLUSH_MOST
                                               : wanted;
#ifdef KVD_CUDA
    if (cuda && open_cuda(b, err)) {
        kvd_bench_close(b);
        *bench = NULL;
        return -1;
    }
#else
    assert(!cuda);
#endif
    return 0;
}

void kvd_bench_close(kvd_bench *b)
{
    if (!b)
        return;
#ifdef KVD_CUDA
    close_cuda(b);
#endif
    free(b->cpu_flush);
    free(b);
}

void *kvd_bench_stream(const kvd_bench *b)
{
#ifdef KVD_CUDA
    return b->stream;
#else
    (void)b;
    return NULL;
#endif
}

int kvd_bench_wait(kvd_bench *b, kvd_err *err)
{
#ifdef KVD_CUDA
    if (b->cuda) {
        const cudaError_t e = cudaStreamSynchronize(b->stream);
        if (e)
            return cuda_fail(e, "on the device", err);
    }
#else
    (void)b;
    (void)err;
#endif
    return 0;
}

const char *kvd_bench_driver(const kvd_bench *b)
{
    return b->driver;
}

static double now_us(void)
{
    return 1e6 * kvd_clock_s();
}

static int flush_cpu(kvd_bench *b, int round, kvd_err *err)
{
    if (!b->cpu_flush && !(b->cpu_flush = malloc(b->cpu_flush_bytes)))
        return kvd_no_memory(err, "overwriting caches", b->cpu_flush_bytes);
    const size_t piece = 1 << 20;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < b->cpu_flush_bytes; i += piece)
        memset(b->cpu_flush + i, round & 0xff,
               piece < b->cpu_flush_bytes - i ? piece : b->cpu_flush_bytes - i);
    return 0;
}

static int time_cpu(kvd_bench *b, const kvd_bench_plan *plan, kvd_bench_rival *r, int round,
                    double *us, kvd_err *err)
{
    if (plan->cold && flush_cpu(b, round, err))
        return -1;
    if (r->prepare && r->prepare(r->ctx, NULL, err))
        return kvd_in(err, "%s", r->name);
    const double start = now_us();
    if (r->launch(r->ctx, NULL, err))
        return kvd_in(err, "%s", r->name);
    *us = now_us() - start;
    return 0;
}

#ifdef KVD_CUDA
static int queue(kvd_bench *b, const kvd_bench_plan *plan, kvd_bench_rival *r, int i, kvd_err *err)
{
    cudaError_t e = cudaSuccess;
    if (plan->cold)
        e = kvd_l2_flush(b->flush, b->flush_bytes, b->stream);
    if (!e && r->prepare && r->prepare(r->ctx, b->stream, err))
        return kvd_in(err, "%s", r->name);
    if (!e)
        e = cudaEventRecord(b->event[i][0], b->stream);
    if (!e && b->graph[i])
        e = cudaGraphLaunch(b->graph[i], b->stream);
    if (!e && !b->graph[i] && r->launch(r->ctx, b->stream, err))
        return kvd_in(err, "%s", r->name);
    if (!e)
        e = cudaEventRecord(b->event[i][1], b->stream);
    return e ? cuda_fail(e, r->name, err) : 0;
}

static int elapsed(kvd_bench *b, const kvd_bench_rival *r, int i, double *us, kvd_err *err)
{
    float ms;
    const cudaError_t e = cudaEventElapsedTime(&ms, b->event[i][0], b->event[i][1]);
    *us = ms * 1e3;
    return e ? cuda_fail(e, r->name, err) : 0;
}

/* Captures a launch in a CUDA graph. If that fails, the launch is timed without a graph. */
static void capture(kvd_bench *b, kvd_bench_rival *r, int i)
{
    kvd_err ignored = {""};
    cudaGraph_t graph = NULL;
    if (cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal)) {
        (void)cudaGetLastError();
        return;
    }
    const int failed = r->launch(r->ctx, b->stream, &ignored);
    const cudaError_t e = cudaStreamEndCapture(b->stream, &graph);
    if (failed || e || cudaGraphInstantiate(&b->graph[i], graph, 0))
        b->graph[i] = NULL;
    if (graph)
        (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    r->graph = b->graph[i] != NULL;
}
#endif

typedef struct {
    /* [samples] Clocks of the GPU's processors and of its memory in MHz, one reading per round. */
    double *sm, *mem;
    double hottest;
} readings;

/* State of the GPU in one round of timing, read from NVML: clocks, temperature, throttling. */
typedef struct {
    double sm_mhz, mem_mhz, temperature;
    bool throttled, power_capped;
} reading;

static reading read_card(const kvd_bench *b)
{
    reading g = {NAN, NAN, NAN, false, false};
#ifdef KVD_CUDA
    /* Bits of NVML's throttle reasons. SLOWED: slowed by hardware, heat or a power brake. */
    enum { POWER_CAP = 0x4, SLOWED = 0x8 | 0x20 | 0x40 | 0x80 };
    kvd_device_state state;
    kvd_err ignored = {""};
    if (b->cuda && !kvd_device_state_read(b->device, &state, &ignored)) {
        g = (reading){state.sm_clock_mhz, state.mem_clock_mhz, state.temperature_c, false, false};
        if (state.throttle_known) {
            g.throttled = state.throttle & SLOWED;
            g.power_capped = state.throttle & POWER_CAP;
        }
    }
#else
    (void)b;
#endif
    return g;
}

static int run_first(kvd_bench *b, const kvd_bench_plan *plan, kvd_bench_rival *r, int i,
                     kvd_err *err)
{
#ifdef KVD_CUDA
    if (r->cuda) {
        if (queue(b, plan, r, i, err))
            return -1;
        const cudaError_t e = cudaStreamSynchronize(b->stream);
        if (e)
            return cuda_fail(e, r->name, err);
        capture(b, r, i);
        return 0;
    }
#endif
    (void)i;
    return time_cpu(b, plan, r, 0, &(double){0}, err);
}

/* Shuffles the order of launches, because a launch's GPU clock depends on the power of the launch
 * before it. */
static void shuffle(kvd_rng *rng, int *order, int n)
{
    for (int i = n - 1; i > 0; i--) {
        const int j = (int)kvd_rng_below(rng, (uint64_t)i + 1), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

/* Launches every implementation once. `sample` is the index of the measurement; it is negative in a
 * warm-up round. */
static int run_round(kvd_bench *b, const kvd_bench_plan *plan, kvd_bench_rival *rival, int n,
                     const int *order, int round, int sample, readings *seen, kvd_err *err)
{
    reading g = {NAN, NAN, NAN, false, false};
    double us = NAN;
#ifdef KVD_CUDA
    for (int i = 0; i < n; i++)
        if (rival[order[i]].cuda && queue(b, plan, &rival[order[i]], order[i], err))
            return -1;
#endif
    if (sample >= 0)
        g = read_card(b); /* NVML is read while the launches run */
    if (kvd_bench_wait(b, err))
        return -1;
    if (sample >= 0) {
        seen->sm[sample] = g.sm_mhz;
        seen->mem[sample] = g.mem_mhz;
        if (!(g.temperature <= seen->hottest))
            seen->hottest = g.temperature;
    }
    for (int k = 0; k < n; k++) {
        const int i = order[k];
        kvd_bench_rival *const r = &rival[i];
        if (!r->cuda && time_cpu(b, plan, r, round, &us, err))
            return -1;
#ifdef KVD_CUDA
        if (r->cuda && elapsed(b, r, i, &us, err))
            return -1;
#endif
        if (sample < 0)
            continue;
        const bool dropped = r->cuda && g.throttled;
        r->us[sample] = dropped ? (double)NAN : us;
        r->throttled += dropped;
        r->power_capped += r->cuda && g.power_capped;
    }
    return 0;
}

int kvd_bench_run(kvd_bench *b, const kvd_bench_plan *plan, kvd_bench_rival *rival, int n,
                  kvd_err *err)
{
    assert(n >= 1 && plan->samples >= 1 && plan->warmup >= 0);
    if (n > RIVALS_MAX)
        return kvd_fail(err, "%d implementations and schedules at once, at most %d are timed", n,
                        (int)RIVALS_MAX);
    const size_t samples = (size_t)plan->samples;
    int order[RIVALS_MAX];
    kvd_rng rng;
    kvd_rng_seed(&rng, 1, 3);
    readings seen = {malloc(samples * sizeof(double)), malloc(samples * sizeof(double)), NAN};
    int status = seen.sm && seen.mem
                     ? 0
                     : kvd_no_memory(err, "clock readings", 2 * samples * sizeof(double));
    for (int i = 0; !status && i < n; i++) {
        order[i] = i;
        rival[i].graph = false;
        rival[i].throttled = rival[i].power_capped = 0;
        status = run_first(b, plan, &rival[i], i, err);
    }
    for (int round = 0; !status && round < plan->warmup + plan->samples; round++) {
        shuffle(&rng, order, n);
        status = kvd_interrupted()
                     ? kvd_fail_interrupted(err)
                     : run_round(b, plan, rival, n, order, round, round - plan->warmup, &seen, err);
    }
    for (int i = 0; !status && i < n; i++) {
        const bool cuda = rival[i].cuda;
        rival[i].sm_clock_mhz = cuda ? kvd_quantile(seen.sm, samples, 0.5) : (double)NAN;
        rival[i].mem_clock_mhz = cuda ? kvd_quantile(seen.mem, samples, 0.5) : (double)NAN;
        rival[i].temperature = cuda ? seen.hottest : (double)NAN;
    }
#ifdef KVD_CUDA
    drop_graphs(b, n);
#endif
    free(seen.sm);
    free(seen.mem);
    return status;
}

static void warn(kvd_bench_stats *s, const char *word)
{
    const size_t used = strlen(s->warnings);
    snprintf(s->warnings + used, sizeof s->warnings - used, "%s%s", used ? " " : "", word);
}

int kvd_bench_summarise(const kvd_bench_rival *r, int n, kvd_bench_stats *s, kvd_err *err)
{
    /* Outliers differ from the median time by more than 14.8 median absolute deviations and 2 %. A
     * median time below short_us causes a warning. */
    const double far = 14.8, noisy = 0.02, short_us = r->cuda ? 5 : 50;
    memset(s, 0, sizeof *s);
    s->median_us = s->mad_us = s->min_us = s->p05_us = s->p95_us = NAN;
    double *const x = malloc((size_t)n * sizeof *x);
    if (!x)
        return kvd_no_memory(err, "samples", (unsigned long long)n * sizeof *x);
    for (int i = 0; i < n; i++)
        if (!isnan(r->us[i]))
            x[s->n++] = r->us[i];
    if (s->n) {
        s->median_us = kvd_quantile(x, s->n, 0.5);
        s->mad_us = kvd_mad(x, s->n);
        s->min_us = kvd_quantile(x, s->n, 0);
        s->p05_us = kvd_quantile(x, s->n, 0.05);
        s->p95_us = kvd_quantile(x, s->n, 0.95);
        int outliers = 0;
        for (size_t i = 0; i < s->n; i++)
            outliers += fabs(x[i] - s->median_us) > far * s->mad_us &&
                        fabs(x[i] - s->median_us) > noisy * s->median_us;
        if (x[0] > 1.2 * s->median_us)
            warn(s, "slow-first");
        if (outliers)
            warn(s, "outliers");
        if (s->mad_us > noisy * s->median_us)
            warn(s, "noise");
        if (s->median_us < short_us)
            warn(s, "short");
    }
    if (r->throttled)
        warn(s, "throttled");
    free(x);
    return isnan(s->median_us) && s->n
               ? kvd_fail(err, "%s: no median of %zu samples", r->name, s->n)
               : 0;
}
