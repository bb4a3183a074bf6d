/*
 * A batch of whole sequences, or of the next rows of running sequences. The forward passes on the
 * CPU and the GPU share these functions: they check a batch's limits, compute the position of every
 * row and the row of the RoPE tables that it reads, and format the error message about a bad row.
 */
#ifndef KVD_MODEL_PASS_BATCH_H
#define KVD_MODEL_PASS_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"

typedef struct {
    size_t n_sequences;
    const size_t *offset;  /* [n_sequences + 1], offset[0] = 0 */
    size_t first_sequence; /* index of the first sequence in the corpus, passed on to the hook */
    const uint32_t *id;    /* [offset[n_sequences]] token ids */
    /*
     * Arrays for sequences that are continued and whose earlier rows the hook keeps; both are NULL
     * for whole sequences. start [n_sequences]: position of the first row of each. whole
     * [n_sequences]: final length of each in tokens, which selects longrope's table.
     */
    const size_t *start, *whole;
} kvd_batch;

/* Return the position of the first row of sequence s, and its final length in tokens. */
size_t kvd_batch_start(const kvd_batch *b, size_t s);
size_t kvd_batch_whole(const kvd_batch *b, size_t s);

/*
 * Returns 0 if a pass over batches of max_tokens tokens in sequences of up to max_len tokens is
 * possible: max_tokens is 1 .. INT_MAX and max_len is 1 .. max_positions. Otherwise fails.
 */
int kvd_batch_limits(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err);

/*
 * Returns the number of rows of the RoPE tables: max_len, or twice max_len if sequences may be long
 * enough for longrope's second table, or 0 without RoPE. If layers with a window have tables of
 * their own (kvd_rope_local), these follow, in the same number.
 */
size_t kvd_batch_rope_rows(const kvd_config *c, size_t max_len);
/* Fills the RoPE tables of cosines and sines, each [kvd_batch_rope_rows][d_head / 2]. */
void kvd_batch_rope(const kvd_config *c, size_t max_len, float *cosine, float *sine);

/* Returns the first row of the RoPE tables that this layer reads. */
size_t kvd_batch_rope_layer(const kvd_config *c, size_t max_len, int layer);

/*
 * Returns the table row of position 0, relative to the layer's first row, for a sequence whose
 * final length is `whole` tokens.
 */
size_t kvd_batch_rope_first(const kvd_config *c, size_t max_len, size_t whole);

/*
 * Checks a batch and fills position and rope_row [max_tokens]. Fails, naming the sequence and the
 * position in the corpus, on a batch without sequences or beyond the limits, on an empty or too
 * long sequence, on rows beyond a sequence's `whole` length, and on an id that is not below the
 * vocabulary size.
 */
int kvd_batch_check(const kvd_config *c, const kvd_batch *b, size_t max_tokens, size_t max_len,
                    uint32_t *position, uint32_t *rope_row, kvd_err *err);

/* Returns the number of tokens of the longest sequence in the batch. */
size_t kvd_batch_longest(const kvd_batch *b);

/*
 * Always fails, with the message "layer 3, row 17 (sequence 2, position 5): activation is not
 * finite"; `where` is "layer 3".
 */
int kvd_batch_not_finite(const kvd_batch *b, const char *where, size_t row, kvd_err *err);

#endif
