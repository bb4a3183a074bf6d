/*
 * A batch of whole sequences, or of rows that running sequences go on with, and what the forward passes on CPU and GPU check and
 * derive of it alike: its limits, the position of every row, the row of the RoPE tables that it reads, and the message about a row
 * that went wrong.
 */
#ifndef KVD_MODEL_BATCH_H
#define KVD_MODEL_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint.h"

typedef struct {
    size_t n_sequences;
    const size_t *offset;  /* [n_sequences + 1], offset[0] = 0                     */
    size_t first_sequence; /* index in the corpus, passed on to the door           */
    const uint32_t *id;    /* [offset[n_sequences]]                                */
    /*
     * Of running sequences, whose earlier rows stand behind the door; both NULL: whole sequences. start [n_sequences]: position
     * of the first row of each. whole [n_sequences]: how many tokens it will have in the end, which longrope's table depends on.
     */
    const size_t *start, *whole;
} kvd_batch;

/* Position of the first row of sequence s, and the length that it will have. */
size_t kvd_batch_start(const kvd_batch *b, size_t s);
size_t kvd_batch_whole(const kvd_batch *b, size_t s);

/* Whether a pass over batches of max_tokens tokens in sequences of up to max_len can be: 1 .. INT_MAX, 1 .. max_positions. */
int kvd_batch_limits(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err);

/* Rows of the tables: max_len, twice that where sequences may be long enough for longrope's second table, 0 without RoPE. */
size_t kvd_batch_rope_rows(const kvd_config *c, size_t max_len);
/* Cosines and sines [kvd_batch_rope_rows][d_head / 2]. */
void kvd_batch_rope(const kvd_config *c, size_t max_len, float *cosine, float *sine);

/* Row of the tables that position 0 of a sequence of so many tokens in the end reads. */
size_t kvd_batch_rope_first(const kvd_config *c, size_t max_len, size_t whole);

/*
 * Refuses, naming sequence and position in the corpus, a batch without sequences or beyond the limits, an empty or too
 * long sequence, one that goes beyond its whole length, an id that is not below the vocabulary size. position and rope_row [max_tokens] are filled.
 */
int kvd_batch_check(const kvd_config *c, const kvd_batch *b, size_t max_tokens, size_t max_len,
                    uint32_t *position, uint32_t *rope_row, kvd_err *err);

/* Tokens of the longest sequence. */
size_t kvd_batch_longest(const kvd_batch *b);

/* Fails with "layer 3, row 17 (sequence 2, position 5): activation is not finite"; where is "layer 3". */
int kvd_batch_not_finite(const kvd_batch *b, const char *where, size_t row, kvd_err *err);

#endif
