/*
 * Blocks of an entropy code that many lanes decode at the same time. This file has the format,
 * shared by the CPU methods and the kernels (cuda/streams.cu).
 *
 * A block has the integers q [tokens][kept] of consecutive tokens. Components are divided into
 * groups of KVD_LANES. Group c belongs to stream c % n_streams and component 32 c + i to lane i. A
 * lane is a rANS coder with a 32-bit state x in [2^16, 2^32). An integer has the frequency f, and
 * `start` is the sum of the frequencies of the smaller integers of its component. The lanes of a
 * stream share one array of 16-bit words (Giesen 2014, "Interleaved entropy coders", arXiv
 * 1402.3392), which works as a stack. The encoder codes token after token and, of a token, the
 * groups of a stream from the last to the first. In each group:
 *
 *   encode  if x >= 2^18 f, push the low 16 bits of x and shift x right by 16;
 *           then x = (x / f) 2^14 + x % f + start
 *   decode  q has start <= x % 2^14 < start + f; x = f (x / 2^14) + x % 2^14 - start;
 *           if x < 2^16, pop a word: x = 2^16 x + word
 *
 * Words of one group are pushed in the order of the lanes. The decoder reads tokens from the newest
 * to the oldest and groups from the first to the last, so a block can grow token by token.
 *
 * An integer that has no frequency in the table is coded as 0 and listed as an exception of its
 * stream.
 *
 * A block takes 16 bits per word and 64 per exception. Each stream takes 32 bits for the state of
 * each lane, and 16 for each of the numbers of words and of exceptions.
 */
#ifndef KVD_METHODS_BITS_STREAMS_H
#define KVD_METHODS_BITS_STREAMS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define KVD_STREAM_INLINE static __host__ __device__ __forceinline__
#else
#define KVD_STREAM_INLINE static inline
#endif

enum {
    KVD_LANES = 32,
    KVD_STREAM_GROUPS = 8, /* largest number of groups of a stream */
    KVD_STREAM_SHIFT = 14, /* frequencies of a component add up to 2^14 */
    /* positions of a block of kvtc, and tokens of a page of the CUDA engine */
    KVD_STREAM_POSITIONS = 64,
    KVD_STREAM_WORD_BITS = 16,
    KVD_STREAM_EXCEPTION_BITS = 64,
    KVD_STREAM_HEADER_BITS = 32 * KVD_LANES + 2 * 16
};
/*
 * State of a lane before the first symbol. It is also the smallest possible state between two
 * symbols.
 */
#define KVD_STREAM_LEAST (1u << 16)

/*
 * Integers of a component that have frequencies: least .. least + n - 1. The numbers 0 .. 2^14 - 1
 * are divided among the integers, in proportion to their frequencies. Integer least + i owns the
 * numbers start[at + i] .. start[at + i + 1] - 1, where `start` is kvd_stream_tables.start.
 */
typedef struct {
    uint32_t at;
    int16_t least;
    uint16_t n;
} kvd_stream_component;

/*
 * Frequencies of K or V of one layer. Within a component, the elements of `start` (sums of the
 * frequencies of smaller integers) increase. The integer 0 of every component has a frequency.
 */
typedef struct {
    int32_t kept;                          /* number of coded components */
    const kvd_stream_component *component; /* [kept] */
    const uint16_t *start;
} kvd_stream_tables;

/* An integer without a frequency. Its position is component + 2^16 * (token in the block). */
typedef struct {
    uint32_t place;
    int32_t q;
} kvd_stream_exception;

/*
 * Number that is added to |y| / step before it is rounded towards 0. A value below 1/2 gives a dead
 * zone.
 */
#define KVD_STREAM_ROUND 0.4

/* Returns the multiple of `step` to which y is rounded, with a dead zone around 0. */
KVD_STREAM_INLINE double kvd_stream_multiple(double y, double step)
{
    return copysign(floor(fabs(y) / step + KVD_STREAM_ROUND), y);
}

KVD_STREAM_INLINE int kvd_stream_n_groups(int kept)
{
    return (kept + KVD_LANES - 1) / KVD_LANES;
}

KVD_STREAM_INLINE int kvd_stream_count(int kept)
{
    return (kvd_stream_n_groups(kept) + KVD_STREAM_GROUPS - 1) / KVD_STREAM_GROUPS;
}

/*
 * Returns the last group of stream s. With n streams, stream s has the groups s, s + n, s + 2 n,
 * and so on.
 */
KVD_STREAM_INLINE int kvd_stream_last_group(int kept, int s, int n)
{
    return s + (kvd_stream_n_groups(kept) - 1 - s) / n * n;
}

/* Returns true if the integer q of a component has a frequency. */
KVD_STREAM_INLINE bool kvd_stream_has(kvd_stream_component c, int32_t q)
{
    return q >= c.least && q < c.least + c.n;
}

/* Returns true if the encoder pushes a word before it codes a symbol of frequency f in state x. */
KVD_STREAM_INLINE bool kvd_stream_pushes(uint32_t x, uint32_t f)
{
    return (x >> (32 - KVD_STREAM_SHIFT)) >= f;
}

KVD_STREAM_INLINE uint32_t kvd_stream_put(uint32_t x, uint32_t start, uint32_t f)
{
    return ((x / f) << KVD_STREAM_SHIFT) + x % f + start;
}

/*
 * Returns the coder state after decoding an integer from the state x. f is the integer's frequency,
 * and `start` the sum of the frequencies of smaller integers. If the result is below
 * KVD_STREAM_LEAST, the caller must pop a word.
 */
KVD_STREAM_INLINE uint32_t kvd_stream_take(uint32_t x, uint32_t start, uint32_t f)
{
    return f * (x >> KVD_STREAM_SHIFT) + (x & ((1u << KVD_STREAM_SHIFT) - 1)) - start;
}

/*
 * Returns the index i of the integer (least + i) that the state x encodes. Its numbers begin at
 * start[i].
 */
KVD_STREAM_INLINE int kvd_stream_find(const uint16_t *start, int n, uint32_t x)
{
    const uint32_t number = x & ((1u << KVD_STREAM_SHIFT) - 1);
    int low = 0, high = n;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (start[middle] <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/*
 * Lookup table of one group of lanes, with which a warp finds the integer that a state encodes
 * without a search. The tables of a stream form an image, which begins with a kvd_stream_lookup for
 * each group. Each lane reads words of its own bank of shared memory.
 *
 * Numbers 0 .. 2^14 - 1 are divided into buckets of 2^shift numbers, and row i belongs to the
 * integer least + i. `lanes` is 1 if all lanes share a table, otherwise KVD_LANES.
 */
typedef struct {
    /*
     * Byte offset in the image of an array uint16_t [buckets][lanes]. An element is 4 * lanes * r
     * (a byte offset), where r is the row to which the first number of the bucket belongs. 0: the
     * group has no tables.
     */
    uint32_t bucket;
    /*
     * byte offset in the image of uint32_t [rows][lanes]: start + 2^16 * end of the row's numbers
     */
    uint32_t row;
    /* log2 of the size of a bucket in bits 0 .. 7, and index of the last row in the bits above. */
    uint32_t shift;
    int32_t least; /* integer of row 0, at least -KVD_STREAM_HALF */
} kvd_stream_lookup;

enum { KVD_STREAM_HALF = 256 /* integers in tables are -KVD_STREAM_HALF .. KVD_STREAM_HALF - 1 */ };

/* Address in an image. In kernels it is a shared-memory address, on the CPU a pointer. */
#ifdef __CUDACC__
typedef uint32_t kvd_stream_at;
static __device__ __forceinline__ uint32_t kvd_stream_word(kvd_stream_at at)
{
    uint32_t x;
    /*
     * The load is volatile, because otherwise the compiler would delay it until after another load,
     * which is not always needed.
     */
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(x) : "r"(at));
    return x;
}
static __device__ __forceinline__ uint32_t kvd_stream_half(kvd_stream_at at)
{
    uint16_t x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(at));
    return x;
}
#define KVD_STREAM_LOOKUP      static __device__
#define KVD_STREAM_KEY(number) __byte_perm(0xffff, number, 0x5410)
#else
typedef const char *kvd_stream_at;
static inline uint32_t kvd_stream_word(kvd_stream_at at)
{
    return *(const uint32_t *)(const void *)at;
}
static inline uint32_t kvd_stream_half(kvd_stream_at at)
{
    return *(const uint16_t *)(const void *)at;
}
#define KVD_STREAM_LOOKUP      static inline
#define KVD_STREAM_KEY(number) ((number) << 16 | 0xffff)
#endif

/*
 * Returns the byte offset, relative to `row`, of the first row after `offset` whose word in the
 * table exceeds `key`. `last` is the offset of the last row, whose word must exceed `key`. Offsets
 * are multiples of `pitch`, a power of 2.
 */
#ifdef __CUDACC__
__noinline__
#endif
    KVD_STREAM_LOOKUP uint32_t
    kvd_stream_search(kvd_stream_at row, uint32_t pitch, uint32_t key, uint32_t last,
                      uint32_t offset)
{
    uint32_t low = offset + pitch, high = last;
    if (low >= last || kvd_stream_word(row + low) > key)
        return low < last ? low : last;
    /*
     * Every row has at least one number, so the row of the number is at most `rows` rows after the
     * bucket's first row. If these rows have one number each, it is exactly that row.
     */
    const uint32_t rows = (key >> 16) - (kvd_stream_word(row + low) >> 16) + 1;
    if (low + rows * pitch < last && kvd_stream_word(row + low + rows * pitch) > key)
        high = low + rows * pitch;
    if (high - low > pitch && kvd_stream_word(row + high - pitch) <= key)
        return high;
    while (high - low > pitch) {
        const uint32_t middle = (low + high) / 2 & (0 - pitch);
        if (kvd_stream_word(row + middle) <= key)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/*
 * Returns start + 2^16 * end of the integer that owns `number`, and sets `*offset` to 4 * lanes *
 * (row of the integer). The group must have tables.
 */
KVD_STREAM_LOOKUP uint32_t kvd_stream_look_up(kvd_stream_at image, kvd_stream_lookup g,
                                              uint32_t lanes, uint32_t lane, uint32_t number,
                                              uint32_t *offset)
{
    /*
     * A row's word exceeds `key` if and only if the last of the row's numbers is at least `number`.
     */
    const uint32_t key = KVD_STREAM_KEY(number), pitch = 4 * lanes;
    const uint32_t at =
        kvd_stream_half(image + g.bucket + 2 * lane + (number >> (g.shift & 31)) * (2 * lanes));
    const kvd_stream_at row = image + g.row + 4 * lane;
    const uint32_t first = kvd_stream_word(row + at), second = kvd_stream_word(row + at + pitch);
    const uint32_t word = first > key ? first : second;
    *offset = first > key ? at : at + pitch;
    if (word > key)
        return word;
    *offset = kvd_stream_search(row, pitch, key, (g.shift >> 8) * pitch, *offset);
    return kvd_stream_word(row + *offset);
}

/* Sizes of the tables that kvd_stream_lookups writes. */
typedef struct {
    size_t words;   /* a multiple of 4 */
    size_t largest; /* size of the largest image, in bytes */
    bool whole;     /* true: every group has tables */
} kvd_stream_lookup_size;

/*
 * Writes an index [n + 1] and then the images of the n = kvd_stream_count(kept) streams to `to`.
 * Image s is index[s] words after `to`, and ends at index[s + 1]. If the table of a group would
 * make the image larger than `room` bytes, that table is left out. If `to` is NULL, only returns
 * the size.
 */
kvd_stream_lookup_size kvd_stream_lookups(const kvd_stream_tables *t, size_t room, uint32_t *to);

/* Adjacent components of a token that share a scale and a zero point; codes are 0 .. top. */
typedef struct {
    uint16_t first, size, top;
} kvd_stream_group;

/*
 * The coder of K or V of one layer. `to` and `from` are matrices. A token x [wide] is transformed
 * to components y [streams.kept] by y = (x - mean) * to. The components are coded as integers q:
 *
 * waterfill  n_groups is 0; q are multiples of `step` (kvd_stream_multiple), and y_j = (q_j +
 *            sign(q_j) offset) step after decoding
 * kvtc       q are codes of groups, and y_j = scale q_j + zero after decoding
 *
 * Decoding gives x = mean + y * from. The open method owns the arrays.
 */
typedef struct {
    size_t wide;       /* n_kv_heads * d_head */
    const float *mean; /* [wide] */
    const float *to;   /* [wide][to_pitch] */
    size_t to_pitch;
    const float *from; /* [streams.kept][wide] */
    double step, offset;
    const kvd_stream_group *group; /* [n_groups] in ascending order */
    size_t n_groups;
    kvd_stream_tables streams;
    size_t n_starts; /* number of elements of streams.start */
    bool drawn;      /* true: the tables are random (timing) and fit no data */
} kvd_stream_coder;

/* Fills `*to` from an open waterfill with block > 0, or kvtc with lanes=1. `side` is a kvd_side. */
void kvd_waterfill_coder_of(const void *self, int layer, int side, kvd_stream_coder *to);
void kvd_kvtc_coder_of(const void *self, int layer, int side, kvd_stream_coder *to);
/*
 * Returns the number of bits of a block of `tokens` tokens that the frequencies predict, without
 * states, exceptions and scales.
 */
double kvd_stream_expected_bits(const kvd_stream_coder *c, size_t tokens);

enum {
    /* Distance in elements between two adjacent tables of kvd_cachegen_coder */
    KVD_STREAM_TABLE = 289,
    KVD_CACHEGEN_ZERO = 127, /* code of a difference of 0 */
    KVD_CACHEGEN_CODES = 2 * KVD_CACHEGEN_ZERO + 1
};

/*
 * Steps and frequencies of cachegen. The first token of every `group` tokens is coded by itself
 * with 256 codes. Later tokens of the group are coded as differences from it with
 * KVD_CACHEGEN_CODES codes. A block is coded from its newest token to its oldest. The open method
 * owns the arrays.
 */
typedef struct {
    size_t wide, group;
    const float *step; /* [n_layers][n_kv_heads][2][wide] */
    /*
     * [n_layers][n_kv_heads][2][1 + wide][KVD_STREAM_TABLE] Tables of cumulative frequencies (start
     * of each code, and end of the last code): one table for anchor tokens, then one per channel.
     */
    const uint16_t *table;
    bool drawn; /* true: the tables are random (timing) and fit no data */
} kvd_cachegen_coder;

enum { KVD_CACHEGEN_FIRST = KVD_STREAM_GROUPS - 1 /* group whose table decodes anchor tokens */ };
/*
 * Writes the lookup tables of cachegen's tables [n][1 + wide][KVD_STREAM_TABLE] to `to`, in the
 * form (an index, then images) that kvd_stream_lookups writes. All lanes share the table of group
 * KVD_CACHEGEN_FIRST.
 */
kvd_stream_lookup_size kvd_cachegen_lookups(const uint16_t *table, size_t n, size_t wide,
                                            size_t room, uint32_t *to);
/* Fills `*to` from an open cachegen with lanes=1. */
void kvd_cachegen_coder_of(const void *self, kvd_cachegen_coder *to);
/* Returns the mean number of bits of a code with the frequencies start [n + 1]. */
double kvd_stream_entropy(const uint16_t *start, size_t n);

#endif
