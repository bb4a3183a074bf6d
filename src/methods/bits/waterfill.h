/* Tables of method waterfill, for the CUDA engine, which codes and restores on the GPU. */
#ifndef KVD_METHODS_BITS_WATERFILL_H
#define KVD_METHODS_BITS_WATERFILL_H

#include "methods/bits/bits.h"
#include "methods/bits/streams.h"

/*
 * The coder of K or V of one layer. A token x [wide] has the components y = (x - mean) * to. Their
 * first streams.kept components are rounded to the multiples q of `step` (kvd_stream_multiple)
 * and coded; the others are not stored. Decoding gives y_j = (q_j + sign(q_j) offset) step and x =
 * mean + y * from. The open method owns the arrays.
 */
typedef struct {
    size_t wide;       /* n_kv_heads * d_head */
    const float *mean; /* [wide] */
    const float *to;   /* [wide][wide] */
    const float *from; /* [wide][wide] */
    double step, offset;
    kvd_stream_tables streams;
    size_t n_starts; /* number of elements of streams.start */
    bool drawn;      /* true: the tables are drawn for timing and fit no data */
} kvd_waterfill_coder;

/* Fills `*to`. The method must have block > 0. */
void kvd_waterfill_coder_of(const void *self, int layer, kvd_side side, kvd_waterfill_coder *to);
/*
 * Returns the number of bits of a block of `tokens` tokens that the frequencies predict, without
 * states and exceptions.
 */
double kvd_waterfill_expected_bits(const kvd_waterfill_coder *c, size_t tokens);

#endif
