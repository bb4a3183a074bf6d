/* A batch of tokens: whole sequences, or the next tokens of sequences. */
#ifndef KVD_MODEL_PASS_BATCH_H
#define KVD_MODEL_PASS_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"

typedef struct {
    size_t n_sequences;
    /* [n_sequences + 1] first token of each sequence, then the number of tokens */
    const size_t *offset;
    /* index in the corpus of the first sequence */
    size_t first_sequence;
    const uint32_t *id; /* [offset[n_sequences]] */
    /* position of each sequence's first token in its text, and the text's length; or NULL */
    const size_t *start, *whole;
} kvd_batch;

/* Return the position of sequence s's first token in its text, and the length of that text. */
size_t kvd_batch_start(const kvd_batch *b, size_t s);
size_t kvd_batch_whole(const kvd_batch *b, size_t s);

/* Fails unless max_tokens is in 1 .. INT_MAX and max_len in 1 .. max_positions. */
int kvd_batch_limits(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err);

/* Returns the number of rows of the RoPE tables, 0 without RoPE. */
size_t kvd_batch_rope_rows(const kvd_config *c, size_t max_len);
/* Fills `cosine` and `sine`, each [kvd_batch_rope_rows][d_head / 2]. */
void kvd_batch_rope(const kvd_config *c, size_t max_len, float *cosine, float *sine);

/* Returns the first row of the RoPE tables that this layer reads. */
size_t kvd_batch_rope_layer(const kvd_config *c, size_t max_len, int layer);

/* Returns which row of a layer's RoPE table belongs to position 0 of a text of `whole` tokens. */
size_t kvd_batch_rope_first(const kvd_config *c, size_t max_len, size_t whole);

/* Checks a batch. Computes each token's position and row in the RoPE tables, both [max_tokens]. */
int kvd_batch_check(const kvd_config *c, const kvd_batch *b, size_t max_tokens, size_t max_len,
                    uint32_t *position, uint32_t *rope_row, kvd_err *err);

int kvd_layer_check(const kvd_config *c, int layer, kvd_err *err);

/* Writes the token after each one to `target`, or UINT32_MAX at a sequence's end. Unless NULL, u
 * receives random numbers in [0, 1). */
void kvd_batch_targets(const kvd_batch *b, uint32_t *target, uint64_t seed, double *u);

size_t kvd_batch_longest(const kvd_batch *b);

/* Fails because an activation of token `row` is not finite. The message names the checkpoint and
 * the token. */
int kvd_batch_not_finite(const kvd_config *c, const kvd_batch *b, const char *where, size_t row,
                         kvd_err *err);

#endif
