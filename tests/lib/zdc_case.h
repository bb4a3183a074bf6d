/*
 * Test cases of gpu_zdc.c: important tokens keep more dimensions (high) than unimportant ones
 * (low).
 */
#ifndef KVD_TESTS_ZDC_CASE_H
#define KVD_TESTS_ZDC_CASE_H

#include <stdint.h>
#include <string.h>

#include "common/rng.h"
#include "gpu_case.h"
#include "kernels/cuda/decode.h"
#include "methods/tokens/cuda/zdc.h"

enum {
    BATCH = 6,
    LAYERS = 3,
    KV_MOST = 4,
    /* value of `overlap` that no two layers reach, so that each layer uses its own set */
    NEVER_LENT = 2
};

typedef struct {
    const char *name;
    int n_heads, n_kv_heads;
    int len[BATCH], n_len;
    /* stored dimensions [KV head][K or V] of important and unimportant tokens */
    int high[KV_MOST][2], low[KV_MOST][2];
    int kept[KV_MOST][2];
    /* fraction of important tokens; agreement above which a layer uses an earlier choice */
    double share, overlap;
    /* 1: denominators are divided by the number of keys; 1: tokens are equally important */
    int mean, equal;
} test_case;

static const test_case cases[] = {
    {.name = "half",
     .n_heads = 8,
     .n_kv_heads = 2,
     .len = {1, 7, 64, 65, 130, 300},
     .n_len = 6,
     .high = {{64, 48}, {48, 128}},
     .low = {{16, 48}, {32, 16}},
     .kept = {{16, 40}, {17, 1}},
     .share = 0.5,
     .overlap = NEVER_LENT},
    {.name = "by mean",
     .n_heads = 8,
     .n_kv_heads = 2,
     .len = {1, 7, 64, 65, 130, 300},
     .n_len = 6,
     .high = {{64, 48}, {48, 128}},
     .low = {{16, 48}, {32, 16}},
     .kept = {{3, 48}, {32, 16}},
     .share = 0.3,
     .overlap = NEVER_LENT,
     .mean = 1},
    {.name = "none",
     .n_heads = 4,
     .n_kv_heads = 4,
     .len = {130, 9, 64},
     .n_len = 3,
     .high = {{128, 128}, {48, 64}, {32, 32}, {16, 16}},
     .low = {{64, 32}, {48, 64}, {16, 16}, {16, 16}},
     .kept = {{64, 32}, {48, 64}, {16, 16}, {9, 9}},
     .share = 0,
     .overlap = NEVER_LENT},
    {.name = "all",
     .n_heads = 4,
     .n_kv_heads = 4,
     .len = {130, 9, 64},
     .n_len = 3,
     .high = {{128, 128}, {48, 64}, {32, 32}, {16, 16}},
     .low = {{64, 32}, {48, 64}, {16, 16}, {16, 16}},
     .kept = {{64, 32}, {48, 64}, {16, 16}, {9, 9}},
     .share = 1,
     .overlap = NEVER_LENT},
    {.name = "equal",
     .n_heads = 6,
     .n_kv_heads = 2,
     .len = {200, 33, 129},
     .n_len = 3,
     .high = {{80, 64}, {32, 96}},
     .low = {{48, 48}, {16, 32}},
     .kept = {{33, 48}, {16, 20}},
     .share = 0.4,
     .overlap = NEVER_LENT,
     .equal = 1},
    {.name = "group 16",
     .n_heads = 32,
     .n_kv_heads = 2,
     .len = {100, 70},
     .n_len = 2,
     .high = {{128, 112}, {16, 16}},
     .low = {{64, 16}, {16, 16}},
     .kept = {{60, 10}, {16, 16}},
     .share = 0.37,
     .overlap = NEVER_LENT},
    {.name = "lent",
     .n_heads = 8,
     .n_kv_heads = 2,
     .len = {1, 7, 64, 65, 130, 1300},
     .n_len = 6,
     .high = {{64, 48}, {48, 128}},
     .low = {{16, 48}, {32, 16}},
     .kept = {{16, 40}, {17, 1}},
     .share = 0.5,
     .overlap = 0.6},
    {.name = "lent always",
     .n_heads = 8,
     .n_kv_heads = 2,
     .len = {5, 70, 2100},
     .n_len = 3,
     .high = {{64, 48}, {48, 128}},
     .low = {{16, 48}, {32, 16}},
     .kept = {{16, 40}, {17, 1}},
     .share = 0.25,
     .overlap = 0},
};

static kvd_rng rng;

static uint16_t some(double scale)
{
    return bf16_of(scale * kvd_rng_normal(&rng));
}

/* One layer's cache pages, page tables and important tokens. */
typedef struct {
    const test_case *c;
    /* layouts of heads for important and unimportant tokens; both: `high`, then `low` */
    kvd_attn_map high, low, both;
    kvd_zdc_head head[KV_MOST];
    int n_q8, longest, pitch, n_pages;
    int32_t len[BATCH], start[BATCH], slot[BATCH], *table;
    size_t pool_n;
    /* scratch: tokens in order; store: important and unimportant tokens apart */
    uint16_t *scratch, *store;
    int32_t n_low[BATCH + 1][LAYERS];
    uint8_t *level;
    int32_t *place;
    int32_t *dev_len, *dev_start, *dev_slot, *dev_table, *dev_low, *dev_place;
    uint8_t *dev_level;
    float *dev_value;
    kvd_zdc_head *dev_head;
} fixture;

static kvd_attn_map map_of(const test_case *c, const int width[][2])
{
    kvd_attn_heads h = {c->n_heads, c->n_kv_heads, 128, {0}, {0}, 0};
    kvd_attn_map map;
    for (int g = 0; g < c->n_kv_heads; g++) {
        h.d_qk[g] = width[g][0];
        h.d_v[g] = width[g][1];
    }
    if (kvd_attn_map_make(&h, &map)) {
        printf("not ok zdc, %s: widths\n", c->name);
        exit(1);
    }
    return map;
}

/* Joins two layouts of heads. Heads h of `high` and `low` read the same query. */
static kvd_attn_map joined(const kvd_attn_map *high, const kvd_attn_map *low)
{
    kvd_attn_map m = *high;
    m.n_heads *= 2;
    m.n_kv_heads *= 2;
    m.o_pitch += low->o_pitch;
    for (int g = 0; g < low->n_kv_heads; g++) {
        m.d_qk[high->n_kv_heads + g] = low->d_qk[g];
        m.d_v[high->n_kv_heads + g] = low->d_v[g];
        m.kv_offset[high->n_kv_heads + g] = low->kv_offset[g];
    }
    for (int h = 0; h < low->n_heads; h++) {
        m.q_offset[high->n_heads + h] = high->q_offset[h];
        m.o_offset[high->n_heads + h] = high->o_pitch + low->o_offset[h];
    }
    return m;
}

static fixture fixture_make(const test_case *c)
{
    fixture f = {.c = c, .high = map_of(c, c->high), .low = map_of(c, c->low)};
    f.low.page_elements = f.high.page_elements;
    f.both = joined(&f.high, &f.low);
    const kvd_attn_map *const map[] = {[KVD_ZDC_HIGH] = &f.high, [KVD_ZDC_LOW] = &f.low};
    for (int g = 0; g < c->n_kv_heads; g++)
        for (int s = 0; s < KVD_ZDC_STORES; s++) {
            const int group = map[s]->group, k = map[s]->d_qk[g];
            f.head[g].width[s][0] = map[s]->d_qk[g];
            f.head[g].width[s][1] = map[s]->d_v[g];
            f.head[g].in_page[s][0] = map[s]->kv_offset[g];
            f.head[g].in_page[s][1] = map[s]->kv_offset[g] + KVD_PAGE_TOKENS * k;
            f.head[g].in_row[s] = f.both.o_offset[s * c->n_heads + g * group];
            f.head[g].kept[0] = (int16_t)c->kept[g][0];
            f.head[g].kept[1] = (int16_t)c->kept[g][1];
        }
    for (int b = 0; b < c->n_len; b++) {
        f.len[b] = c->len[b];
        f.start[b] = f.n_q8;
        f.n_q8 += (c->len[b] + 7) / 8 * 8;
        f.longest = c->len[b] > f.longest ? c->len[b] : f.longest;
        f.slot[b] = (b * 5 + 2) % c->n_len;
    }
    if (c->n_len == 5 || c->n_len < 2)
        exit(1);
    f.pitch = (f.longest + 7) / KVD_PAGE_TOKENS + 2;
    f.n_pages = f.pitch * c->n_len;
    f.table = need((size_t)f.n_pages * sizeof *f.table);
    for (int i = 0; i < f.n_pages; i++)
        f.table[i] = i;
    for (int i = f.n_pages - 1; i > 0; i--) {
        const int j = (int)kvd_rng_below(&rng, (uint64_t)i + 1);
        const int32_t x = f.table[i];
        f.table[i] = f.table[j];
        f.table[j] = x;
    }
    f.pool_n = (size_t)(f.n_pages + c->n_len) * (size_t)f.high.page_elements;
    f.scratch = need(f.pool_n * sizeof *f.scratch);
    f.store = need(f.pool_n * sizeof *f.store);
    memset(f.store, 0xff, f.pool_n * sizeof *f.store);
    for (size_t i = 0; i < f.pool_n; i++)
        f.scratch[i] = some(1);
    f.level = need((size_t)f.n_q8);
    f.place = need((size_t)f.n_q8 * sizeof *f.place);
    f.dev_len = on_device(f.len, sizeof f.len);
    f.dev_start = on_device(f.start, sizeof f.start);
    f.dev_slot = on_device(f.slot, sizeof f.slot);
    f.dev_table = on_device(f.table, (size_t)f.n_pages * sizeof *f.table);
    f.dev_low = on_device(f.n_low, sizeof f.n_low);
    f.dev_level = on_device(NULL, (size_t)f.n_q8);
    f.dev_place = on_device(NULL, (size_t)f.n_q8 * sizeof *f.place);
    f.dev_value = on_device(NULL, (size_t)f.n_q8 * sizeof(float));
    f.dev_head = on_device(f.head, sizeof f.head);
    return f;
}

static void fixture_release(fixture *f)
{
    device_free(f->dev_len, f->dev_start, f->dev_slot, f->dev_table, f->dev_low, f->dev_level,
                f->dev_place, f->dev_value, f->dev_head);
    host_free(f->table, f->scratch, f->store, f->level, f->place);
}

static kvd_zdc_pages pages_of(const fixture *f, int layer)
{
    return (kvd_zdc_pages){.slot = f->dev_slot,
                           .table = f->dev_table,
                           .pitch = f->pitch,
                           .own = f->n_pages,
                           .n_low = f->dev_low,
                           .n_layers = LAYERS,
                           .layer = layer};
}

static int page_of(const fixture *f, int b, int i)
{
    return i ? f->table[b * f->pitch + i - 1] : f->n_pages + f->slot[b];
}

#endif
