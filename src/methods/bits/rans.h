/*
 * Entropy coder with given frequencies: rANS (range variant of asymmetric numeral systems, Duda
 * 2013, arXiv 1311.2540), renormalised by bytes (Giesen 2014, arXiv 1402.3392). zlib and zstd do
 * not accept frequencies from the caller.
 */
#ifndef KVD_METHODS_BITS_RANS_H
#define KVD_METHODS_BITS_RANS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "methods/bits/streams.h"

enum { KVD_RANS_BITS = 14, KVD_RANS_TOTAL = 1 << KVD_RANS_BITS, KVD_RANS_SYMBOLS = 256 };
/*
 * Every symbol has a range of the numbers below KVD_RANS_TOTAL, as long as its frequency. A decoder
 * finds the symbol of a number by linear search. The numbers are divided into KVD_RANS_PARTS equal
 * ranges, and the search begins at the first symbol of the number's range.
 */
enum { KVD_RANS_PARTS = 64, KVD_RANS_PART = KVD_RANS_TOTAL / KVD_RANS_PARTS };

/*
 * Frequency table of the symbols 0 .. 255. Symbol s has the frequency f = start[s + 1] - start[s]
 * and costs KVD_RANS_BITS - log2(f) bits. The frequencies add up to KVD_RANS_TOTAL. A symbol with
 * frequency 0 cannot be coded.
 */
typedef struct {
    uint16_t start[KVD_RANS_SYMBOLS + 1];
    /* Symbol to which the lowest number belongs, for each of the KVD_RANS_PARTS ranges. */
    uint8_t first[KVD_RANS_PARTS];
} kvd_rans_table;

/*
 * Sets frequencies in proportion to the counts of n <= 256 symbols. A count above 0 gives a
 * frequency of at least 1. If all counts are 0, symbol 0 gets frequency KVD_RANS_TOTAL.
 */
void kvd_rans_table_make(kvd_rans_table *t, const uint64_t *count, size_t n);

enum { KVD_RANS_TABLE_ROOM = (KVD_RANS_SYMBOLS * 18 + 8 + 7) / 8 };
/*
 * Writes a frequency table to `out`, which must have room for KVD_RANS_TABLE_ROOM bytes. Returns
 * the number of bytes written.
 */
size_t kvd_rans_table_write(const kvd_rans_table *t, uint8_t *out);
/*
 * Reads a frequency table from in [n] and sets `*used` to the number of bytes read. Fails if the
 * bytes end early or are not a table.
 */
int kvd_rans_table_read(kvd_rans_table *t, const uint8_t *in, size_t n, size_t *used, kvd_err *err);

size_t kvd_rans_room(size_t n);

/*
 * Codes symbol [n] to `out`, which must have room for kvd_rans_room(n) bytes, and sets `*bytes` to
 * the number of bytes written. Symbol i is coded with table[context[i]], or with table[0] if
 * `context` is NULL. If n is 0, no byte is written. Fails if a symbol has frequency 0.
 */
int kvd_rans_encode(const kvd_rans_table *table, const uint16_t *context, const uint8_t *symbol,
                    size_t n, uint8_t *out, size_t *bytes, kvd_err *err);

/*
 * Decodes n symbols from in [bytes]. Tables and contexts must be those of the encoder. Fails if the
 * bytes end early, if bytes are left over, or if the final state is not the encoder's first state.
 */
int kvd_rans_decode(const kvd_rans_table *table, const uint16_t *context, const uint8_t *in,
                    size_t bytes, uint8_t *symbol, size_t n, kvd_err *err);

/*
 * Appends n symbols to a stream and writes the added bytes to `out`, which must have room for
 * kvd_rans_room(n) bytes. Sets `*bytes` to the number of added bytes. `*state` is the coder's state
 * at the end of the stream. The caller sets it to 0 for a new stream, and every call updates it. A
 * decoder reads the stream from its end, so it decodes the symbols of the last call first. In
 * addition to these bytes, a stream stores only the 4 bytes of its last state.
 */
int kvd_rans_push(const kvd_rans_table *table, const uint16_t *context, const uint8_t *symbol,
                  size_t n, uint32_t *state, uint8_t *out, size_t *bytes, kvd_err *err);

/*
 * Decodes the n symbols of the last kvd_rans_push from the bytes that it wrote, with the same
 * tables and contexts. Sets `*state` to the state before that call, never to 0. Fails as
 * kvd_rans_decode does.
 */
int kvd_rans_pop(const kvd_rans_table *table, const uint16_t *context, const uint8_t *in,
                 size_t bytes, uint32_t *state, uint8_t *symbol, size_t n, kvd_err *err);

/* Streams of a block (streams.h). Their number n_streams is kvd_stream_count(kept). */
typedef struct {
    uint32_t *state; /* [n_streams][KVD_LANES] */
    uint16_t *word;  /* [n_streams][pitch] stacks of words */
    size_t pitch;
    uint32_t *n; /* [n_streams] number of words of each stack */
} kvd_stream_block;

/*
 * Codes the integers q [t->kept] of one token, all of which must have frequencies above 0. Every
 * stream's stack of words must have room for KVD_STREAM_GROUPS * KVD_LANES more words.
 */
void kvd_streams_push(const kvd_stream_tables *t, const int32_t *q, kvd_stream_block *b);
/*
 * Decodes the integers of the last kvd_streams_push into q [t->kept] and removes them from the
 * block. Fails if a stack has too few words.
 */
int kvd_streams_pop(const kvd_stream_tables *t, kvd_stream_block *b, int32_t *q, kvd_err *err);

/*
 * kvd_streams_begin sets `state` [kvd_stream_count(kept)][KVD_LANES] for the first token of a
 * block, and returns the number of bits of the block's header. kvd_streams_token codes the integers
 * q [t->kept] of the next token, and adds the bits of its words to *bits. Fails if decoding does
 * not return q. `scratch` has kvd_streams_scratch(t->kept) bytes, aligned for uint32_t.
 */
double kvd_streams_begin(int32_t kept, uint32_t *state);
size_t kvd_streams_scratch(int32_t kept);
int kvd_streams_token(const kvd_stream_tables *t, const int32_t *q, uint32_t *state, void *scratch,
                      double *bits, kvd_err *err);

#endif
