/* Compares kernels of the method cachegen, which encode and restore cache pages, with the CPU. */
#include <string.h>

#include "gpu_case.h"
#include "methods/bits/cuda/streams.h"
#include "methods/method.h"

enum {
    PAGE = KVD_PAGE_TOKENS,
    N = 3,
    MAX_PAGES = 5,
    PAGES = N * MAX_PAGES,
    MOST = PAGE * MAX_PAGES
};
static kvd_rng rng;

/* Returns `room`, the bytes for the decoder's lookup tables in shared memory. If it is 0, returns
 * the most that the device allows. */
static size_t lookup_room(size_t room)
{
    if (!room)
        check(kvd_streams_lookup_room(&room), "shared memory");
    return room;
}

static void *fetch(const void *from, size_t bytes)
{
    void *const x = need(bytes);
    check(cudaMemcpy(x, from, bytes, cudaMemcpyDeviceToHost), "copy");
    return x;
}

typedef struct {
    const char *name, *method;
    int d, kv;
    int32_t prompt[N], steps;
    size_t room; /* bytes of lookup tables; 0: the device's maximum */
} cachegen_case;

typedef struct {
    const cachegen_case *c;
    kvd_plan plan;
    kvd_cachegen_layer layer;
    int32_t table[N * MAX_PAGES], slot[N], length[N];
    int32_t *device_table, *device_slot, *device_length, *device_q_len, *live;
    uint32_t *device_units; /* [N + 1]; the last element counts units that did not fit */
    float *x;               /* [N][kv][2][MOST][d] rounded to bf16 */
} cachegen_problem;

/* Prepares the method cachegen with statistics of normally distributed numbers, and copies layer
 * 1's entropy-coding tables to the device. */
static void open_cachegen(cachegen_problem *p)
{
    const cachegen_case *const c = p->c;
    const kvd_config config = {.n_layers = 2,
                               .n_heads = c->kv,
                               .n_kv_heads = c->kv,
                               .d_head = c->d,
                               .d_model = c->d,
                               .max_positions = MOST};
    const kvd_method_setup setup = {.config = &config, .drawn = true};
    kvd_attn_heads heads = {c->kv, c->kv, c->d, {0}, {0}, 0};
    kvd_method m;
    kvd_err err = {""};
    or_end(kvd_method_parse(c->method, &m, &err), c->name, err.msg);
    p->plan = m.plan;
    p->plan.type = KVD_BF16;
    for (int g = 0; g < c->kv; g++)
        heads.d_qk[g] = heads.d_v[g] = c->d;
    or_end(kvd_plan_open(&p->plan, &setup, &err) || kvd_attn_map_make(&heads, &p->layer.map),
           c->name, err.msg);
    kvd_cachegen_coder of;
    kvd_cachegen_coder_of(p->plan.bits_self, &of);
    const size_t sides = 2 * (size_t)c->kv, n_step = sides * of.wide,
                 n_table = sides * (1 + of.wide) * KVD_STREAM_TABLE;
    p->layer.room = (kvd_stream_room){1, 8192, 0, 0};
    p->layer.group = (int32_t)of.group;
    p->layer.wide = (int32_t)of.wide;
    p->layer.block_bytes =
        kvd_stream_parts_of(p->layer.room).bytes + (4 * PAGE / of.group + 15) / 16 * 16;
    p->layer.step = on_device(of.step + n_step, n_step * sizeof *of.step);
    p->layer.table = on_device(of.table + n_table, n_table * sizeof *of.table);
    const size_t room = lookup_room(c->room);
    const uint16_t *const table = of.table + n_table;
    p->layer.lookup_size = kvd_cachegen_lookups(table, sides, of.wide, room, NULL);
    uint32_t *const lookup = need(p->layer.lookup_size.words * sizeof *lookup);
    (void)kvd_cachegen_lookups(table, sides, of.wide, room, lookup);
    p->layer.lookup = on_device(lookup, p->layer.lookup_size.words * sizeof *lookup);
    free(lookup);
    p->layer.blocks = on_device(NULL, PAGES * sides * p->layer.block_bytes);
    const size_t page = (size_t)p->layer.map.page_elements * sizeof(uint16_t);
    p->layer.ring = on_device(NULL, N * page);
    p->layer.rows = on_device(NULL, PAGES * page);
}

static void make_cachegen(cachegen_problem *p, const cachegen_case *c)
{
    memset(p, 0, sizeof *p);
    p->c = c;
    open_cachegen(p);
    const size_t rows = (size_t)(N * c->kv * 2 * MOST), d = (size_t)c->d;
    const int32_t live = N;
    p->x = need(rows * d * sizeof *p->x);
    for (size_t i = 0; i < rows * d; i++) {
        const double before = i / d % MOST ? (double)p->x[i - d] : 0;
        p->x[i] = bf16_rounded(0.6 * before + 0.8 * kvd_rng_normal(&rng) + (i % d == 3));
    }
    for (int i = 0; i < PAGES; i++)
        p->table[i] = (4 * i + 1) % PAGES;
    for (int b = 0; b < N; b++)
        p->slot[b] = (b + 1) % N;
    const uint32_t none[N + 1] = {0};
    p->device_table = on_device(p->table, sizeof p->table);
    p->device_slot = on_device(p->slot, sizeof p->slot);
    p->device_length = on_device(c->prompt, sizeof c->prompt);
    p->device_q_len = on_device(c->prompt, sizeof c->prompt);
    p->live = on_device(&live, sizeof live);
    p->device_units = on_device(none, sizeof none);
}

static void release_cachegen(cachegen_problem *p)
{
    device_free(p->layer.step, p->layer.table, p->layer.lookup, p->layer.blocks, p->layer.ring,
                p->layer.rows, p->device_table, p->device_slot, p->device_length, p->device_q_len,
                p->live, p->device_units);
    free(p->x);
    kvd_plan_close(&p->plan);
}

static kvd_stream_batch cachegen_batch(const cachegen_problem *p, bool prompts)
{
    return (kvd_stream_batch){.n = N,
                              .max_pages = MAX_PAGES,
                              .kv_len = p->device_length,
                              .slot = p->device_slot,
                              .q_len = prompts ? p->device_q_len : NULL,
                              .live = prompts ? NULL : p->live,
                              .page_table = p->device_table,
                              .n_sms = 3};
}

static const float *vector(const cachegen_problem *p, int b, int g, int side, int t)
{
    const size_t row = (((size_t)b * (size_t)p->c->kv + (size_t)g) * 2 + (size_t)side) * MOST;
    return p->x + (row + (size_t)t) * (size_t)p->c->d;
}

/* Returns the index, in the array of pages, of dimension i of the K (side 0) or V (side 1) of token
 * t in KV head g. */
static size_t row_index(const cachegen_problem *p, size_t page, int g, int side, int t, int i)
{
    const size_t d = (size_t)p->c->d;
    return page * (size_t)p->layer.map.page_elements + (size_t)p->layer.map.kv_offset[g] +
           (size_t)side * PAGE * d + kvd_blocked_index((size_t)(t % PAGE), (size_t)i, d);
}

/* If `prompts` is true, writes K and V of all prompt tokens to the cache pages. If `prompts` is
 * false, writes K and V of each request's newest token to a ring buffer. */
static void append_tokens(const cachegen_problem *p, bool prompts)
{
    const size_t page = (size_t)p->layer.map.page_elements, n = prompts ? PAGES * page : N * page;
    uint16_t *const to = prompts ? p->layer.rows : p->layer.ring, *const x = need(n * sizeof *x);
    check(cudaMemcpy(x, to, n * sizeof *x, cudaMemcpyDeviceToHost), "rows");
    for (int b = 0; b < N; b++)
        for (int t = prompts ? 0 : p->length[b] - 1;
             t < (prompts ? (p->length[b] + 7) / 8 * 8 : p->length[b]); t++)
            for (int h = 0; h < 2 * p->c->kv; h++)
                for (int i = 0; i < p->c->d; i++) {
                    const size_t at =
                        prompts ? (size_t)p->table[b * MAX_PAGES + t / PAGE] : (size_t)p->slot[b];
                    for (int z = t; !prompts && t % 8 == 0 && z < t + 8; z++)
                        x[row_index(p, at, h / 2, h % 2, z, i)] = 0;
                    x[row_index(p, at, h / 2, h % 2, t, i)] =
                        t < p->length[b] ? bf16_of((double)vector(p, b, h / 2, h % 2, t)[i]) : 0;
                }
    check(cudaMemcpy(to, x, n * sizeof *x, cudaMemcpyHostToDevice), "rows");
    free(x);
}

static void run_cachegen(cachegen_problem *p)
{
    const kvd_stream_batch prompts = cachegen_batch(p, true), steps = cachegen_batch(p, false);
    uint32_t *const units = p->device_units;
    memcpy(p->length, p->c->prompt, sizeof p->length);
    append_tokens(p, true);
    check(kvd_cachegen_code(&prompts, &p->layer, units, units + N, NULL), "code");
    check(cudaDeviceSynchronize(), "code");
    fill_bytes(p->layer.rows, 0xff,
               PAGES * (size_t)p->layer.map.page_elements * sizeof *p->layer.rows);
    for (int i = 0; i < p->c->steps; i++) {
        for (int b = 0; b < N; b++)
            p->length[b]++;
        check(cudaMemcpy(p->device_length, p->length, sizeof p->length, cudaMemcpyHostToDevice),
              "lengths");
        append_tokens(p, false);
        check(kvd_cachegen_restore(&steps, &p->layer, NULL), "restore");
        check(kvd_cachegen_code(&steps, &p->layer, units, units + N, NULL), "code");
        check(cudaDeviceSynchronize(), "code");
    }
}

/* Compares K or V of a head with the CPU's after a decode step. Returns how many elements are
 * wrong. */
static size_t wrong_rows(const cachegen_problem *p, const uint16_t *rows, int b, int h,
                         uint32_t *units)
{
    const int n = p->length[b], coded = n / PAGE * PAGE, read = (n - 1) / PAGE * PAGE, d = p->c->d;
    float *const y = need((size_t)(coded + 1) * (size_t)d * sizeof *y);
    const kvd_bits_block block = {.side = (kvd_side)(h % 2),
                                  .layer = 1,
                                  .kv_head = h / 2,
                                  .n = (size_t)coded,
                                  .d = (size_t)d,
                                  .x = vector(p, b, h / 2, h % 2, 0)};
    kvd_bits_count count = {0, 0};
    kvd_err err = {""};
    size_t wrong = 0;
    or_end(coded && p->plan.bits->code(p->plan.bits_self, &block, y, &count, &err), p->c->name,
           err.msg);
    *units += (uint32_t)(count.payload / 16);
    for (int t = 0; t < (n + 7) / 8 * 8; t++)
        for (int i = 0; i < d; i++) {
            const float want = t < read ? y[t * d + i]
                               : t < n  ? vector(p, b, h / 2, h % 2, t)[i]
                                        : 0;
            wrong += rows[row_index(p, (size_t)p->table[b * MAX_PAGES + t / PAGE], h / 2, h % 2, t,
                                    i)] != bf16_of((double)want);
        }
    free(y);
    return wrong;
}

static void test_cachegen(const cachegen_case *c)
{
    cachegen_problem p;
    make_cachegen(&p, c);
    run_cachegen(&p);
    uint16_t *const rows =
        fetch(p.layer.rows, PAGES * (size_t)p.layer.map.page_elements * sizeof *rows);
    uint32_t *const got = fetch(p.device_units, (N + 1) * sizeof *got), units[N] = {0};
    size_t wrong = 0;
    for (int b = 0; b < N; b++)
        for (int h = 0; h < 2 * c->kv; h++)
            wrong += wrong_rows(&p, rows, b, h, &units[p.slot[b]]);
    test_result(!wrong, c->name, "%zu numbers are not those of the CPU", wrong);
    test_result(!memcmp(units, got, sizeof units) && !got[N], c->name,
                "units, and no lack of room");
    host_free(rows, got);
    release_cachegen(&p);
}

static const cachegen_case cachegen_cases[] = {
    {"cachegen of narrow heads", "cachegen,group=8,groups=8,lanes=1", 16, 2, {1, 64, 130}, 65, 0},
    {"cachegen without tables", "cachegen,group=8,groups=8,lanes=1", 48, 1, {1, 64, 130}, 1, 40000},
    {"cachegen", "cachegen,bin=0.3,group=16,groups=4,lanes=1", 128, 2, {63, 200, 5}, 2, 0},
    {"cachegen of 80 dims",
     "cachegen,bin=2,group=4,groups=16,lanes=1",
     80,
     1,
     {128, 127, 129},
     1,
     0},
};

/* usage: gpu_cachegen [quick]; quick: small case, for compute-sanitizer */
int main(int argc, char **argv)
{
    const bool quick = argc > 1 && !strcmp(argv[1], "quick");
    if (!gpu_devices("cachegen", 1))
        return 0;
    kvd_rng_seed(&rng, 11, 0);
    for (size_t i = 0; i < (quick ? 1 : sizeof cachegen_cases / sizeof *cachegen_cases); i++)
        test_cachegen(&cachegen_cases[i]);
    return failures ? 1 : 0;
}
