/* Compares attention of prompts on the GPU with a reference. Memory that the kernels must not read
 * is filled with NaN. */
#include <math.h>
#include <stdbool.h>

#include "kernels/attention_ref.h"
#include "kernels/cuda/prefill.h"

#include "gpu_case.h"

enum { MAX_BATCH = 8, POISON = 0x7fff };

typedef struct {
    const char *name;
    cudaError_t (*run)(const kvd_prefill_args *args, cudaStream_t stream);
    int hopper; /* true: requires compute capability 9 */
} kernel;

static const kernel kernels[] = {{"prefill_sm90", kvd_prefill_sm90, 1},
                                 {"prefill_mma", kvd_prefill_mma, 0}};

typedef struct {
    const char *name;
    kvd_dtype dtype;
    int n_heads, n_kv, d_head;
    int d_qk, d_v; /* kept dimensions; 0: different for each head */
    int tile_rows, listed, n_ctas;
    double sharpness; /* factor of queries; a large one makes the softmax sharp */
    int lengths[MAX_BATCH][2];
} scenario;

static float *values(size_t n, kvd_dtype dtype, double scale, kvd_rng *rng)
{
    float *x = need(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(scale * kvd_rng_normal(rng) * (kvd_rng_below(rng, 100) ? 1 : 6));
    free(round_to(dtype, x, n));
    return x;
}

static uint16_t *poisoned(size_t n)
{
    uint16_t *p = need(n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = POISON;
    return p;
}

static void poison_old_pages(uint16_t *pool, size_t page_elements, const int32_t *table, int oldest)
{
    for (int j = 0; j < oldest / KVD_PAGE_TOKENS; j++)
        for (size_t i = 0; i < page_elements; i++)
            pool[(size_t)table[j] * page_elements + i] = POISON;
}

static void run(const kernel *tested, const scenario *c, int window, bool sinks)
{
    kvd_rng rng;
    char label[64];
    kvd_rng_seed(&rng, 11, (uint64_t)(c->n_heads + c->tile_rows));
    kvd_attn_heads heads = {
        .n_heads = c->n_heads, .n_kv_heads = c->n_kv, .d_head = c->d_head, .window = window};
    for (int g = 0; g < c->n_kv; g++) {
        heads.d_qk[g] = c->d_qk ? c->d_qk : 16 * (1 + (g * 3 + 2) % (c->d_head / 16));
        heads.d_v[g] = c->d_v ? c->d_v : 16 * (1 + (g * 5 + 4) % (c->d_head / 16));
    }
    kvd_attn_map map;
    int32_t q_len[MAX_BATCH], kv_len[MAX_BATCH], q_start[MAX_BATCH];
    kvd_attn_batch batch = {0, q_len, kv_len};
    size_t n_q = 0, n_kv = 0;
    int pages = 0, longest = 0;
    for (; batch.batch < MAX_BATCH && c->lengths[batch.batch][0]; batch.batch++) {
        const int b = batch.batch;
        q_len[b] = c->lengths[b][0];
        kv_len[b] = c->lengths[b][1];
        n_q += (size_t)q_len[b];
        n_kv += (size_t)kv_len[b];
        pages += (kv_len[b] + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
        longest = kv_len[b] > longest ? kv_len[b] : longest;
    }
    const size_t n_q8 = kvd_blocked_rows(&batch, q_start);
    or_end(kvd_attn_map_make(&heads, &map), c->name, "no map");
    const int max_pages = (longest + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS + 1;
    int32_t *order = shuffled(&rng, pages),
            *table = need((size_t)(batch.batch * max_pages) * sizeof *table);
    for (int b = 0, next = 0; b < batch.batch; b++)
        for (int j = 0; j < max_pages; j++)
            table[b * max_pages + j] =
                j * KVD_PAGE_TOKENS < kv_len[b] ? 1 + order[next++] : -1000000;
    size_t sum_qk = 0, sum_v = 0;
    for (int g = 0; g < c->n_kv; g++) {
        sum_qk += (size_t)heads.d_qk[g];
        sum_v += (size_t)heads.d_v[g];
    }
    float *q = values(n_q * (size_t)map.q_pitch, c->dtype, c->sharpness, &rng);
    float *k = values(n_kv * sum_qk, c->dtype, 1, &rng),
          *v = values(n_kv * sum_v, c->dtype, 1, &rng);
    const size_t pool_elements = (size_t)(pages + 2) * (size_t)map.page_elements;
    const size_t q_elements = n_q8 * (size_t)map.q_pitch, o_elements = n_q8 * (size_t)map.o_pitch;
    uint16_t *pool = poisoned(pool_elements), *q16 = poisoned(q_elements),
             *o = poisoned(o_elements);
    kvd_pack_kv(&map, &batch, (int)c->dtype, k, v, table, max_pages, pool);
    kvd_pack_q(&map, &batch, (int)c->dtype, q, q16);
    for (int b = 0; window && b < batch.batch; b++)
        poison_old_pages(pool, (size_t)map.page_elements, table + b * max_pages,
                         kv_len[b] - q_len[b] - window + 1);

    kvd_prefill_tile *tile = need((size_t)c->n_heads * (n_q / 64 + MAX_BATCH) * sizeof *tile);
    int n_tiles = 0;
    for (int b = 0; b < batch.batch; b++)
        for (int h = 0; h < c->n_heads; h++)
            for (int row = 0; row < q_len[b]; row += c->tile_rows) {
                const int left = q_len[b] - row,
                          j = (int)kvd_rng_below(&rng, (uint64_t)n_tiles + 1);
                tile[n_tiles++] = tile[j];
                tile[j] = (kvd_prefill_tile){b, h, row, left < c->tile_rows ? left : c->tile_rows};
            }
    int32_t *first = need((size_t)(c->n_ctas + 1) * sizeof *first);
    for (int i = 0; i <= c->n_ctas; i++)
        first[i] = i >= c->n_ctas - 1 ? n_tiles : n_tiles * i / c->n_ctas;
    const int32_t zero = 0;
    float *const sink = sinks ? some_sinks(&rng, c->n_heads, 3 * c->sharpness) : NULL;
    float *lse = need((size_t)c->n_heads * n_q8 * sizeof *lse);
    for (size_t i = 0; i < (size_t)c->n_heads * n_q8; i++)
        lse[i] = -12345.0F;
    unsigned long long *busy = need((size_t)c->n_ctas * sizeof *busy);
    memset(busy, 0xff, (size_t)c->n_ctas * sizeof *busy);
    void *dev[] = {
        on_device(q_start, sizeof q_start),
        on_device(q_len, sizeof q_len),
        on_device(kv_len, sizeof kv_len),
        on_device(table, (size_t)(batch.batch * max_pages) * sizeof *table),
        on_device(q16, q_elements * 2),
        on_device(pool, pool_elements * 2),
        on_device(o, o_elements * 2),
        on_device(lse, (size_t)c->n_heads * n_q8 * sizeof *lse),
        on_device(busy, (size_t)c->n_ctas * sizeof *busy),
        on_device(tile, (size_t)n_tiles * sizeof *tile),
        on_device(first, (size_t)(c->n_ctas + 1) * sizeof *first),
        on_device(&zero, sizeof zero),
        sink ? on_device(sink, (size_t)c->n_heads * sizeof *sink) : NULL,
    };
    const kvd_prefill_args args = {
        .dtype = (int)c->dtype,
        .map = map,
        .batch = batch.batch,
        .max_pages = max_pages,
        .n_q8 = (int32_t)n_q8,
        .q_start = dev[0],
        .q_len = dev[1],
        .kv_len = dev[2],
        .page_table = dev[3],
        .q = dev[4],
        .pool = dev[5],
        .sinks = dev[12],
        .o = dev[6],
        .lse = dev[7],
        .busy = dev[8],
        .work = {.tile = dev[9],
                 .n_tiles = n_tiles,
                 .first = c->listed ? dev[10] : NULL,
                 .next = c->listed ? NULL : dev[11],
                 .n_ctas = c->n_ctas},
    };
    check(tested->run(&args, NULL), c->name);
    check(cudaDeviceSynchronize(), c->name);
    to_host(o, dev[6], o_elements * 2);
    to_host(lse, dev[7], (size_t)c->n_heads * n_q8 * sizeof *lse);
    to_host(busy, dev[8], (size_t)c->n_ctas * sizeof *busy);

    double *want = need(n_q * (size_t)map.o_pitch * sizeof *want),
           *want_lse = need((size_t)c->n_heads * n_q * 8);
    float *got = need(n_q * (size_t)map.o_pitch * sizeof *got);
    kvd_err err = {""};
    or_end(kvd_attention_ref_sinks(&heads, &batch, sink, q, k, v, want, want_lse, &err), c->name,
           err.msg);
    kvd_unpack_o(&map, &batch, (int)c->dtype, 0, o, got);
    double error = 0, norm = 0, off = 0;
    for (size_t i = 0; i < n_q * (size_t)map.o_pitch; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += want[i] * want[i];
    }
    size_t touched = 0, never = 0, row = 0;
    for (int b = 0; b < batch.batch; row += (size_t)q_len[b], b++)
        for (size_t t = 0; t < ((size_t)q_len[b] + 7) / 8 * 8; t++) {
            const size_t at = (size_t)q_start[b] + t;
            const int there = t < (size_t)q_len[b];
            for (size_t i = 0; !there && i < (size_t)map.o_pitch; i++)
                touched += o[at * (size_t)map.o_pitch + i] != POISON;
            for (size_t h = 0; h < (size_t)c->n_heads; h++) {
                const double x = (double)lse[h * n_q8 + at];
                if (there) {
                    const double y = want_lse[h * n_q + row + t], d = fabs(x - y) / (1 + fabs(y));
                    off = d > off || isnan(d) ? d : off;
                } else {
                    touched += lse[h * n_q8 + at] != -12345.0F;
                }
            }
        }
    for (int i = 0; i < c->n_ctas; i++)
        never += busy[i] > 10000000000ULL || (c->listed && i == c->n_ctas - 1 && busy[i]);
    const double limit = c->dtype == KVD_BF16 ? 4e-3 : 1e-3;
    (void)snprintf(label, sizeof label, "%s, window %d%s", tested->name, window,
                   sinks ? ", sinks" : "");
    test_result(sqrt(error / norm) < limit && off < 1e-4 && !touched && !never, c->name,
                "%s: error %.2g of %.0e, lse off by %.2g, %zu touched, %zu times of CTAs wrong",
                label, sqrt(error / norm), limit, off, touched, never);
    free_all((const void *const *)dev, sizeof dev / sizeof *dev);
    host_free(order, table, q, k, v, pool, q16, o, tile, first, lse, busy, want, want_lse, got,
              sink);
}

int main(int argc, char **argv)
{
#define LENGTHS(...)                                                                               \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
    /* Columns: name, type, query heads, KV heads, d_head, d_qk, d_v, tile_rows, 1 if each CTA has a
     * fixed list of tiles, CTAs, factor by which query vectors are multiplied, {new tokens, all
     * tokens} of each request. */
    static const scenario cases[] = {
        {"dense", KVD_BF16, 2, 1, 128, 128, 128, 192, 0, 5, 1, LENGTHS({300, 300})},
        {"dense_f16", KVD_F16, 2, 1, 128, 128, 128, 128, 0, 5, 1, LENGTHS({257, 257})},
        {"one", KVD_BF16, 4, 4, 128, 64, 48, 192, 1, 3, 1, LENGTHS({1, 1})},
        {"short", KVD_BF16, 4, 2, 128, 32, 80, 192, 1, 3, 1,
         LENGTHS({3, 3}, {1, 9}, {8, 8}, {1, 64}, {1, 65})},
        {"mixed", KVD_BF16, 8, 8, 128, 0, 0, 192, 0, 11, 1,
         LENGTHS({193, 193}, {64, 70}, {65, 65}, {7, 150})},
        {"mixed_f16", KVD_F16, 16, 8, 128, 0, 0, 64, 1, 11, 1,
         LENGTHS({100, 333}, {191, 191}, {1, 129})},
        {"mixed_listed", KVD_BF16, 16, 8, 128, 0, 0, 128, 1, 9, 1,
         LENGTHS({129, 129}, {127, 128}, {5, 6})},
        {"groups_of_3", KVD_BF16, 9, 3, 128, 0, 0, 192, 0, 132, 1, LENGTHS({200, 200}, {20, 85})},
        {"group_of_8", KVD_F16, 8, 1, 64, 48, 64, 192, 0, 4, 1, LENGTHS({140, 210})},
        {"narrow", KVD_F16, 2, 2, 128, 16, 16, 192, 0, 4, 1, LENGTHS({200, 264}, {63, 63})},
        {"wide_v", KVD_BF16, 2, 1, 128, 16, 128, 192, 0, 4, 1, LENGTHS({380, 380})},
        {"wide_qk", KVD_BF16, 2, 1, 128, 128, 16, 192, 0, 4, 1, LENGTHS({380, 383})},
        {"sharp", KVD_BF16, 8, 8, 128, 0, 0, 192, 0, 8, 12, LENGTHS({250, 250}, {70, 300})},
        {"sharp_f16", KVD_F16, 8, 8, 128, 0, 0, 128, 0, 8, 30, LENGTHS({250, 250}, {70, 300})},
        {"long", KVD_BF16, 2, 1, 128, 80, 96, 192, 0, 16, 3, LENGTHS({900, 1111})},
        {"256", KVD_BF16, 2, 1, 256, 256, 256, 128, 0, 5, 1, LENGTHS({300, 300})},
        {"256_f16", KVD_F16, 2, 1, 256, 256, 256, 128, 0, 5, 1, LENGTHS({257, 257})},
        {"256_one", KVD_BF16, 4, 4, 256, 144, 240, 128, 1, 3, 1, LENGTHS({1, 1})},
        {"256_short", KVD_BF16, 4, 2, 256, 240, 208, 128, 1, 3, 1,
         LENGTHS({3, 3}, {1, 9}, {8, 8}, {1, 64}, {1, 65})},
        {"256_mixed", KVD_BF16, 8, 8, 256, 0, 0, 128, 0, 11, 1,
         LENGTHS({193, 193}, {64, 70}, {65, 65}, {7, 150})},
        {"256_mixed_f16", KVD_F16, 16, 8, 256, 0, 0, 64, 1, 11, 1,
         LENGTHS({100, 333}, {191, 191}, {1, 129})},
        {"256_group_of_8", KVD_BF16, 8, 1, 256, 256, 192, 128, 0, 4, 1, LENGTHS({140, 210})},
        {"256_narrow_v", KVD_BF16, 4, 2, 256, 240, 16, 128, 0, 4, 1, LENGTHS({200, 264}, {63, 63})},
        {"256_narrow_qk", KVD_F16, 4, 2, 256, 16, 240, 128, 0, 4, 1, LENGTHS({200, 264}, {63, 63})},
        {"256_sharp", KVD_BF16, 8, 8, 256, 0, 0, 128, 0, 8, 12, LENGTHS({250, 250}, {70, 300})},
        {"256_long", KVD_BF16, 2, 1, 256, 256, 256, 128, 0, 16, 3, LENGTHS({900, 1111})},
    };
    static const int windows[] = {1, 17, 64, 100, 1000};
    const char *only = argc > 1 ? argv[1] : NULL, *only_kernel = argc > 2 ? argv[2] : NULL;
    const int only_window = argc > 3 ? atoi(argv[3]) : -1;
    if (!gpu_devices("prefill", 1))
        return 0;
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        const kernel *const one = &kernels[k];
        if (only_kernel && strcmp(only_kernel, one->name))
            continue;
        if (one->hopper && !on_hopper()) {
            printf("skip %s: the device is not a Hopper\n", one->name);
            continue;
        }
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            if (!only || !strcmp(only, cases[i].name)) {
                run(one, &cases[i], only_window > 0 ? only_window : 0, false);
                run(one, &cases[i], only_window > 0 ? only_window : 0, true);
                for (size_t w = 0; !only && w < sizeof windows / sizeof *windows; w++)
                    run(one, &cases[i], windows[w], w % 2 == 1);
            }
        const kvd_prefill_args empty = {0};
        if (only)
            continue;
        test_result(one->run(&empty, NULL) == cudaErrorInvalidValue, one->name, "refusal");
    }
    return failures != 0;
}
