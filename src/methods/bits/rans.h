/* Entropy coder with given frequency tables: rANS (Duda 2013, arXiv 1311.2540). */
#ifndef KVD_METHODS_BITS_RANS_H
#define KVD_METHODS_BITS_RANS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "methods/bits/streams.h"

enum { KVD_RANS_BITS = 14, KVD_RANS_TOTAL = 1 << KVD_RANS_BITS, KVD_RANS_SYMBOLS = 256 };
/* The cumulative frequency range is divided into KVD_RANS_PARTS equal parts. The search for a
 * number's symbol begins at the first symbol of the part that contains the number. */
enum { KVD_RANS_PARTS = 64, KVD_RANS_PART = KVD_RANS_TOTAL / KVD_RANS_PARTS };

/* Frequency table of symbols 0 .. 255. Symbol s has the frequency f = start[s + 1] - start[s], out
 * of KVD_RANS_TOTAL, and takes KVD_RANS_BITS - log2(f) bits. */
typedef struct {
    uint16_t start[KVD_RANS_SYMBOLS + 1];
    /* [KVD_RANS_PARTS] Symbol at which the decoder begins a search. The array index is the
     * cumulative frequency to be found, divided by KVD_RANS_PART. */
    uint8_t first[KVD_RANS_PARTS];
} kvd_rans_table;

/* Makes a frequency table in proportion to count [n], n <= 256. Symbols with a count above 0 get a
 * frequency of at least 1. If all counts are 0, symbol 0 gets KVD_RANS_TOTAL. */
void kvd_rans_table_make(kvd_rans_table *t, const uint64_t *count, size_t n);

enum { KVD_RANS_TABLE_ROOM = (KVD_RANS_SYMBOLS * 18 + 8 + 7) / 8 };
/* Writes a frequency table to `out`, which has KVD_RANS_TABLE_ROOM bytes. Returns the number of
 * bytes written. */
size_t kvd_rans_table_write(const kvd_rans_table *t, uint8_t *out);
/* Reads a frequency table from the n bytes at `in`, and sets *used to the number of bytes read.
 * Fails if the table is invalid. */
int kvd_rans_table_read(kvd_rans_table *t, const uint8_t *in, size_t n, size_t *used, kvd_err *err);

size_t kvd_rans_room(size_t n);

/* Encodes n symbols to `out`, which has room for kvd_rans_room(n) bytes. Symbol i is encoded with
 * table[context[i]] or, if `context` is NULL, with the first table. Fails for a symbol of frequency
 * 0. */
int kvd_rans_encode(const kvd_rans_table *table, const uint16_t *context, const uint8_t *symbol,
                    size_t n, uint8_t *out, size_t *bytes, kvd_err *err);

/* Decodes n symbols from `in`, which has `bytes` bytes. Tables and contexts must equal those of the
 * encoder. Fails if `in` is invalid. */
int kvd_rans_decode(const kvd_rans_table *table, const uint16_t *context, const uint8_t *in,
                    size_t bytes, uint8_t *symbol, size_t n, kvd_err *err);

/* Appends n symbols to a stream. Writes the added bytes to out [kvd_rans_room(n)], and the number
 * of these bytes to *bytes. *state must be 0 for a new stream. Later, it must have the value that
 * the previous call left. */
int kvd_rans_push(const kvd_rans_table *table, const uint16_t *context, const uint8_t *symbol,
                  size_t n, uint32_t *state, uint8_t *out, size_t *bytes, kvd_err *err);

/* Decodes the n symbols of the last kvd_rans_push from the bytes that it added. Sets *state to the
 * state before that call. Fails if `in` is invalid. */
int kvd_rans_pop(const kvd_rans_table *table, const uint16_t *context, const uint8_t *in,
                 size_t bytes, uint32_t *state, uint8_t *symbol, size_t n, kvd_err *err);

/* Entropy-coded streams of a block of tokens. n_streams is kvd_stream_count(integers per token). */
typedef struct {
    uint32_t *state; /* [n_streams][KVD_LANES] */
    uint16_t *word;  /* [n_streams][pitch] stacks of words */
    size_t pitch;
    uint32_t *n; /* [n_streams] number of words of each stack */
} kvd_stream_block;

/* Encodes the integers q [t->kept] of one token, and appends them to the streams of block b. The
 * caller must ensure that the streams have room. */
void kvd_streams_push(const kvd_stream_tables *t, const int32_t *q, kvd_stream_block *b);
/* Decodes the newest token of block b, and removes it from the block. Writes its integers to `q`
 * [t->kept]. Fails if a stream has too few words. */
int kvd_streams_pop(const kvd_stream_tables *t, kvd_stream_block *b, int32_t *q, kvd_err *err);

/* Initialises the coder states of a new block. Returns the number of bits of the block's header. */
double kvd_streams_begin(int32_t kept, uint32_t *state);
/* Returns the bytes of temporary memory that kvd_streams_token needs. */
size_t kvd_streams_scratch(int32_t kept);
/* Encodes the integers q [t->kept] of the next token, and adds the size of the code to *bits. The
 * code itself is not kept. `scratch`: temporary memory of kvd_streams_scratch(t->kept) bytes. Fails
 * if decoding does not return q. */
int kvd_streams_token(const kvd_stream_tables *t, const int32_t *q, uint32_t *state, void *scratch,
                      double *bits, kvd_err *err);

#endif
