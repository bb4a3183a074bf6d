/*
 * An entropy coder for small alphabets with given frequencies: rANS (range variant of asymmetric
 * numeral systems, Duda 2013, arXiv 1311.2540), with a state of 32 bits that is renormalised by
 * bytes, as in Giesen 2014, arXiv 1402.3392.
 *
 * No library that the project uses codes symbols with frequencies that the caller gives: zlib codes
 * whole bits per symbol with tables of its own, and zstd does not expose its FSE coder.
 */
#ifndef KVD_METHODS_BITS_RANS_H
#define KVD_METHODS_BITS_RANS_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

enum { KVD_RANS_BITS = 14, KVD_RANS_TOTAL = 1 << KVD_RANS_BITS, KVD_RANS_SYMBOLS = 256 };
/*
 * Parts of equal size into which the numbers below KVD_RANS_TOTAL are divided; the search for a
 * symbol begins at a part.
 */
enum { KVD_RANS_PARTS = 64, KVD_RANS_PART = KVD_RANS_TOTAL / KVD_RANS_PARTS };

/*
 * Frequencies of the symbols 0 .. 255: symbol s has start[s + 1] - start[s] of KVD_RANS_TOTAL, and
 * costs KVD_RANS_BITS - log2 of that in bits. A symbol with frequency 0 cannot be coded.
 */
typedef struct {
    uint16_t start[KVD_RANS_SYMBOLS + 1];
    uint8_t first[KVD_RANS_PARTS]; /* symbol of the first number of each part */
} kvd_rans_table;

/*
 * Sets the frequencies of a table in proportion to count [n], n <= 256. A symbol that was counted
 * has a frequency of at least 1. If all counts are 0, symbol 0 has the whole total.
 */
void kvd_rans_table_make(kvd_rans_table *t, const uint64_t *count, size_t n);

/* Largest number of bytes of a stored frequency table. */
enum { KVD_RANS_TABLE_ROOM = (KVD_RANS_SYMBOLS * 18 + 8 + 7) / 8 };
/*
 * Writes the frequency table to `out`, at most KVD_RANS_TABLE_ROOM bytes. Returns the number of
 * bytes.
 */
size_t kvd_rans_table_write(const kvd_rans_table *t, uint8_t *out);
/*
 * Reads a frequency table that kvd_rans_table_write wrote, from in [n], and sets *used to its
 * number of bytes. Fails if the bytes end early or are not a table.
 */
int kvd_rans_table_read(kvd_rans_table *t, const uint8_t *in, size_t n, size_t *used, kvd_err *err);

/* Returns the largest number of bytes that n coded symbols can take. */
size_t kvd_rans_room(size_t n);

/*
 * Codes symbol [n] to `out`, which has kvd_rans_room(n) bytes, and sets *bytes. Symbol i has the
 * frequencies of table[context[i]], or of table[0] if context is NULL. If n is 0, no byte is
 * written. Fails if a symbol has frequency 0.
 */
int kvd_rans_encode(const kvd_rans_table *table, const uint16_t *context, const uint8_t *symbol,
                    size_t n, uint8_t *out, size_t *bytes, kvd_err *err);

/*
 * Decodes n symbols from in [bytes], with the tables and contexts of the encoder. Fails if the
 * bytes end early, if bytes are left, or if the final state is not the encoder's first.
 */
int kvd_rans_decode(const kvd_rans_table *table, const uint16_t *context, const uint8_t *in,
                    size_t bytes, uint8_t *symbol, size_t n, kvd_err *err);

/*
 * Appends the code of n symbols to a stream with final state *state, which becomes the new final
 * state; a new stream begins with *state 0. Writes the bytes by which the stream grows to `out`,
 * which has kvd_rans_room(n) bytes. Apart from these, a stream stores only the 4 bytes of its last
 * state, however many calls made it. The stream is read from its end: the last call's symbols
 * first.
 */
int kvd_rans_push(const kvd_rans_table *table, const uint16_t *context, const uint8_t *symbol,
                  size_t n, uint32_t *state, uint8_t *out, size_t *bytes, kvd_err *err);

/*
 * Decodes the n symbols of the last kvd_rans_push from its bytes in [bytes], with the same tables
 * and contexts. Sets *state to the state before that call (not 0). Fails as kvd_rans_decode does.
 */
int kvd_rans_pop(const kvd_rans_table *table, const uint16_t *context, const uint8_t *in,
                 size_t bytes, uint32_t *state, uint8_t *symbol, size_t n, kvd_err *err);

#endif
