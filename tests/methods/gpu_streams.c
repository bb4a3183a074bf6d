/* Compares kernels of the entropy coder with the CPU's coder (methods/bits/rans.h). Streams must be
 * equal bit for bit. */
#include <math.h>
#include <string.h>

#include "common/quantise.h"
#include "gpu_case.h"
#include "methods/bits/cuda/streams.h"
#include "methods/bits/rans.h"

enum {
    PAGE = KVD_PAGE_TOKENS,
    N = 3,
    MAX_PAGES = 5,
    PAGES = N * MAX_PAGES,
    MOST = PAGE * MAX_PAGES
};
static kvd_rng rng;

typedef struct {
    const char *name;
    /* kept: encoded numbers per token of K and of V; most_n: maximum number of distinct values of
     * such a number */
    int kept[2], most_n;
    int n_sink, words;
    /* number of prompt tokens of each request, and number of decode steps */
    int32_t prompt[N], steps;
    /* number of components that share a scale; 0: all components have one fixed quantisation
     * step */
    int group;
    /* bytes for the decoder's lookup tables; 0: as many as the device allows */
    size_t room;
} test_case;

typedef struct {
    kvd_stream_side side;
    kvd_stream_tables tables; /* on the host */
    float *y, *bias;          /* [N][MOST][kept], [kept] */
    /* [N][MOST][kept] integers to encode, including some that the entropy code's table of
     * frequencies lacks */
    int32_t *q;
    uint8_t *blocks; /* [PAGES][bytes] blocks written by the CPU */
    float *scale;    /* [N][MOST][groups][2] scales and zero points */
} one_side;

typedef struct {
    const test_case *c;
    one_side of[2];
    int32_t table[N * MAX_PAGES], slot[N], length[N];
    int32_t *device_table, *device_slot, *device_length, *device_q_len, *device_start, *live;
    /* units[slot]: number of 16-bit words in a slot's streams; units[N + 1]: number of words of the
     * longest stream that did not fit into its memory */
    uint32_t units[N + 2], *device_units;
} problem;

/* Makes a random table of frequencies for the entropy code of component j. Values further from 0
 * are less frequent. */
static int draw_component(const test_case *c, int j, int kept, kvd_stream_component *of,
                          uint16_t *start)
{
    const int most = 1 + (c->most_n - 1) * (kept - j) / kept,
              below = c->group ? 0 : (int)kvd_rng_below(&rng, (uint32_t)most),
              n = c->group ? 4 : below + 1 + (int)kvd_rng_below(&rng, (uint32_t)(most - below));
    uint64_t count[KVD_RANS_SYMBOLS] = {0};
    kvd_rans_table t;
    for (int i = 0; i < n; i++)
        count[i] = 1 + (uint64_t)(1000 * exp(-0.7 * abs(i - below)));
    count[KVD_RANS_SYMBOLS - 1] = 1;
    kvd_rans_table_make(&t, count, KVD_RANS_SYMBOLS);
    *of = (kvd_stream_component){0, (int16_t)-below, (uint16_t)n};
    memcpy(start, t.start, (size_t)(n + 1) * sizeof *start);
    return n + 1;
}

/* Quantises the components s->y to 2 bits. Each c->group components share a scale. */
static void draw_groups(const test_case *c, one_side *s)
{
    enum { BITS = 2 };
    const int kept = s->tables.kept, n = (kept + c->group - 1) / c->group;
    kvd_stream_group *const group = need((size_t)n * sizeof *group);
    uint16_t *const of = need((size_t)kept * sizeof *of);
    float *const x = need((size_t)kept * sizeof *x);
    uint8_t *const code = need((size_t)kept);
    for (int g = 0; g < n; g++) {
        const int first = g * c->group, size = first + c->group < kept ? c->group : kept - first;
        group[g] = (kvd_stream_group){(uint16_t)first, (uint16_t)size, (1 << BITS) - 1};
        for (int j = first; j < first + size; j++)
            of[j] = (uint16_t)g;
    }
    s->scale = need((size_t)N * MOST * (size_t)n * 2 * sizeof *s->scale);
    for (size_t t = 0; t < (size_t)N * MOST; t++)
        for (int g = 0; g < n; g++) {
            float *const scale = s->scale + 2 * (t * (size_t)n + (size_t)g);
            for (int j = 0; j < group[g].size; j++)
                x[j] = s->y[t * (size_t)kept + group[g].first + (size_t)j] -
                       s->bias[group[g].first + j];
            kvd_quantise_codes(x, group[g].size, BITS, code, &scale[0], &scale[1]);
            for (int j = 0; j < group[g].size; j++)
                s->q[t * (size_t)kept + group[g].first + (size_t)j] = code[j];
        }
    s->side.room.exceptions = 0;
    s->side.room.scales = n;
    s->side.group = on_device(group, (size_t)n * sizeof *group);
    s->side.group_of = on_device(of, (size_t)kept * sizeof *of);
    host_free(group, of, x, code);
}

/* Returns `room`, the bytes for the decoder's lookup tables in shared memory. If it is 0, returns
 * the most that the device allows. */
static size_t lookup_room(size_t room)
{
    if (!room)
        check(kvd_streams_lookup_room(&room), "shared memory");
    return room;
}

static void draw_side(const test_case *c, int side, one_side *s)
{
    const int kept = c->kept[side];
    const size_t n = (size_t)N * MOST * (size_t)kept;
    kvd_stream_component *const of = need((size_t)kept * sizeof *of);
    uint16_t *const start = need((size_t)kept * (KVD_RANS_SYMBOLS + 1) * sizeof *start);
    uint32_t at = 0;
    for (int j = 0; j < kept; j++) {
        const int used = draw_component(c, j, kept, &of[j], start + at);
        of[j].at = at;
        at += (uint32_t)used;
    }
    s->tables = (kvd_stream_tables){kept, of, start};
    s->y = need(n * sizeof *s->y);
    s->q = need(n * sizeof *s->q);
    s->bias = need((size_t)kept * sizeof *s->bias);
    const double step = 0.03;
    for (int j = 0; j < kept; j++)
        s->bias[j] = (float)kvd_rng_normal(&rng);
    for (size_t i = 0; i < n; i++) {
        const size_t j = i % (size_t)kept;
        const double spread = step * (0.2 + of[j].n / 6.0);
        s->y[i] = (float)(spread * kvd_rng_normal(&rng)) + s->bias[j];
        s->q[i] = (int32_t)kvd_stream_multiple((double)(s->y[i] - s->bias[j]), step);
    }
    s->side = (kvd_stream_side){
        .tables = {kept, on_device(of, (size_t)kept * sizeof *of),
                   on_device(start, at * sizeof *start)},
        .room = {kvd_stream_count(kept), c->words, c->words / 2, 0},
        .step = step,
        .offset = 0.07f,
        .bias = on_device(s->bias, (size_t)kept * sizeof *s->bias),
        .rank = (kept / 16 + 1) * 16,
    };
    const size_t room = lookup_room(c->room);
    s->side.lookup_size = kvd_stream_lookups(&s->tables, room, NULL);
    uint32_t *const lookup = need(s->side.lookup_size.words * sizeof *lookup);
    (void)kvd_stream_lookups(&s->tables, room, lookup);
    s->side.lookup = on_device(lookup, s->side.lookup_size.words * sizeof *lookup);
    free(lookup);
    if (c->group)
        draw_groups(c, s);
    const size_t bytes = PAGES * kvd_stream_parts_of(s->side.room).bytes;
    s->blocks = need(bytes);
    memset(s->blocks, 0xff, bytes);
    s->side.blocks = on_device(NULL, bytes);
}

static void make(problem *p, const test_case *c)
{
    memset(p, 0, sizeof *p);
    p->c = c;
    for (int side = 0; side < 2; side++)
        draw_side(c, side, &p->of[side]);
    p->of[1].side.latent_at = PAGE * p->of[0].side.rank;
    for (int i = 0; i < PAGES; i++)
        p->table[i] = (7 * i + 3) % PAGES;
    int32_t start[N], rows = 0;
    for (int b = 0; b < N; b++) {
        p->slot[b] = N - 1 - b;
        start[b] = rows;
        rows += c->prompt[b];
    }
    const int32_t live = N;
    p->device_table = on_device(p->table, sizeof p->table);
    p->device_slot = on_device(p->slot, sizeof p->slot);
    p->device_length = on_device(c->prompt, sizeof c->prompt);
    p->device_q_len = on_device(c->prompt, sizeof c->prompt);
    p->device_start = on_device(start, sizeof start);
    p->live = on_device(&live, sizeof live);
    p->device_units = on_device(p->units, sizeof p->units);
}

static void release(problem *p)
{
    for (int i = 0; i < 2; i++) {
        one_side *const s = &p->of[i];
        device_free(s->side.tables.component, s->side.tables.start, s->side.lookup, s->side.bias,
                    s->side.group, s->side.group_of, s->side.blocks);
        host_free((void *)(uintptr_t)s->tables.component, (void *)(uintptr_t)s->tables.start, s->y,
                  s->q, s->bias, s->blocks, s->scale);
    }
    int32_t *const all[] = {p->device_table, p->device_slot,  p->device_length,
                            p->device_q_len, p->device_start, p->live};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(cudaFree(all[i]), "cudaFree");
    check(cudaFree(p->device_units), "cudaFree");
}

/* Returns the address of the scales and zero points of token t in request b. */
static float *scales(const one_side *s, int b, int t)
{
    return s->scale + ((size_t)b * MOST + (size_t)t) * 2 * (size_t)s->side.room.scales;
}

static int32_t *integers(const one_side *s, int b, int t)
{
    return s->q + ((size_t)b * MOST + (size_t)t) * (size_t)s->tables.kept;
}

/* Lists integers of token t that the coder's tables lack, in the order in which the kernel lists
 * them, and sets them to 0 in q. */
static void list_exceptions(const one_side *s, int b, int t, int32_t *q, uint32_t *counts,
                            kvd_stream_exception *to)
{
    const int n = s->side.room.n_streams, kept = s->tables.kept;
    for (int i = 0; i < n; i++)
        for (int c = kvd_stream_last_group(kept, i, n); c >= 0; c -= n)
            for (int j = KVD_LANES * c; j < KVD_LANES * (c + 1) && j < kept; j++) {
                if (kvd_stream_has(s->tables.component[j], q[j]))
                    continue;
                if ((int)counts[2 * i + 1] < s->side.room.exceptions)
                    to[i * s->side.room.exceptions + (int)counts[2 * i + 1]] =
                        (kvd_stream_exception){(uint32_t)(j | t % PAGE << 16),
                                               integers(s, b, t)[j]};
                counts[2 * i + 1]++;
                q[j] = 0;
            }
}

/* Encodes K or V of request b on the CPU. Returns how many 16-bit words the streams have. */
static uint32_t code_request(const problem *p, one_side *s, int b)
{
    const kvd_stream_parts parts = kvd_stream_parts_of(s->side.room);
    const int n = s->side.room.n_streams, kept = s->tables.kept;
    int32_t *const q = need((size_t)kept * sizeof *q);
    uint32_t units = 0;
    for (int t = p->c->n_sink; t < p->length[b]; t++) {
        uint8_t *const block = s->blocks + (size_t)p->table[b * MAX_PAGES + t / PAGE] * parts.bytes;
        uint32_t *const state = (uint32_t *)(void *)block, *const counts =
                                                               (uint32_t *)(void *)(block +
                                                                                    parts.counts);
        uint32_t words[KVD_STREAM_GROUPS * 4], before = 0, after = 0;
        if (t % PAGE == 0 || t == p->c->n_sink) {
            for (int i = 0; i < n * KVD_LANES; i++)
                state[i] = KVD_STREAM_LEAST;
            memset(counts, 0, 2 * (size_t)n * sizeof *counts);
        }
        for (int i = 0; i < n; i++) {
            before += counts[2 * i] + 4 * counts[2 * i + 1];
            words[i] = counts[2 * i];
        }
        memcpy(q, integers(s, b, t), (size_t)kept * sizeof *q);
        if (p->c->group)
            kvd_from_f32(KVD_F16, scales(s, b, t),
                         block + parts.scales + (size_t)(t % PAGE * s->side.room.scales) * 4,
                         2 * (size_t)s->side.room.scales);
        list_exceptions(s, b, t, q, counts,
                        (kvd_stream_exception *)(void *)(block + parts.exceptions));
        kvd_stream_block streams = {state, (uint16_t *)(void *)(block + parts.words),
                                    (size_t)s->side.room.words, words};
        kvd_streams_push(&s->tables, q, &streams);
        for (int i = 0; i < n; i++) {
            counts[2 * i] = words[i];
            after += words[i] + 4 * counts[2 * i + 1];
        }
        units += after - before;
    }
    free(q);
    return units;
}

static kvd_stream_batch batch_of(const problem *p, bool prompts)
{
    return (kvd_stream_batch){.n = N,
                              .max_pages = MAX_PAGES,
                              .n_sink = p->c->n_sink,
                              .kv_len = p->device_length,
                              .slot = p->device_slot,
                              .q_len = prompts ? p->device_q_len : NULL,
                              .start = prompts ? p->device_start : NULL,
                              .live = prompts ? NULL : p->live,
                              .page_table = p->device_table,
                              .n_sms = 3};
}

/* Encodes the last n[b] tokens of each request b on the GPU. `prompts` is false in a decode
 * step. */
static void code_tokens(problem *p, const int32_t n[N], bool prompts)
{
    const kvd_stream_side side[2] = {p->of[0].side, p->of[1].side};
    const size_t ld = (size_t)(p->c->kept[0] > p->c->kept[1] ? p->c->kept[0] : p->c->kept[1]) + 3;
    size_t rows = 0;
    float *y[2];
    for (int i = 0; i < 2; i++) {
        const size_t kept = (size_t)p->of[i].tables.kept;
        float *const x = need((size_t)N * MOST * ld * sizeof *x);
        rows = 0;
        for (int b = 0; b < N; b++)
            for (int t = p->length[b] - n[b]; t < p->length[b]; t++)
                memcpy(x + ld * rows++, p->of[i].y + ((size_t)b * MOST + (size_t)t) * kept,
                       kept * sizeof *x);
        y[i] = on_device(x, rows * ld * sizeof *x);
        free(x);
    }
    const kvd_stream_batch b = batch_of(p, prompts);
    check(kvd_streams_code(&b, side, y, ld, prompts ? rows : 1, p->device_units,
                           p->device_units + N + 1, NULL),
          "code");
    check(cudaDeviceSynchronize(), "code");
    for (int i = 0; i < 2; i++)
        check(cudaFree(y[i]), "cudaFree");
}

static void code_all(problem *p)
{
    static const int32_t one[N] = {1, 1, 1};
    memcpy(p->length, p->c->prompt, sizeof p->length);
    code_tokens(p, p->c->prompt, true);
    for (int i = 0; i < p->c->steps; i++) {
        for (int b = 0; b < N; b++)
            p->length[b]++;
        check(cudaMemcpy(p->device_length, p->length, sizeof p->length, cudaMemcpyHostToDevice),
              "lengths");
        code_tokens(p, one, false);
    }
}

static void *fetch(const void *from, size_t bytes)
{
    void *const x = need(bytes);
    check(cudaMemcpy(x, from, bytes, cudaMemcpyDeviceToHost), "copy");
    return x;
}

static void test_blocks(problem *p)
{
    uint32_t *const units = fetch(p->device_units, sizeof p->units);
    for (int b = 0; b < N; b++)
        for (int side = 0; side < 2; side++)
            p->units[p->slot[b]] += code_request(p, &p->of[side], b);
    bool same = true;
    for (int side = 0; side < 2; side++) {
        const one_side *const s = &p->of[side];
        const size_t bytes = PAGES * kvd_stream_parts_of(s->side.room).bytes;
        void *const got = fetch(s->side.blocks, bytes);
        same = same && !memcmp(got, s->blocks, bytes);
        free(got);
    }
    test_result(same, p->c->name, "blocks are those of the CPU coder");
    test_result(!memcmp(units, p->units, sizeof p->units), p->c->name,
                "units, and no lack of room");
    free(units);
}

static bool latent_right(const problem *p, int side, const uint16_t *page, int b, int t, int j)
{
    const one_side *const s = &p->of[side];
    const float got =
        bf16_wide(page[s->side.latent_at + j / 8 * 512 + t % PAGE / 8 * 64 + t % 8 * 8 + j % 8]);
    if (j >= s->tables.kept)
        return !(fabsf(got - (float)(j == s->tables.kept)) > 0);
    const int32_t q = integers(s, b, t)[j];
    const float *const scale = p->c->group ? scales(s, b, t) + 2 * (j / p->c->group) : NULL;
    if (scale)
        return !(fabsf(got - bf16_rounded((double)(scale[0] * (float)q + scale[1]))) > 0);
    const double want =
        (q + (q > 0) * (double)s->side.offset - (q < 0) * (double)s->side.offset) * s->side.step;
    return fabs((double)got - want) <= 0x1p-8 * fabs(want) && (got > 0) == (q > 0);
}

static void test_decode(const problem *p)
{
    const size_t page = (size_t)(PAGE * (p->of[0].side.rank + p->of[1].side.rank)),
                 bytes = PAGES * page * sizeof(uint16_t);
    const kvd_stream_side side[2] = {p->of[0].side, p->of[1].side};
    uint16_t *const latents = on_device(NULL, bytes);
    const kvd_stream_batch all = batch_of(p, false);
    int32_t longer[N];
    for (int b = 0; b < N; b++)
        longer[b] = p->length[b] + 1;
    check(cudaMemcpy(p->device_length, longer, sizeof longer, cudaMemcpyHostToDevice), "lengths");
    check(kvd_streams_decode(&all, side, latents, page, NULL), "decode");
    check(cudaDeviceSynchronize(), "decode");
    uint16_t *const got = fetch(latents, bytes);
    size_t wrong = 0, n = 0, written = 0;
    for (size_t i = 0; i < PAGES * page; i++)
        written += got[i] != 0xffff;
    for (int b = 0; b < N; b++)
        for (int t = p->c->n_sink; t < p->length[b]; t++)
            for (int k = 0; k < 2; k++)
                for (int j = 0; j < side[k].rank; j++, n++)
                    wrong += !latent_right(
                        p, k, got + (size_t)p->table[b * MAX_PAGES + t / PAGE] * page, b, t, j);
    test_result(!wrong && written == n, p->c->name,
                "%zu of %zu components decoded wrong, %zu written", wrong, n, written);
    check(cudaFree(latents), "cudaFree");
    free(got);
}

static void test_no_room(void)
{
    static const test_case c = {"no room", {40, 40}, 60, 0, 8, {64, 64, 64}, 0, 0, 0};
    problem p;
    make(&p, &c);
    const size_t bytes = kvd_stream_parts_of(p.of[0].side.room).bytes;
    code_all(&p);
    uint32_t *const units = fetch(p.device_units, sizeof p.units);
    uint8_t *const got = fetch(p.of[0].side.blocks, PAGES * bytes);
    size_t touched = 0;
    for (size_t page = 0; page < PAGES; page++) {
        bool used = false;
        for (int b = 0; b < N; b++)
            used = used || p.table[b * MAX_PAGES] == (int32_t)page;
        for (size_t i = 0; !used && i < bytes; i++)
            touched += got[page * bytes + i] != 0xff;
    }
    test_result(units[N + 1] > 8 && !touched, c.name,
                "the lack is reported, other pages are untouched");
    host_free(units, got);
    release(&p);
}

static void test_sinks(void)
{
    enum { SINK = 70, ROW = 2 * (16 + 32), ELEMENTS = PAGE * ROW };
    static const test_case c = {"sinks", {40, 40}, 9, SINK, 400, {1, 69, 100}, 0, 0, 0};
    const kvd_attn_heads heads = {2, 2, 32, {16, 16}, {32, 32}, 0};
    kvd_attn_map map;
    problem p;
    make(&p, &c);
    if (kvd_attn_map_make(&heads, &map))
        test_result(false, c.name, "no such heads");
    uint16_t *const pages = need(PAGES * ELEMENTS * sizeof *pages);
    for (size_t i = 0; i < (size_t)PAGES * ELEMENTS; i++)
        pages[i] = (uint16_t)(1 + i % 60000);
    uint16_t *const device = on_device(pages, PAGES * ELEMENTS * sizeof *pages),
                    *const sink = on_device(NULL, (size_t)N * SINK * ROW * sizeof *sink);
    kvd_stream_batch b = batch_of(&p, true);
    check(kvd_streams_sink(&b, &map, device, sink, false, NULL), "sinks");
    check(cudaDeviceSynchronize(), "sinks");
    fill_bytes(device, 0, PAGES * ELEMENTS * sizeof *pages);
    b = batch_of(&p, false);
    check(kvd_streams_sink(&b, &map, device, sink, true, NULL), "sinks");
    check(cudaDeviceSynchronize(), "sinks");
    uint16_t *const got = fetch(device, PAGES * ELEMENTS * sizeof *got);
    size_t wrong = 0, rows = 0;
    for (int r = 0; r < N; r++)
        for (int t = 0; t < PAGE * MAX_PAGES; t++)
            for (int g = 0; g < 2; g++)
                for (int i = 0; i < 48; i++, rows++) {
                    const size_t d = i < 16 ? 16 : 32;
                    const size_t at =
                        (size_t)p.table[r * MAX_PAGES + t / PAGE] * ELEMENTS +
                        (size_t)map.kv_offset[g] + (i < 16 ? 0 : PAGE * 16) +
                        kvd_blocked_index((size_t)(t % PAGE), (size_t)(i < 16 ? i : i - 16), d);
                    const bool there = t < SINK && t < c.prompt[r] - 1;
                    wrong += got[at] != (there ? pages[at] : 0);
                }
    test_result(!wrong && rows == (size_t)PAGES * ELEMENTS, c.name, "rows of the first tokens");
    device_free(device, sink);
    host_free(pages, got);
    release(&p);
}

static const test_case cases[] = {
    {"a lane", {1, 3}, 40, 0, 256, {1, 64, 100}, 3, 0, 0},
    {"a group in part", {75, 32}, 25, 1, 3072, {1, 64, 129}, 70, 0, 0},
    {"scales", {75, 32}, 4, 1, 3072, {1, 64, 129}, 70, 8, 0},
    {"no prompt but a token", {128, 96}, 12, 3, 3072, {1, 2, 4}, 130, 0, 0},
    {"streams", {520, 300}, 200, 0, 12000, {63, 200, 5}, 2, 0, 0},
    {"few tables", {520, 300}, 200, 0, 12000, {63, 200, 5}, 2, 0, 40000},
    {"scales of wide groups", {520, 300}, 4, 0, 12000, {63, 200, 5}, 2, 100, 0},
    {"scales with few tables", {300, 90}, 4, 0, 12000, {63, 200, 5}, 2, 100, 2000},
    {"a wide model", {1024, 900}, 60, 1, 9000, {1, 130, 250}, 1, 0, 0},
};

/* usage: gpu_streams [quick]; quick: small cases, for compute-sanitizer */
int main(int argc, char **argv)
{
    const bool quick = argc > 1 && !strcmp(argv[1], "quick");
    if (!gpu_devices("streams", 1))
        return 0;
    kvd_rng_seed(&rng, 11, 0);
    for (size_t i = 0; i < (quick ? 3 : sizeof cases / sizeof *cases); i++) {
        problem p;
        make(&p, &cases[i]);
        code_all(&p);
        test_blocks(&p);
        test_decode(&p);
        release(&p);
    }
    test_no_room();
    test_sinks();
    return failures ? 1 : 0;
}
