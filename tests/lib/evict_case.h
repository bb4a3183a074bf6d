/* Test cases of eviction, and one layer's Q, K and V of prompts and decode steps. */
#ifndef KVD_TESTS_EVICT_CASE_H
#define KVD_TESTS_EVICT_CASE_H

#include <math.h>
#include <stdint.h>

#include "gpu_case.h"
#include "methods/tokens/cuda/evict.h"
#include "methods/tokens/gumbel.h"

enum { BATCH = 6, LAYER = 1, LAYERS = 2 };

typedef struct {
    const char *name;
    int n_heads, n_kv_heads;
    int len[BATCH], n_len;
    int width[4][2], n_width;
    kvd_evict_rule rule;
    /* `prompt` and `steps` are set anew for each request */
    kvd_evict_budget budget;
    int steps;
    /* rope_dims: number of dimensions per head that RoPE rotates; 0: none. interleaved: 1 if RoPE
     * pairs dimensions 2i and 2i + 1. */
    int rope_dims, interleaved;
    float factor; /* factor of RoPE's cosines and sines */
} test_case;

/* fields of a test_case: numbers of query heads and of KV heads, prompt length of each request */
#define REQUESTS(heads, kv_heads, ...)                                                             \
    heads, kv_heads, {__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int)
/* d_qk and d_v of all KV heads (ONE_WIDTH), or of even and of odd KV heads (TWO_WIDTHS) */
#define ONE_WIDTH(k, v)          {{k, v}}, 1
#define TWO_WIDTHS(k, v, k1, v1) {{k, v}, {k1, v1}}, 2
#define RULE(...)                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define BUDGET(new, old, most, last)                                                               \
    {                                                                                              \
        .keep_new = new, .keep_old = old, .limit = most, .recent = last                            \
    }

static const test_case cases[] = {
    {"sums", REQUESTS(8, 2, 1, 7, 64, 65, 130, 300), TWO_WIDTHS(64, 48, 16, 128), RULE(.smooth = 1),
     BUDGET(20, 12, 32, 20), 40, 0, 0, 0},
    {"sums, group 1", REQUESTS(4, 4, 130, 9, 64), TWO_WIDTHS(128, 128, 48, 64), RULE(.smooth = 1),
     BUDGET(5, 59, 64, 5), 20, 0, 0, 0},
    {"sums, group 3", REQUESTS(6, 2, 200, 33, 129), TWO_WIDTHS(80, 64, 32, 96), RULE(.smooth = 1),
     BUDGET(63, 1, 64, 63), 20, 0, 0, 0},
    {"sums, group 16", REQUESTS(32, 2, 100, 70), TWO_WIDTHS(128, 112, 16, 16), RULE(.smooth = 1),
     BUDGET(10, 55, 65, 10), 20, 0, 0, 0},
    {"no window", REQUESTS(8, 2, 100, 3), ONE_WIDTH(64, 64), RULE(.smooth = 1),
     BUDGET(0, 17, 17, 0), 30, 0, 0, 0},
    {"window alone", REQUESTS(8, 2, 100, 3), ONE_WIDTH(64, 64), RULE(.smooth = 1),
     BUDGET(17, 0, 17, 17), 30, 0, 0, 0},
    {"one entry", REQUESTS(8, 2, 100, 1), ONE_WIDTH(64, 64), RULE(.smooth = 1), BUDGET(1, 0, 1, 1),
     10, 0, 0, 0},
    {"all stay", REQUESTS(8, 2, 100, 64, 1), ONE_WIDTH(64, 64), RULE(.smooth = 1),
     BUDGET(500, 500, 1000, 500), 10, 0, 0, 0},
    {"long", REQUESTS(4, 1, 1300, 1100), ONE_WIDTH(128, 64), RULE(.smooth = 1),
     BUDGET(300, 333, 633, 300), 4, 0, 0, 0},
    {"noise", REQUESTS(8, 2, 1, 7, 64, 65, 130, 300), TWO_WIDTHS(64, 48, 16, 128),
     RULE(.tau0 = 1, .tau1 = 2, .seed = 5, .smooth = 1), BUDGET(20, 12, 32, 20), 40, 0, 0, 0},
    {"noise, group 10", REQUESTS(20, 2, 90, 140), ONE_WIDTH(96, 32),
     RULE(.tau0 = 1, .tau1 = 2, .seed = 5, .smooth = 1), BUDGET(9, 30, 39, 9), 20, 0, 0, 0},
    {"noise, cold", REQUESTS(8, 2, 300, 31), ONE_WIDTH(64, 48),
     RULE(.tau0 = 0.05F, .tau1 = 0.3F, .seed = 5, .smooth = 1), BUDGET(9, 30, 39, 9), 20, 0, 0, 0},
    {"last rows", REQUESTS(8, 2, 1, 7, 64, 65, 130, 300), TWO_WIDTHS(64, 48, 16, 128),
     RULE(.window = 16, .smooth = 5), BUDGET(16, 30, INT32_MAX, 0), 0, 0, 0, 0},
    {"last rows, all", REQUESTS(8, 2, 15, 16, 17, 40), ONE_WIDTH(64, 48),
     RULE(.window = 16, .smooth = 7), BUDGET(16, 0, INT32_MAX, 0), 0, 0, 0, 0},
    {"first and newest", REQUESTS(8, 2, 1, 7, 64, 65, 130, 300), TWO_WIDTHS(64, 48, 16, 128),
     RULE(.ranking = KVD_EVICT_FIRST, .smooth = 1), BUDGET(20, 4, 24, 20), 45, 0, 0, 0},
    {"newest alone", REQUESTS(8, 2, 100, 3), ONE_WIDTH(64, 64),
     RULE(.ranking = KVD_EVICT_FIRST, .smooth = 1), BUDGET(65, 0, 65, 65), 70, 0, 0, 0},
    {"first alone", REQUESTS(8, 2, 100, 3), ONE_WIDTH(64, 64),
     RULE(.ranking = KVD_EVICT_FIRST, .smooth = 1), BUDGET(0, 5, 5, 0), 10, 0, 0, 0},
    {"whole layer", REQUESTS(8, 2, 1, 7, 64, 65, 130, 300), TWO_WIDTHS(64, 48, 16, 128),
     RULE(.window = 1, .smooth = 1, .whole_layer = 1), BUDGET(1, 31, 32, 1), 40, 0, 0, 0},
    {"whole layer, 40 KV heads", REQUESTS(40, 40, 200, 90), ONE_WIDTH(128, 128),
     RULE(.window = 1, .smooth = 1, .whole_layer = 1), BUDGET(1, 63, 64, 1), 20, 0, 0, 0},
    {"whole layer, one entry", REQUESTS(8, 2, 100, 1), ONE_WIDTH(64, 64),
     RULE(.window = 1, .smooth = 1, .whole_layer = 1), BUDGET(1, 0, 1, 1), 10, 0, 0, 0},
    {"short keys", REQUESTS(8, 2, 1, 7, 64, 65, 130, 300), TWO_WIDTHS(64, 48, 16, 128),
     RULE(.ranking = KVD_EVICT_SHORT_KEYS, .smooth = 1), BUDGET(0, 30, INT32_MAX, 0), 0, 0, 0, 0},
    {"odd keys", REQUESTS(8, 2, 1, 7, 64, 65, 130, 300), TWO_WIDTHS(64, 48, 80, 128),
     RULE(.ranking = KVD_EVICT_ODD_KEYS, .smooth = 1), BUDGET(0, 30, INT32_MAX, 0), 0, 0, 0, 0},
    {"odd keys, long", REQUESTS(4, 1, 1300, 1100), ONE_WIDTH(128, 64),
     RULE(.ranking = KVD_EVICT_ODD_KEYS, .smooth = 1), BUDGET(0, 633, INT32_MAX, 0), 0, 0, 0, 0},
    {"expected", REQUESTS(8, 2, 1, 4, 5, 65, 130, 300), ONE_WIDTH(64, 64),
     RULE(.ranking = KVD_EVICT_EXPECTED, .smooth = 1, .sink = 4, .future = 50, .covariance = 1),
     BUDGET(0, 30, INT32_MAX, 0), 0, 64, 0, 1.2F},
    {"expected, part of a head in pairs", REQUESTS(6, 2, 70, 129), ONE_WIDTH(80, 80),
     RULE(.ranking = KVD_EVICT_EXPECTED, .smooth = 1, .sink = 2, .future = 7, .covariance = 1,
          .epsilon = 0.01F),
     BUDGET(0, 30, INT32_MAX, 0), 0, 40, 1, 1},
    {"expected, mean alone", REQUESTS(4, 4, 100, 90), ONE_WIDTH(16, 16),
     RULE(.ranking = KVD_EVICT_EXPECTED, .smooth = 1, .sink = 0, .future = 9),
     BUDGET(0, 30, INT32_MAX, 0), 0, 0, 0, 0},
    {"expected, wide", REQUESTS(8, 2, 1, 4, 5, 65, 130, 300), ONE_WIDTH(256, 256),
     RULE(.ranking = KVD_EVICT_EXPECTED, .smooth = 1, .sink = 4, .future = 50, .covariance = 1),
     BUDGET(0, 30, INT32_MAX, 0), 0, 256, 0, 1},
    {"expected, wide, part of a head in pairs", REQUESTS(6, 2, 70, 129), ONE_WIDTH(208, 144),
     RULE(.ranking = KVD_EVICT_EXPECTED, .smooth = 1, .sink = 2, .future = 7, .covariance = 1),
     BUDGET(0, 30, INT32_MAX, 0), 0, 104, 1, 1},
    {"expected, long", REQUESTS(4, 1, 1300, 1100), ONE_WIDTH(128, 128),
     RULE(.ranking = KVD_EVICT_EXPECTED, .smooth = 1, .sink = 4, .future = 512, .covariance = 1),
     BUDGET(0, 633, INT32_MAX, 0), 0, 128, 0, 1},
    {"wide", REQUESTS(8, 2, 1, 7, 64, 65, 130, 300), TWO_WIDTHS(256, 256, 144, 48),
     RULE(.smooth = 1), BUDGET(20, 12, 32, 20), 20, 0, 0, 0},
    {"wide, noise, group 10", REQUESTS(20, 2, 90, 140), ONE_WIDTH(240, 256),
     RULE(.tau0 = 1, .tau1 = 2, .seed = 5, .smooth = 1), BUDGET(9, 30, 39, 9), 10, 0, 0, 0},
    {"wide, last rows", REQUESTS(8, 2, 1, 7, 64, 65, 130, 300), TWO_WIDTHS(256, 208, 16, 256),
     RULE(.window = 16, .smooth = 5), BUDGET(16, 30, INT32_MAX, 0), 0, 0, 0, 0},
    {"wide, first and newest", REQUESTS(8, 2, 1, 7, 64, 130), ONE_WIDTH(256, 256),
     RULE(.ranking = KVD_EVICT_FIRST, .smooth = 1), BUDGET(20, 4, 24, 20), 25, 0, 0, 0},
    {"wide, whole layer", REQUESTS(8, 2, 1, 7, 64, 130), ONE_WIDTH(256, 256),
     RULE(.window = 1, .smooth = 1, .whole_layer = 1), BUDGET(1, 31, 32, 1), 20, 0, 0, 0},
    {"wide, short keys", REQUESTS(8, 2, 1, 64, 65, 300), TWO_WIDTHS(256, 256, 160, 16),
     RULE(.ranking = KVD_EVICT_SHORT_KEYS, .smooth = 1), BUDGET(0, 30, INT32_MAX, 0), 0, 0, 0, 0},
    {"wide, odd keys", REQUESTS(8, 2, 1, 64, 65, 300), TWO_WIDTHS(256, 256, 160, 16),
     RULE(.ranking = KVD_EVICT_ODD_KEYS, .smooth = 1), BUDGET(0, 30, INT32_MAX, 0), 0, 0, 0, 0},
};

static kvd_rng rng;

/* Q, K and V of one layer for a batch of requests, in bf16 */
typedef struct {
    const test_case *c;
    kvd_attn_map map;
    int batch, max_pages, n_q8, room;
    /* per request: prompt tokens, first row in Q, slot of the batch, number of kept tokens */
    int32_t len[BATCH], start[BATCH], slot[BATCH], n[BATCH];
    int32_t *table;
    size_t pool_n;
    uint16_t *pool; /* host copy of all cache pages */
    uint16_t *q;    /* Q of the prompts, in blocks of 8 rows */
    /* scores of tokens, of which the lowest are evicted */
    float *score;
    uint32_t *position;
    kvd_evict_budget budget[BATCH + 1];
    size_t state_n;
    double worst;
    /* number of evictions for which GPU and CPU choose different tokens because two scores are
     * equal up to rounding */
    size_t near;
} fixture;

/* Returns the address of element i of a cached token's K (side 0) or V (side 1). `place`: index of
 * the token in the cache. */
static inline uint16_t *cell(const fixture *f, uint16_t *pool, int b, int g, int side, int place,
                             int i)
{
    const int d_k = f->map.d_qk[g], d = side ? f->map.d_v[g] : d_k;
    const size_t page =
        (size_t)f->table[b * f->max_pages + place / 64] * (size_t)f->map.page_elements;
    return pool + page + (size_t)f->map.kv_offset[g] + (size_t)(side ? 64 * d_k : 0) +
           kvd_blocked_index((size_t)place % 64, (size_t)i, (size_t)d);
}

static inline const uint16_t *query(const fixture *f, int b, int h, int t, int i)
{
    const int d = f->map.d_qk[h / f->map.group];
    return f->q + (size_t)f->map.q_offset[h] * (size_t)f->n_q8 + (size_t)f->start[b] * (size_t)d +
           kvd_blocked_index((size_t)t, (size_t)i, (size_t)d);
}

static inline void make(fixture *f, const test_case *c)
{
    kvd_attn_heads heads = {c->n_heads, c->n_kv_heads, 128, {0}, {0}, 0};
    *f = (fixture){.c = c, .batch = c->n_len};
    for (int g = 0; g < c->n_kv_heads; g++) {
        heads.d_qk[g] = c->width[g % c->n_width][0];
        heads.d_v[g] = c->width[g % c->n_width][1];
    }
    if (kvd_attn_map_make(&heads, &f->map))
        exit(1);
    kvd_rng_seed(&rng, 3, (uint64_t)c->n_heads);
    int longest = 0;
    for (int b = 0; b < f->batch; b++) {
        f->len[b] = f->n[b] = c->len[b];
        f->start[b] = f->n_q8;
        f->slot[b] = f->batch - 1 - b;
        f->n_q8 += (c->len[b] + 7) / 8 * 8;
        longest = c->len[b] > longest ? c->len[b] : longest;
        f->budget[f->slot[b]] = c->budget;
        f->budget[f->slot[b]].prompt = c->len[b];
        f->budget[f->slot[b]].steps = c->steps;
    }
    f->max_pages = (longest + c->steps) / 64 + 2;
    f->room = longest + c->steps + 1;
    const int pages = f->batch * f->max_pages;
    f->table = need((size_t)pages * sizeof *f->table);
    for (int i = 0; i < pages; i++)
        f->table[i] = i % f->max_pages * 64 < c->len[i / f->max_pages] + c->steps
                          ? (i * 7 + 3) % pages
                          : 0x3fffffff;
    for (int i = 0; pages % 7 == 0 && i < pages; i++)
        f->table[i] = f->table[i] == 0x3fffffff ? 0x3fffffff : pages - 1 - i;
    f->pool_n = (size_t)pages * (size_t)f->map.page_elements;
    f->pool = need(f->pool_n * 2);
    memset(f->pool, 0xff, f->pool_n * 2);
    const size_t q_n = (size_t)f->map.q_pitch * (size_t)f->n_q8;
    f->q = need(q_n * 2);
    memset(f->q, 0xff, q_n * 2);
    for (int b = 0; b < f->batch; b++) {
        for (int h = 0; h < c->n_heads; h++)
            for (int t = 0; t < f->len[b]; t++)
                for (int i = 0; i < f->map.d_qk[h / f->map.group]; i++)
                    *(uint16_t *)query(f, b, h, t, i) = bf16_of(2.5 * kvd_rng_normal(&rng));
        for (int g = 0; g < c->n_kv_heads; g++)
            for (int t = 0; t < (f->len[b] + 7) / 8 * 8; t++)
                for (int side = 0; side < 2; side++)
                    for (int i = 0; i < (side ? f->map.d_v[g] : f->map.d_qk[g]); i++)
                        *cell(f, f->pool, b, g, side, t, i) =
                            t < f->len[b] ? bf16_of(kvd_rng_normal(&rng)) : 0;
    }
    f->state_n = (size_t)f->batch * LAYERS * (size_t)c->n_kv_heads * (size_t)f->room;
    f->score = need(f->state_n * sizeof *f->score);
    f->position = need(f->state_n * sizeof *f->position);
}

static inline size_t state_at(const fixture *f, int b, int g)
{
    return (((size_t)f->slot[b] * LAYERS + LAYER) * (size_t)f->map.n_kv_heads + (size_t)g) *
           (size_t)f->room;
}

/* Computes the attention scores s and probabilities p of query t in head h of request b. If the
 * eviction method adds Gumbel noise, p includes it. Returns the log-sum-exp of the scores without
 * noise. */
static inline double row_of(const fixture *f, int b, int h, int t, const double *keys, double *s,
                            double *p)
{
    const int d = f->map.d_qk[h / f->map.group];
    const double tau = (double)f->c->rule.tau0;
    double q[KVD_WIDTH_MAX], sum = 0, plain = 0, top = -INFINITY, high = -INFINITY;
    for (int i = 0; i < d; i++)
        q[i] = (double)bf16_wide(*query(f, b, h, t, i));
    for (int k = 0; k <= t; k++) {
        s[k] = 0;
        for (int i = 0; i < d; i++)
            s[k] += q[i] * keys[(size_t)k * (size_t)d + (size_t)i];
        s[k] *= (double)f->map.scale;
        p[k] =
            tau > 0
                ? (s[k] + kvd_gumbel(kvd_gumbel_head(f->c->rule.seed, LAYER, h), (uint32_t)k)) / tau
                : s[k];
        top = fmax(top, p[k]);
        high = fmax(high, s[k]);
    }
    for (int k = 0; k <= t; k++) {
        sum += p[k] = exp(p[k] - top);
        plain += exp(s[k] - high);
    }
    for (int k = 0; k <= t; k++)
        p[k] /= sum;
    /* The largest score adds exp(0) = 1 to the sum, so a sum below 1 is a rounding error. */
    return high + log(fmax(plain, 1));
}

static inline void fetch(void *to, const void *from, size_t bytes)
{
    to_host(to, from, bytes);
}

/* Computes the attention scores x [n] of a query q and n cached tokens: the tokens at the places in
 * `place`, or the first n if it is NULL. Returns the largest score. */
static inline double scores_of(const fixture *f, int b, int g, const uint16_t *q,
                               const int32_t *place, int n, double *x)
{
    double top = -INFINITY;
    for (int i = 0; i < n; i++) {
        x[i] = 0;
        for (int c = 0; c < f->map.d_qk[g]; c++)
            x[i] += (double)bf16_wide(q[c]) *
                    (double)bf16_wide(*cell(f, f->pool, b, g, 0, place ? place[i] : i, c));
        x[i] *= (double)f->map.scale;
        top = fmax(top, x[i]);
    }
    return top;
}

static inline float *step_denominators(const fixture *f, const uint16_t *q, const int32_t *kv_len)
{
    float *const lse = need((size_t)(f->batch + 1) * (size_t)f->map.n_heads * sizeof *lse);
    double *const x = need((size_t)f->room * sizeof *x);
    for (int b = 0; b < f->batch; b++)
        for (int h = 0; h < f->map.n_heads; h++) {
            const uint16_t *const row = q + (size_t)b * (size_t)f->map.q_pitch + f->map.q_offset[h];
            const double top = scores_of(f, b, h / f->map.group, row, NULL, kv_len[b], x);
            double sum = 0;
            for (int i = 0; i < kv_len[b]; i++)
                sum += exp(x[i] - top);
            lse[b * f->map.n_heads + h] = (float)(top + log(fmax(sum, 1)));
        }
    free(x);
    return lse;
}

/* Writes random K and V of one new token per request to the cache. A token that starts a group of 8
 * rows also sets the other 7 rows to 0. */
static inline void append(fixture *f)
{
    for (int b = 0; b < f->batch; b++)
        for (int g = 0; g < f->map.n_kv_heads; g++)
            for (int side = 0; side < 2; side++)
                for (int i = 0; i < (side ? f->map.d_v[g] : f->map.d_qk[g]); i++) {
                    for (int t = f->n[b] + 1; f->n[b] % 8 == 0 && t < f->n[b] + 8; t++)
                        *cell(f, f->pool, b, g, side, t, i) = 0;
                    *cell(f, f->pool, b, g, side, f->n[b], i) = bf16_of(kvd_rng_normal(&rng));
                }
}

/* Copies the prompts and their log-sum-exps lse [n_heads][n_q8] to the device. The function
 * free_prompts frees the copies. */
static inline kvd_evict_prompts_args prompts_of(const fixture *f, const kvd_evict_rule *rule,
                                                int layer, const float *lse, uint16_t *pool)
{
    const size_t heads = (size_t)f->map.n_heads, kv = (size_t)f->map.n_kv_heads,
                 rows = (size_t)f->n_q8, batch = (size_t)f->batch;
    kvd_evict_prompts_args a = {
        .map = f->map,
        .rule = *rule,
        .budget = on_device(f->budget, sizeof f->budget),
        .hopper = on_hopper(),
        .layer = layer,
        .batch = f->batch,
        .n_q8 = f->n_q8,
        .max_pages = f->max_pages,
        .q_start = on_device(f->start, sizeof f->start),
        .q_len = on_device(f->len, sizeof f->len),
        .slot = on_device(f->slot, sizeof f->slot),
        .page_table = on_device(f->table, batch * (size_t)f->max_pages * sizeof *f->table),
        .q = on_device(f->q, (size_t)f->map.q_pitch * rows * 2),
        .pool = pool,
        .lse = on_device(lse, heads * rows * sizeof *lse),
        .mass = on_device(NULL, heads * rows * sizeof *lse),
        .score = on_device(NULL, kv * rows * sizeof *lse),
        .kept = on_device(NULL, kv * rows * sizeof(int32_t))};
    for (int b = 0; b < f->batch; b++)
        a.longest = f->len[b] > a.longest ? f->len[b] : a.longest;
    return a;
}

static inline void free_prompts(const kvd_evict_prompts_args *a)
{
    device_free(a->budget, a->q_start, a->q_len, a->slot, a->q, a->page_table, a->lse, a->mass,
                a->score, a->kept);
}

/* Copies the budgets and page tables of all requests to the device, and adds an unused request as
 * padding. The function free_steps frees the copies. */
static inline kvd_evict_steps_args steps_of(const fixture *f, const kvd_evict_rule *rule,
                                            const kvd_evict_state *state, uint16_t *pool)
{
    const size_t rows = (size_t)f->batch + 1, pages = rows * (size_t)f->max_pages;
    int32_t *const table = need(pages * sizeof *table);
    memcpy(table, f->table, (size_t)(f->batch * f->max_pages) * sizeof *table);
    const kvd_evict_steps_args a = {
        .map = f->map,
        .rule = *rule,
        .state = *state,
        .budget = on_device(f->budget, sizeof f->budget),
        .layer = LAYER,
        .batch = (int32_t)rows,
        .max_pages = f->max_pages,
        .page_table = on_device(table, pages * sizeof *table),
        .pool = pool,
        .work = on_device(NULL, kvd_evict_steps_bytes(&f->map, rows, (size_t)f->room))};
    free(table);
    return a;
}

static inline void free_steps(const kvd_evict_steps_args *a)
{
    device_free(a->budget, a->page_table, a->work);
}

/* Fills random queries q [batch + 1][q_pitch], cache lengths kv_len and positions now [batch + 1]
 * for a decode step, and copies them to the device. The function free_step frees the copies. */
static inline void draw_step(fixture *f, int step, uint16_t *q, int32_t *kv_len, uint32_t *now,
                             kvd_evict_steps_args *a)
{
    const size_t rows = (size_t)f->batch + 1, q_n = rows * (size_t)f->map.q_pitch;
    int32_t slot[BATCH + 1];
    append(f);
    for (size_t i = 0; i < q_n; i++)
        q[i] = bf16_of(2.5 * kvd_rng_normal(&rng));
    for (int b = 0; b <= f->batch; b++) {
        kv_len[b] = b < f->batch ? f->n[b] + 1 : 1;
        slot[b] = b < f->batch ? f->slot[b] : f->batch;
        now[b] = b < f->batch ? (uint32_t)(f->len[b] + step) : 0;
    }
    float *const lse = step_denominators(f, q, kv_len);
    a->splits = on_hopper() ? 1 << step % 4 : 1;
    a->kv_len = on_device(kv_len, rows * sizeof *kv_len);
    a->slot = on_device(slot, rows * sizeof *slot);
    a->at = on_device(now, rows * sizeof *now);
    a->q = on_device(q, q_n * sizeof *q);
    a->lse = on_device(lse, rows * (size_t)f->map.n_heads * sizeof *lse);
    free(lse);
    to_device(a->pool, f->pool, f->pool_n * 2);
}

static inline void free_step(const kvd_evict_steps_args *a)
{
    device_free(a->kv_len, a->slot, a->at, a->q, a->lse);
}

static inline void release(fixture *f)
{
    host_free(f->table, f->pool, f->q, f->score, f->position);
}

#endif
