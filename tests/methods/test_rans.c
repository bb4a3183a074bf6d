/* Tests the entropy coder (methods/bits/rans.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "methods/bits/rans.h"
#include "unit.h"

enum { N = 20000 };
static uint8_t symbol[N], read_again[N], bytes[2 * N + 4];
static uint16_t context[N];

/* Encodes and decodes n symbols. Returns the size of the code in bytes. *entropy: entropy of the
 * symbols in bits. */
static size_t round_trip(size_t n, double *entropy)
{
    uint64_t count[KVD_RANS_SYMBOLS] = {0};
    kvd_rans_table t, again;
    uint8_t written[KVD_RANS_TABLE_ROOM];
    size_t size, used;
    kvd_err err = {""};
    *entropy = 0;
    for (size_t i = 0; i < n; i++)
        count[symbol[i]]++;
    for (int s = 0; s < KVD_RANS_SYMBOLS; s++)
        *entropy -= count[s] ? (double)count[s] * log2((double)count[s] / (double)n) : 0;
    kvd_rans_table_make(&t, count, KVD_RANS_SYMBOLS);
    const size_t room = kvd_rans_table_write(&t, written);
    assert_true(room <= sizeof written);
    assert_int_equal(kvd_rans_table_read(&again, written, room, &used, &err), 0);
    assert_int_equal(used, room);
    assert_memory_equal(&again, &t, sizeof t);
    assert_int_equal(kvd_rans_table_read(&again, written, room - 1, &used, &err), -1);
    assert_int_equal(kvd_rans_encode(&t, NULL, symbol, n, bytes, &size, &err), 0);
    assert_true(size <= kvd_rans_room(n));
    memset(read_again, 0xAA, sizeof read_again);
    OK(kvd_rans_decode(&t, NULL, bytes, size, read_again, n, &err));
    assert_memory_equal(read_again, symbol, n);
    return size;
}

TEST(every_kind_of_input)
{
    kvd_rng r;
    double entropy;
    kvd_rng_seed(&r, 1, 1);
    assert_int_equal(round_trip(0, &entropy), 0);
    for (size_t n = 1; n < 40; n++) {
        for (size_t i = 0; i < n; i++)
            symbol[i] = (uint8_t)kvd_rng_below(&r, 256);
        (void)round_trip(n, &entropy);
    }
    for (size_t i = 0; i < N; i++) /* uniform distribution */
        symbol[i] = (uint8_t)kvd_rng_below(&r, 256);
    size_t size = round_trip(N, &entropy);
    assert_true((double)size * 8 > entropy && (double)size * 8 < 1.002 * entropy + 40);
    for (size_t i = 0; i < N; i++) /* normal distribution in coarse steps */
        symbol[i] = (uint8_t)fmin(fmax(rint(1.5 * kvd_rng_normal(&r) + 100), 0), 255);
    size = round_trip(N, &entropy);
    assert_true((double)size * 8 < 1.001 * entropy + 40);
    for (size_t i = 0; i < N; i++) /* an entropy far below one bit per symbol */
        symbol[i] = kvd_rng_below(&r, 500) == 0 ? (uint8_t)kvd_rng_below(&r, 256) : 7;
    size = round_trip(N, &entropy);
    assert_true((double)size * 8 < 1.05 * entropy + 40 && size < N / 100 * 4);
    memset(symbol, 255, sizeof symbol);
    assert_int_equal(round_trip(N, &entropy), 4);
    memset(symbol, 0, sizeof symbol);
    assert_int_equal(round_trip(N, &entropy), 4);
}

TEST(contexts)
{
    enum { TABLES = 3 };
    kvd_rng r;
    kvd_rans_table t[TABLES];
    kvd_err err = {""};
    uint64_t count[TABLES][KVD_RANS_SYMBOLS] = {{0}};
    double entropy = 0;
    size_t size;
    kvd_rng_seed(&r, 2, 1);
    for (size_t i = 0; i < N; i++) {
        context[i] = (uint16_t)(i % TABLES);
        symbol[i] = (uint8_t)(10 * context[i] + kvd_rng_below(&r, 1u << (2 * context[i])));
        count[context[i]][symbol[i]]++;
    }
    for (int k = 0; k < TABLES; k++) {
        kvd_rans_table_make(&t[k], count[k], KVD_RANS_SYMBOLS);
        entropy += 2 * k * (double)N / TABLES;
    }
    assert_int_equal(kvd_rans_encode(t, context, symbol, N, bytes, &size, &err), 0);
    assert_true(fabs((double)size * 8 / entropy - 1) < 0.01);
    assert_int_equal(kvd_rans_decode(t, context, bytes, size, read_again, N, &err), 0);
    assert_memory_equal(read_again, symbol, N);
}

TEST(what_is_refused)
{
    kvd_rng r;
    kvd_rans_table t;
    kvd_err err = {""};
    const uint64_t count[3] = {5, 0, 1000};
    size_t size, used;
    kvd_rng_seed(&r, 3, 1);
    kvd_rans_table_make(&t, count, 3);
    for (size_t i = 0; i < N; i++)
        symbol[i] = kvd_rng_below(&r, 200) ? 2 : 0;
    assert_int_equal(kvd_rans_encode(&t, NULL, symbol, N, bytes, &size, &err), 0);
    for (size_t cut = 0; cut < size; cut++)
        assert_int_equal(kvd_rans_decode(&t, NULL, bytes, cut, read_again, N, &err), -1);
    assert_int_equal(kvd_rans_decode(&t, NULL, bytes, size, read_again, N - 1, &err), -1);
    bytes[size] = 0;
    assert_int_equal(kvd_rans_decode(&t, NULL, bytes, size + 1, read_again, N, &err), -1);
    size_t wrong = 0;
    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= 1;
        wrong += kvd_rans_decode(&t, NULL, bytes, size, read_again, N, &err) ||
                 memcmp(read_again, symbol, N);
        bytes[i] ^= 1;
    }
    assert_int_equal(wrong, size);
    symbol[N / 2] = 1;
    assert_int_equal(kvd_rans_encode(&t, NULL, symbol, N, bytes, &size, &err), -1);
    assert_non_null(strstr(err.msg, "symbol 1 of an entropy code has frequency 0"));
    memset(bytes, 0, 4);
    assert_int_equal(kvd_rans_table_read(&t, bytes, 4, &used, &err), -1);
    memset(bytes, 0xFF, 400);
    assert_int_equal(kvd_rans_table_read(&t, bytes, 400, &used, &err), -1);
    kvd_rans_table_make(&t, count, 0);
    assert_true(t.start[1] == KVD_RANS_TOTAL && t.start[256] == KVD_RANS_TOTAL);
}

TEST(rare_symbols)
{
    uint64_t count[KVD_RANS_SYMBOLS];
    kvd_rans_table t;
    for (int big = 1; big <= 4; big++) {
        for (int s = 0; s < KVD_RANS_SYMBOLS; s++)
            count[s] = s < big ? (uint64_t)1 << 40 : 1;
        kvd_rans_table_make(&t, count, KVD_RANS_SYMBOLS);
        assert_int_equal(t.start[KVD_RANS_SYMBOLS], KVD_RANS_TOTAL);
        for (int s = 0; s < KVD_RANS_SYMBOLS; s++)
            assert_true(t.start[s + 1] > t.start[s]);
    }
}

TEST(streams_continue)
{
    enum { CALL = 16, CALLS = N / CALL };
    static uint8_t part[CALLS][2 * CALL + 4];
    static size_t size[CALLS];
    uint64_t count[KVD_RANS_SYMBOLS] = {0};
    kvd_rans_table t;
    kvd_rng r;
    kvd_err err = {""};
    double entropy = 0;
    size_t sum = 0;
    uint32_t stream = 0, states[CALLS];
    kvd_rng_seed(&r, 3, 1);
    for (size_t i = 0; i < N; i++) {
        const double u = kvd_rng_uniform(&r);
        symbol[i] = (uint8_t)(u * u * u * 9);
        count[symbol[i]]++;
    }
    kvd_rans_table_make(&t, count, KVD_RANS_SYMBOLS);
    for (int s = 0; s < KVD_RANS_SYMBOLS; s++)
        entropy -= count[s] ? (double)count[s] * log2((double)count[s] / N) : 0;
    for (size_t i = 0; i < CALLS; i++) {
        OK(kvd_rans_push(&t, NULL, symbol + i * CALL, CALL, &stream, part[i], &size[i], &err));
        states[i] = stream;
        sum += size[i];
    }
    assert_true(8 * (double)sum + 32 <= 1.001 * entropy + 64);
    for (size_t i = CALLS; i-- > 0;) {
        assert_int_equal(stream, states[i]);
        OK(kvd_rans_pop(&t, NULL, part[i], size[i], &stream, read_again + i * CALL, CALL, &err));
    }
    assert_memory_equal(read_again, symbol, N);
}

enum { KEPT = 300, TOKENS = 50, ROOM = KVD_STREAM_GROUPS * KVD_LANES * TOKENS };

TEST(streams_of_a_block)
{
    static uint16_t start[KEPT * 40], words[2][ROOM];
    static int32_t q[TOKENS][KEPT], read[KEPT];
    static kvd_stream_component component[KEPT];
    const kvd_stream_tables t = {KEPT, component, start};
    uint32_t states[2 * KVD_LANES], n[2] = {0, 0}, at = 0;
    kvd_stream_block block = {states, words[0], ROOM, n};
    kvd_err err = {""};
    double bits = 0;
    kvd_rng r;
    kvd_rng_seed(&r, 5, 1);
    assert_int_equal(kvd_stream_count(KEPT), 2);
    for (int j = 0; j < KEPT; j++) {
        const int most = 1 + (KEPT - j) / 10, below = (int)kvd_rng_below(&r, (uint64_t)most);
        uint64_t count[40];
        kvd_rans_table table;
        for (int i = 0; i < most; i++)
            count[i] = 1 + kvd_rng_below(&r, 100);
        kvd_rans_table_make(&table, count, (size_t)most);
        component[j] = (kvd_stream_component){at, (int16_t)-below, (uint16_t)most};
        memcpy(start + at, table.start, (size_t)(most + 1) * sizeof *start);
        at += (uint32_t)most + 1;
    }
    for (int i = 0; i < 2 * KVD_LANES; i++)
        states[i] = KVD_STREAM_LEAST;
    for (int i = 0; i < TOKENS; i++) {
        for (int j = 0; j < KEPT; j++) {
            const uint16_t *const of = start + component[j].at;
            const int k = kvd_stream_find(of, component[j].n, (uint32_t)kvd_rng_below(&r, 1 << 14));
            q[i][j] = component[j].least + k;
            bits -= log2((of[k + 1] - of[k]) / 16384.0);
        }
        kvd_streams_push(&t, q[i], &block);
    }
    const double stored = 16.0 * (n[0] + n[1]);
    assert_true(stored < 1.01 * bits && stored > bits - 16 * 2 * KVD_LANES - 0.01 * bits);
    for (int i = TOKENS - 1; i >= 0; i--) {
        assert_int_equal(kvd_streams_pop(&t, &block, read, &err), 0);
        assert_memory_equal(read, q[i], sizeof read);
    }
    assert_int_equal(n[0] + n[1], 0);
    for (int i = 0; i < 2 * KVD_LANES; i++)
        assert_int_equal(states[i], KVD_STREAM_LEAST);
    for (int i = 0; i < 2 * KVD_LANES; i++)
        states[i] = KVD_STREAM_LEAST;
    assert_int_equal(kvd_streams_pop(&t, &block, read, &err), -1);
    assert_non_null(strstr(err.msg, "of an entropy code ends in group"));
}

/* Checks the decoder's lookup table of one component against the cumulative frequencies start [n +
 * 1]. */
static void check_column(const uint32_t *image, int k, uint32_t lanes, uint32_t lane,
                         const uint16_t *start, int least, int n)
{
    const kvd_stream_lookup g = ((const kvd_stream_lookup *)(const void *)image)[k];
    assert_true(g.bucket >= KVD_STREAM_GROUPS * sizeof g);
    for (uint32_t number = 0; number < start[n]; number++) {
        uint32_t offset;
        const int i = kvd_stream_find(start, n, number);
        const uint32_t word =
            kvd_stream_look_up((const char *)image, g, lanes, lane, number, &offset);
        assert_int_equal(word, start[i] | (uint32_t)start[i + 1] << 16);
        assert_int_equal(offset % (4 * lanes), 0);
        assert_int_equal(g.least + (int)(offset / (4 * lanes)), least + i);
    }
}

/* Fills start [n + 1] with random cumulative frequencies of n integers, some of which never occur.
 * `escape`: number of occurrences of the escape symbol, which codes all other integers. */
static void draw_starts(kvd_rng *r, uint16_t *start, int n, uint64_t escape)
{
    uint64_t count[KVD_RANS_SYMBOLS] = {0};
    kvd_rans_table t;
    for (int i = 0; i < n; i++)
        count[i] =
            i != n / 2 && kvd_rng_below(r, 9) == 0
                ? 0
                : 1 + (uint64_t)(2000 * exp(-(double)kvd_rng_below(r, 12) - abs(i - n / 2) / 4.0));
    count[KVD_RANS_SYMBOLS - 1] += escape;
    kvd_rans_table_make(&t, count, KVD_RANS_SYMBOLS);
    memcpy(start, t.start, (size_t)(n + 1) * sizeof *start);
}

TEST(tables_of_streams)
{
    static uint16_t start[KEPT * (KVD_RANS_SYMBOLS + 1)];
    static kvd_stream_component component[KEPT];
    const kvd_stream_tables t = {KEPT, component, start};
    kvd_rng r;
    uint32_t at = 0;
    kvd_rng_seed(&r, 5, 1);
    for (int j = 0; j < KEPT; j++) {
        const int n = 1 + (int)kvd_rng_below(&r, j < 100   ? 200
                                                 : j < 200 ? 7
                                                           : 2),
                  below = (int)kvd_rng_below(&r, (uint32_t)n);
        draw_starts(&r, start + at, n, (uint64_t)j % 2);
        component[j] = (kvd_stream_component){at, (int16_t)-below, (uint16_t)n};
        at += (uint32_t)n + 1;
    }
    const kvd_stream_lookup_size all = kvd_stream_lookups(&t, SIZE_MAX, NULL),
                                 few = kvd_stream_lookups(&t, 30000, NULL);
    assert_true(all.whole && !few.whole && few.largest <= 30000 && few.words < all.words);
    uint32_t *const to = unit_alloc(all.words * sizeof *to);
    assert_int_equal(kvd_stream_lookups(&t, SIZE_MAX, to).words, all.words);
    assert_int_equal(to[kvd_stream_count(KEPT)], all.words);
    for (int j = 0; j < KEPT; j++) {
        const int n = kvd_stream_count(KEPT), c = j / KVD_LANES;
        check_column(to + to[c % n], c / n, KVD_LANES, (uint32_t)(j % KVD_LANES),
                     start + component[j].at, component[j].least, component[j].n);
    }
}

TEST(tables_of_cachegen)
{
    enum { WIDE = 48, N_TABLES = 2, EACH = (1 + WIDE) * KVD_STREAM_TABLE };
    static uint16_t table[N_TABLES * EACH];
    kvd_rng r;
    kvd_rng_seed(&r, 6, 1);
    for (int i = 0; i < N_TABLES * (1 + WIDE); i++)
        draw_starts(&r, table + i * KVD_STREAM_TABLE,
                    i % (1 + WIDE) ? KVD_CACHEGEN_CODES : KVD_RANS_SYMBOLS, 0);
    const kvd_stream_lookup_size size = kvd_cachegen_lookups(table, N_TABLES, WIDE, SIZE_MAX, NULL);
    uint32_t *const to = unit_alloc(size.words * sizeof *to);
    assert_int_equal(kvd_cachegen_lookups(table, N_TABLES, WIDE, SIZE_MAX, to).words, size.words);
    for (int i = 0; i < N_TABLES; i++) {
        const uint32_t *const image = to + to[i];
        check_column(image, KVD_CACHEGEN_FIRST, 1, 0, table + i * EACH, 0, KVD_RANS_SYMBOLS);
        for (int j = 0; j < WIDE; j++)
            check_column(image, j / KVD_LANES, KVD_LANES, (uint32_t)(j % KVD_LANES),
                         table + i * EACH + (1 + j) * KVD_STREAM_TABLE, 0, KVD_CACHEGEN_CODES);
    }
}

TEST_MAIN(NULL, NULL)
