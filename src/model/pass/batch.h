/* A batch of tokens: whole sequences, or the next tokens of sequences whose earlier tokens are
 * cached. */
#ifndef KVD_MODEL_PASS_BATCH_H
#define KVD_MODEL_PASS_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"

typedef struct {
    size_t n_sequences;
    /* [n_sequences + 1] index of the first token of each sequence, then the number of tokens */
    const size_t *offset;
    /* index of the batch's first sequence among all sequences of the corpus */
    size_t first_sequence;
    const uint32_t *id; /* [offset[n_sequences]] */
    /* position of each sequence's first token in its text, and the text's length in tokens; both
     * are NULL if sequences are whole texts */
    const size_t *start, *whole;
} kvd_batch;

/* Returns the position, in the whole text, at which sequence s begins. */
size_t kvd_batch_start(const kvd_batch *b, size_t s);
/* Returns the length in tokens of the text to which sequence s belongs. */
size_t kvd_batch_whole(const kvd_batch *b, size_t s);

/* Fails unless max_tokens is in 1 .. INT_MAX and max_len in 1 .. max_positions of the model. */
int kvd_batch_limits(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err);

/* Returns the number of rows of the RoPE tables for texts of up to max_len tokens, or 0 if the
 * model has no RoPE. */
size_t kvd_batch_rope_rows(const kvd_config *c, size_t max_len);
/* Fills the RoPE tables `cosine` and `sine`, each [kvd_batch_rope_rows][d_head / 2]. */
void kvd_batch_rope(const kvd_config *c, size_t max_len, float *cosine, float *sine);

/* Returns the first row of the RoPE tables that this layer reads. */
size_t kvd_batch_rope_layer(const kvd_config *c, size_t max_len, int layer);

/* Returns the row of a layer's RoPE table for the first token of a text of `whole` tokens. It is 0,
 * unless the text is so long that LongRoPE uses its second table. */
size_t kvd_batch_rope_first(const kvd_config *c, size_t max_len, size_t whole);

/* Checks a batch. Writes each token's position in its text to `position`, and its row in the RoPE
 * tables to `rope_row`, both [max_tokens]. */
int kvd_batch_check(const kvd_config *c, const kvd_batch *b, size_t max_tokens, size_t max_len,
                    uint32_t *position, uint32_t *rope_row, kvd_err *err);

int kvd_layer_check(const kvd_config *c, int layer, kvd_err *err);

/* Writes to `target` the token that follows each token, or UINT32_MAX for the last token of a
 * sequence. If u is not NULL, writes a random number in [0, 1) per token to u. */
void kvd_batch_targets(const kvd_batch *b, uint32_t *target, uint64_t seed, double *u);

size_t kvd_batch_longest(const kvd_batch *b);

/* Fails because an activation of token `row` is not finite. The message names the checkpoint and
 * the token. */
int kvd_batch_not_finite(const kvd_config *c, const kvd_batch *b, const char *where, size_t row,
                         kvd_err *err);

#endif
