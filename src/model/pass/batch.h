/*
 * A batch of whole sequences, or of the next tokens of continued sequences, for the forward passes
 * on CPU and GPU.
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
     * First token of each sequence, then the number of tokens: [n_sequences + 1]; offset[0] is 0.
     */
    const size_t *offset;
    /* Index in the corpus of sequence 0 of the batch. */
    size_t first_sequence;
    const uint32_t *id; /* token ids of all sequences: [offset[n_sequences]] */
    /*
     * Arrays [n_sequences] for continued sequences, whose earlier tokens are in a KV cache:
     * position of the first token in this batch (start), and length in tokens of the complete
     * sequence, later batches included (whole). NULL if the batch has all tokens of every sequence.
     */
    const size_t *start, *whole;
} kvd_batch;

/*
 * Return b->start[s] and b->whole[s]. If these arrays are NULL, return 0 and the number of tokens
 * of sequence s.
 */
size_t kvd_batch_start(const kvd_batch *b, size_t s);
size_t kvd_batch_whole(const kvd_batch *b, size_t s);

/*
 * Checks the limits of batches: fails unless max_tokens is 1 to INT_MAX, and max_len is 1 to
 * max_positions.
 */
int kvd_batch_limits(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err);

/*
 * Returns the number of rows of the RoPE tables, or 0 without RoPE. A set of frequencies takes
 * max_len rows, one for each position. LongRoPE has a second set for long sequences, and layers
 * with a sliding window may have their own sets.
 */
size_t kvd_batch_rope_rows(const kvd_config *c, size_t max_len);
/*
 * Fills the RoPE tables `cosine` and `sine`, each of the shape [kvd_batch_rope_rows][d_head / 2].
 */
void kvd_batch_rope(const kvd_config *c, size_t max_len, float *cosine, float *sine);

/* Returns the first row of the RoPE tables that this layer reads. */
size_t kvd_batch_rope_layer(const kvd_config *c, size_t max_len, int layer);

/*
 * Returns the index of the RoPE row for position 0 of a sequence of `whole` tokens, relative to the
 * first row of its layer (kvd_batch_rope_layer). If LongRoPE uses its second set of frequencies for
 * this length, the result is max_len, else 0.
 */
size_t kvd_batch_rope_first(const kvd_config *c, size_t max_len, size_t whole);

/*
 * Checks a batch, and computes for each token its position and its row of the RoPE tables,
 * [max_tokens] each. On failure *err names the sequence and the position in the corpus.
 */
int kvd_batch_check(const kvd_config *c, const kvd_batch *b, size_t max_tokens, size_t max_len,
                    uint32_t *position, uint32_t *rope_row, kvd_err *err);

size_t kvd_batch_longest(const kvd_batch *b);

/*
 * Fails with a message such as "layer 3, row 17 (sequence 2, position 5): activation is not
 * finite". `where` is its beginning, here "layer 3"; `row` is the token's index in the batch.
 */
int kvd_batch_not_finite(const kvd_batch *b, const char *where, size_t row, kvd_err *err);

#endif
