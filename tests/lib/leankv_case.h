/* Cases of gpu_leankv.c: prompts on the host, cache pages on the device. */
#ifndef KVD_TESTS_LEANKV_CASE_H
#define KVD_TESTS_LEANKV_CASE_H

#include <math.h>
#include <stdbool.h>

#include "common/quantise.h"
#include "gpu_case.h"
#include "kernels/attention_ref.h"
#include "methods/tokens/cuda/leankv.h"

/* sizes of the tests: requests, layers, layer that is tested, largest head dimension, most query
 * heads per KV head */
enum { ROWS = 3, LAYERS = 2, LAYER = 1, D_MAX = 128, GROUP_MAX = 8 };

typedef struct {
    const char *name;
    int d, kv, group, k_bits[KVD_LEANKV_LEVELS], v_bits[KVD_LEANKV_LEVELS];
    int32_t n[ROWS]; /* tokens of each prompt */
    int steps, window;
    double th, tl;
} setting;

static const setting settings[] = {
    {"K8V4 K4V2, d 64", 64, 2, 2, {8, 4}, {4, 2}, {150, 37, 90}, 12, 16, 0.3, 0.05},
    {"K8V4 K4V2, d 128, group 4", 128, 2, 4, {8, 4}, {4, 2}, {700, 1, 331}, 40, 64, 0.2, 0.02},
    {"K8V8 K4V4, d 32, group 1", 32, 3, 1, {8, 4}, {8, 4}, {200, 130, 64}, 40, 8, 0.5, 0.1},
    {"K8V8 K8V2, d 64, group 8", 64, 1, 8, {8, 8}, {8, 2}, {129, 300, 65}, 30, 32, 0.4, 0},
    {"K4V4 K4V2, d 128, group 7", 128, 1, 7, {4, 4}, {4, 2}, {260, 100, 17}, 30, 16, 0.3, 0.3},
    {"K4V8 K4V8, d 32, group 3", 32, 2, 3, {4, 4}, {8, 8}, {90, 310, 200}, 60, 1, 0.6, 0.5},
};

typedef struct {
    const setting *s;
    kvd_rng rng;
    kvd_attn_heads heads;
    kvd_attn_map map;
    int32_t kv_len[ROWS], q_start[ROWS], slot[ROWS + 1];
    int max_pages, n_q8;
    /* Q, K and V; vectors of a head are contiguous */
    float *q, *k, *v;
    /* [n_heads][tokens] sum of the attention probabilities that later tokens give to this token */
    double *mass;
    kvd_leankv_pool pool;
    size_t bytes_of_pages;
    uint16_t *fresh; /* device pages with K and V before quantisation */
    kvd_leankv_prompts p;
    kvd_leankv_steps t;
    /* Logits of attention sinks, used in cases with more than two query heads per KV head. */
    float sinks[KVD_HEADS_MAX];
} fixture;

/* Returns random numbers. The mean differs between channels, as in keys of trained models. */
static float *numbers(fixture *f, size_t n, double spread)
{
    float *const x = need(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_rounded(spread * kvd_rng_normal(&f->rng) +
                            0.5 * cos((double)(i % (size_t)f->s->d)));
    return x;
}

static size_t all_tokens(const fixture *f)
{
    size_t n = 0;
    for (int i = 0; i < ROWS; i++)
        n += (size_t)f->s->n[i];
    return n;
}

static size_t first_token(const fixture *f, int row)
{
    size_t n = 0;
    for (int i = 0; i < row; i++)
        n += (size_t)f->s->n[i];
    return n;
}

static void make_masses(fixture *f, double *lse)
{
    const setting *const s = f->s;
    const size_t tokens = all_tokens(f), d = (size_t)s->d;
    double *const p = need(tokens * sizeof *p);
    for (int h = 0; h < s->kv * s->group; h++)
        for (int r = 0; r < ROWS; r++) {
            const float *const q = f->q + ((size_t)h * tokens + first_token(f, r)) * d,
                               *const k =
                                   f->k + ((size_t)(h / s->group) * tokens + first_token(f, r)) * d;
            double *const to = f->mass + (size_t)h * tokens + first_token(f, r);
            for (size_t i = 0; i < (size_t)s->n[r]; i++) {
                double sum = 0;
                for (size_t j = 0; j <= i; j++) {
                    double x = 0;
                    for (size_t e = 0; e < d; e++)
                        x += (double)q[i * d + e] * (double)k[j * d + e];
                    sum += p[j] = exp(x * (double)f->map.scale);
                }
                for (size_t j = 0; j < i; j++)
                    to[j] += p[j] / sum;
                lse[(size_t)h * tokens + first_token(f, r) + i] = log(sum);
            }
        }
    free(p);
}

static void make_pool(fixture *f)
{
    const setting *const s = f->s;
    kvd_leankv_pool *const p = &f->pool;
    int32_t longest = 0;
    for (int i = 0; i < ROWS; i++)
        longest = s->n[i] > longest ? s->n[i] : longest;
    *p = (kvd_leankv_pool){.n_slots = ROWS + 1,
                           .n_layers = LAYERS,
                           .n_kv_heads = s->kv,
                           .table_length = (longest + s->steps) / KVD_LEANKV_PAGE_TOKENS + 2};
    or_end(kvd_leankv_layout_make(s->d, s->k_bits, s->v_bits, &p->layout), s->name, "layout");
    const size_t heads = (size_t)(p->n_slots * LAYERS * s->kv);
    p->n_pages = (int32_t)heads * p->table_length;
    f->bytes_of_pages = (size_t)p->n_pages * (size_t)p->layout.page_bytes;
    p->list = on_device(NULL, (size_t)p->n_pages * sizeof *p->list);
    p->table = on_device(NULL, heads * (size_t)p->table_length * sizeof *p->table);
    p->head = on_device(NULL, heads * sizeof *p->head);
    p->state = on_device(NULL, sizeof *p->state);
    p->page = on_device(NULL, f->bytes_of_pages);
    check(kvd_leankv_reset(p, 0), "reset");
}

static void make_prompts(fixture *f)
{
    const setting *const s = f->s;
    const size_t tokens = all_tokens(f), d = (size_t)s->d, n_heads = (size_t)(s->kv * s->group);
    const kvd_attn_batch batch = {ROWS, s->n, s->n};
    int32_t longest = 0;
    for (int i = 0; i < ROWS; i++)
        longest = s->n[i] > longest ? s->n[i] : longest;
    f->max_pages = (longest + 63) / 64;
    f->n_q8 = (int)kvd_blocked_rows(&batch, f->q_start);
    f->q = numbers(f, n_heads * tokens * d, 1.5);
    f->k = numbers(f, (size_t)s->kv * tokens * d, 1);
    f->v = numbers(f, (size_t)s->kv * tokens * d, 1);
    f->mass = need(n_heads * tokens * sizeof *f->mass);
    double *const lse = need(n_heads * tokens * sizeof *lse);
    make_masses(f, lse);
    const size_t page_elements = (size_t)f->map.page_elements,
                 pages = (size_t)(ROWS * f->max_pages);
    uint16_t *const q = need(n_heads * (size_t)f->n_q8 * d * 2), *const kv = need(
                                                                     pages * page_elements * 2);
    int32_t *const table = need(pages * sizeof *table);
    float *const narrow = need(n_heads * (size_t)f->n_q8 * sizeof *narrow);
    for (size_t i = 0; i < pages; i++)
        table[i] = (int32_t)(pages - 1 - i);
    memset(kv, 0xff, pages * page_elements * 2);
    kvd_pack_q(&f->map, &batch, KVD_BF16, f->q, q);
    kvd_pack_kv(&f->map, &batch, KVD_BF16, f->k, f->v, table, f->max_pages, kv);
    for (size_t h = 0; h < n_heads; h++)
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < s->n[r]; i++)
                narrow[h * (size_t)f->n_q8 + (size_t)(f->q_start[r] + i)] =
                    (float)lse[h * tokens + first_token(f, r) + (size_t)i];
    f->p = (kvd_leankv_prompts){
        .pool = f->pool,
        .layer = LAYER,
        .n = ROWS,
        .group = s->group,
        .n_q8 = f->n_q8,
        .longest = longest,
        .window = s->window,
        .scale = f->map.scale,
        .th = s->th,
        .tl = s->tl,
        .slot = on_device(f->slot, sizeof f->slot),
        .q_start = on_device(f->q_start, sizeof f->q_start),
        .q_len = on_device(s->n, sizeof s->n),
        .page_table = on_device(table, pages * sizeof *table),
        .max_pages = f->max_pages,
        .fresh = f->fresh = on_device(kv, pages * page_elements * 2),
        .q = on_device(q, n_heads * (size_t)f->n_q8 * d * 2),
        .lse = on_device(narrow, n_heads * (size_t)f->n_q8 * sizeof *narrow),
        .mass = on_device(NULL, n_heads * (size_t)f->n_q8 * sizeof(float)),
        .source = on_device(NULL, (size_t)s->kv * (size_t)f->n_q8 * sizeof(int32_t))};
    host_free(lse, q, kv, table, narrow);
}

typedef struct {
    int level, position;
    float score, k[D_MAX], v[D_MAX];
} item;

typedef struct {
    kvd_leankv_head head;
    int n;
    /* tokens of a head, high precision first */
    item *item;
} section;

static void read_side(const kvd_leankv_layout *y, const kvd_leankv_precision *l, const char *page,
                      int at, bool keys, float *x)
{
    const int bits = keys ? l->k_bits : l->v_bits, tile = KVD_LEANKV_TILE * y->d * bits / 8;
    const uint32_t *const words =
        (const uint32_t *)(const void *)(page + (keys ? 0 : l->v) + at / 16 * tile);
    const uint16_t *const meta =
        (const uint16_t *)(const void *)(page + (keys ? l->k_meta : l->v_meta)) + 2 * at;
    float scale[2];
    kvd_to_f32(KVD_F16, meta, scale, 2);
    for (int e = 0; e < y->d; e++) {
        const kvd_leankv_place w = keys ? kvd_leankv_key_place(y->d, bits, at % 16, e)
                                        : kvd_leankv_value_place(y->d, bits, at % 16, e);
        x[e] = scale[0] * (float)(words[w.word] >> w.shift & ((1u << bits) - 1)) + scale[1];
    }
}

static section read_head(const fixture *f, int row, int g, char *page)
{
    const kvd_leankv_pool *const p = &f->pool;
    const size_t at = (size_t)((f->slot[row] * LAYERS + LAYER) * f->s->kv + g);
    section x = {.n = 0};
    int32_t *const table = need((size_t)p->table_length * sizeof *table);
    to_host(&x.head, p->head + at, sizeof x.head);
    to_host(table, p->table + at * (size_t)p->table_length,
            (size_t)p->table_length * sizeof *table);
    x.item = need((size_t)(x.head.n[0] + x.head.n[1] + 1) * sizeof *x.item);
    for (int level = 0; level < KVD_LEANKV_LEVELS; level++)
        for (int i = 0; i < x.head.n[level]; i++) {
            const kvd_leankv_precision *const l = &p->layout.level[level];
            const int at_page = i % l->tokens, k = i / l->tokens;
            if (at_page == 0)
                to_host(page,
                        p->page + (size_t)table[level ? p->table_length - 1 - k : k] *
                                      (size_t)p->layout.page_bytes,
                        (size_t)p->layout.page_bytes);
            item *const e = &x.item[x.n++];
            e->level = level;
            memcpy(&e->position, page + l->position + 4 * at_page, 4);
            memcpy(&e->score, page + l->score + 4 * at_page, 4);
            read_side(&p->layout, l, page, at_page, true, e->k);
            read_side(&p->layout, l, page, at_page, false, e->v);
        }
    free(table);
    return x;
}

static const item *at_position(const section *x, int position)
{
    for (int i = 0; i < x->n; i++)
        if (x->item[i].position == position)
            return &x->item[i];
    return NULL;
}

/* Returns how many elements of a token's K and V the GPU quantised differently from the CPU. */
static int other_codes(const fixture *f, const item *e, const float *k, const float *v)
{
    const size_t d = (size_t)f->s->d;
    float want[D_MAX];
    int other = 0;
    kvd_quantise_group(k, d, 1, f->s->k_bits[e->level], want);
    for (size_t i = 0; i < d; i++)
        other += want[i] != e->k[i];
    kvd_quantise_group(v, d, 1, f->s->v_bits[e->level], want);
    for (size_t i = 0; i < d; i++)
        other += want[i] != e->v[i];
    return other;
}

#endif
