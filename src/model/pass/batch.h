/*
 * A batch of whole sequences, or of the next tokens of continued sequences, for the forward passes
 * on the CPU and the GPU. The functions check the limits of a batch, compute the position of every
 * token and the row of the RoPE tables that it reads, and format the error message about a value
 * that is not finite.
 */
#ifndef KVD_MODEL_PASS_BATCH_H
#define KVD_MODEL_PASS_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"

typedef struct {
    size_t n_sequences;
    /*
     * First token of each sequence, and number of tokens at the end: [n_sequences + 1], offset[0] =
     * 0.
     */
    const size_t *offset;
    /* Index in the corpus of the batch's first sequence, passed on to the attention hook. */
    size_t first_sequence;
    const uint32_t *id; /* token ids of all sequences: [offset[n_sequences]] */
    /*
     * Arrays [n_sequences] for continued sequences, whose earlier tokens are in the KV cache of the
     * attention hook; both are NULL if the batch has all tokens of every sequence. start: position
     * of the first token that each sequence has in the batch. whole: final length of each sequence
     * in tokens, by which LongRoPE chooses its frequencies.
     */
    const size_t *start, *whole;
} kvd_batch;

/*
 * kvd_batch_start returns the position of the first token of sequence s in the batch,
 * kvd_batch_whole the final length of sequence s in tokens.
 */
size_t kvd_batch_start(const kvd_batch *b, size_t s);
size_t kvd_batch_whole(const kvd_batch *b, size_t s);

/*
 * Checks the sizes of batches: max_tokens must be 1 .. INT_MAX tokens per batch, max_len 1 ..
 * max_positions tokens per sequence. Returns 0, or -1 with *err.
 */
int kvd_batch_limits(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err);

/*
 * Returns the number of rows (positions) of the RoPE tables, or 0 without RoPE. It is max_len, or
 * twice max_len if sequences may be long enough for LongRoPE's second set of frequencies. It is
 * doubled again if layers with a sliding window have their own frequencies (kvd_rope_local); the
 * rows for these layers are the second half.
 */
size_t kvd_batch_rope_rows(const kvd_config *c, size_t max_len);
/*
 * Fills the RoPE tables of cosines and sines, each [kvd_batch_rope_rows][d_head / 2], with one row
 * per position.
 */
void kvd_batch_rope(const kvd_config *c, size_t max_len, float *cosine, float *sine);

/* Returns the first row of the RoPE tables that this layer reads. */
size_t kvd_batch_rope_layer(const kvd_config *c, size_t max_len, int layer);

/*
 * Returns which row of a layer's RoPE tables belongs to position 0 of a sequence whose final length
 * is `whole` tokens. The row is counted from the layer's first row, which kvd_batch_rope_layer
 * returns. It is 0, or max_len if the sequence is so long that it needs LongRoPE's second set of
 * frequencies.
 */
size_t kvd_batch_rope_first(const kvd_config *c, size_t max_len, size_t whole);

/*
 * Checks a batch, and computes for each token its position and its row of the RoPE tables: position
 * and rope_row [max_tokens]. Fails, naming the sequence and the position in the corpus, if the
 * batch is empty or too large, a sequence is empty, too long or beyond its `whole` length, or an id
 * is not below the vocabulary size.
 */
int kvd_batch_check(const kvd_config *c, const kvd_batch *b, size_t max_tokens, size_t max_len,
                    uint32_t *position, uint32_t *rope_row, kvd_err *err);

/* Returns the number of tokens of the longest sequence in the batch. */
size_t kvd_batch_longest(const kvd_batch *b);

/*
 * Fails with a message such as "layer 3, row 17 (sequence 2, position 5): activation is not
 * finite". `where` is the beginning, here "layer 3"; `row` is the token's index in the batch.
 */
int kvd_batch_not_finite(const kvd_batch *b, const char *where, size_t row, kvd_err *err);

#endif
