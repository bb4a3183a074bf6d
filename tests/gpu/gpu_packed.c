/* Tests quantised caches on the GPU against the CPU. */
#include <math.h>

#define CASE_MEMORY
#include "gpu_case.h"
#include "methods/bits/cuda/packed.h"
#include "methods/bits/levels.h"
#include "methods/method.h"
#include "model/pass/blocks.h"
#include "tensor_scales.h"
#include "worst.h"

enum { N_KV = 4, N = 7 };

static const char *only; /* runs only methods whose text contains this string; NULL: all */

typedef struct {
    const char *method;
    int d;
    int length[N], steps;
    /* accepted error of x, divided by 1 + |x| */
    double bar;
    int group;
    /* true if token 0 gets nearly all attention, to test the small probabilities of the other
     * tokens */
    bool peak;
} test_case;

/* Initialises an array with prompt lengths, in tokens. */
#define LEN(...)                                                                                   \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

typedef struct {
    int window; /* sliding window in tokens; 0: none */
    bool sinks; /* the layer has attention sinks */
} layer_kind;

/* number of stored dimensions of K and of V of each KV head */
typedef struct {
    int of[2][N_KV];
} widths;

typedef struct {
    const test_case *t;
    layer_kind kind;
    widths width;
    kvd_config config;
    kvd_plan plan;
    kvd_packed_args a;
    int most, max_pages, rope;
    /* pre: keys before RoPE. x: two arrays, keys after RoPE and values. Each array is [N
     * requests][maximum tokens][N_KV][d]. */
    float *pre, *x[2];
    float *cosine, *sine;
    uint16_t *q; /* queries [N][heads][d] on the host */
    int32_t page[N][64], slot[N];
    uint16_t *pages;
    size_t n_pages;
    void *table, *len, *q_len, *start, *slots, *rows_x;
    float *sink; /* [heads] sink logits, or NULL */
    /* mass [N requests][N_KV][maximum tokens]: attention that each token receives. lse [N][heads]:
     * log-sum-exps. */
    double *mass;
    float *lse;
    void *device_lse, *queries;
} bench;

/* Returns the first of m tokens that is in the sliding window of the last one. */
static int first_seen(const bench *w, int m)
{
    return w->kind.window && m > w->kind.window ? m - w->kind.window : 0;
}

static size_t at(const bench *w, int b, int t, int g, int i)
{
    return (((size_t)b * (size_t)w->most + (size_t)t) * N_KV + (size_t)g) * (size_t)w->t->d +
           (size_t)i;
}

static int padded(const bench *w, int side, int g)
{
    return side ? w->a.map.d_v[g] : w->a.map.d_qk[g];
}

/* Returns the index, within its cache page, of element i of the K (side 0) or V (side 1) of token
 * t. */
static size_t place(const bench *w, int side, int g, int t, int i)
{
    return (size_t)w->a.map.kv_offset[g] + (side ? KVD_PAGE_TOKENS * (size_t)w->a.map.d_qk[g] : 0) +
           kvd_blocked_index((size_t)t % KVD_PAGE_TOKENS, (size_t)i, (size_t)padded(w, side, g));
}

static void clear_padding(const bench *w, int side, size_t n, int each, float *rows)
{
    const size_t d = (size_t)w->t->d;
    for (size_t i = 0; i < n * (size_t)(N_KV * each); i++) {
        const size_t width = (size_t)w->width.of[side][i / (size_t)each % N_KV];
        memset(rows + i * d + width, 0, (d - width) * sizeof *rows);
    }
}

static void make_queries(bench *w)
{
    const size_t n = (size_t)(N * N_KV * w->t->group * w->t->d);
    kvd_rng r;
    kvd_rng_seed(&r, 22, 0);
    w->q = need(n * sizeof *w->q);
    float *const q = need(n * sizeof *q);
    for (size_t i = 0; i < n; i++)
        q[i] = (float)(kvd_rng_normal(&r) * (i / (size_t)w->t->d % 3 ? 1 : 0.01));
    clear_padding(w, 0, N, w->t->group, q);
    for (size_t i = 0; i < n; i++)
        w->q[i] = bf16_of(q[i]);
}

static void make_sinks(bench *w)
{
    const int n = N_KV * w->t->group;
    kvd_rng r;
    kvd_rng_seed(&r, 23, 0);
    w->sink = w->kind.sinks ? need((size_t)n * sizeof *w->sink) : NULL;
    for (int h = 0; w->sink && h < n; h++)
        w->sink[h] = (float)(3 * kvd_rng_normal(&r));
}

static void make_peaks(bench *w)
{
    const int d = w->t->d;
    for (int b = 0; b < N; b++)
        for (int g = 0; g < N_KV; g++) {
            float *const k = w->pre + at(w, b, 0, g, 0);
            memset(k, 0, (size_t)d * sizeof *k);
            for (int h = 0; h < w->t->group; h++) {
                const uint16_t *const q = w->q + ((b * N_KV + g) * w->t->group + h) * d;
                double square = 0;
                for (int i = 0; i < d; i++)
                    square += (double)bf16_wide(q[i]) * (double)bf16_wide(q[i]);
                for (int i = 0; i < d; i++)
                    k[i] += (float)(10 * sqrt(d) / square * (double)bf16_wide(q[i]));
            }
            for (int i = 0; i < d; i++)
                k[i] = bf16_rounded(k[i]);
            memset(w->x[1] + at(w, b, 0, g, 0), 0, (size_t)d * sizeof(float));
        }
}

static void make_rows(bench *w)
{
    const int d = w->t->d;
    const size_t n = at(w, N, 0, 0, 0);
    const bool levels = kvd_gpu_packed_has_levels(&w->plan);
    kvd_rng r;
    kvd_rng_seed(&r, 21, 0);
    w->pre = need(n * sizeof(float));
    for (int side = 0; side < 2; side++)
        w->x[side] = need(n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        const double far = kvd_rng_below(&r, 300) ? 1 : 8;
        w->pre[i] = bf16_rounded(
            (float)(kvd_rng_normal(&r) * far + (levels ? 0 : (double)(i % (size_t)d % 5))));
        w->x[1][i] = bf16_rounded((float)(kvd_rng_normal(&r) * far));
    }
    if (w->t->peak)
        make_peaks(w);
    clear_padding(w, 0, (size_t)(N * w->most), 1, w->pre);
    clear_padding(w, 1, (size_t)(N * w->most), 1, w->x[1]);
    memcpy(w->x[0], w->pre, n * sizeof(float));
    for (int b = 0; b < N; b++)
        for (int t = 0; t < w->most; t++)
            for (int g = 0; w->rope && g < N_KV; g++) {
                const uint32_t position = (uint32_t)t;
                kvd_rope_apply(&w->config, w->cosine, w->sine, &position, 1, 1,
                               w->x[0] + at(w, b, t, g, 0));
            }
    for (size_t i = 0; i < n; i++)
        w->x[0][i] = bf16_rounded(w->x[0][i]);
}

/* Creates the data of test case t and initialises the compression method t->method. `narrow`:
 * number of kept dimensions per KV head, or NULL for all dimensions. */
static int open_bench(bench *w, const test_case *t, const widths *narrow, layer_kind kind,
                      kvd_err *err)
{
    kvd_method m;
    kvd_dims_head head[N_KV];
    *w = (bench){.t = t, .kind = kind};
    w->config = (kvd_config){.n_layers = 1,
                             .n_heads = N_KV * t->group,
                             .n_kv_heads = N_KV,
                             .d_head = t->d,
                             .d_model = N_KV * t->group * t->d,
                             .positions = KVD_POSITIONS_ROPE,
                             .rope_theta = 10000,
                             .max_positions = 4096};
    const kvd_method_setup setup = {.config = &w->config, .drawn = true};
    if (kvd_method_parse(t->method, &m, err))
        return -1;
    w->plan = m.plan;
    w->plan.type = KVD_BF16;
    w->plan.prompt = 1;
    if (open_with_scales(&w->plan, &setup, err))
        return -1;
    w->rope = w->plan.bits->keys_before_rope && !narrow;
    for (int b = 0; b < N; b++)
        w->most = t->length[b] + t->steps > w->most ? t->length[b] + t->steps : w->most;
    w->max_pages = (w->most + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    kvd_attn_heads heads = {
        .n_heads = w->config.n_heads, .n_kv_heads = N_KV, .d_head = t->d, .window = w->kind.window};
    kvd_attn_map map;
    for (int g = 0; g < N_KV; g++) {
        for (int side = 0; side < 2; side++)
            w->width.of[side][g] = narrow ? narrow->of[side][g] : t->d;
        head[g] = (kvd_dims_head){.d_qk = w->width.of[0][g], .d_v = w->width.of[1][g]};
        heads.d_qk[g] = (head[g].d_qk + 15) / 16 * 16;
        heads.d_v[g] = (head[g].d_v + 15) / 16 * 16;
    }
    if (kvd_attn_map_make(&heads, &map))
        return kvd_fail(err, "map");
    kvd_gpu_packed_describe(&w->plan, &w->config, &map, narrow ? head : NULL, 0, &w->a);
    if (w->a.form.allotted)
        kvd_gpu_packed_allot(&w->plan, 0, 0, &w->a, NULL);
    w->cosine = need((size_t)w->most * (size_t)t->d / 2 * sizeof(float));
    w->sine = need((size_t)w->most * (size_t)t->d / 2 * sizeof(float));
    kvd_rope_tables(&w->config, false, (size_t)w->most, (size_t)w->most, w->cosine, w->sine);
    make_queries(w);
    make_rows(w);
    make_sinks(w);
    return 0;
}

static void make_allot(bench *w)
{
    kvd_packed_allot *const to = &w->a.allot;
    kvd_allot_tables t;
    kvd_allot_tables_of(w->plan.bits_self, &t);
    const size_t n = N_KV * KVD_N_SIDES * t.wide;
    uint16_t *const word = need(n * sizeof *word);
    kvd_gpu_packed_allot(&w->plan, 0, 0, &w->a, word);
    to->wide = (int32_t)t.wide;
    to->bits = on_device(t.given, n);
    to->word = on_device(word, n * sizeof *word);
    to->scale = on_device(t.scale, 2 * n * sizeof(float));
    to->level = on_device(t.levels, ((size_t)KVD_N_SIDES * (KVD_ALLOT_BITS + 1) << KVD_ALLOT_BITS) *
                                        sizeof(float));
}

/* Makes up random queries and, for each token, the total attention that it received. Methods give
 * tokens that received more attention more bits. */
static void make_classes(bench *w, size_t slots)
{
    kvd_packed_class_codes *const c = &w->a.classes;
    const kvd_attn_map *const map = &w->a.map;
    const size_t heads = (size_t)map->n_heads, d = (size_t)w->t->d, most = (size_t)w->most,
                 pitch = (size_t)map->q_pitch;
    kvd_rng r;
    kvd_rng_seed(&r, 24, 0);
    for (int b = 0; b < N; b++)
        c->n_q8 += w->t->length[b];
    float *const mass = need(heads * (size_t)c->n_q8 * sizeof *mass);
    uint16_t *const q = need(N * pitch * sizeof *q);
    for (size_t i = 0; i < heads * (size_t)c->n_q8; i++)
        mass[i] = (float)kvd_rng_below(&r, 40) / 8;
    w->mass = need(N * N_KV * most * sizeof *w->mass);
    w->lse = need(N * heads * sizeof *w->lse);
    size_t start = 0;
    for (size_t b = 0; b < N; start += (size_t)w->t->length[b++])
        for (size_t h = 0; h < heads; h++) {
            const size_t g = h / (size_t)map->group;
            w->lse[b * heads + h] = (float)(3 + kvd_rng_normal(&r));
            memcpy(q + b * pitch + map->q_offset[h], w->q + (b * heads + h) * d,
                   (size_t)map->d_qk[g] * sizeof *q);
            for (size_t t = 0; t < (size_t)w->t->length[b]; t++) {
                double *const sum = &w->mass[(b * N_KV + g) * most + t];
                *sum = (double)((float)*sum + mass[h * (size_t)c->n_q8 + start + t]);
            }
        }
    c->mass = on_device(mass, heads * (size_t)c->n_q8 * sizeof *mass);
    c->score = on_device(NULL, N_KV * (size_t)c->n_q8 * sizeof *c->score);
    c->received =
        zeros(slots * N_KV * (size_t)(w->a.ring_pages * KVD_PAGE_TOKENS) * sizeof *c->received);
    c->q_start = w->start;
    w->device_lse = on_device(w->lse, N * heads * sizeof *w->lse);
    w->queries = on_device(q, N * pitch * sizeof *q);
}

static void make_part(bench *w, int part)
{
    kvd_packed_split_codes *const s = &w->a.split;
    const int chosen = kvd_packed_chosen(&s->of, 0, w->t->d);
    const size_t m = (size_t)(part ? w->t->d - chosen : chosen);
    kvd_turboquant_tables t;
    kvd_err err = {""};
    if (!m)
        return;
    or_end(kvd_turboquant_tables_of(w->plan.bits_self, m, &t, &err), "packed", err.msg);
    s->rotation[part] = on_device(t.rotation, m * m * sizeof *t.rotation);
    s->sketch[part] = t.sketch ? on_device(t.sketch, m * m * sizeof *t.sketch) : NULL;
    s->level[part] = on_device(t.levels, 3 * 256 * sizeof *t.levels);
}

static void make_device(bench *w)
{
    kvd_packed_args *const a = &w->a;
    int32_t next = 3;
    const size_t row = (size_t)a->map.page_elements / KVD_PAGE_TOKENS * 2, slots = 2 * N;
    for (int b = 0; b < N; b++) {
        w->slot[b] = (int32_t)((b * 3 + 1) % (2 * N));
        for (int p = 0; p < w->max_pages; p++, next = (next + 4) % (N * w->max_pages * 2 + 1))
            w->page[b][p] = next;
    }
    w->n_pages = (size_t)(N * w->max_pages * 2 + 1);
    w->pages = need(w->n_pages * (size_t)a->map.page_elements * 2);
    a->codes = zeros(w->n_pages * a->page_bytes);
    a->ring = zeros(slots * (size_t)a->ring_pages * KVD_PAGE_TOKENS * row);
    a->sink = zeros(slots * (size_t)a->n_sink * row + 16);
    a->rows = on_device(NULL, w->n_pages * (size_t)a->map.page_elements * 2);
    a->apart = zeros((slots + 1) * 4);
    a->beyond = a->apart + slots;
    a->max_pages = w->max_pages;
    a->n = N;
    int32_t *const table = need((size_t)N * (size_t)w->max_pages * 4);
    for (int b = 0; b < N; b++)
        memcpy(table + b * w->max_pages, w->page[b], (size_t)w->max_pages * 4);
    a->page_table = w->table = on_device(table, (size_t)N * (size_t)w->max_pages * 4);
    a->slot = w->slots = on_device(w->slot, sizeof w->slot);
    a->kv_len = w->len = zeros(N * 4);
    w->q_len = zeros(N * 4);
    w->start = zeros(N * 4);
    if (kvd_gpu_packed_has_levels(&w->plan)) {
        kvd_kvquant_tables t;
        kvd_kvquant_tables_of(w->plan.bits_self, &t);
        a->level = on_device(t.levels, ((size_t)4 << a->form.bits) * sizeof(float));
        a->range = on_device(t.range, N_KV * t.range_width * 2 * sizeof(float));
        a->range_width = (int32_t)t.range_width;
    }
    if (a->form.allotted)
        make_allot(w);
    if (a->row.of.joint) {
        kvd_rotatekv_tables t;
        kvd_rotatekv_tables_of(w->plan.bits_self, &t);
        a->row.turned = (int32_t)t.heads;
        a->row.clip = t.clip;
        a->row.order = on_device(t.order, t.wide * sizeof *t.order);
    }
    for (int part = 0; part < 2 && a->split.of.bits; part++)
        make_part(w, part);
    if (a->form.split) {
        const size_t n = KVD_WIDTH_MAX * (KVD_WIDTH_MAX + 1);
        double *const wave = need(n * sizeof *wave);
        kvd_gpu_packed_waves(wave);
        a->split.wave = on_device(wave, n * sizeof *wave);
    }
    a->prompt = zeros(slots * sizeof *a->prompt);
    if (a->form.classes)
        make_classes(w, slots);
    if (a->form.low_rank) {
        a->gear.partial_room = (size_t)(w->t->steps % 2 * 2 * N * N_KV) * 2 * 4 * KVD_GEAR_PART;
        a->gear.partial = on_device(NULL, a->gear.partial_room * sizeof *a->gear.partial);
        a->gear.right = zeros(slots * row * (size_t)kvd_gear_columns(a->gear.of.rank));
    }
    if (w->rope) {
        a->before_rope = true;
        a->cosine = on_device(w->cosine, (size_t)w->most * (size_t)w->t->d / 2 * sizeof(float));
        a->sine = on_device(w->sine, (size_t)w->most * (size_t)w->t->d / 2 * sizeof(float));
    }
    if (kvd_gpu_packed_has_floats(&w->plan) && w->plan.bits != &kvd_bits_mxfp4) {
        const kvd_scales *const s = w->plan.bits_self;
        a->scale = s->scale ? on_device(s->scale, N_KV * KVD_N_SIDES * sizeof *s->scale) : NULL;
    }
    if (w->rope && w->t->d % 32 == 0) {
        uint32_t *const turn = on_device(NULL, kvd_packed_rope_table_bytes(w->t->d));
        check(kvd_packed_rope_table(a->cosine, a->sine, w->t->d, turn, NULL), "turns");
        a->turn = turn;
    }
    a->ld = (size_t)N_KV * (size_t)w->t->d + 16;
    a->x_key = 16;
}

static void upload_lengths(bench *w, int step)
{
    int32_t len[N], start[N], total = 0;
    for (int b = 0; b < N; b++) {
        len[b] = w->t->length[b] + step;
        start[b] = total;
        total += w->t->length[b];
    }
    to_device(w->len, len, sizeof len);
    to_device(w->q_len, len, sizeof len);
    to_device(w->start, start, sizeof start);
}

static void upload_x(bench *w, const int *first, const int *n)
{
    size_t total = 0, row = 0;
    for (int b = 0; b < N; b++)
        total += (size_t)n[b];
    uint16_t *const x = need(total * w->a.ld * 2);
    for (int b = 0; b < N; b++)
        for (int t = first[b]; t < first[b] + n[b]; t++, row++)
            for (int k = 0; k < N_KV * w->t->d; k++)
                x[row * w->a.ld + 16 + (size_t)k] = bf16_of(w->pre[at(w, b, t, 0, k)]);
    w->a.x = w->rows_x = on_device(x, total * w->a.ld * 2);
}

static void put_token(const bench *w, uint16_t *page, int b, int t)
{
    const bool there = t < w->t->length[b];
    for (int side = 0; side < 2; side++)
        for (int g = 0; g < N_KV; g++)
            for (int i = 0; i < padded(w, side, g); i++)
                page[place(w, side, g, t, i)] = there ? bf16_of(w->x[side][at(w, b, t, g, i)]) : 0;
}

static void run_prompts(bench *w)
{
    const size_t elements = (size_t)w->a.map.page_elements;
    const int first[N] = {0};
    memset(w->pages, 0xff, w->n_pages * elements * 2);
    for (int b = 0; b < N; b++) {
        for (int t = 0; t < (w->t->length[b] + 7) / 8 * 8; t++)
            put_token(w, w->pages + (size_t)w->page[b][t / KVD_PAGE_TOKENS] * elements, b, t);
    }
    to_device(w->a.rows, w->pages, w->n_pages * elements * 2);
    upload_lengths(w, 0);
    upload_x(w, first, w->t->length);
    kvd_packed_args a = w->a;
    a.q_len = w->q_len;
    a.start = w->start;
    a.pages_side_by_side = a.form.low_rank ? 24 : 2;
    check(kvd_packed_code(&a, NULL), "code");
}

static void free_pages(bench *w, int step)
{
    int32_t *const table = need((size_t)N * (size_t)w->max_pages * 4);
    for (int b = 0; b < N; b++)
        for (int p = 0; p < w->max_pages; p++) {
            const bool freed = p < first_seen(w, w->t->length[b] + step) / KVD_PAGE_TOKENS;
            table[b * w->max_pages + p] = freed ? 1 << 28 : w->page[b][p];
        }
    to_device(w->table, table, (size_t)N * (size_t)w->max_pages * 4);
}

static void append_step(bench *w, int step)
{
    const size_t elements = (size_t)w->a.map.page_elements;
    uint16_t *const row = need((size_t)w->t->d * 2);
    int first[N], one[N];
    for (int b = 0; b < N; b++) {
        const int t = w->t->length[b] + step - 1;
        first[b] = t;
        one[b] = 1;
        uint16_t *const page = w->a.ring + ((size_t)w->slot[b] * (size_t)w->a.ring_pages +
                                            (size_t)(t / KVD_PAGE_TOKENS % w->a.ring_pages)) *
                                               elements;
        for (int side = 0; side < 2; side++)
            for (int g = 0; g < N_KV; g++) {
                const size_t d = (size_t)padded(w, side, g);
                for (size_t i = 0; i < d; i++)
                    row[i] = bf16_of(w->x[side][at(w, b, t, g, (int)i)]);
                check(cudaMemcpy2D(page + place(w, side, g, t, 0), 128, row, 16, 16, d / 8,
                                   cudaMemcpyHostToDevice),
                      "row");
            }
    }
    upload_lengths(w, step);
    upload_x(w, first, one);
}

static double received(const bench *w, int b, int g, int t)
{
    const int group = w->t->group, d = w->t->d;
    const float *const k = w->x[0] + at(w, b, t, g, 0);
    double sum = 0;
    for (int h = g * group; h < (g + 1) * group; h++) {
        const uint16_t *const q = w->q + (b * N_KV * group + h) * d;
        double product = 0;
        for (int i = 0; i < w->width.of[0][g]; i++)
            product += (double)bf16_wide(q[i]) * (double)k[i];
        sum += exp(product * (double)w->a.map.scale - (double)w->lse[b * N_KV * group + h]);
    }
    return sum;
}

static double receive(bench *w, int step)
{
    const kvd_packed_args *const a = &w->a;
    const size_t room = (size_t)(a->ring_pages * KVD_PAGE_TOKENS), n = 2 * N * N_KV * room;
    double worst = 0;
    check(kvd_packed_receive(a, w->queries, w->device_lse, NULL), "probabilities");
    float *const got = from_device(a->classes.received, n * sizeof(float));
    for (int b = 0; b < N; b++)
        for (int g = 0; g < N_KV; g++) {
            const int m = w->t->length[b] + step;
            for (int t = (m - 1) / a->k_block * a->k_block; t < m; t++) {
                double *const sum = &w->mass[(size_t)((b * N_KV + g) * w->most + t)];
                const double x =
                    (double)got[(size_t)(w->slot[b] * N_KV + g) * room + (size_t)t % room];
                worst = worse(worst, fabs(x / (*sum + received(w, b, g, t)) - 1));
                *sum = x;
            }
        }
    return worst;
}

static void copy_rows(const float *x, size_t from, float *y, size_t to, size_t n, size_t width)
{
    for (size_t i = 0; i < n; i++)
        memcpy(y + i * to, x + i * from, width * sizeof *y);
}

/* Quantises n tokens of request number `of`, and writes the dequantised tokens to `decoded`. Sets
 * n, x, seen and prompt of b; the caller sets all other fields. */
static void code_pieces(const bench *w, int of, kvd_bits_block b, int n, const float *x,
                        float *decoded)
{
    const bool blocks = kvd_packed_in_blocks(&w->a.form);
    const int block = blocks ? w->a.k_block : n,
              prompt = block ? w->t->length[of] / block * block : 0;
    const int first = blocks ? first_seen(w, w->t->length[of]) / block * block : 0;
    double *const seen = need((size_t)(n + 1) * sizeof *seen);
    kvd_bits_count count;
    kvd_err err = {""};
    b.level += first;
    b.position += first;
    b.mass += w->mass ? first : 0;
    for (int from = first, to; from < n; from = to) {
        b.prompt = blocks && from < prompt;
        to = b.prompt ? prompt : from + block;
        for (int t = from; t < to; t++)
            seen[t] = (double)(((b.prompt ? w->t->length[of] : to) - t) * w->t->group);
        b.seen = seen + from;
        b.n = (size_t)(to - from);
        b.x = x + (size_t)from * b.d;
        or_end(
            w->plan.bits->code(w->plan.bits_self, &b, decoded + (size_t)from * b.d, &count, &err),
            "packed", err.msg);
        b.level += to - from;
        b.position += to - from;
        b.mass += w->mass ? to - from : 0;
    }
}

/* Quantises tokens in groups that span all KV heads. Writes the dequantised vectors of head g to
 * decoded [n][d]. */
static void code_joint(const bench *w, int b, int g, kvd_bits_block block, int n, float *decoded)
{
    const size_t d = (size_t)w->t->d, wide = N_KV * d;
    float *const y = need((size_t)n * wide * sizeof *y);
    block.kv_head = 0;
    block.d = wide;
    if (n)
        code_pieces(w, b, block, n, (block.side ? w->x[1] : w->pre) + at(w, b, 0, 0, 0), y);
    copy_rows(y + (size_t)g * d, wide, decoded, d, (size_t)n, d);
}

/* Returns K or V of m tokens [m][d] as attention on the GPU should read them. The first *coded
 * tokens are quantised. */
static float *expected(const bench *w, int side, int b, int g, int m, int *coded)
{
    const size_t d = (size_t)w->t->d, width = (size_t)w->width.of[side][g];
    const int before = m - 1, newest = before > w->a.v_newest ? before - w->a.v_newest : 0;
    const bool blocks = w->a.form.v_channels || kvd_packed_in_blocks(&w->a.form);
    const int n = *coded = side && !blocks ? newest : before / w->a.k_block * w->a.k_block;
    float *const x = need(2 * (size_t)m * d * sizeof *x), *const y = x + (size_t)m * d,
                 *const decoded = need((size_t)m * width * sizeof *x);
    uint8_t *const level = need((size_t)m);
    uint32_t *const position = need((size_t)m * sizeof *position);
    for (int t = 0; t < m; t++) {
        position[t] = (uint32_t)t;
        level[t] = KVD_LEVEL_HIGH;
        memcpy(y + (size_t)t * d,
               (t >= n ? w->x[side]
                : side ? w->x[1]
                       : w->pre) +
                   at(w, b, t, g, 0),
               d * sizeof *x);
    }
    const kvd_bits_block block = {.side = (kvd_side)side,
                                  .kv_head = g,
                                  .d = width,
                                  .level = level,
                                  .position = position,
                                  .mass = w->mass ? w->mass + (b * N_KV + g) * w->most : NULL};
    memcpy(x, y, (size_t)m * d * sizeof *x);
    copy_rows(x, d, y, width, (size_t)m, width);
    if (w->plan.bits->all_heads)
        code_joint(w, b, g, block, n, decoded);
    else
        code_pieces(w, b, block, n, y, decoded);
    copy_rows(decoded, width, x, d, (size_t)n, width);
    if (w->rope && side == 0)
        kvd_rope_apply(&w->config, w->cosine, w->sine, position, (size_t)n, 1, x);
    return x;
}

/* Returns how many elements of the dequantised K or V differ from `want`. Padding rows after the
 * last token must be 0. */
static size_t wrong(const bench *w, int side, int b, int g, int m, int coded, const float *want,
                    double *worst)
{
    const size_t elements = (size_t)w->a.map.page_elements;
    size_t n = 0;
    for (int t = first_seen(w, m); t < (m + 7) / 8 * 8; t++)
        for (int i = 0; i < w->width.of[side][g]; i++) {
            const float x = t < m ? want[t * w->t->d + i] : 0;
            const float got =
                bf16_wide(w->pages[(size_t)w->page[b][t / KVD_PAGE_TOKENS] * elements +
                                   place(w, side, g, t, i)]);
            const double bar = t < coded ? w->t->bar * (1 + fabs((double)x)) : 0;
            const double off = fabs((double)got - (double)bf16_rounded(x)) / (1 + fabs((double)x));
            n += !(off * (1 + fabs((double)x)) <= bar);
            *worst = worse(*worst, off);
        }
    return n;
}

/* Returns the relative error of the attention output of query head h on the GPU. The head reads KV
 * head g. */
static double attention_off(const bench *w, int g, int h, int m, const float *k, const float *v,
                            const uint16_t *q, const uint16_t *o)
{
    const int d = w->t->d, d_v = w->width.of[1][g], from = first_seen(w, m);
    double *const p = need((size_t)m * sizeof *p), sum = 0, error = 0, square = 0;
    double top = w->sink ? (double)w->sink[h] : -INFINITY;
    for (int t = from; t < m; t++) {
        for (int i = 0; i < d; i++)
            p[t] += (double)bf16_wide(q[i]) * (double)k[t * d + i] / sqrt(d);
        top = p[t] > top ? p[t] : top;
    }
    sum = w->sink ? exp((double)w->sink[h] - top) : 0;
    for (int t = from; t < m; t++)
        sum += p[t] = exp(p[t] - top);
    for (int i = 0; i < d_v; i++) {
        double want = 0;
        for (int t = from; t < m; t++)
            want += p[t] / sum * (double)v[t * d + i];
        error += ((double)bf16_wide(o[i]) - want) * ((double)bf16_wide(o[i]) - want);
        square += want * want;
    }
    return sqrt(error / square);
}

typedef struct {
    size_t bad, first_bad;
    double worst, attention;
    int tokens, head; /* number of tokens and query head of the largest attention error */
} result;

static void compare(const bench *w, int step, const uint16_t *o, result *r)
{
    const size_t elements = (size_t)w->a.map.page_elements;
    const int d = w->t->d;
    size_t n = 0;
    to_host(w->pages, w->a.rows, w->n_pages * elements * 2);
    for (int b = 0; b < N; b++)
        for (int g = 0; g < N_KV; g++) {
            const int m = w->t->length[b] + step;
            float *x[2];
            for (int side = 0; side < 2; side++) {
                int coded;
                x[side] = expected(w, side, b, g, m, &coded);
                n += wrong(w, side, b, g, m, coded, x[side], &r->worst);
            }
            for (int h = g * w->t->group; o && h < (g + 1) * w->t->group; h++) {
                const size_t row = (size_t)(b * N_KV * w->t->group + h) * (size_t)d;
                const double e = attention_off(w, g, h, m, x[0], x[1], w->q + row, o + row);
                if (worse(r->attention, e) != r->attention && !isnan(r->attention)) {
                    r->tokens = m;
                    r->head = h;
                }
                r->attention = worse(r->attention, e);
            }
        }
    r->first_bad = n && !r->bad ? (size_t)step : r->first_bad;
    r->bad += n;
}

typedef struct {
    kvd_packed_decode_args args;
    uint16_t *o, *rows; /* outputs [N][heads][d] on the host; rows of the device */
    size_t bytes;       /* bytes of the device's outputs [N][o_pitch] */
} decoder;

static decoder make_decoder(const bench *w)
{
    const kvd_attn_map *const map = &w->a.map;
    const size_t heads = (size_t)map->n_heads, d = (size_t)w->t->d,
                 q_bytes = N * (size_t)map->q_pitch * sizeof(uint16_t);
    uint16_t *const q = need(q_bytes);
    for (size_t i = 0; i < N * heads; i++)
        memcpy(q + i / heads * (size_t)map->q_pitch + map->q_offset[i % heads], w->q + i * d,
               (size_t)w->width.of[0][i % heads / (size_t)map->group] * sizeof *q);
    decoder x = {.bytes = N * (size_t)map->o_pitch * sizeof *x.o};
    x.o = need(N * heads * d * sizeof *x.o);
    x.rows = need(x.bytes);
    x.args = (kvd_packed_decode_args){
        .q = on_device(q, q_bytes),
        .o = on_device(NULL, x.bytes),
        .pages_before = zeros((N + 1) * 4),
        .sinks = w->sink ? on_device(w->sink, (size_t)w->config.n_heads * 4) : NULL,
        .partial = on_device(NULL, kvd_packed_decode_bytes(5)),
        .n_ctas = 5};
    return x;
}

static void run_decoder(const bench *w, decoder *x, int step)
{
    x->args.n_ctas = 1 + step % 5;
    check(cudaMemset(x->args.o, 0xff, x->bytes), "poison");
    check(kvd_packed_decode_plan(&w->a, &x->args, NULL), "plan");
    check(kvd_packed_decode(&w->a, &x->args, NULL), "attention");
    to_host(x->rows, x->args.o, x->bytes);
    const kvd_attn_map *const map = &w->a.map;
    const size_t heads = (size_t)map->n_heads, d = (size_t)w->t->d;
    for (size_t i = 0; i < N * heads; i++)
        memcpy(x->o + i * d, x->rows + i / heads * (size_t)map->o_pitch + map->o_offset[i % heads],
               (size_t)map->d_v[i % heads / (size_t)map->group] * sizeof *x->o);
}

/* Returns the number of NaN in the buffer of recent tokens. The method gear marks outliers by NaN
 * during quantisation and must remove all marks. */
static size_t marks_left(const bench *w)
{
    const size_t n = (size_t)(2 * N * w->a.ring_pages) * (size_t)w->a.map.page_elements;
    size_t marks = 0;
    uint16_t *const x = from_device(w->a.ring, n * sizeof(uint16_t));
    for (size_t i = 0; i < n; i++)
        marks += isnan(bf16_wide(x[i])) ? 1 : 0;
    return marks;
}

static void test(const test_case *t, const widths *narrow, layer_kind kind)
{
    static size_t next;
    kvd_err err = {""};
    bench w;
    result r = {0};
    double sums = 0;
    char name[160], text[256];
    if ((only && !strstr(t->method, only)) || !in_this_part(next++))
        return;
    (void)snprintf(name, sizeof name, "%s, heads of %d, %d to a KV head%s%s, window %d%s",
                   t->method, t->d, t->group, t->peak ? ", a peak" : "", narrow ? ", cut" : "",
                   kind.window, kind.sinks ? ", sinks" : "");
    if (open_bench(&w, t, narrow, kind, &err)) {
        test_result(0, name, "%s", err.msg);
        return;
    }
    make_device(&w);
    decoder x = make_decoder(&w);
    const bool decodes = kvd_packed_decodes(&w.a);
    run_prompts(&w);
    for (int s = 1; s <= t->steps; s++) {
        append_step(&w, s);
        free_pages(&w, s);
        check(cudaMemset(w.a.rows, 0xff, w.n_pages * (size_t)w.a.map.page_elements * 2), "poison");
        kvd_packed_args a = w.a;
        a.pages_side_by_side = 1 + s % 3;
        check(kvd_packed_restore(&a, NULL), "restore");
        if (decodes)
            run_decoder(&w, &x, s);
        compare(&w, s, decodes ? x.o : NULL, &r);
        a.pages_side_by_side = 1;
        sums = w.a.form.classes ? worse(sums, receive(&w, s)) : 0;
        check(kvd_packed_code(&a, NULL), "code");
        check(cudaDeviceSynchronize(), "code");
        r.bad += marks_left(&w);
    }
    uint32_t beyond;
    to_host(&beyond, w.a.beyond, sizeof beyond);
    (void)snprintf(
        text, sizeof text,
        "%zu numbers off (first after step %zu), by %.2g at most; %u outliers without room; %s %.2g (%d "
        "tokens, head %d); probabilities off by %.2g",
        r.bad, r.first_bad, r.worst, beyond,
        decodes ? "attention on codes off by" : "no attention on codes", r.attention, r.tokens,
        r.head, sums);
    /* true for kernels that round attention probabilities to bf16 */
    const bool coarse = kvd_gpu_packed_has_levels(&w.plan) || kvd_gpu_packed_has_floats(&w.plan);
    /* accepted number of wrong elements; in the method turboquant, one quantised number that
     * differs changes several elements */
    const size_t most = w.a.split.of.bits ? 2 * (size_t)(t->d * t->steps) : 0;
    test_result(r.bad <= most && !beyond && sums < 1e-4 && r.attention <= (coarse ? 1e-2 : 6e-3),
                name, "%s", text);
    kvd_plan_close(&w.plan);
    end_case();
}

static void test_narrow(void)
{
    static const widths unequal = {{{17, 64, 33, 64}, {49, 5, 64, 16}}},
                        equal = {{{61, 61, 61, 61}, {50, 50, 50, 50}}},
                        wide = {{{128, 97, 16, 80}, {112, 128, 30, 64}}};
    static const test_case cases[] = {
        {"kivi,bits=4,group=32,residual=32", 64, LEN(1, 31, 32, 33, 64, 65, 200), 3, 0, 4, 0},
        {"kivi,bits=3,group=16,residual=16", 64, LEN(1, 15, 16, 31, 33, 65, 130), 18, 0, 4, 0},
        {"kivi,bits=2,group=64,residual=0", 64, LEN(1, 63, 64, 65, 127, 128, 129), 3, 0, 8, 0},
        {"kvquant,bits=4,outliers=0.1,sink=3", 64, LEN(1, 2, 63, 64, 65, 8, 127), 4, 0.02, 4, 0},
        {"kvquant,bits=3,outliers=0,sink=0", 64, LEN(1, 7, 8, 9, 64, 66, 130), 9, 0.02, 4, 0},
        {"fp8,scale=2", 64, LEN(1, 2, 62, 63, 64, 65, 127), 3, 0, 4, 0},
        {"mxfp4", 64, LEN(1, 16, 17, 63, 64, 65, 127), 3, 0, 4, 0},
        {"nvfp4", 64, LEN(1, 2, 62, 63, 64, 65, 127), 3, 0, 4, 0},
        {"allot,bits=4,sink=3", 64, LEN(1, 2, 3, 4, 64, 65, 127), 4, 0, 4, 0},
        {"comet,group=32", 64, LEN(1, 31, 32, 33, 64, 65, 200), 3, 0, 4, 0},
        {"gear", 64, LEN(1, 19, 20, 39, 64, 65, 200), 21, 0.01, 4, 0},
        {"hetero,k=5,v=3", 64, LEN(1, 2, 3, 4, 64, 65, 127), 3, 0, 4, 0},
        {"zipcache,block=20", 64, LEN(1, 19, 20, 39, 64, 65, 200), 21, 0, 4, 0},
        {"vidkv,group=16,residual=32", 64, LEN(1, 31, 32, 33, 64, 65, 200), 18, 0.008, 4, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test(&cases[i], &unequal, (layer_kind){0});
        test(&cases[i], &equal, (layer_kind){0});
    }
    static const test_case of_128[] = {
        {"kivi,bits=4,group=32,residual=32", 128, LEN(1, 31, 64, 65, 200, 300, 400), 2, 0, 4, 0},
        {"kivi,bits=2,group=64,residual=64", 128, LEN(1, 63, 64, 127, 128, 200, 300), 2, 0, 8, 0},
        {"kivi,bits=3,group=16,residual=0", 128, LEN(1, 15, 16, 17, 64, 200, 300), 17, 0, 1, 0},
        {"kivi,bits=8,group=32,residual=32", 128, LEN(1, 31, 64, 65, 96, 97, 200), 2, 0, 4, 0},
        {"fp8,scale=2", 128, LEN(1, 2, 63, 64, 65, 127, 200), 2, 0, 12, 0},
        {"mxfp4", 128, LEN(1, 2, 63, 64, 65, 127, 200), 2, 0, 8, 0},
        {"nvfp4", 128, LEN(1, 2, 63, 64, 65, 127, 200), 2, 0, 1, 0}};
    for (size_t i = 0; i < sizeof of_128 / sizeof *of_128; i++)
        test(&of_128[i], &wide, (layer_kind){0});
}

static void test_windows(bool quick)
{
    static const struct {
        test_case t;
        layer_kind kind;
    } cases[] = {
        {{"kivi,bits=4,group=32,residual=32", 64, LEN(1, 31, 70, 71, 127, 134, 300), 9, 0, 4, 0},
         {70, 1}},
        {{"nvfp4", 64, LEN(1, 16, 17, 18, 64, 80, 300), 6, 0, 8, 0}, {17, 1}},
        {{"comet,group=32", 64, LEN(1, 31, 32, 33, 100, 130, 300), 9, 0, 4, 0}, {100, 0}},
        {{"kivi,bits=2,group=64,residual=128", 128, LEN(1, 127, 128, 129, 255, 319, 447), 3, 0, 4,
          0},
         {128, 1}},
        {{"kivi,bits=4,group=32,residual=128", 128, LEN(1, 127, 128, 129, 256, 320, 510), 9, 0, 4,
          0},
         {150, 0}},
        {{"kivi,bits=3,group=32,residual=0", 64, LEN(1, 31, 32, 33, 64, 65, 400), 35, 0, 4, 0},
         {32, 0}},
        {{"kivi,bits=8,group=16,residual=32", 128, LEN(1, 32, 33, 65, 130, 131, 257), 2, 0, 7, 0},
         {0, 1}},
        {{"fp8", 128, LEN(1, 16, 17, 63, 64, 65, 200), 5, 0, 4, 0}, {1, 1}},
        {{"fp8,mantissa=2", 64, LEN(1, 2, 62, 63, 64, 65, 700), 5, 0, 8, 0}, {64, 0}},
        {{"mxfp4", 64, LEN(1, 127, 128, 129, 500, 700, 1000), 2, 0, 8, 0}, {128, 1}},
        {{"mxfp4", 80, LEN(1, 7, 8, 9, 64, 66, 130), 4, 0, 3, 0}, {65, 0}},
        {{"kvquant,bits=4,outliers=0,sink=0", 64, LEN(1, 7, 8, 9, 64, 166, 330), 9, 0.02, 4, 0},
         {50, 1}},
        {{"kvquant,bits=4,outliers=0,sink=3", 64, LEN(1, 7, 8, 9, 52, 166, 330), 9, 0.02, 4, 0},
         {50, 1}},
        {{"kvquant,bits=3,outliers=0,sink=70", 128, LEN(1, 7, 64, 71, 90, 110, 330), 9, 0.02, 4, 0},
         {40, 0}},
        {{"allot,bits=4,sink=0", 64, LEN(1, 2, 3, 4, 64, 165, 327), 4, 0.02, 4, 0}, {90, 0}},
        {{"allot,bits=4,sink=70", 64, LEN(1, 2, 3, 64, 92, 165, 327), 4, 0.02, 4, 0}, {90, 0}},
        {{"hetero", 64, LEN(1, 16, 17, 18, 64, 80, 300), 6, 0, 8, 0}, {17, 0}},
        {{"vidkv,group=16,residual=32", 64, LEN(1, 31, 70, 71, 127, 134, 300), 35, 0.008, 4, 0},
         {70, 0}},
        {{"turboquant,bits=2.5,group=16", 64, LEN(1, 16, 17, 18, 64, 80, 300), 18, 0.02, 4, 0},
         {17, 0}},
        {{"rotatekv,sink=0", 64, LEN(1, 7, 8, 9, 64, 166, 330), 3, 0.02, 4, 0}, {50, 0}},
        {{"rotatekv,sink=3", 64, LEN(1, 7, 8, 9, 52, 166, 330), 3, 0.02, 4, 0}, {50, 0}}};
    for (size_t i = 0; i < (quick ? 3 : sizeof cases / sizeof *cases); i++)
        test(&cases[i].t, NULL, cases[i].kind);
}

/* usage: gpu_packed [quick] [windows | METHOD] [I/N]
 * quick    small cases, for compute-sanitizer
 * windows  sliding windows and attention sinks
 * METHOD   only methods that contain this text, such as kivi,bits=4
 * I/N      part I of N of the test cases, from 1 on */
int main(int argc, char **argv)
{
    static const test_case cases[] = {
        {"kivi,bits=4,group=32,residual=128", 128, LEN(1, 127, 128, 129, 200, 255, 64), 9, 0, 4, 0},
        {"kvquant,bits=4,outliers=0.1,sink=1", 64, LEN(1, 2, 63, 64, 65, 8, 127), 4, 0.02, 4, 0},
        {"fp8,scale=2", 64, LEN(1, 2, 62, 63, 64, 65, 127), 3, 0, 4, 0},
        {"nvfp4,scale=2", 64, LEN(1, 2, 62, 63, 64, 65, 127), 3, 0, 4, 0},
        {"mxfp4", 64, LEN(1, 16, 17, 63, 64, 65, 127), 3, 0, 4, 0},
        {"gear,outliers=0.1", 64, LEN(1, 18, 19, 20, 64, 65, 127), 3, 0.01, 4, 0},
        {"rotatekv,bits=4,group=64,sink=2", 64, LEN(1, 2, 3, 4, 8, 65, 66), 2, 0.02, 4, 0},
        {"zipcache,block=20", 64, LEN(1, 18, 19, 20, 64, 65, 127), 3, 0, 4, 0},
        {"vidkv,group=16,residual=32", 64, LEN(1, 30, 31, 32, 64, 65, 127), 3, 0.008, 4, 0},
        {"turboquant,bits=2.5,group=16", 64, LEN(1, 14, 15, 16, 64, 65, 127), 3, 0.02, 4, 0},
        {"kvquant,bits=4,outliers=0.01,sink=1", 128, LEN(1, 30, 33, 96, 97, 64, 200), 3, 0.02, 4,
         0},
        {"kvquant,bits=2,outliers=0.01,sink=0", 128, LEN(1, 2, 31, 32, 128, 129, 190), 3, 0.02, 4,
         0},
        {"kivi,bits=2,group=16,residual=32", 64, LEN(1, 15, 16, 31, 32, 33, 65), 40, 0, 4, 0},
        {"kivi,bits=8,group=64,residual=64", 128, LEN(1, 63, 64, 65, 127, 129, 190), 6, 0, 4, 0},
        {"kivi,bits=3,group=32,residual=0", 64, LEN(1, 31, 32, 33, 64, 65, 100), 35, 0, 4, 0},
        {"kivi,bits=1,group=16,residual=16", 16, LEN(1, 7, 16, 17, 48, 63, 64), 20, 0, 4, 0},
        {"kivi,bits=5,group=16,residual=48", 80, LEN(1, 47, 48, 49, 95, 96, 97), 5, 0, 4, 0},
        {"kivi,bits=6,group=32,residual=64", 32, LEN(1, 64, 65, 66, 128, 129, 63), 5, 0, 4, 0},
        {"kivi,bits=7,group=64,residual=128", 112, LEN(1, 64, 128, 129, 256, 257, 63), 3, 0, 4, 0},
        {"kvquant,bits=3,outliers=0.1,sink=5", 128, LEN(1, 4, 5, 6, 64, 128, 77), 4, 0.02, 4, 0},
        {"kvquant,bits=2,outliers=0,sink=0", 32, LEN(1, 7, 8, 9, 64, 66, 130), 9, 0.02, 4, 0},
        {"kvquant,bits=4,outliers=0.2,sink=70", 64, LEN(1, 68, 69, 70, 71, 72, 200), 4, 0.02, 4, 0},
        {"kvquant,bits=3,outliers=0.01,sink=1", 64, LEN(1, 16, 17, 129, 64, 65, 250), 4, 0.02, 4,
         0},
        {"kvquant,bits=2,outliers=0,sink=1", 64, LEN(1, 16, 17, 129, 64, 65, 250), 4, 0.02, 4, 0},
        {"kivi,bits=4,group=64,residual=64", 64, LEN(1, 64, 65, 128, 129, 255, 256), 4, 0, 4, 0},
        {"kivi,bits=2,group=16,residual=16", 128, LEN(1, 16, 17, 128, 129, 255, 300), 18, 0, 4, 0},
        {"kivi,bits=3,group=32,residual=32", 128, LEN(1, 31, 32, 64, 65, 255, 257), 4, 0, 4, 0},
        {"kvquant,bits=8,outliers=0.2,sink=70", 64, LEN(1, 68, 69, 70, 71, 72, 130), 4, 0.02, 4, 0},
        {"kivi,bits=4,group=32,residual=128", 128, LEN(1, 127, 128, 129, 500, 700, 1000), 2, 0, 1,
         1},
        {"kivi,bits=8,group=16,residual=32", 64, LEN(1, 32, 33, 128, 300, 700, 1000), 3, 0, 1, 1},
        {"kivi,bits=8,group=16,residual=32", 128, LEN(1, 32, 33, 65, 130, 131, 257), 2, 0, 7, 0},
        {"kivi,bits=3,group=64,residual=0", 128, LEN(1, 63, 64, 65, 127, 128, 129), 3, 0, 8, 0},
        {"kivi,bits=4,group=32,residual=32", 128, LEN(1, 31, 32, 33, 64, 65, 200), 2, 0, 16, 0},
        {"kivi,bits=4,group=32,residual=32", 96, LEN(1, 31, 32, 33, 64, 65, 200), 2, 0, 3, 0},
        {"kvquant,bits=4,outliers=0.01,sink=1", 128, LEN(1, 64, 65, 129, 500, 700, 1000), 2, 0.02,
         1, 1},
        {"kvquant,bits=2,outliers=0.01,sink=1", 64, LEN(1, 2, 63, 64, 65, 700, 1000), 2, 0.02, 8,
         0},
        {"kvquant,bits=3,outliers=0.01,sink=1", 128, LEN(1, 2, 63, 64, 65, 191, 192), 3, 0.02, 7,
         0},
        {"kvquant,bits=4,outliers=0.003,sink=1", 128, LEN(1, 2, 63, 64, 65, 191, 193), 3, 0.02, 3,
         0},
        {"kvquant,bits=4,outliers=0.01,sink=1", 64, LEN(1, 2, 3, 63, 64, 65, 129), 2, 0.02, 12, 0},
        {"kvquant,bits=3,outliers=0.01,sink=1", 96, LEN(1, 2, 63, 64, 65, 191, 192), 2, 0.02, 3, 0},
        {"fp8", 128, LEN(1, 16, 17, 63, 64, 65, 200), 5, 0, 4, 0},
        {"fp8,scale=1", 128, LEN(1, 64, 65, 129, 500, 700, 1000), 2, 0, 1, 1},
        {"fp8,scale=2", 80, LEN(1, 7, 8, 9, 64, 66, 130), 4, 0, 3, 0},
        {"fp8,mantissa=2", 64, LEN(1, 2, 62, 63, 64, 65, 700), 5, 0, 8, 0},
        {"fp8,mantissa=2,scale=2", 128, LEN(1, 2, 62, 63, 64, 65, 200), 3, 0, 7, 0},
        {"mxfp4", 128, LEN(1, 2, 31, 63, 64, 65, 200), 5, 0, 4, 0},
        {"mxfp4", 128, LEN(1, 64, 65, 129, 500, 700, 1000), 2, 0, 1, 1},
        {"mxfp4", 80, LEN(1, 7, 8, 9, 64, 66, 130), 4, 0, 3, 0},
        {"mxfp4", 16, LEN(1, 7, 8, 9, 62, 63, 64), 4, 0, 2, 0},
        {"nvfp4", 128, LEN(1, 16, 17, 63, 64, 65, 200), 5, 0, 4, 0},
        {"nvfp4,scale=1", 128, LEN(1, 64, 65, 129, 500, 700, 1000), 2, 0, 1, 1},
        {"nvfp4,scale=2", 112, LEN(1, 7, 8, 9, 64, 66, 130), 4, 0, 3, 0},
        {"nvfp4", 64, LEN(1, 2, 62, 63, 64, 65, 130), 5, 0, 7, 0},
        {"nvfp4", 128, LEN(1, 2, 62, 63, 64, 65, 130), 2, 0, 16, 0},
        {"comet", 128, LEN(1, 127, 128, 129, 255, 257, 300), 3, 0, 4, 0},
        {"comet,bits=8,group=16", 64, LEN(1, 15, 16, 17, 64, 65, 130), 18, 0, 4, 0},
        {"comet,bits=3,group=32,symmetric=0", 80, LEN(1, 31, 32, 33, 64, 95, 96), 3, 0, 2, 0},
        {"comet,bits=2,group=192", 16, LEN(1, 190, 191, 192, 193, 383, 384), 4, 0, 2, 0},
        {"allot,bits=3.3,sink=1", 128, LEN(1, 2, 63, 64, 65, 127, 200), 3, 0.02, 4, 0},
        {"allot,bits=1,sink=70", 64, LEN(1, 69, 70, 71, 128, 129, 190), 4, 0.02, 2, 0},
        {"comet,bits=3,group=16,symmetric=0", 128, LEN(1, 15, 16, 17, 64, 65, 130), 17, 0, 8, 0},
        {"comet,bits=2,group=64", 64, LEN(1, 63, 64, 65, 127, 128, 129), 3, 0, 7, 0},
        {"comet,bits=4,group=64,symmetric=0", 128, LEN(1, 63, 64, 65, 700, 128, 129), 3, 0, 1, 1},
        {"comet,bits=5,group=64,symmetric=0", 64, LEN(1, 63, 64, 65, 127, 128, 129), 3, 0, 8, 0},
        {"kivi,bits=4,group=32,residual=32", 256, LEN(1, 31, 32, 33, 64, 65, 200), 3, 0, 2, 0},
        {"kivi,bits=3,group=64,residual=0", 256, LEN(1, 63, 64, 65, 127, 128, 129), 3, 0, 2, 0},
        {"comet,bits=4,group=32", 256, LEN(1, 31, 32, 33, 64, 65, 200), 3, 0, 2, 0},
        {"fp8", 256, LEN(1, 2, 62, 63, 64, 65, 127), 4, 0, 2, 0},
        {"mxfp4", 240, LEN(1, 2, 62, 63, 64, 65, 127), 4, 0, 2, 0},
        {"nvfp4", 256, LEN(1, 2, 62, 63, 64, 65, 127), 4, 0, 2, 0},
        {"zipcache,block=20", 256, LEN(1, 19, 20, 39, 64, 65, 200), 21, 0, 2, 0},
        {"vidkv,k=1.25,group=64,residual=64", 256, LEN(1, 62, 63, 64, 65, 127, 200), 4, 0.008, 2,
         0},
        {"turboquant,bits=2.25,group=64", 256, LEN(1, 62, 63, 64, 65, 127, 200), 4, 0.02, 2, 0},
        {"hetero", 128, LEN(1, 2, 63, 64, 65, 127, 200), 3, 0, 4, 0},
        {"hetero,k=4,v=7", 64, LEN(1, 62, 63, 64, 65, 300, 700), 3, 0, 8, 0},
        {"hetero,k=3,v=2", 128, LEN(1, 2, 15, 16, 17, 64, 500), 3, 0, 1, 0},
        {"hetero,k=16,v=1", 80, LEN(1, 7, 8, 9, 64, 66, 130), 3, 0, 2, 0},
        {"hetero,k=11,v=16", 16, LEN(1, 7, 8, 9, 62, 63, 64), 4, 0, 2, 0},
        {"rotatekv", 128, LEN(1, 19, 20, 21, 64, 65, 200), 3, 0.02, 4, 0},
        {"rotatekv,bits=5,group=32,sink=0,heads=2", 64, LEN(1, 2, 63, 64, 65, 7, 130), 3, 0.02, 4,
         0},
        {"rotatekv,bits=8,group=96,sink=70,clip=1", 16, LEN(1, 70, 71, 72, 65, 7, 130), 3, 0.02, 4,
         0},
        {"gear,rank=0,rank2=0,outliers=0", 128, LEN(1, 19, 20, 64, 65, 200, 300), 43, 0, 4, 0},
        {"gear,rank=0,rank2=0", 128, LEN(1, 19, 20, 60, 127, 333, 1000), 21, 0, 4, 0},
        {"gear,rank=0,rank2=0,outliers=0.2,bits=3,group=24,buffer=7", 80,
         LEN(1, 6, 7, 8, 64, 65, 200), 40, 0, 2, 0},
        {"gear", 128, LEN(1, 19, 20, 60, 127, 333, 1000), 21, 0.01, 4, 0},
        {"gear", 64, LEN(1, 19, 20, 60, 127, 333, 500), 3, 0.01, 9, 0},
        {"gear,bits=4,group=16,outliers=0.1", 64, LEN(1, 39, 40, 59, 60, 128, 200), 42, 0.01, 4, 0},
        {"gear,rank=8,rank2=7,buffer=100,outliers=0.05", 64, LEN(1, 98, 99, 100, 199, 300, 450), 4,
         0.01, 4, 0},
        {"gear,rank=1,rank2=3,buffer=64,group=128,iterations=1", 112,
         LEN(1, 62, 63, 64, 127, 128, 200), 4, 0.01, 4, 0},
        {"turboquant,bits=3.5,qjl=0", 128, LEN(1, 30, 31, 32, 64, 300, 1000), 4, 0.02, 4, 0},
        {"turboquant,bits=1.3,group=64", 80, LEN(1, 62, 63, 64, 127, 128, 200), 4, 0.02, 2, 0},
        {"turboquant,bits=7.9,group=16", 16, LEN(1, 14, 15, 16, 64, 63, 130), 18, 0.02, 2, 0},
        {"vidkv", 128, LEN(1, 126, 127, 128, 255, 300, 1000), 4, 0.008, 4, 0},
        {"vidkv,k=1.3,group=64,residual=64,ternary=0", 112, LEN(1, 62, 63, 64, 127, 128, 200), 4,
         0.008, 2, 0},
        {"vidkv,k=1,group=16,residual=48", 80, LEN(1, 46, 47, 48, 95, 64, 200), 50, 0.008, 2, 0},
        {"vidkv,k=2,group=32,residual=0", 16, LEN(1, 30, 31, 32, 64, 63, 130), 35, 0.008, 2, 0},
        {"zipcache", 128, LEN(1, 98, 99, 100, 199, 300, 1000), 4, 0, 4, 0},
        {"zipcache,high=8,low=1,share=0.13,block=48", 80, LEN(1, 46, 47, 48, 95, 200, 300), 52, 0,
         7, 0},
        {"zipcache,high=5,low=3,share=0.5,block=1", 64, LEN(1, 2, 3, 63, 64, 65, 130), 5, 0, 16, 0},
        {"zipcache,high=4,low=3,share=1,block=7", 16, LEN(1, 5, 6, 7, 13, 64, 128), 16, 0, 1, 0},
        {"zipcache,high=4,low=2,share=0,block=64", 112, LEN(1, 62, 63, 64, 127, 128, 200), 4, 0, 2,
         0},
        {"gear,rank=3,rank2=5,buffer=3,bits=8,iterations=5", 16, LEN(1, 2, 3, 4, 61, 64, 128), 8,
         0.01, 4, 0},
    };
    argc -= argc > 1 && read_part(argv[argc - 1]);
    const bool quick = argc > 1 && strcmp(argv[1], "quick") == 0,
               windows = argc > 1 && strcmp(argv[argc - 1], "windows") == 0;
    const size_t n = quick ? 10 : sizeof cases / sizeof *cases;
    if (!gpu_devices("packed", 1))
        return 0;
    only = argc > 1 + quick && !windows ? argv[argc - 1] : NULL;
    test_windows(quick);
    if (windows)
        return failures ? 1 : 0;
    for (size_t i = 0; i < n; i++)
        test(&cases[i], NULL, (layer_kind){0});
    test_narrow();
    return failures ? 1 : 0;
}
