/* Test cases of gpu_zdc.c. In the method zdc, important tokens keep more dimensions of K and V
 * (`high`) than other tokens (`low`). */
#ifndef KVD_TESTS_ZDC_CASE_H
#define KVD_TESTS_ZDC_CASE_H

#include <stdint.h>

#include "gpu_case.h"
#include "kernels/cuda/decode.h"
#include "methods/tokens/cuda/zdc.h"

enum {
    BATCH = 6,
    LAYERS = 3,
    KV_MOST = 4,
    /* required overlap of two layers' important tokens that is never reached, because overlaps are
     * at most 1 */
    NEVER_LENT = 2
};

typedef struct {
    const char *name;
    int n_heads, n_kv_heads;
    int len[BATCH], n_len;
    /* Numbers of dimensions of K and V in each KV head. Index HIGH: for important tokens. LOW: for
     * other tokens, padded to a multiple of 16. KEPT: for other tokens, not padded. */
    const int (*dims)[KV_MOST][2];
    /* share: fraction of tokens that are important. overlap: fraction of important tokens that two
     * layers must have in common, so that the later layer uses the important tokens of the earlier
     * layer. */
    double share, overlap;
    /* mean: 1 to divide a token's importance by the number of keys that its query attends to;
     * equal: 1 to make all tokens equally important */
    int mean, equal;
} test_case;

enum { HIGH, LOW, KEPT, N_DIMS };
static const int two[N_DIMS][KV_MOST][2] = {{{64, 48}, {48, 128}},
                                            {{16, 48}, {32, 16}},
                                            {{16, 40}, {17, 1}}},
                 by_mean[N_DIMS][KV_MOST][2] = {{{64, 48}, {48, 128}},
                                                {{16, 48}, {32, 16}},
                                                {{3, 48}, {32, 16}}},
                 four[N_DIMS][KV_MOST][2] = {{{128, 128}, {48, 64}, {32, 32}, {16, 16}},
                                             {{64, 32}, {48, 64}, {16, 16}, {16, 16}},
                                             {{64, 32}, {48, 64}, {16, 16}, {9, 9}}},
                 equal[N_DIMS][KV_MOST][2] = {{{80, 64}, {32, 96}},
                                              {{48, 48}, {16, 32}},
                                              {{33, 48}, {16, 20}}},
                 grouped[N_DIMS][KV_MOST][2] = {
                     {{128, 112}, {16, 16}}, {{64, 16}, {16, 16}}, {{60, 10}, {16, 16}}};

static const test_case cases[] = {
    {"half", 8, 2, {1, 7, 64, 65, 130, 300}, 6, two, 0.5, NEVER_LENT, 0, 0},
    {"by mean", 8, 2, {1, 7, 64, 65, 130, 300}, 6, by_mean, 0.3, NEVER_LENT, 1, 0},
    {"none", 4, 4, {130, 9, 64}, 3, four, 0, NEVER_LENT, 0, 0},
    {"all", 4, 4, {130, 9, 64}, 3, four, 1, NEVER_LENT, 0, 0},
    {"equal", 6, 2, {200, 33, 129}, 3, equal, 0.4, NEVER_LENT, 0, 1},
    {"group 16", 32, 2, {100, 70}, 2, grouped, 0.37, NEVER_LENT, 0, 0},
    {"lent", 8, 2, {1, 7, 64, 65, 130, 1300}, 6, two, 0.5, 0.6, 0, 0},
    {"lent always", 8, 2, {5, 70, 2100}, 3, two, 0.25, 0, 0, 0},
};

static kvd_rng rng;

static uint16_t some(double scale)
{
    return bf16_of(scale * kvd_rng_normal(&rng));
}

/* pages, page tables and important tokens of one layer */
typedef struct {
    const test_case *c;
    /* Memory layouts of cache pages. high: important tokens. low: other tokens. both: twice as many
     * heads, the heads of `high` followed by the heads of `low`. */
    kvd_attn_map high, low, both;
    kvd_zdc_head head[KV_MOST];
    int n_q8, longest, pitch, n_pages;
    int32_t len[BATCH], start[BATCH], slot[BATCH], *table;
    size_t pool_n;
    /* cache pages on the device: `scratch` has tokens in prompt order, `store` has important tokens
     * first */
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
    or_end(kvd_attn_map_make(&h, &map), c->name, "widths");
    return map;
}

/* Returns a layout with the heads of `high` (for important tokens), followed by the heads of `low`
 * (for unimportant tokens). Head h of `high` and head h of `low` read the same query. */
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
    fixture f = {.c = c, .high = map_of(c, c->dims[HIGH]), .low = map_of(c, c->dims[LOW])};
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
            f.head[g].kept[0] = (int16_t)c->dims[KEPT][g][0];
            f.head[g].kept[1] = (int16_t)c->dims[KEPT][g][1];
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
    f.table = shuffled(&rng, f.n_pages);
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
