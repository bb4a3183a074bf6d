/* Entropy coder with given frequencies: rANS (Duda 2013, arXiv 1311.2540). */
#ifndef KVD_METHODS_BITS_RANS_H
#define KVD_METHODS_BITS_RANS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "methods/bits/streams.h"

enum { KVD_RANS_BITS = 14, KVD_RANS_TOTAL = 1 << KVD_RANS_BITS, KVD_RANS_SYMBOLS = 256 };
/* Number of equal parts of the frequency range. A search begins at a part's first symbol. */
enum { KVD_RANS_PARTS = 64, KVD_RANS_PART = KVD_RANS_TOTAL / KVD_RANS_PARTS };

/* Frequency table of symbols 0 .. 255, total KVD_RANS_TOTAL. Symbol s has the frequency f = start[s
 * + 1] - start[s] and takes KVD_RANS_BITS - log2(f) bits. */
typedef struct {
    uint16_t start[KVD_RANS_SYMBOLS + 1];
    /* First symbol of each part of the frequency range, where a search begins. */
    uint8_t first[KVD_RANS_PARTS];
} kvd_rans_table;

/* Makes a table with frequencies in proportion to n <= 256 counts, at least 1 for a count above 0.
 * If all counts are 0, symbol 0 gets KVD_RANS_TOTAL. */
void kvd_rans_table_make(kvd_rans_table *t, const uint64_t *count, size_t n);

enum { KVD_RANS_TABLE_ROOM = (KVD_RANS_SYMBOLS * 18 + 8 + 7) / 8 };
/* Writes a frequency table to `out`, of KVD_RANS_TABLE_ROOM bytes. Returns the bytes written. */
size_t kvd_rans_table_write(const kvd_rans_table *t, uint8_t *out);
/* Reads a frequency table from in [n]. *used gets the bytes read. Fails for an invalid table. */
int kvd_rans_table_read(kvd_rans_table *t, const uint8_t *in, size_t n, size_t *used, kvd_err *err);

size_t kvd_rans_room(size_t n);

/* Encodes symbol [n] to `out` [kvd_rans_room(n)] with table[context[i]], or with table[0] if
 * `context` is NULL. Fails for a symbol of frequency 0. */
int kvd_rans_encode(const kvd_rans_table *table, const uint16_t *context, const uint8_t *symbol,
                    size_t n, uint8_t *out, size_t *bytes, kvd_err *err);

/* Decodes n symbols of in [bytes] with the encoder's tables. Fails if `in` is invalid. */
int kvd_rans_decode(const kvd_rans_table *table, const uint16_t *context, const uint8_t *in,
                    size_t bytes, uint8_t *symbol, size_t n, kvd_err *err);

/* Appends n symbols to a stream; out [kvd_rans_room(n)] gets the added *bytes. *state is 0 for a
 * new stream, then the result of the previous call. The decoder starts at the stream's end with the
 * last state. */
int kvd_rans_push(const kvd_rans_table *table, const uint16_t *context, const uint8_t *symbol,
                  size_t n, uint32_t *state, uint8_t *out, size_t *bytes, kvd_err *err);

/* Decodes the n symbols of the last kvd_rans_push from its bytes. *state becomes the state before
 * that call. Fails if `in` is invalid. */
int kvd_rans_pop(const kvd_rans_table *table, const uint16_t *context, const uint8_t *in,
                 size_t bytes, uint32_t *state, uint8_t *symbol, size_t n, kvd_err *err);

/* Entropy-coded streams of a block. n_streams is kvd_stream_count(integers per token). */
typedef struct {
    uint32_t *state; /* [n_streams][KVD_LANES] */
    uint16_t *word;  /* [n_streams][pitch] stacks of words */
    size_t pitch;
    uint32_t *n; /* [n_streams] number of words of each stack */
} kvd_stream_block;

/* Encodes the integers q [t->kept] of a token. Streams must have room for its words. */
void kvd_streams_push(const kvd_stream_tables *t, const int32_t *q, kvd_stream_block *b);
/* Decodes and removes the newest token. Fails if a stream has too few words. */
int kvd_streams_pop(const kvd_stream_tables *t, kvd_stream_block *b, int32_t *q, kvd_err *err);

/* kvd_streams_begin sets the coder states [kvd_stream_count(kept)][KVD_LANES] of a new block, and
 * returns the size of the block's header in bits. kvd_streams_token encodes q [t->kept] of the next
 * token in scratch memory and adds its size in bits to *bits. It fails if decoding does not return
 * q. scratch has kvd_streams_scratch(t->kept) bytes. */
double kvd_streams_begin(int32_t kept, uint32_t *state);
size_t kvd_streams_scratch(int32_t kept);
int kvd_streams_token(const kvd_stream_tables *t, const int32_t *q, uint32_t *state, void *scratch,
                      double *bits, kvd_err *err);

#endif
