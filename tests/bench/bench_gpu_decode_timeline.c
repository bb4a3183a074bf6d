/* usage: bench_gpu_decode_timeline [CASE]
 * Prints when the thread blocks of the decode kernel reach each of the kernel's steps, with a cold
 * L2. Also times launches with time stamps, without time stamps, and without tokens to read.
 * CASE: part of the name of the cases to run. */
#include <stdint.h>

#include "common/stats.h"
#include "kernels/cuda/decode.h"
#include "kernels/cuda/fill.h"

#include "gpu_case.h"

enum { N_KV = 8, N_HEADS = 32, RUNS = 21, STEPS = 12, FLUSH_MIB = 256 };

static const char *const step_name[STEPS] = {
    "CTA starts",
    "work read",
    "page numbers read",
    "first copy started",
    "last copy started",
    "first page arrived",
    "first unit computed",
    "warp 0 computed its last unit",
    "warps of the CTA merged",
    "slot written, arrival counted",
    "slots of the interval read",
    "warp 0 ends",
};

static const struct {
    const char *name;
    int len, width[N_KV][2];
} cases[] = {
#define FULL                                                                                       \
    {                                                                                              \
        {128, 128}, {128, 128}, {128, 128}, {128, 128}, {128, 128}, {128, 128}, {128, 128},        \
        {                                                                                          \
            128, 128                                                                               \
        }                                                                                          \
    }
#define HALF                                                                                       \
    {                                                                                              \
        {64, 48}, {80, 64}, {64, 48}, {64, 48}, {64, 64}, {64, 64}, {80, 64},                      \
        {                                                                                          \
            80, 64                                                                                 \
        }                                                                                          \
    }
    {"1x1024 p=0", 1024, FULL},
    {"1x8192 p=0", 8192, FULL},
    {"1x8192 p=0.5", 8192, HALF},
    {"1x32768 p=0", 32768, FULL},
};

static cudaStream_t stream;
static void *flush;

/* Returns the microseconds of a launch between CUDA events, with a cold L2. */
static double timed(const kvd_decode_args *args)
{
    check(kvd_l2_flush(flush, (size_t)FLUSH_MIB << 20, stream), "flush");
    timer_start(stream);
    check(kvd_decode(args, stream), "decode");
    return 1e3 * timer_ms(stream);
}

static double timed_median(const kvd_decode_args *args)
{
    double us[RUNS];
    for (int i = 0; i < RUNS; i++)
        us[i] = timed(args);
    return kvd_quantile(us, RUNS, 0.5);
}

static void run(int at)
{
    kvd_attn_heads heads = {N_HEADS, N_KV, 128, {0}, {0}, 0};
    for (int g = 0; g < N_KV; g++) {
        heads.d_qk[g] = cases[at].width[g][0];
        heads.d_v[g] = cases[at].width[g][1];
    }
    kvd_decode_args args = {
        .dtype = KVD_BF16, .batch = 1, .max_pages = cases[at].len / KVD_PAGE_TOKENS};
    or_end(kvd_attn_map_make(&heads, &args.map), "decode_timeline", "heads refused");
    const size_t n_pages = (size_t)args.max_pages;
    int32_t *table = need(n_pages * sizeof *table);
    for (size_t i = 0; i < n_pages; i++)
        /* Permutes the pages: 77 is odd and n_pages a power of 2. */
        table[i] = (int32_t)(i * 77 % n_pages);
    const int32_t len = cases[at].len;
    args.kv_len = on_device(&len, sizeof len);
    args.page_table = on_device(table, n_pages * sizeof *table);
    const size_t pool_bytes = n_pages * (size_t)args.map.page_elements * 2;
    void *pool = on_device(NULL, pool_bytes), *q = on_device(NULL, (size_t)args.map.q_pitch * 2);
    fill_bytes(pool, 0x3c, pool_bytes);
    fill_bytes(q, 0x3c, (size_t)args.map.q_pitch * 2);
    args.pool = pool;
    args.q = q;
    args.o = on_device(NULL, (size_t)args.map.o_pitch * 2);
    args.n_ctas = kvd_decode_ctas(&args.map);
    const size_t n = (size_t)args.n_ctas,
                 bytes = kvd_decode_workspace_bytes(&args.map, 1, len, args.n_ctas),
                 stamp_bytes = n * KVD_DECODE_STAMPS * sizeof(unsigned long long);
    args.workspace = on_device(NULL, bytes);
    unsigned long long *stamps = on_device(NULL, stamp_bytes), *host = need(stamp_bytes);
    double *all = need(n * sizeof *all), us[STEPS][3][RUNS], with[RUNS];
    int count[STEPS] = {0};
    args.ctas_per_task = kvd_decode_ctas_per_task(&args, cases[at].len);
    check(kvd_decode_plan(&args, KVD_SCHEDULE_OURS, stream), "plan");
    for (int i = -3; i < RUNS; i++) {
        fill_bytes(stamps, 0, stamp_bytes);
        args.stamps = stamps;
        const double elapsed = timed(&args);
        to_host(host, stamps, stamp_bytes);
        if (i < 0)
            continue;
        with[i] = elapsed;
        unsigned long long first = ~0ull;
        for (size_t c = 0; c < n; c++)
            if (host[c * KVD_DECODE_STAMPS] && host[c * KVD_DECODE_STAMPS] < first)
                first = host[c * KVD_DECODE_STAMPS];
        for (int s = 0; s < STEPS; s++) {
            size_t some = 0;
            for (size_t c = 0; c < n; c++)
                if (host[c * KVD_DECODE_STAMPS + (size_t)s])
                    all[some++] = (double)(host[c * KVD_DECODE_STAMPS + (size_t)s] - first) * 1e-3;
            count[s] = (int)some;
            kvd_sort(all, some);
            us[s][0][i] = some ? all[0] : 0;
            us[s][1][i] = some ? all[some / 2] : 0;
            us[s][2][i] = some ? all[some - 1] : 0;
        }
    }
    args.stamps = NULL;
    const double without = timed_median(&args);
    const int32_t none = 0;
    args.live = on_device(&none, sizeof none);
    check(cudaMemset(args.workspace, 0, bytes), "no work");
    const double idle = timed_median(&args);
    printf("== %s, %d CTAs, %d per task\n%-32s %5s %7s %7s %7s\n", cases[at].name, args.n_ctas,
           args.ctas_per_task, "step", "CTAs", "min", "median", "max");
    for (int s = 0; s < STEPS; s++)
        if (count[s])
            printf("%-32s %5d %7.2f %7.2f %7.2f\n", step_name[s], count[s],
                   kvd_quantile(us[s][0], RUNS, 0.5), kvd_quantile(us[s][1], RUNS, 0.5),
                   kvd_quantile(us[s][2], RUNS, 0.5));
    printf("between events: %.2f us with stamps, %.2f without, %.2f of a launch without work\n",
           kvd_quantile(with, RUNS, 0.5), without, idle);
    fflush(stdout);
    device_free(args.kv_len, args.page_table, args.live, pool, q, args.o, args.workspace, stamps);
    host_free(table, host, all);
}

int main(int argc, char **argv)
{
    if (!gpu_devices("decode_timeline", 1))
        return 0;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    flush = on_device(NULL, (size_t)FLUSH_MIB << 20);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (argc < 2 || strstr(cases[i].name, argv[1]))
            run((int)i);
    return 0;
}
