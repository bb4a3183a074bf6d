#include "methods/bits/rans.h"

#include <math.h>
#include <string.h>

/* Smallest state of the entropy coder after encoding a symbol. It is also the initial state. */
static const uint32_t LEAST = 1u << 23;
enum { STATE_BYTES = 4 };

static uint32_t frequency(const kvd_rans_table *t, int symbol)
{
    return (uint32_t)(t->start[symbol + 1] - t->start[symbol]);
}

static void index_parts(kvd_rans_table *t)
{
    for (int part = 0, s = 0; part < KVD_RANS_PARTS; part++) {
        while (t->start[s + 1] <= part * KVD_RANS_PART)
            s++;
        t->first[part] = (uint8_t)s;
    }
}

void kvd_rans_table_make(kvd_rans_table *t, const uint64_t *count, size_t n)
{
    uint32_t of[KVD_RANS_SYMBOLS] = {0}, sum = 0;
    double all = 0;
    for (size_t s = 0; s < n; s++)
        all += (double)count[s];
    for (size_t s = 0; s < n; s++) {
        const double share = all > 0 ? (double)count[s] / all * KVD_RANS_TOTAL : 0;
        of[s] = share < 1 ? count[s] > 0 : (uint32_t)share;
        sum += of[s];
    }
    /* Rounded frequencies may not add up to KVD_RANS_TOTAL. Frequencies of the most frequent
     * symbols are changed until they do. */
    while (sum != KVD_RANS_TOTAL) {
        size_t most = 0;
        for (size_t s = 1; s < n; s++)
            most = of[s] > of[most] ? s : most;
        const uint32_t spare = of[most] - of[most] / 2;
        if (sum < KVD_RANS_TOTAL) {
            of[most] += KVD_RANS_TOTAL - sum;
            sum = KVD_RANS_TOTAL;
        } else {
            const uint32_t less = sum - KVD_RANS_TOTAL < spare ? sum - KVD_RANS_TOTAL : spare;
            of[most] -= less;
            sum -= less;
        }
    }
    t->start[0] = 0;
    for (size_t s = 0; s < KVD_RANS_SYMBOLS; s++)
        t->start[s + 1] = (uint16_t)(t->start[s] + of[s]);
    index_parts(t);
}

/* String of bits in an array of bytes, beginning with the lowest bit of each byte. */
typedef struct {
    uint8_t *out;
    const uint8_t *in;
    size_t at, end;
} bit_string;

static void put(bit_string *b, uint32_t value, int bits)
{
    for (int i = 0; i < bits; i++, b->at++) {
        if (b->at % 8 == 0)
            b->out[b->at / 8] = 0;
        b->out[b->at / 8] |= (uint8_t)(((value >> i) & 1) << b->at % 8);
    }
}

/* Reads and returns the next `bits` bits of a string. Bits beyond its end are 0. */
static uint32_t get(bit_string *b, int bits)
{
    uint32_t value = 0;
    for (int i = 0; i < bits; i++, b->at++)
        if (b->at < b->end)
            value |= (uint32_t)(b->in[b->at / 8] >> b->at % 8 & 1) << i;
    return value;
}

/* Writes the largest symbol that occurs (8 bits), then the frequency of each symbol up to it. A
 * frequency is its bit length (4 bits), then its bits below the highest 1 bit. */
size_t kvd_rans_table_write(const kvd_rans_table *t, uint8_t *out)
{
    bit_string b = {.out = out};
    int last = KVD_RANS_SYMBOLS - 1;
    while (last > 0 && frequency(t, last) == 0)
        last--;
    put(&b, (uint32_t)last, 8);
    for (int s = 0; s <= last; s++) {
        const uint32_t f = frequency(t, s);
        int bits = 0;
        while (f >> bits)
            bits++;
        put(&b, (uint32_t)bits, 4);
        if (bits > 1)
            put(&b, f - (1u << (bits - 1)), bits - 1);
    }
    return (b.at + 7) / 8;
}

int kvd_rans_table_read(kvd_rans_table *t, const uint8_t *in, size_t n, size_t *used, kvd_err *err)
{
    bit_string b = {.in = in, .end = 8 * n};
    const int last = (int)get(&b, 8);
    uint32_t sum = 0;
    t->start[0] = 0;
    for (int s = 0; s < KVD_RANS_SYMBOLS; s++) {
        const int bits = s <= last ? (int)get(&b, 4) : 0;
        sum += bits > 1 ? (1u << (bits - 1)) + get(&b, bits - 1) : (uint32_t)bits;
        if (sum > KVD_RANS_TOTAL)
            break;
        t->start[s + 1] = (uint16_t)sum;
    }
    if (b.at > b.end)
        return kvd_fail(err, "the table of an entropy code ends after %zu bytes", n);
    if (sum != KVD_RANS_TOTAL)
        return kvd_fail(err, "the frequencies of an entropy code do not sum to %d", KVD_RANS_TOTAL);
    *used = (b.at + 7) / 8;
    index_parts(t);
    return 0;
}

size_t kvd_rans_room(size_t n)
{
    return 2 * n + STATE_BYTES;
}

int kvd_rans_push(const kvd_rans_table *table, const uint16_t *context, const uint8_t *symbol,
                  size_t n, uint32_t *state, uint8_t *out, size_t *bytes, kvd_err *err)
{
    uint8_t *const end = out + kvd_rans_room(n), *at = end;
    uint32_t x = *state ? *state : LEAST;
    /* Symbols are encoded from last to first, because decoding reverses the order. */
    for (size_t i = n; i-- > 0;) {
        const kvd_rans_table *const t = &table[context ? context[i] : 0];
        const uint32_t f = frequency(t, symbol[i]);
        if (f == 0)
            return kvd_fail(err, "symbol %d of an entropy code has frequency 0", symbol[i]);
        for (; x >= ((LEAST >> KVD_RANS_BITS) << 8) * f; x >>= 8)
            *--at = (uint8_t)x;
        x = ((x / f) << KVD_RANS_BITS) + x % f + t->start[symbol[i]];
    }
    *state = x;
    *bytes = (size_t)(end - at);
    memmove(out, at, *bytes);
    return 0;
}

int kvd_rans_encode(const kvd_rans_table *table, const uint16_t *context, const uint8_t *symbol,
                    size_t n, uint8_t *out, size_t *bytes, kvd_err *err)
{
    uint32_t state = 0;
    if (kvd_rans_push(table, context, symbol, n, &state, out, bytes, err))
        return -1;
    if (!n)
        return 0;
    memmove(out + STATE_BYTES, out, *bytes);
    for (int i = STATE_BYTES; i-- > 0; state >>= 8)
        out[i] = (uint8_t)state;
    *bytes += STATE_BYTES;
    return 0;
}

static int symbol_at(const kvd_rans_table *t, uint32_t number)
{
    int s = t->first[number / KVD_RANS_PART];
    while (t->start[s + 1] <= number)
        s++;
    return s;
}

int kvd_rans_pop(const kvd_rans_table *table, const uint16_t *context, const uint8_t *in,
                 size_t bytes, uint32_t *state, uint8_t *symbol, size_t n, kvd_err *err)
{
    const uint8_t *const end = in + bytes;
    uint32_t x = *state;
    for (size_t i = 0; i < n; i++) {
        const kvd_rans_table *const t = &table[context ? context[i] : 0];
        const uint32_t number = x % KVD_RANS_TOTAL;
        const int s = symbol_at(t, number);
        symbol[i] = (uint8_t)s;
        x = frequency(t, s) * (x >> KVD_RANS_BITS) + number - t->start[s];
        while (x < LEAST) {
            if (in == end)
                return kvd_fail(err, "an entropy code ends after %zu of %zu symbols", i, n);
            x = x << 8 | *in++;
        }
    }
    *state = x;
    return in == end
               ? 0
               : kvd_fail(err, "an entropy code of %zu symbols does not end with its bytes", n);
}

int kvd_rans_decode(const kvd_rans_table *table, const uint16_t *context, const uint8_t *in,
                    size_t bytes, uint8_t *symbol, size_t n, kvd_err *err)
{
    uint32_t state = 0;
    if (n && bytes < STATE_BYTES)
        return kvd_fail(err, "an entropy code of %zu bytes has no state", bytes);
    if (!n)
        return bytes ? kvd_fail(err, "an entropy code of 0 symbols does not end with its bytes")
                     : 0;
    for (int i = 0; i < STATE_BYTES; i++)
        state = state << 8 | in[i];
    if (kvd_rans_pop(table, context, in + STATE_BYTES, bytes - STATE_BYTES, &state, symbol, n, err))
        return -1;
    return state == LEAST
               ? 0
               : kvd_fail(err, "an entropy code of %zu symbols does not end with its bytes", n);
}

void kvd_streams_push(const kvd_stream_tables *t, const int32_t *q, kvd_stream_block *b)
{
    const int n = kvd_stream_count(t->kept);
    for (int s = 0; s < n; s++)
        for (int c = kvd_stream_last_group(t->kept, s, n); c >= 0; c -= n)
            for (int j = KVD_LANES * c; j < KVD_LANES * (c + 1) && j < t->kept; j++) {
                const kvd_stream_component *const of = &t->component[j];
                const uint16_t *const start = t->start + of->at + (q[j] - of->least);
                const uint32_t f = (uint32_t)(start[1] - start[0]);
                uint32_t *const x = &b->state[s * KVD_LANES + j % KVD_LANES];
                if (kvd_stream_pushes(*x, f)) {
                    b->word[(size_t)s * b->pitch + b->n[s]++] = (uint16_t)*x;
                    *x >>= KVD_STREAM_WORD_BITS;
                }
                *x = kvd_stream_put(*x, start[0], f);
            }
}

/* Decodes one symbol per lane. A lane whose coder state becomes too small then takes a word from
 * the stream. */
static int pop_group(const kvd_stream_tables *t, int c, uint32_t *state, const uint16_t *word,
                     uint32_t *n, int32_t *q)
{
    uint32_t wanted = 0;
    const int first = KVD_LANES * c,
              end = first + KVD_LANES < t->kept ? first + KVD_LANES : t->kept;
    for (int j = first; j < end; j++) {
        const kvd_stream_component *const of = &t->component[j];
        const uint16_t *const start = t->start + of->at;
        uint32_t *const x = &state[j - first];
        const int i = kvd_stream_find(start, of->n, *x);
        q[j] = of->least + i;
        *x = kvd_stream_take(*x, start[i], (uint32_t)(start[i + 1] - start[i]));
        wanted += *x < KVD_STREAM_LEAST;
    }
    if (wanted > *n)
        return -1;
    *n -= wanted;
    for (int j = first, at = 0; j < end; j++)
        if (state[j - first] < KVD_STREAM_LEAST)
            state[j - first] = state[j - first] << KVD_STREAM_WORD_BITS | word[*n + (uint32_t)at++];
    return 0;
}

int kvd_streams_pop(const kvd_stream_tables *t, kvd_stream_block *b, int32_t *q, kvd_err *err)
{
    const int n = kvd_stream_count(t->kept);
    for (int s = 0; s < n; s++)
        for (int c = s; c < kvd_stream_n_groups(t->kept); c += n)
            if (pop_group(t, c, b->state + s * KVD_LANES, b->word + (size_t)s * b->pitch, &b->n[s],
                          q))
                return kvd_fail(err, "stream %d of an entropy code ends in group %d", s, c);
    return 0;
}

double kvd_stream_entropy(const uint16_t *start, size_t n)
{
    double bits = 0;
    for (size_t i = 0; i < n; i++) {
        const double p = (double)(start[i + 1] - start[i]) / (1 << KVD_STREAM_SHIFT);
        bits -= p > 0 ? p * log2(p) : 0;
    }
    return bits;
}

double kvd_stream_expected_bits(const kvd_stream_coder *c, size_t tokens)
{
    double bits = 0;
    for (int j = 0; j < c->streams.kept; j++) {
        const kvd_stream_component *const of = &c->streams.component[j];
        bits += kvd_stream_entropy(c->streams.start + of->at, of->n);
    }
    return bits * (double)tokens;
}

double kvd_streams_begin(int32_t kept, uint32_t *state)
{
    const int n = kvd_stream_count(kept);
    for (int i = 0; i < n * KVD_LANES; i++)
        state[i] = KVD_STREAM_LEAST;
    return (double)n * KVD_STREAM_HEADER_BITS;
}

static size_t scratch_numbers(int32_t kept)
{
    return (size_t)kvd_stream_count(kept) * (2 * KVD_LANES + 1) + (size_t)kept;
}

size_t kvd_streams_scratch(int32_t kept)
{
    return scratch_numbers(kept) * sizeof(uint32_t) +
           (size_t)kvd_stream_count(kept) * KVD_STREAM_GROUPS * KVD_LANES * sizeof(uint16_t);
}

int kvd_streams_token(const kvd_stream_tables *t, const int32_t *q, uint32_t *state, void *scratch,
                      double *bits, kvd_err *err)
{
    const size_t n = (size_t)kvd_stream_count(t->kept), states = n * KVD_LANES,
                 bytes = states * sizeof *state;
    uint32_t *const before = scratch, *const check = before + states, *const words = check + states;
    int32_t *const read = (int32_t *)(void *)(words + n);
    kvd_stream_block b = {state, (uint16_t *)(void *)(before + scratch_numbers(t->kept)),
                          KVD_STREAM_GROUPS * KVD_LANES, words};
    memcpy(before, state, bytes);
    memset(words, 0, n * sizeof *words);
    kvd_streams_push(t, q, &b);
    for (size_t s = 0; s < n; s++)
        *bits += KVD_STREAM_WORD_BITS * (double)words[s];
    memcpy(check, state, bytes);
    b.state = check;
    if (kvd_streams_pop(t, &b, read, err))
        return -1;
    return memcmp(check, before, bytes) != 0 || memcmp(read, q, (size_t)t->kept * sizeof *read) != 0
               ? kvd_fail(err, "the streams of a block do not decode what was coded")
               : 0;
}

enum {
    NUMBERS = 1 << KVD_STREAM_SHIFT,
    LEAST_SHIFT = KVD_STREAM_SHIFT - 7, /* 128 buckets */
    MOST_SHIFT = KVD_STREAM_SHIFT - 2   /* 4 buckets */
};

typedef struct {
    const kvd_stream_component *of;
    const uint16_t *start;
    int n;
    uint32_t lanes;
} lookup_group;

/* Returns for how many 14-bit numbers the rANS decoder must examine more than 2 symbols. Numbers
 * are divided into buckets of 2^shift. A search begins at the first symbol of the bucket. */
static uint32_t far_numbers(const uint16_t *start, int n, uint32_t shift)
{
    uint32_t sum = 0;
    for (int i = 0, first = 0; i < n; i++) {
        const uint32_t bucket = (uint32_t)start[i] >> shift, end = (bucket + 1) << shift;
        while (first + 1 < n && start[first + 1] <= bucket << shift)
            first++;
        if (i >= first + 2)
            sum += (start[i + 1] < end ? start[i + 1] : end) - start[i];
    }
    return sum;
}

static double far_share(const lookup_group *g, uint32_t shift)
{
    double sum = 0;
    for (int j = 0; j < g->n; j++)
        sum += far_numbers(g->start + g->of[j].at, g->of[j].n, shift);
    return sum / g->n / NUMBERS;
}

/* Returns log2 of the bucket size of a lookup table. It is the largest size with which decoding
 * rarely examines more than 2 table entries per number. */
static uint32_t shift_of(const lookup_group *g)
{
    const double rare = 0.003 + 1.25 * far_share(g, LEAST_SHIFT);
    uint32_t shift = MOST_SHIFT;
    while (shift > LEAST_SHIFT && far_share(g, shift) > rare)
        shift--;
    return shift;
}

/* Writes the lookup table of component j in a group of components. Successive elements of the table
 * are g->lanes elements apart. */
static void fill_lane(const lookup_group *g, int j, const kvd_stream_lookup *to, uint16_t *bucket,
                      uint32_t *row)
{
    const kvd_stream_component of = g->of[j];
    const uint16_t *const start = g->start + of.at;
    const uint32_t before = (uint32_t)(of.least - to->least), shift = to->shift & 31;
    for (uint32_t i = 0; i < before; i++)
        row[i * g->lanes] = 0;
    for (uint32_t i = 0; i < of.n; i++)
        row[(before + i) * g->lanes] = start[i] | (uint32_t)start[i + 1] << 16;
    for (uint32_t b = 0, i = 0; b < (uint32_t)NUMBERS >> shift; b++) {
        while (i + 1 < of.n && start[i + 1] <= b << shift)
            i++;
        bucket[b * g->lanes] = (uint16_t)((before + i) * 4 * g->lanes);
    }
}

/* Lookup tables for decoding entropy-coded streams, and their sizes. If member `to` is NULL, only
 * the sizes are computed. */
typedef struct {
    uint32_t *to;
    size_t room, bytes;
    kvd_stream_lookup_size size;
} lookup_images;

static char *image_of(const lookup_images *m)
{
    return m->to ? (char *)(m->to + m->size.words) : NULL;
}

/* Appends the lookup table with which the rANS decoder decodes group k, up to 32 dimensions. Omits
 * it if it would exceed m->room bytes. */
static void add_group(lookup_images *m, const lookup_group *g, int k)
{
    int least = INT16_MAX, end = INT16_MIN;
    for (int j = 0; j < g->n; j++) {
        least = g->of[j].least < least ? g->of[j].least : least;
        end = g->of[j].least + g->of[j].n > end ? g->of[j].least + g->of[j].n : end;
    }
    const uint32_t rows = (uint32_t)(end - least), shift = shift_of(g),
                   buckets = 2 * g->lanes * (NUMBERS >> shift),
                   bytes = (buckets + 4 * g->lanes * (rows + 1) + 15) / 16 * 16;
    const bool fits =
        least >= -KVD_STREAM_HALF && end <= KVD_STREAM_HALF && m->bytes + bytes <= m->room;
    const kvd_stream_lookup l = {fits ? (uint32_t)m->bytes : 0, (uint32_t)m->bytes + buckets,
                                 shift | (rows - 1) << 8, least};
    char *const image = image_of(m);
    if (image)
        ((kvd_stream_lookup *)(void *)image)[k] = l;
    if (image && fits) {
        uint16_t *const bucket = (uint16_t *)(void *)(image + l.bucket);
        uint32_t *const row = (uint32_t *)(void *)(image + l.row);
        memset(bucket, 0, buckets);
        for (uint32_t i = 0; i < (bytes - buckets) / 4; i++)
            row[i] = (uint32_t)NUMBERS << 16;
        for (int j = 0; j < g->n; j++)
            fill_lane(g, j, &l, bucket + j, row + j);
    }
    m->bytes += fits ? bytes : 0;
    m->size.whole = m->size.whole && fits;
}

static lookup_images begin_images(uint32_t *to, size_t n, size_t room)
{
    const lookup_images m = {to, room, 0, {(n + 1 + 3) / 4 * 4, 0, true}};
    if (to)
        to[0] = (uint32_t)m.size.words;
    return m;
}

static void begin_image(lookup_images *m)
{
    m->bytes = KVD_STREAM_GROUPS * sizeof(kvd_stream_lookup);
    if (m->to)
        memset(image_of(m), 0, m->bytes);
}

static void end_image(lookup_images *m, size_t s)
{
    m->size.words += m->bytes / sizeof *m->to;
    m->size.largest = m->bytes > m->size.largest ? m->bytes : m->size.largest;
    if (m->to)
        m->to[s + 1] = (uint32_t)m->size.words;
}

kvd_stream_lookup_size kvd_stream_lookups(const kvd_stream_tables *t, size_t room, uint32_t *to)
{
    const int n = kvd_stream_count(t->kept);
    lookup_images m = begin_images(to, (size_t)n, room);
    for (int s = 0; s < n; s++) {
        begin_image(&m);
        for (int c = s, k = 0; c < kvd_stream_n_groups(t->kept); c += n, k++) {
            const int first = KVD_LANES * c, left = t->kept - first;
            const lookup_group g = {t->component + first, t->start,
                                    left < KVD_LANES ? left : KVD_LANES, KVD_LANES};
            add_group(&m, &g, k);
        }
        end_image(&m, (size_t)s);
    }
    return m.size;
}

kvd_stream_lookup_size kvd_cachegen_lookups(const uint16_t *table, size_t n, size_t wide,
                                            size_t room, uint32_t *to)
{
    lookup_images m = begin_images(to, n, room);
    for (size_t s = 0; s < n; s++, table += (1 + wide) * KVD_STREAM_TABLE) {
        kvd_stream_component of[KVD_LANES] = {{0, 0, KVD_STREAM_HALF}};
        const lookup_group first = {of, table, 1, 1};
        begin_image(&m);
        add_group(&m, &first, KVD_CACHEGEN_FIRST);
        for (size_t j = 0; j < wide; j += KVD_LANES) {
            const size_t left = wide - j;
            const lookup_group g = {of, table, left < KVD_LANES ? (int)left : KVD_LANES, KVD_LANES};
            for (size_t i = 0; i < (size_t)g.n; i++)
                of[i] = (kvd_stream_component){(uint32_t)((1 + j + i) * KVD_STREAM_TABLE), 0,
                                               KVD_CACHEGEN_CODES};
            add_group(&m, &g, (int)(j / KVD_LANES));
        }
        end_image(&m, s);
    }
    return m.size;
}
