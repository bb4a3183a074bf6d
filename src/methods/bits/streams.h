/* rANS coding of quantised K and V on the CPU and the GPU (Giesen 2014, "Interleaved entropy
 * coders", arXiv 1402.3392).
 *
 * The columns of integers q [tokens][kept] are divided into groups of 32. Group c belongs to stream
 * c % n_streams, in which lane i codes column i of the group. The 32 lanes of a stream share a
 * stack of 16-bit words. The encoder takes tokens in ascending order, groups in descending order,
 * and lanes in ascending order. The decoder takes all of them in reverse order.
 *
 * An integer that the frequency tables lack is encoded as 0, and listed as an exception. */
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
    KVD_STREAM_GROUPS = 8,
    KVD_STREAM_SHIFT = 14, /* frequencies of a component add up to 2^14 */
    /* Number of tokens that method kvtc encodes together: the tokens of one page. */
    KVD_STREAM_POSITIONS = 64,
    KVD_STREAM_WORD_BITS = 16,
    KVD_STREAM_EXCEPTION_BITS = 64,
    /* Size in bits of the header of an entropy-coded stream: a coder state per lane, number of
     * words, and number of exceptions. */
    KVD_STREAM_HEADER_BITS = 32 * KVD_LANES + 2 * 16
};
#define KVD_STREAM_LEAST (1u << 16)

/* Frequency table of one component, for integers `least` to `least` + n - 1. Integer least + i has
 * the frequency start[at + i + 1] - start[at + i]. */
typedef struct {
    uint32_t at;
    int16_t least;
    uint16_t n;
} kvd_stream_component;

/* Frequency tables of the quantised components of K or V of a layer, one per component. Every table
 * contains integer 0. */
typedef struct {
    int32_t kept;
    const kvd_stream_component *component; /* [kept] */
    const uint16_t *start;
} kvd_stream_tables;

/* Quantised number that the frequency table of its component (dimension after a PCA) lacks. place:
 * index of the component + 2^16 * index of the token in its block. */
typedef struct {
    uint32_t place;
    int32_t q;
} kvd_stream_exception;

/* Number added to |y| / step before rounding down. It is below 1/2, so that more numbers become 0
 * than by rounding to nearest. */
#define KVD_STREAM_ROUND 0.4

/* Returns y / step rounded to an integer. Compared with rounding to nearest, more numbers become
 * 0. */
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

/* Returns the last group of components in stream s of n streams. Stream s contains groups s, s + n,
 * s + 2 n and so on. */
KVD_STREAM_INLINE int kvd_stream_last_group(int kept, int s, int n)
{
    return s + (kvd_stream_n_groups(kept) - 1 - s) / n * n;
}

KVD_STREAM_INLINE bool kvd_stream_has(kvd_stream_component c, int32_t q)
{
    return q >= c.least && q < c.least + c.n;
}

/* Returns true if the encoder, in state x, must write a word before it encodes an integer of
 * frequency f. */
KVD_STREAM_INLINE bool kvd_stream_pushes(uint32_t x, uint32_t f)
{
    return (x >> (32 - KVD_STREAM_SHIFT)) >= f;
}

/* Returns the encoder's state after it encodes an integer of frequency f. `start`: sum of the
 * frequencies of all smaller integers. */
KVD_STREAM_INLINE uint32_t kvd_stream_put(uint32_t x, uint32_t start, uint32_t f)
{
    return ((x / f) << KVD_STREAM_SHIFT) + x % f + start;
}

/* Returns the decoder's state after it decodes an integer of frequency f. If the state is below
 * KVD_STREAM_LEAST, the decoder must then read a word. */
KVD_STREAM_INLINE uint32_t kvd_stream_take(uint32_t x, uint32_t start, uint32_t f)
{
    return f * (x >> KVD_STREAM_SHIFT) + (x & ((1u << KVD_STREAM_SHIFT) - 1)) - start;
}

/* Returns the index of the integer that state x encodes. `start` has the cumulative frequencies of
 * n integers. */
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

/* Lookup table that maps 14-bit numbers, the low bits of a decoder's state, to the integers that
 * they encode. In the arrays below, `lanes` is 1 if all lanes share a table, otherwise
 * KVD_LANES. */
typedef struct {
    /* Byte offset of an array uint16_t [2^14 / 2^shift][lanes]: positions in the lookup table at
     * which searches begin. 0: there is no table. */
    uint32_t bucket;
    /* Byte offset of the table uint32_t [entries][lanes]. An entry packs the range of 14-bit
     * numbers that encode one integer, as start + 2^16 * end. */
    uint32_t row;
    /* Bits 0 to 7: log2 of the number of adjacent 14-bit numbers whose searches begin at the same
     * table entry. Bits 8 to 31: index of the last table entry. */
    uint32_t shift;
    int32_t least; /* integer of row 0, at least -KVD_STREAM_HALF */
} kvd_stream_lookup;

enum { KVD_STREAM_HALF = 256 /* tables hold integers -KVD_STREAM_HALF .. KVD_STREAM_HALF - 1 */ };

/* Address of the decoder's lookup tables: in kernels an address in shared memory, on the CPU a
 * pointer. */
#ifdef __CUDACC__
typedef uint32_t kvd_stream_at;
static __device__ __forceinline__ uint32_t kvd_stream_word(kvd_stream_at at)
{
    uint32_t x;
    /* `volatile` keeps the compiler from reordering this load. */
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

/* Searches an ascending lookup table for the first entry that is larger than `key`. Returns the
 * offset of this entry. */
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
    /* Largest possible number of entries from `low` to the entry sought. */
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

/* Returns the table entry, start + 2^16 * end, whose range start .. end - 1 contains `number`. Sets
 * *offset to the entry's byte offset. */
KVD_STREAM_LOOKUP uint32_t kvd_stream_look_up(kvd_stream_at image, kvd_stream_lookup g,
                                              uint32_t lanes, uint32_t lane, uint32_t number,
                                              uint32_t *offset)
{
    /* A table entry is larger than `key` exactly if the end of its range is above `number`. */
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

typedef struct {
    size_t words;
    size_t largest;
    bool whole; /* true: every group of components has a lookup table */
} kvd_stream_lookup_size;

/* Writes the lookup tables of all streams to `to`, after a list of their offsets. Omits each table
 * that would make the tables of its stream exceed `room` bytes. If `to` is NULL, only returns the
 * size. */
kvd_stream_lookup_size kvd_stream_lookups(const kvd_stream_tables *t, size_t room, uint32_t *to);

/* Adjacent components that share a scale and a zero point. They are quantised to integers 0 ..
 * top. */
typedef struct {
    uint16_t first, size, top;
} kvd_stream_group;

/* Transform and entropy coder of K or V of one layer: y = (x - mean) * to is quantised and
 * entropy-coded, and x is decoded as mean + y * from. The method owns the arrays.
 *
 * Method waterfill rounds y to multiples of `step`; kvtc gives each group of components a scale and
 * a zero point. */
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
    size_t n_starts;
    /* [wide] Extra cost of integers that a component's frequency table lacks, in 1/16 bit. NULL:
     * not used. */
    const int16_t *escape;
    bool drawn;
} kvd_stream_coder;

/* Sets *to to the transform and entropy coder of method waterfill. `self`: private data of the
 * method. */
void kvd_waterfill_coder_of(const void *self, int layer, int side, kvd_stream_coder *to);
/* Sets *to to the transform and entropy coder of method kvtc with parameter lanes=1. `self`:
 * private data of the method. */
void kvd_kvtc_coder_of(const void *self, int layer, int side, kvd_stream_coder *to);
/* Returns the expected number of bits of a block of `tokens` tokens. Does not count coder states,
 * scales, and integers that the frequency tables lack. */
double kvd_stream_expected_bits(const kvd_stream_coder *c, size_t tokens);

enum {
    /* Distance, in elements, between successive frequency tables of a kvd_cachegen_coder. */
    KVD_STREAM_TABLE = 289,
    KVD_CACHEGEN_ZERO = 127, /* code of a difference of 0 */
    KVD_CACHEGEN_CODES = 2 * KVD_CACHEGEN_ZERO + 1
};

/* Quantisation steps and frequency tables of method cachegen. The first token of each group of
 * tokens is stored as 8-bit codes. Other tokens are stored as differences from the first token, as
 * codes below KVD_CACHEGEN_CODES. */
typedef struct {
    size_t wide, group;
    const float *step; /* [n_layers][n_kv_heads][2][wide] */
    /* [n_layers][n_kv_heads][2][1 + wide][KVD_STREAM_TABLE] Cumulative frequencies of quantised
     * numbers: a table for the first token of each group of tokens, then a table per channel for
     * all other tokens. */
    const uint16_t *table;
    bool drawn;
} kvd_cachegen_coder;

enum { KVD_CACHEGEN_FIRST = KVD_STREAM_GROUPS - 1 /* lookup table of anchor tokens */ };
/* Writes lookup tables of method cachegen to `to`, in the format of kvd_stream_lookups. */
kvd_stream_lookup_size kvd_cachegen_lookups(const uint16_t *table, size_t n, size_t wide,
                                            size_t room, uint32_t *to);
void kvd_cachegen_coder_of(const void *self, kvd_cachegen_coder *to);
/* Returns the mean number of bits of a symbol, for n symbols with cumulative frequencies start [n +
 * 1]. */
double kvd_stream_entropy(const uint16_t *start, size_t n);

#endif
