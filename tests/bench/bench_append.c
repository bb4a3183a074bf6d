/*
 * Times kvd_append and kvd_prefill_mma. For kvd_append, also prints the bytes that must be moved
 * and their rate, relative to the copy rate in the same run. The inputs cycle through buffers
 * larger than L2.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/half.h"
#include "common/rng.h"
#include "kernels/cuda/append.h"
#include "kernels/cuda/prefill.h"

enum { LAUNCHES = 40, BUFFERS = 3 };

static void check(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
}

static void *device(size_t bytes)
{
    void *p = NULL;
    check(cudaMalloc(&p, bytes), "cudaMalloc");
    return p;
}

static void *on_device(const void *from, size_t bytes)
{
    void *p = device(bytes);
    check(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return p;
}

static void *random_bf16(size_t elements)
{
    enum { BLOCK = 1000003 };
    static uint16_t block[BLOCK];
    if (!block[0]) {
        kvd_rng rng;
        kvd_rng_seed(&rng, 3, 1);
        for (size_t i = 0; i < BLOCK; i++) {
            const float v = (float)kvd_rng_normal(&rng) * 0.3F;
            kvd_from_f32(KVD_BF16, &v, block + i, 1);
        }
    }
    uint16_t *p = device(elements * 2);
    for (size_t i = 0; i < elements; i += BLOCK)
        check(cudaMemcpy(p + i, block, 2 * (elements - i < BLOCK ? elements - i : BLOCK),
                         cudaMemcpyHostToDevice),
              "cudaMemcpy");
    return p;
}

static int rising(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float copy_gb_s;

static void measure_copy(void)
{
    const size_t bytes = (size_t)1 << 30;
    void *a = device(bytes), *b = device(bytes);
    float ms[12];
    cudaEvent_t e[2];
    check(cudaMemset(a, 0x3c, bytes), "cudaMemset");
    for (int i = 0; i < 2; i++)
        check(cudaEventCreate(&e[i]), "cudaEventCreate");
    for (int i = 0; i < 12; i++) {
        check(cudaEventRecord(e[0], NULL), "cudaEventRecord");
        check(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, NULL), "cudaMemcpyAsync");
        check(cudaEventRecord(e[1], NULL), "cudaEventRecord");
        check(cudaEventSynchronize(e[1]), "cudaEventSynchronize");
        check(cudaEventElapsedTime(&ms[i], e[0], e[1]), "cudaEventElapsedTime");
    }
    qsort(ms, 12, sizeof *ms, rising);
    copy_gb_s = (float)(2.0 * (double)bytes / (double)ms[6] / 1e6);
    printf("copy %.0f GB/s (read + write)\n", (double)copy_gb_s);
    cudaFree(a);
    cudaFree(b);
}

/* Kept dimensions of 8 KV heads, two lists per case: first of Q and K, then of V. */
static const int widths[][2][8] = {
    {{128, 128, 128, 128, 128, 128, 128, 128}, {128, 128, 128, 128, 128, 128, 128, 128}},
    {{64, 64, 64, 64, 64, 64, 64, 64}, {64, 64, 64, 64, 64, 64, 64, 64}},
    {{16, 32, 48, 64, 64, 80, 96, 112}, {64, 96, 32, 112, 16, 80, 48, 64}},
    {{64, 48, 32, 32, 64, 64, 48, 48}, {48, 64, 64, 48, 32, 32, 64, 48}},
};
static const char *const width_names[] = {"128", "64", "mix, p = 0.5", "mix, p = 0.6"};

/*
 * Times the append of n new tokens to `old` cached tokens in every request. *bytes receives the
 * bytes that must be moved.
 */
static double append_us(int w, int batch, int n, int old, int rope, int rotated, double *bytes)
{
    kvd_attn_heads heads = {.n_heads = 32, .n_kv_heads = 8, .d_head = 128};
    memcpy(heads.d_qk, widths[w][0], sizeof widths[w][0]);
    memcpy(heads.d_v, widths[w][1], sizeof widths[w][1]);
    kvd_append_args a = {.dtype = KVD_BF16, .d_head = 128, .batch = batch, .n_tokens = batch * n};
    if (kvd_attn_map_make(&heads, &a.map))
        exit(1);
    const int pages = (old + n + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS, decode = n == 1;
    int32_t *ints = malloc((size_t)batch * (size_t)(pages + 4) * sizeof *ints);
    if (!ints)
        exit(1);
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
    float us[LAUNCHES];
    cudaEvent_t e[2];
    for (int i = 0; i < 2; i++)
        check(cudaEventCreate(&e[i]), "cudaEventCreate");
    /*
     * In decode, several launches run between two CUDA events, so that the overhead of the events
     * does not count.
     */
    const int many = decode ? 20 : 1;
    for (int i = -3, k = 0; i < LAUNCHES; i++) {
        check(cudaEventRecord(e[0], NULL), "cudaEventRecord");
        for (int j = 0; j < many; j++, k++) {
            a.x = x[k % BUFFERS];
            a.q = q[k % BUFFERS];
            a.pool = pool[k % BUFFERS];
            check(kvd_append(&a, NULL), "kvd_append");
        }
        check(cudaEventRecord(e[1], NULL), "cudaEventRecord");
        check(cudaEventSynchronize(e[1]), "cudaEventSynchronize");
        if (i >= 0) {
            check(cudaEventElapsedTime(&us[i], e[0], e[1]), "cudaEventElapsedTime");
            us[i] *= 1000.0F / (float)many;
        }
    }
    qsort(us, LAUNCHES, sizeof *us, rising);
    double read = 0;
    for (int g = 0; g < 8; g++)
        read += (rotated || rope ? 128 : heads.d_qk[g]) * 5 + heads.d_v[g];
    *bytes = 2 * (double)tokens *
             (read + (double)a.map.q_pitch + (double)a.map.page_elements / KVD_PAGE_TOKENS);
    for (int i = 0; i < BUFFERS; i++) {
        cudaFree(x[i]);
        cudaFree(q[i]);
        cudaFree(pool[i]);
    }
    cudaFree(angles);
    cudaFree(r);
    cudaFree(dev);
    return (double)us[LAUNCHES / 2];
}

static double prefill_ms(int w, int batch, int n, int rows)
{
    kvd_attn_heads heads = {.n_heads = 32, .n_kv_heads = 8, .d_head = 128};
    memcpy(heads.d_qk, widths[w][0], sizeof widths[w][0]);
    memcpy(heads.d_v, widths[w][1], sizeof widths[w][1]);
    const int pages = n / KVD_PAGE_TOKENS, levels = (n + rows - 1) / rows,
              n_tiles = levels * 32 * batch;
    kvd_prefill_args a = {.dtype = KVD_BF16, .batch = batch, .max_pages = pages, .n_q8 = batch * n};
    int32_t *ints = malloc((size_t)batch * (size_t)(pages + 3) * sizeof *ints);
    kvd_prefill_tile *tile = malloc((size_t)n_tiles * sizeof *tile);
    if (kvd_attn_map_make(&heads, &a.map) || !ints || !tile)
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
    float ms[LAUNCHES];
    cudaEvent_t e[2];
    for (int i = 0; i < 2; i++)
        check(cudaEventCreate(&e[i]), "cudaEventCreate");
    for (int i = -3; i < LAUNCHES; i++) {
        check(cudaMemsetAsync(next, 0, 4, NULL), "cudaMemsetAsync");
        check(cudaEventRecord(e[0], NULL), "cudaEventRecord");
        check(kvd_prefill_mma(&a, NULL), "kvd_prefill_mma");
        check(cudaEventRecord(e[1], NULL), "cudaEventRecord");
        check(cudaEventSynchronize(e[1]), "cudaEventSynchronize");
        if (i >= 0)
            check(cudaEventElapsedTime(&ms[i], e[0], e[1]), "cudaEventElapsedTime");
    }
    qsort(ms, LAUNCHES, sizeof *ms, rising);
    cudaFree(q);
    cudaFree(pool);
    cudaFree(o);
    cudaFree(tiles);
    cudaFree(dev);
    cudaFree(next);
    free(ints);
    free(tile);
    return (double)ms[LAUNCHES / 2];
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

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : ""; /* "append", "prefill", or "" for both */
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices < 1) {
        printf("no CUDA device\n");
        return 0;
    }
    if (strcmp(only, "append"))
        prefill_table();
    if (!strcmp(only, "prefill"))
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
