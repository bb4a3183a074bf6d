/* usage: bench_append [append|prefill|steps]
 * Times GPU kernels; without an argument, for all three tasks.
 * append   writing new K and V into the cache
 * prefill  attention of prompts
 * steps    writing K and V in decode steps that run as a CUDA graph */
#include "common/stats.h"
#include "engine/cuda/few_rows.h"
#include "gpu_case.h"
#include "kernels/cuda/append.h"
#include "kernels/cuda/prefill.h"

enum { LAUNCHES = 40, BUFFERS = 3 };

static void *device(size_t bytes)
{
    return on_device(NULL, bytes);
}

static void *random_bf16(size_t elements)
{
    enum { BLOCK = 1000003 };
    static uint16_t block[BLOCK];
    if (!block[0]) {
        kvd_rng rng;
        kvd_rng_seed(&rng, 3, 1);
        for (size_t i = 0; i < BLOCK; i++)
            block[i] = bf16_of((float)kvd_rng_normal(&rng) * 0.3F);
    }
    uint16_t *p = device(elements * 2);
    for (size_t i = 0; i < elements; i += BLOCK)
        to_device(p + i, block, 2 * (elements - i < BLOCK ? elements - i : BLOCK));
    return p;
}

static float copy_gb_s;

static void measure_copy(void)
{
    const size_t bytes = (size_t)1 << 30;
    void *a = device(bytes), *b = device(bytes);
    double ms[12];
    check(cudaMemset(a, 0x3c, bytes), "cudaMemset");
    for (int i = 0; i < 12; i++) {
        timer_start(NULL);
        check(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, NULL), "cudaMemcpyAsync");
        ms[i] = timer_ms(NULL);
    }
    copy_gb_s = (float)(2.0 * (double)bytes / kvd_quantile(ms, 12, 0.5) / 1e6);
    printf("copy %.0f GB/s (read + write)\n", (double)copy_gb_s);
    device_free(a, b);
}

/* number of kept dimensions in each of 8 KV heads: of Q and K, then of V */
static const int widths[][2][8] = {
    {{128, 128, 128, 128, 128, 128, 128, 128}, {128, 128, 128, 128, 128, 128, 128, 128}},
    {{64, 64, 64, 64, 64, 64, 64, 64}, {64, 64, 64, 64, 64, 64, 64, 64}},
    {{16, 32, 48, 64, 64, 80, 96, 112}, {64, 96, 32, 112, 16, 80, 48, 64}},
    {{64, 48, 32, 32, 64, 64, 48, 48}, {48, 64, 64, 48, 32, 32, 64, 48}},
};
static const char *const width_names[] = {"128", "64", "mix, p = 0.5", "mix, p = 0.6"};

/* Returns the microseconds to add n tokens to each request's cache of `old` tokens. *bytes: bytes
 * of memory that this must read and write. */
static double append_us(int w, int batch, int n, int old, int rope, int rotated, double *bytes)
{
    kvd_attn_heads heads = {.n_heads = 32, .n_kv_heads = 8, .d_head = 128};
    memcpy(heads.d_qk, widths[w][0], sizeof widths[w][0]);
    memcpy(heads.d_v, widths[w][1], sizeof widths[w][1]);
    kvd_append_args a = {.dtype = KVD_BF16, .d_head = 128, .batch = batch, .n_tokens = batch * n};
    if (kvd_attn_map_make(&heads, &a.map))
        exit(1);
    const int pages = (old + n + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS, decode = n == 1;
    int32_t *ints = need((size_t)batch * (size_t)(pages + 4) * sizeof *ints);
    for (int b = 0; b < batch; b++) {
        ints[b] = b * n;
        ints[batch + b] = n;
        ints[2 * batch + b] = old + n;
        ints[3 * batch + b] = b * ((n + 7) / 8 * 8);
        for (int j = 0; j < pages; j++)
            ints[4 * batch + b * pages + j] = b * pages + (j * 7 + 3) % pages;
    }
    int32_t *dev = on_device(ints, (size_t)batch * (size_t)(pages + 4) * sizeof *dev);
    free(ints);
    a.token_start = dev;
    a.q_len = dev + batch;
    a.kv_len = dev + 2 * batch;
    a.q_start = decode ? NULL : dev + 3 * batch;
    a.n_q8 = decode ? 0 : batch * ((n + 7) / 8 * 8);
    a.page_table = dev + 4 * batch;
    a.max_pages = pages;
    const size_t row = 48 * 128, tokens = (size_t)batch * (size_t)n;
    void *x[BUFFERS], *q[BUFFERS], *pool[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        x[i] = random_bf16(tokens * row);
        q[i] = device((tokens + 8 * (size_t)batch) * (size_t)a.map.q_pitch * 2);
        pool[i] = device((size_t)(batch * pages) * (size_t)a.map.page_elements * 2);
    }
    void *angles = NULL, *r = random_bf16(128 * 128 * 8);
    if (rope) {
        angles = device((size_t)(old + n) * 64 * 4);
        check(cudaMemset(angles, 0x3e, (size_t)(old + n) * 64 * 4), "cudaMemset");
        a.rope_cos = a.rope_sin = angles;
        a.rope_dim = 128;
    }
    if (rotated)
        a.r_qk = r;
    double us[LAUNCHES];
    /* Times many launches between two CUDA events, which hides the events' own time. */
    const int many = decode ? 20 : 1;
    for (int i = -3, k = 0; i < LAUNCHES; i++) {
        timer_start(NULL);
        for (int j = 0; j < many; j++, k++) {
            a.x = x[k % BUFFERS];
            a.q = q[k % BUFFERS];
            a.pool = pool[k % BUFFERS];
            check(kvd_append(&a, NULL), "kvd_append");
        }
        us[i < 0 ? 0 : i] = timer_ms(NULL) * 1000 / many;
    }
    double read = 0;
    for (int g = 0; g < 8; g++)
        read += (rotated || rope ? 128 : heads.d_qk[g]) * 5 + heads.d_v[g];
    *bytes = 2 * (double)tokens *
             (read + (double)a.map.q_pitch + (double)a.map.page_elements / KVD_PAGE_TOKENS);
    for (int i = 0; i < BUFFERS; i++)
        device_free(x[i], q[i], pool[i]);
    device_free(angles, r, dev);
    return kvd_quantile(us, LAUNCHES, 0.5);
}

static double prefill_ms(int w, int batch, int n, int rows)
{
    kvd_attn_heads heads = {.n_heads = 32, .n_kv_heads = 8, .d_head = 128};
    memcpy(heads.d_qk, widths[w][0], sizeof widths[w][0]);
    memcpy(heads.d_v, widths[w][1], sizeof widths[w][1]);
    const int pages = n / KVD_PAGE_TOKENS, levels = (n + rows - 1) / rows,
              n_tiles = levels * 32 * batch;
    kvd_prefill_args a = {.dtype = KVD_BF16, .batch = batch, .max_pages = pages, .n_q8 = batch * n};
    int32_t *ints = need((size_t)batch * (size_t)(pages + 3) * sizeof *ints);
    kvd_prefill_tile *tile = need((size_t)n_tiles * sizeof *tile);
    if (kvd_attn_map_make(&heads, &a.map))
        exit(1);
    for (int b = 0; b < batch; b++) {
        ints[b] = b * n;
        ints[batch + b] = ints[2 * batch + b] = n;
        for (int j = 0; j < pages; j++)
            ints[3 * batch + b * pages + j] = b * pages + (j * 7 + 3) % pages;
    }
    int k = 0;
    for (int level = levels - 1; level >= 0; level--)
        for (int b = 0; b < batch; b++)
            for (int h = 0; h < 32; h++)
                tile[k++] = (kvd_prefill_tile){b, h, level * rows,
                                               n - level * rows < rows ? n - level * rows : rows};
    int32_t *dev = on_device(ints, (size_t)batch * (size_t)(pages + 3) * sizeof *dev);
    a.q_start = dev;
    a.q_len = dev + batch;
    a.kv_len = dev + 2 * batch;
    a.page_table = dev + 3 * batch;
    void *q = random_bf16((size_t)a.n_q8 * (size_t)a.map.q_pitch);
    void *pool = random_bf16((size_t)(batch * pages) * (size_t)a.map.page_elements);
    void *o = device((size_t)a.n_q8 * (size_t)a.map.o_pitch * 2),
         *tiles = on_device(tile, (size_t)n_tiles * sizeof *tile);
    int32_t *next = device(4);
    a.q = q;
    a.pool = pool;
    a.o = o;
    a.work.tile = tiles;
    a.work.n_tiles = n_tiles;
    a.work.next = next;
    check(cudaDeviceGetAttribute(&a.work.n_ctas, cudaDevAttrMultiProcessorCount, 0),
          "cudaDeviceGetAttribute");
    double ms[LAUNCHES];
    for (int i = -3; i < LAUNCHES; i++) {
        check(cudaMemsetAsync(next, 0, 4, NULL), "cudaMemsetAsync");
        timer_start(NULL);
        check(kvd_prefill_mma(&a, NULL), "kvd_prefill_mma");
        ms[i < 0 ? 0 : i] = timer_ms(NULL);
    }
    device_free(q, pool, o, tiles, dev, next);
    host_free(ints, tile);
    return kvd_quantile(ms, LAUNCHES, 0.5);
}

static void prefill_table(void)
{
    static const int shapes[][2] = {{2, 8192}, {1, 16384}, {4, 2048}};
    printf(
        "prefill by mma.sync, 32 query heads on 8 KV heads, bf16, causal\n%-14s %6s %6s | %9s %8s | %s\n",
        "widths", "batch", "tokens", "ms", "TFLOP/s", "ms with tiles of 192 rows");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int w = 0; w < 4; w++) {
            double dims = 0;
            for (int g = 0; g < 8; g++)
                dims += widths[w][0][g] + widths[w][1][g];
            const double n = shapes[s][1], ms = prefill_ms(w, shapes[s][0], shapes[s][1], 128);
            printf("%-14s %6d %6d | %9.3f %8.0f | %.3f\n", width_names[w], shapes[s][0],
                   shapes[s][1], ms, shapes[s][0] * 4 * dims * n * n / ms / 1e9,
                   prefill_ms(w, shapes[s][0], shapes[s][1], 192));
        }
}

typedef struct {
    const char *name;
    int n_heads, n_kv, d_model, ffn;
    int d_qk[8], d_v[8];
} step_shape;

enum { STEP_LAYERS = 80, STEP_REPLAYS = 11, STEP_OLD = 8192, STEP_ROWS = 8 };

typedef struct {
    void *x, *qkv, *gate_up, *o, *attended, *narrow, *r, *q, *pool;
    float *residual, *gain, *sum, *angles;
    int32_t *lists; /* token_start, q_len, kv_len, page table */
    kvd_gpu_bad *bad;
    unsigned long long *time; /* [STEP_LAYERS][2] start and end of every append */
} step_memory;

static float *ones(size_t n)
{
    const float one = 1;
    float *x = need(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = one;
    float *const to = on_device(x, n * sizeof *x);
    free(x);
    return to;
}

static step_memory step_memory_make(const step_shape *m)
{
    enum {
        PAGES = STEP_OLD / KVD_PAGE_TOKENS + 1,
        PAGE_MOST = 2 * 128 * KVD_PAGE_TOKENS /* largest number of elements of a KV head's page */
    };
    static int32_t lists[(3 + PAGES) * STEP_ROWS];
    const size_t rows = (size_t)(m->n_heads + 2 * m->n_kv) * 128, model = (size_t)m->d_model,
                 ffn = (size_t)m->ffn, heads = (size_t)m->n_heads * 128;
    memset(lists, 0, sizeof lists);
    for (int b = 0; b < STEP_ROWS; b++) {
        lists[b] = b;
        lists[STEP_ROWS + b] = 1;
        lists[2 * STEP_ROWS + b] = STEP_OLD + 2 + b;
        lists[3 * STEP_ROWS + b * PAGES + PAGES - 1] = b;
    }
    return (step_memory){
        .x = random_bf16(STEP_ROWS * rows),
        .qkv = random_bf16(rows * model),
        .gate_up = random_bf16(2 * ffn * model),
        .o = random_bf16(heads * model),
        .attended = random_bf16(STEP_ROWS * heads),
        .narrow = device(2 * STEP_ROWS * ffn),
        .r = random_bf16((size_t)STEP_LAYERS * (size_t)m->n_kv * 128 * 128),
        .q = device(2 * STEP_ROWS * heads),
        .pool = device((size_t)(2 * STEP_LAYERS * STEP_ROWS) * (size_t)m->n_kv * PAGE_MOST),
        .residual = ones(STEP_ROWS * model),
        .gain = ones(model),
        .sum = ones(STEP_ROWS * model),
        .angles = ones((STEP_OLD + 2 * STEP_ROWS) * 64),
        .lists = on_device(lists, sizeof lists),
        .bad = device(sizeof(kvd_gpu_bad)),
        .time = device(2 * STEP_LAYERS * sizeof(unsigned long long)),
    };
}

static void step_memory_free(step_memory *d)
{
    device_free(d->x, d->qkv, d->gate_up, d->o, d->attended, d->narrow, d->r, d->q, d->pool,
                d->residual, d->gain, d->sum, d->angles, d->lists, d->bad, d->time);
}

static void step_layer(const step_shape *m, const step_memory *d, const kvd_append_args *append,
                       int layer, int timed, cudaStream_t s)
{
    const size_t n = (size_t)append->batch, model = (size_t)m->d_model;
    const kvd_few_rows qkv = {.kind = KVD_FEW_STORE,
                              .n = n,
                              .in = model,
                              .out = (size_t)(m->n_heads + 2 * m->n_kv) * 128,
                              .w = d->qkv,
                              .residual = d->residual,
                              .gain = d->gain,
                              .eps = 1e-5,
                              .bad = d->bad,
                              .y = d->x};
    kvd_few_rows gate_up = qkv, o = qkv;
    gate_up.kind = KVD_FEW_SWIGLU;
    gate_up.out = (size_t)m->ffn;
    gate_up.w = d->gate_up;
    gate_up.y = d->narrow;
    o.kind = KVD_FEW_ADD;
    o.in = (size_t)m->n_heads * 128;
    o.out = model;
    o.w = d->o;
    o.x = d->attended;
    o.y = d->sum;
    kvd_append_args a = *append;
    a.pool = (uint16_t *)d->pool + (size_t)(layer * STEP_ROWS) * (size_t)a.map.page_elements;
    if (a.r_qk)
        a.r_qk = (const uint16_t *)d->r + (size_t)(layer * m->n_kv) * 128 * 128;
    a.began = timed ? d->time + 2 * layer : NULL;
    a.ended = timed ? d->time + 2 * layer + 1 : NULL;
    check(kvd_few_rows_run(&qkv, s), "product");
    check(kvd_append(&a, s), "kvd_append");
    check(kvd_few_rows_run(&o, s), "product");
    check(kvd_few_rows_run(&gate_up, s), "product");
}

/* microseconds per layer: of the kernel kvd_append alone, and of all kernels */
typedef struct {
    double append, layer;
} step_time;

static double replay_us(const step_shape *m, const step_memory *d, const kvd_append_args *a,
                        int timed)
{
    cudaStream_t s;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    double us[STEP_REPLAYS];
    check(cudaStreamCreate(&s), "cudaStreamCreate");
    /* Launches a kernel before the graph capture, because the first launch loads its code. */
    step_layer(m, d, a, 0, 0, s);
    check(cudaStreamSynchronize(s), "cudaStreamSynchronize");
    check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "capture");
    check(cudaMemsetAsync(d->time, 0, 2 * STEP_LAYERS * sizeof *d->time, s), "cudaMemset");
    for (int l = 0; l < STEP_LAYERS; l++)
        step_layer(m, d, a, l, timed, s);
    check(cudaStreamEndCapture(s, &graph), "capture");
    check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    for (int i = -2; i < STEP_REPLAYS; i++) {
        timer_start(s);
        check(cudaGraphLaunch(exec, s), "cudaGraphLaunch");
        us[i < 0 ? 0 : i] = timer_ms(s) * 1000 / STEP_LAYERS;
        if (i < 0 || !timed)
            continue;
        unsigned long long time[2 * STEP_LAYERS], sum = 0;
        to_host(time, d->time, sizeof time);
        for (int l = 0; l < STEP_LAYERS; l++)
            sum += time[2 * l + 1] - time[2 * l];
        us[i] = (double)sum / 1000 / STEP_LAYERS;
    }
    check(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    check(cudaStreamDestroy(s), "cudaStreamDestroy");
    return kvd_quantile(us, STEP_REPLAYS, 0.5);
}

/* Returns the times of kvd_append and of a whole layer in a decode step. If `rotated`, K and V are
 * rotated and keep only some of their dimensions. */
static step_time step_times(const step_shape *m, const step_memory *d, int n, int rotated,
                            int ready)
{
    kvd_attn_heads heads = {.n_heads = m->n_heads, .n_kv_heads = m->n_kv, .d_head = 128};
    for (int g = 0; g < m->n_kv; g++) {
        heads.d_qk[g] = rotated ? m->d_qk[g] : 128;
        heads.d_v[g] = rotated ? m->d_v[g] : 128;
    }
    kvd_append_args a = {.dtype = KVD_BF16,
                         .d_head = 128,
                         .batch = n,
                         .n_tokens = n,
                         .lists_ready = ready,
                         .max_pages = STEP_OLD / KVD_PAGE_TOKENS + 1,
                         .rope_dim = 128};
    if (kvd_attn_map_make(&heads, &a.map))
        exit(1);
    a.token_start = d->lists;
    a.q_len = d->lists + STEP_ROWS;
    a.kv_len = d->lists + 2 * STEP_ROWS;
    a.page_table = d->lists + 3 * STEP_ROWS;
    a.x = d->x;
    a.q = d->q;
    a.rope_cos = a.rope_sin = d->angles;
    a.r_qk = rotated ? d->r : NULL;
    return (step_time){.append = replay_us(m, d, &a, 1), .layer = replay_us(m, d, &a, 0)};
}

static void steps_table(void)
{
    static const step_shape shapes[] = {
        {"2 + 16 heads (70B on 4)", 16, 2, 8192, 7168, {48, 32}, {32, 48}},
        {"8 + 32 heads (8B on 1)",
         32,
         8,
         4096,
         14336,
         {48, 32, 32, 64, 48, 32, 48, 32},
         {32, 48, 48, 32, 32, 48, 64, 32}},
    };
    static const int requests[] = {1, 2, 4, 8};
    printf("us in a graph of %d layers of decode steps, bf16, RoPE on halves: all 128 dimensions; "
           "rotated, p = 0.67\n",
           STEP_LAYERS);
    printf("%-24s %2s %5s | %6s %7s %6s | %10s %11s %6s\n", "heads", "n", "lists", "append",
           "rotated", "adds", "layer", "rotated", "adds");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const step_shape *const m = &shapes[i];
        step_memory d = step_memory_make(m);
        for (size_t k = 0; k < sizeof requests / sizeof *requests; k++)
            for (int ready = 0; ready < 2; ready++) {
                const step_time all = step_times(m, &d, requests[k], 0, ready),
                                cut = step_times(m, &d, requests[k], 1, ready);
                printf("%-24s %2d %5s | %6.2f %7.2f %6.2f | %10.2f %11.2f %6.2f\n", m->name,
                       requests[k], ready ? "early" : "late", all.append, cut.append,
                       cut.append - all.append, all.layer, cut.layer, cut.layer - all.layer);
            }
        step_memory_free(&d);
    }
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "";
    if (!gpu_devices("append", 1))
        return 0;
    if (!*only || !strcmp(only, "prefill"))
        prefill_table();
    if (!*only || !strcmp(only, "steps"))
        steps_table();
    if (*only && strcmp(only, "append"))
        return 0;
    measure_copy();
    static const int shapes[][3] = {{1, 8192, 0}, {2, 8192, 0},  {1, 8192, 8189}, {16, 512, 100},
                                    {1, 1, 8191}, {16, 1, 8191}, {64, 1, 2047},   {256, 1, 511}};
    printf(
        "32 query heads on 8 KV heads of 128, bf16, RoPE on halves; rotated by R_qk, or cut only\n");
    printf("%-14s %6s %6s %6s | %9s %7s %6s | %9s %7s | %s\n", "widths", "batch", "new", "old",
           "rotated us", "GB/s", "share", "cut us", "GB/s", "rotation adds us");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int w = 0; w < 4; w++) {
            double bytes[2];
            const int *p = shapes[s];
            const double with = append_us(w, p[0], p[1], p[2], 1, 1, &bytes[0]);
            const double without = append_us(w, p[0], p[1], p[2], 1, 0, &bytes[1]);
            printf("%-14s %6d %6d %6d | %9.1f %7.0f %5.0f%% | %9.1f %7.0f | %.1f\n", width_names[w],
                   p[0], p[1], p[2], with, bytes[0] / with / 1e3,
                   bytes[0] / with / 10 / (double)copy_gb_s, without, bytes[1] / without / 1e3,
                   with - without);
        }
    return 0;
}
