/* Tests how quantised numbers are packed in 32-bit words for the GPU. */
#include <stdlib.h>
#include <string.h>

#include "common/quantise.h"
#include "common/rng.h"
#include "methods/bits/bits.h"
#include "methods/bits/packed_layout.h"
#include "unit.h"
#ifdef KVD_CUDA
#include "code_rows.h"
#include "methods/bits/cuda/packed.h"
#endif

enum { TOKENS = KVD_PAGE_TOKENS, D = 48, GROUP = 32 };

static uint32_t *words_of(uint32_t *page, int bits, int side, int t, int i)
{
    const int lane = side ? kvd_packed_value_lane(t, i) : kvd_packed_key_lane(t, i);
    return page + kvd_packed_words(bits, i / 16, lane);
}

static int number_of(int side, int t, int i)
{
    return side ? kvd_packed_value_number(t, i) : kvd_packed_key_number(t, i);
}

TEST(every_number_has_its_bits)
{
    for (int bits = 1; bits <= 8; bits++)
        for (int side = 0; side < 4; side++) {
            const bool levels = side / 2;
            uint32_t page[D / 16 * 32 * 8];
            uint8_t want[TOKENS][D];
            kvd_rng r;
            kvd_rng_seed(&r, 5, (uint64_t)bits);
            memset(page, 0xa5, sizeof page);
            for (int pass = 0; pass < 2; pass++)
                for (int t = 0; t < TOKENS; t++)
                    for (int i = 0; i < D; i++) {
                        want[t][i] = (uint8_t)kvd_rng_below(&r, 1u << bits);
                        kvd_packed_put(words_of(page, bits, side % 2, t, i), levels, bits,
                                       number_of(side % 2, t, i), want[t][i]);
                    }
            for (int t = 0; t < TOKENS; t++)
                for (int i = 0; i < D; i++)
                    assert_int_equal(kvd_packed_get(words_of(page, bits, side % 2, t, i), levels,
                                                    bits, number_of(side % 2, t, i)),
                                     want[t][i]);
            for (size_t w = (size_t)(D / 16 * 32 * bits); w < sizeof page / sizeof *page; w++)
                assert_int_equal(page[w], 0xa5a5a5a5u);
        }
}

/* Tests that the two numbers of each pair (0 and 1, 2 and 3, ...) are stored 16 bits apart in a
 * 32-bit word. */
TEST(pairs_stand_in_halves)
{
    for (int w = 1; w <= 8; w *= 2)
        for (int p = 0; p < 16; p++) {
            uint32_t words[8] = {0};
            kvd_packed_put(words, false, w, 2 * p, (1u << w) - 1);
            kvd_packed_put(words, false, w, 2 * p + 1, (1u << w) - 1);
            for (int i = 0; i < w; i++)
                assert_int_equal(words[i], i == p / (16 / w)
                                               ? ((1u << w) - 1) * 0x10001u << p % (16 / w) * w
                                               : 0);
        }
}

TEST(levels_are_a_stream)
{
    for (int bits = 1; bits <= 8; bits++)
        for (int n = 0; n < 32; n++) {
            uint32_t words[8] = {0};
            kvd_packed_put(words, true, bits, n, 1u << (bits - 1));
            for (int at = 0; at < 256; at++)
                assert_int_equal(words[at / 32] >> at % 32 & 1, at == n * bits + bits - 1);
        }
}

/* Tests the order in which a lane stores numbers of K or V. Number 8 k + 2 r + e must be half e of
 * register r in operand k of the instruction mma.m16n8k16. */
TEST(numbers_are_fragments)
{
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < 16; i++)
            for (int side = 0; side < 2; side++) {
                const int row = side ? i : t % 16, column = side ? t % 16 : i,
                          n = number_of(side, t, i);
                const int lane = side ? kvd_packed_value_lane(t, i) : kvd_packed_key_lane(t, i);
                assert_int_equal(row, lane / 4 + n / 2 % 2 * 8);
                assert_int_equal(column, lane % 4 * 2 + n % 2 + n / 4 % 2 * 8);
                assert_int_equal(t / 16, n / 8);
            }
}

TEST(scales_have_places_of_their_own)
{
    int seen[32] = {0};
    for (int x = 0; x < 16; x++) {
        seen[kvd_packed_scale(x)]++;
        seen[kvd_packed_scale(x) + 4]++;
        assert_int_equal(kvd_packed_scale(x) / 8, x % 8 / 2);
    }
    for (int i = 0; i < 32; i++)
        assert_int_equal(seen[i], 1);
    const kvd_packed_form f = {.bits = 4, .k_group = 32, .v_group = 32};
    const kvd_packed_parts p = kvd_packed_parts_of(&f, 128, 128);
    assert_int_equal(p.bytes, 64 * (128 / 2) * 2 + 2 * 128 * 4 + 64 * 4 * 4);
}

TEST(blocks_have_a_scale_per_token)
{
    for (int side = 0; side < 2; side++) {
        int seen[TOKENS] = {0};
        for (int t = 0; t < TOKENS; t++) {
            const int lane = side ? kvd_packed_value_lane(t, 0) : kvd_packed_key_lane(t, 0);
            seen[kvd_packed_block_scale(side, t)]++;
            assert_int_equal(kvd_packed_block_scale(side, t) / (side ? 16 : 8),
                             side ? lane % 4 : lane / 4);
        }
        for (int i = 0; i < TOKENS; i++)
            assert_int_equal(seen[i], 1);
    }
    const kvd_packed_form
        fp8 = {.bits = 8, .v_group = KVD_WIDTH_NARROW, .exponent = 4},
        nvfp4 = {.bits = 4, .v_group = KVD_WIDTH_NARROW, .exponent = 2, .block = 16},
        mxfp4 = {.bits = 4, .v_group = KVD_WIDTH_NARROW, .exponent = 2, .block = 32},
        turned = {.bits = 4, .v_group = KVD_WIDTH_NARROW, .norms = true};
    assert_int_equal(kvd_packed_parts_of(&fp8, 128, 128).bytes, 128 * TOKENS * 2);
    assert_int_equal(kvd_packed_parts_of(&nvfp4, 128, 128).bytes, (64 + 8) * TOKENS * 2);
    assert_int_equal(kvd_packed_parts_of(&mxfp4, 80, 80).bytes, (40 + 3) * TOKENS * 2);
    assert_int_equal(kvd_packed_parts_of(&turned, 128, 128).bytes,
                     64 * TOKENS * 2 + (4 + 2) * TOKENS);
}

TEST(groups_come_back)
{
    kvd_rng r;
    kvd_rng_seed(&r, 6, 0);
    for (int bits = 1; bits <= 8; bits++)
        for (int c = 0; c < 50; c++) {
            float x[GROUP], want[GROUP], lo, hi;
            uint32_t page[2 * 32 * 8] = {0};
            for (int i = 0; i < GROUP; i++)
                x[i] = (float)(kvd_rng_normal(&r) * (c == 1 ? 0 : 1 + c) + (c % 3) * 10.0);
            lo = hi = x[0];
            for (int i = 0; i < GROUP; i++) {
                lo = x[i] < lo ? x[i] : lo;
                hi = x[i] > hi ? x[i] : hi;
            }
            (void)kvd_quantise_group(x, GROUP, 1, bits, want);
            const float top = (float)((1 << bits) - 1), zero = kvd_round_f16(lo),
                        step = kvd_round_f16((hi - lo) / top);
            for (int i = 0; i < GROUP; i++) {
                float q = step > 0 ? (x[i] - zero) / step : 0;
                q = q - (float)(int)q > 0.5f || (q - (float)(int)q == 0.5f && (int)q % 2)
                        ? (float)((int)q + 1)
                        : (float)(int)q;
                q = q < 0 ? 0 : q > top ? top : q;
                kvd_packed_put(words_of(page, bits, 1, c, i), false, bits, number_of(1, c, i),
                               (uint32_t)q);
            }
            for (int i = 0; i < GROUP; i++) {
                const float q = (float)kvd_packed_get(words_of(page, bits, 1, c, i), false, bits,
                                                      number_of(1, c, i));
                const float got = step * q + zero;
                assert_memory_equal(&got, &want[i], sizeof got);
            }
        }
}

#ifdef KVD_CUDA
enum { HEADS = 3, WIDE = 64, MOST = 150 };

static kvd_packed_args describe(const char *method)
{
    const kvd_config config = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d_head = WIDE};
    const kvd_attn_heads heads = {
        .n_heads = 1, .n_kv_heads = 1, .d_head = WIDE, .d_qk = {WIDE}, .d_v = {WIDE}};
    const kvd_method m = parsed(method);
    kvd_packed_args a;
    kvd_attn_map map;
    assert_int_equal(kvd_attn_map_make(&heads, &map), 0);
    kvd_gpu_packed_describe(&m.plan, &config, &map, NULL, 0, &a);
    return a;
}

/* Marks `bytes` bytes of a page as used, from index `at` on. Fails the test if a byte is already
 * marked. */
static void use(uint8_t *page, size_t size, int at, int bytes, const char *method)
{
    if (at < 0 || (size_t)(at + bytes) > size)
        fail_msg("%s: bytes %d .. %d of a page of %zu", method, at, at + bytes - 1, size);
    for (int i = at; i < at + bytes; i++)
        if (page[i]++)
            fail_msg("%s: byte %d of a page has two uses", method, i);
}

/* Marks in `page` which bytes of page number p store tokens. The request has m tokens, `prompt` of
 * them in its prompt. */
static void use_page(const kvd_packed_args *a, int p, int prompt, int m, uint8_t *page,
                     const char *method)
{
    const kvd_gear *const s = &a->gear.of;
    const int d = WIDE, t0 = KVD_PAGE_TOKENS * p, t1 = t0 + KVD_PAGE_TOKENS;
    const kvd_gear_page of = kvd_gear_page_of(s, a->gear.k_room, d, d);
    const size_t size = a->page_bytes;
    memset(page, 0, size);
    use(page, size, 0, of.v, method);
    use(page, size, of.v, of.v_side - of.v, method);
    use(page, size, of.v_side, KVD_PAGE_TOKENS * of.v_groups * 4, method);
    use(page, size, of.v_list, KVD_PAGE_TOKENS * of.v_apart * 4, method);
    for (int side = 0; side < 2; side++)
        use(page, size, of.left[side], KVD_PAGE_TOKENS * of.columns_left * 2, method);
    for (int t = 0; t < prompt; t += s->group)
        if (t >= t0 && t < t1)
            use(page, size, of.area + kvd_gear_group(s, t) * d * 4, d * 4, method);
    if (t0 < prompt)
        use(page, size, of.area + of.k_groups * d * 4, a->gear.k_room * d * 4, method);
    for (int t = prompt; t < m; t += s->buffer)
        if (t >= t0 && t < t1)
            use(page, size, of.area + kvd_gear_record(s, &of, t, prompt), of.record, method);
}

TEST(pages_of_gear_have_room)
{
    static const char *const method[] = {"gear",
                                         "gear,outliers=0.3,group=24,buffer=7",
                                         "gear,outliers=0.02,group=16,rank=0,rank2=3,buffer=64",
                                         "gear,outliers=0.1,group=128,rank=7,rank2=0,buffer=100",
                                         "gear,outliers=0,group=3,rank=8,rank2=8,buffer=33",
                                         "gear,bits=8,buffer=1,rank2=1"};
    static uint8_t page[1 << 20];
    for (size_t i = 0; i < sizeof method / sizeof *method; i++) {
        const kvd_packed_args a = describe(method[i]);
        assert_in_range(a.page_bytes, 1, sizeof page);
        assert_int_equal(a.page_bytes % 16, 0);
        const int block = a.gear.of.buffer;
        for (int prompt = 0; prompt <= 700; prompt += block) {
            const int outliers = 2 * kvd_gear_apart(&a.gear.of, prompt),
                      pages = kvd_gear_pieces(prompt, KVD_PAGE_TOKENS);
            assert_true(outliers <= pages * a.gear.k_room);
            for (int p = 0; p < 12; p++)
                use_page(&a, p, prompt, 12 * KVD_PAGE_TOKENS, page, method[i]);
        }
    }
}

/* Marks in `page` which bytes of a request's first 12 pages store tokens. The prompt is quantised
 * as one block. */
static void use_classes(const kvd_packed_args *a, int prompt, uint8_t *page, const char *method)
{
    const kvd_packed_classes *const c = &a->classes.of;
    const kvd_packed_class_page of = kvd_packed_class_page_of(c, WIDE, WIDE);
    const size_t size = a->page_bytes;
    int number[2] = {0, 0};
    memset(page, 0, 12 * size);
    for (int p = 0; p < 12; p++)
        use(page + (size_t)p * size, size, 0, 16, method);
    for (int from = 0, to = prompt ? prompt : c->block; to <= 12 * KVD_PAGE_TOKENS;
         from = to, to += c->block) {
        const int salient = kvd_packed_salient(c, to - from);
        assert_int_equal(kvd_packed_salient_before(c, from, prompt), number[1]);
        use(page + (size_t)(from / KVD_PAGE_TOKENS) * size, size,
            kvd_packed_class_area(c, &of, from), of.area_bytes, method);
        for (int i = 0; i < to - from; i++) {
            const int k = i < salient, n = number[k]++, in = n / c->room[k];
            assert_true(in <= (to - 1) / KVD_PAGE_TOKENS);
            for (int side = 0; side < 2; side++)
                use(page + (size_t)in * size, size,
                    of.codes[side][k] + n % c->room[k] * of.words[side][k] * 4,
                    of.words[side][k] * 4, method);
        }
    }
}

TEST(pages_of_classes_have_room)
{
    static const char *const method[] = {"zipcache",
                                         "zipcache,block=20,share=0.13",
                                         "zipcache,block=7,share=0.93",
                                         "zipcache,share=0",
                                         "zipcache,share=1,high=8,low=1,block=1",
                                         "zipcache,share=0.001,block=64",
                                         "zipcache,block=3,share=0.5,high=1,low=8",
                                         "zipcache,block=128,share=0.28125"};
    static uint8_t page[1 << 20];
    for (size_t i = 0; i < sizeof method / sizeof *method; i++) {
        const kvd_packed_args a = describe(method[i]);
        assert_in_range(12 * a.page_bytes, 1, sizeof page);
        assert_int_equal(a.page_bytes % 16, 0);
        for (int prompt = 0; prompt <= 700; prompt += a.k_block)
            use_classes(&a, prompt, page, method[i]);
    }
}

/* Returns how many bits the quantisation method takes to store m tokens of KV head g. The first
 * `prompt` tokens belong to the prompt. */
static double counted(const kvd_plan *plan, int side, int g, size_t d, size_t m, size_t prompt,
                      const float *x, float *y)
{
    uint8_t level[MOST];
    uint32_t position[MOST];
    double mass[MOST], seen[MOST];
    size_t window = 0, block = 1;
    kvd_bits_count count = {0, 0};
    kvd_err err = {""};
    if (plan->bits->window)
        plan->bits->window(&plan->bits_values, (kvd_side)side, &window, &block);
    const size_t n = m > window ? (m - window) / block * block : 0;
    for (size_t t = 0; t < m; t++) {
        level[t] = KVD_LEVEL_HIGH;
        position[t] = (uint32_t)t;
        mass[t] = (double)(t * 7 % 5);
        seen[t] = 2;
    }
    const size_t whole = prompt / block * block < n ? prompt / block * block : n;
    double bits = 16.0 * (double)((m - n) * d);
    for (size_t from = 0, to = whole ? whole : block; from < n; from = to, to += block) {
        const kvd_bits_block b = {.side = (kvd_side)side,
                                  .kv_head = g,
                                  .n = to - from,
                                  .d = d,
                                  .x = x + from * d,
                                  .level = level + from,
                                  .position = position + from,
                                  .mass = mass + from,
                                  .seen = seen + from,
                                  .prompt = from < whole};
        OK(plan->bits->code(plan->bits_self, &b, y, &count, &err));
        bits += count.payload + count.side;
    }
    return bits;
}

TEST(bits_are_the_methods)
{
    static const char *const method[] = {"kivi,bits=3,group=32,residual=64",
                                         "kivi,bits=2,group=16,residual=0",
                                         "kvquant,bits=4,outliers=0,sink=3",
                                         "fp8",
                                         "mxfp4",
                                         "nvfp4",
                                         "turboquant,bits=3",
                                         "turboquant,bits=4,qjl=0",
                                         "comet",
                                         "comet,bits=3,group=16,symmetric=0",
                                         "allot,bits=2.7,sink=2",
                                         "gear",
                                         "gear,outliers=0.1,group=16,rank=5,rank2=3,buffer=9",
                                         "zipcache,block=20",
                                         "zipcache,high=8,low=3,share=0.13,block=7",
                                         "zipcache,share=1,block=1",
                                         "turboquant,bits=2.5",
                                         "turboquant,bits=3.2,qjl=0,group=16",
                                         "vidkv,residual=32",
                                         "vidkv,k=1.7,group=16,residual=48,ternary=0",
                                         "vidkv,k=1,group=64,residual=0",
                                         "vidkv,k=2",
                                         "hetero",
                                         "hetero,k=16,v=3"};
    static const kvd_dims_head cut[HEADS] = {
        {.d_qk = 17, .d_v = 49}, {.d_qk = 64, .d_v = 5}, {.d_qk = 33, .d_v = 64}};
    static const size_t tokens[] = {1, 2, 3, 63, 64, 65, 128, 129, MOST};
    static float x[MOST * WIDE], y[MOST * WIDE];
    const kvd_config config = {.n_layers = 1,
                               .n_heads = HEADS,
                               .n_kv_heads = HEADS,
                               .d_head = WIDE,
                               .d_model = HEADS * WIDE,
                               .max_positions = 4096};
    kvd_dims dims = {.n_layers = 1, .n_kv_heads = HEADS, .d_head = WIDE};
    dims.head = (kvd_dims_head *)(uintptr_t)cut;
    kvd_rng r;
    kvd_rng_seed(&r, 8, 0);
    for (int i = 0; i < MOST * WIDE; i++)
        x[i] = (float)kvd_rng_normal(&r);
    for (size_t i = 0; i < 2 * sizeof method / sizeof *method; i++) {
        const kvd_method_setup setup = {.config = &config, .drawn = true};
        const bool narrow = i % 2;
        kvd_err err = {""};
        kvd_packed_args a;
        kvd_attn_map map;
        kvd_attn_heads heads = {.n_heads = HEADS, .n_kv_heads = HEADS, .d_head = WIDE};
        kvd_plan plan = parsed(method[i / 2]).plan;
        plan.type = KVD_BF16;
        plan.prompt = 1;
        plan.dims = narrow ? &dims : NULL;
        if (kvd_plan_open(&plan, &setup, &err))
            fail_msg("%s: %s", method[i / 2], err.msg);
        for (int g = 0; g < HEADS; g++) {
            heads.d_qk[g] = narrow ? (cut[g].d_qk + 15) / 16 * 16 : WIDE;
            heads.d_v[g] = narrow ? (cut[g].d_v + 15) / 16 * 16 : WIDE;
        }
        assert_int_equal(kvd_attn_map_make(&heads, &map), 0);
        kvd_gpu_packed_describe(&plan, &config, &map, narrow ? cut : NULL, 0, &a);
        if (a.form.allotted)
            kvd_gpu_packed_allot(&plan, 0, 0, &a, NULL);
        const size_t n_tokens = sizeof tokens / sizeof *tokens;
        for (size_t k = 0; k < (kvd_packed_in_blocks(&a.form) ? 3 : 1) * n_tokens; k++)
            for (int g = 0; g < HEADS; g++) {
                const size_t n = tokens[k % n_tokens], prompt = k < n_tokens                 ? n
                                                                : k < 2 * n_tokens || n < 45 ? 0
                                                                                             : 45;
                const size_t d_qk = narrow ? (size_t)cut[g].d_qk : WIDE,
                             d_v = narrow ? (size_t)cut[g].d_v : WIDE;
                const double want = counted(&plan, 0, g, d_qk, n, prompt, x, y) +
                                    counted(&plan, 1, g, d_v, n, prompt, x, y),
                             got = kvd_packed_in_blocks(&a.form)
                                       ? kvd_gpu_packed_block_bits(&a, g, 0, n, prompt)
                                       : kvd_gpu_packed_bits(&a, g, 0, n);
                if (want < got || want > got)
                    fail_msg("%s, %s heads, %zu tokens, head %d: %g bits, not %g", method[i / 2],
                             narrow ? "cut" : "whole", n, g, got, want);
            }
        kvd_plan_close(&plan);
    }
}
#endif

TEST_MAIN(NULL, NULL)
