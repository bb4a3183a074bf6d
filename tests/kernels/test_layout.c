/* Tests memory layouts of Q, K, V and outputs. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "attention_case.h"
#include "common/half.h"
#include "kernels/layout.h"
#include "unit.h"

enum { POISON = 0x7fc1 }; /* NaN in bf16 and f16 */

static const int d_qk[] = {16, 128, 48}, d_v[] = {32, 16, 112};
static const int32_t q_len[] = {1, 8, 13, 64}, kv_len[] = {65, 8, 130, 64};

static void make(attention_case *c, kvd_attn_map *map)
{
    case_make(c, 6, 3, 128, d_qk, d_v, 4, q_len, kv_len, 1, 1);
    assert_int_equal(kvd_attn_map_make(&c->heads, map), 0);
}

static uint16_t *poisoned(size_t n)
{
    uint16_t *x = case_get(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = POISON;
    return x;
}

static uint16_t rounded(float x, int dtype)
{
    uint16_t y;
    kvd_from_f32((kvd_dtype)dtype, &x, &y, 1);
    return y;
}

TEST(test_map)
{
    attention_case c;
    kvd_attn_map map;
    make(&c, &map);
    assert_int_equal(map.n_heads, 6);
    assert_int_equal(map.n_kv_heads, 3);
    assert_int_equal(map.group, 2);
    assert_true(map.scale == (float)(1 / sqrt(128.)));
    assert_int_equal(map.q_pitch, 2 * (16 + 128 + 48));
    assert_int_equal(map.o_pitch, 2 * (32 + 16 + 112));
    assert_int_equal(map.page_elements, 64 * (16 + 128 + 48 + 32 + 16 + 112));
    for (int h = 0, q = 0, o = 0; h < 6; h++) {
        assert_int_equal(map.q_offset[h], q);
        assert_int_equal(map.o_offset[h], o);
        q += d_qk[h / 2];
        o += d_v[h / 2];
    }
    for (int g = 0, at = 0; g < 3; g++) {
        assert_int_equal(map.d_qk[g], d_qk[g]);
        assert_int_equal(map.d_v[g], d_v[g]);
        assert_int_equal(map.kv_offset[g], at);
        at += 64 * (d_qk[g] + d_v[g]);
    }
}

TEST(test_refused)
{
    static const kvd_attn_heads good = {
        .n_heads = 8, .n_kv_heads = 2, .d_head = 64, .d_qk = {64, 16}, .d_v = {16, 128}};
    static const kvd_attn_heads bad[] = {{0, 2, 64, {64, 16}, {16, 128}, 0},
                                         {2 * KVD_HEADS_MAX, 2, 64, {64, 16}, {16, 128}, 0},
                                         {8, 0, 64, {64, 16}, {16, 128}, 0},
                                         {8, -2, 64, {64, 16}, {16, 128}, 0},
                                         {8, 16, 64, {64, 16}, {16, 128}, 0},
                                         {8, 3, 64, {64, 16}, {16, 128}, 0},
                                         {8, 2, 15, {64, 16}, {16, 128}, 0},
                                         {8, 2, 257, {64, 16}, {16, 128}, 0},
                                         {8, 2, 64, {64, 0}, {16, 128}, 0},
                                         {8, 2, 64, {-16, 16}, {16, 128}, 0},
                                         {8, 2, 64, {24, 16}, {16, 128}, 0},
                                         {8, 2, 64, {272, 16}, {16, 128}, 0},
                                         {8, 2, 64, {64, 16}, {16, 0}, 0},
                                         {8, 2, 64, {64, 16}, {17, 128}, 0},
                                         {8, 2, 64, {64, 16}, {16, INT_MAX - 15}, 0}};
    kvd_attn_map map;
    assert_int_equal(kvd_attn_map_make(&good, &map), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(kvd_attn_map_make(&bad[i], &map), -1);
}

TEST(test_largest)
{
    kvd_attn_heads heads = {
        .n_heads = KVD_HEADS_MAX, .n_kv_heads = KVD_HEADS_MAX, .d_head = KVD_WIDTH_MAX};
    kvd_attn_map map;
    for (int g = 0; g < KVD_HEADS_MAX; g++)
        heads.d_qk[g] = heads.d_v[g] = KVD_WIDTH_MAX;
    assert_int_equal(kvd_attn_map_make(&heads, &map), 0);
    assert_int_equal(map.page_elements, 64 * 128 * 512);
    assert_int_equal(map.kv_offset[127], 64 * 127 * 512);
    assert_int_equal(map.q_pitch, 128 * 256);
    assert_int_equal(kvd_attn_widest(&map), 256);
}

/* The first 64 elements are the 8 x 8 block of tokens and dimensions 0 to 7, in row-major order. */
TEST(test_blocked_index)
{
    enum { N = 24, D = 48 };
    int seen[N * D] = {0};
    for (size_t t = 0; t < N; t++)
        for (size_t i = 0; i < D; i++) {
            const size_t at = kvd_blocked_index(t, i, D);
            assert_true(at < N * D && !seen[at]++);
            if (t < 8 && i < 8)
                assert_int_equal(at, t * 8 + i);
            assert_int_equal(at / (8 * D), t / 8);
        }
}

TEST(test_blocked_rows)
{
    int32_t start[4];
    const kvd_attn_batch batch = {4, q_len, kv_len};
    assert_int_equal(kvd_blocked_rows(&batch, start), 8 + 8 + 16 + 64);
    assert_int_equal(start[0], 0);
    assert_int_equal(start[1], 8);
    assert_int_equal(start[2], 16);
    assert_int_equal(start[3], 32);
    assert_int_equal(kvd_blocked_rows(&batch, NULL), 96);
}

static void pack_q(int dtype)
{
    attention_case c;
    kvd_attn_map map;
    int32_t start[4];
    make(&c, &map);
    const size_t n8 = kvd_blocked_rows(&c.batch, start), n = n8 * (size_t)map.q_pitch;
    uint16_t *x = poisoned(n);
    kvd_pack_q(&map, &c.batch, dtype, c.q, x);
    for (int h = 0; h < 6; h++) {
        const size_t d = (size_t)d_qk[h / 2];
        const float *q = c.q + c.plain.q_at[h];
        for (int b = 0; b < 4; b++)
            for (size_t t = 0; t < ((size_t)q_len[b] + 7) / 8 * 8; t++)
                for (size_t i = 0; i < d; i++) {
                    const size_t at = (size_t)map.q_offset[h] * n8 +
                                      kvd_blocked_index((size_t)start[b] + t, i, d);
                    size_t row = t;
                    for (int e = 0; e < b; e++)
                        row += (size_t)q_len[e];
                    assert_int_equal(x[at],
                                     t < (size_t)q_len[b] ? rounded(q[row * d + i], dtype) : 0);
                    x[at] = POISON;
                }
    }
    for (size_t i = 0; i < n; i++)
        assert_int_equal(x[i], POISON);
}

TEST(test_pack_q)
{
    pack_q(KVD_BF16);
    pack_q(KVD_F16);
}

TEST(test_pack_q_decode)
{
    attention_case c;
    kvd_attn_map map;
    case_make(&c, 6, 3, 128, d_qk, d_v, 3, (int32_t[]){1, 1, 1}, kv_len, 1, 2);
    assert_int_equal(kvd_attn_map_make(&c.heads, &map), 0);
    uint16_t *x = poisoned(3 * (size_t)map.q_pitch);
    kvd_pack_q_decode(&map, &c.batch, KVD_BF16, c.q, x);
    for (int h = 0; h < 6; h++)
        for (int b = 0; b < 3; b++)
            for (int i = 0; i < d_qk[h / 2]; i++)
                assert_int_equal(
                    x[b * map.q_pitch + map.q_offset[h] + i],
                    rounded(c.q[c.plain.q_at[h] + (size_t)(b * d_qk[h / 2] + i)], KVD_BF16));
}

static void pack_kv(int dtype)
{
    enum { MAX_PAGES = 4, PAGES = 12 };
    /* Page table of 4 requests. Unused entries are 999 or -1, which are no valid pages, so the test
     * fails if the code reads an unused entry. */
    static const int32_t table[4 * MAX_PAGES] = {7,  2, 999, -1, 0, 999, -1, -1,
                                                 11, 5, 3,   -1, 8, -1,  -1, -1};
    attention_case c;
    kvd_attn_map map;
    make(&c, &map);
    const size_t n = PAGES * (size_t)map.page_elements;
    uint16_t *pool = poisoned(n);
    kvd_pack_kv(&map, &c.batch, dtype, c.k, c.v, table, MAX_PAGES, pool);
    size_t first = 0;
    for (int b = 0; b < 4; b++) {
        for (size_t t = 0; t < ((size_t)kv_len[b] + 7) / 8 * 8; t++)
            for (int g = 0; g < 3; g++)
                for (int is_v = 0; is_v < 2; is_v++) {
                    const size_t d = (size_t)(is_v ? d_v[g] : d_qk[g]);
                    const float *x = is_v ? c.v + c.plain.v_at[g] : c.k + c.plain.k_at[g];
                    uint16_t *page =
                        pool +
                        (size_t)table[(size_t)b * MAX_PAGES + t / 64] * (size_t)map.page_elements +
                        map.kv_offset[g] + (is_v ? 64 * d_qk[g] : 0);
                    for (size_t i = 0; i < d; i++) {
                        uint16_t *at = page + kvd_blocked_index(t % 64, i, d);
                        assert_int_equal(*at, t < (size_t)kv_len[b]
                                                  ? rounded(x[(first + t) * d + i], dtype)
                                                  : 0);
                        *at = POISON;
                    }
                }
        first += (size_t)kv_len[b];
    }
    for (size_t i = 0; i < n; i++)
        assert_int_equal(pool[i], POISON); /* no other memory was written */
}

TEST(test_pack_kv)
{
    pack_kv(KVD_BF16);
    pack_kv(KVD_F16);
}

static void unpack(int decode)
{
    attention_case c;
    kvd_attn_map map;
    int32_t start[4];
    case_make(&c, 6, 3, 128, d_qk, d_v, 4, decode ? (int32_t[]){1, 1, 1, 1} : q_len, kv_len, 1, 3);
    assert_int_equal(kvd_attn_map_make(&c.heads, &map), 0);
    const size_t rows = decode ? 4 : kvd_blocked_rows(&c.batch, start), pitch = (size_t)map.o_pitch;
    uint16_t *x = poisoned(rows * pitch);
    float *right = case_get(c.plain.o_elements, sizeof *right),
          *out = case_get(c.plain.o_elements, sizeof *out);
    for (size_t i = 0; i < c.plain.o_elements; i++)
        right[i] = (float)(i % 251) - 125;
    for (int h = 0; h < 6; h++) {
        size_t first = 0;
        for (int b = 0; b < 4; b++) {
            for (size_t t = 0; t < (size_t)c.q_len[b]; t++)
                for (size_t i = 0; i < (size_t)d_v[h / 2]; i++)
                    x[(decode ? (size_t)b : (size_t)start[b] + t) * pitch +
                      (size_t)map.o_offset[h] + i] =
                        rounded(right[c.plain.o_at[h] + (first + t) * (size_t)d_v[h / 2] + i],
                                KVD_BF16);
            first += (size_t)c.q_len[b];
        }
    }
    for (size_t i = 0; i < c.plain.o_elements; i++)
        out[i] = NAN;
    kvd_unpack_o(&map, &c.batch, KVD_BF16, decode, x, out);
    assert_memory_equal(out, right, c.plain.o_elements * sizeof *out);
}

TEST(test_unpack_o)
{
    unpack(0);
    unpack(1);
}

TEST(test_plain)
{
    attention_case c;
    kvd_attn_map map;
    make(&c, &map);
    const kvd_attn_plain *p = &c.plain;
    assert_int_equal(p->group, 2);
    assert_int_equal(p->n_q, 86);
    assert_int_equal(p->n_kv, 267);
    assert_int_equal(p->max_q, 64);
    assert_int_equal(p->max_kv, 130);
    size_t q = 0, k = 0, v = 0, o = 0;
    for (int h = 0; h < 6; h++) {
        const size_t g = (size_t)h / 2, dq = (size_t)d_qk[g], dv = (size_t)d_v[g];
        assert_int_equal(p->q_at[h], q);
        assert_int_equal(p->o_at[h], o);
        if (h % 2 == 0) {
            assert_int_equal(p->k_at[g], k);
            assert_int_equal(p->v_at[g], v);
            k += 267 * dq;
            v += 267 * dv;
        }
        q += 86 * dq;
        o += 86 * dv;
    }
    assert_int_equal(p->q_elements, q);
    assert_int_equal(p->k_elements, k);
    assert_int_equal(p->v_elements, v);
    assert_int_equal(p->o_elements, o);
}

TEST_MAIN(NULL, NULL)
