/* A batch of whole sequences, or of next tokens of continued ones, on CPU and GPU. */
#ifndef KVD_MODEL_PASS_BATCH_H
#define KVD_MODEL_PASS_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"

typedef struct {
    size_t n_sequences;
    /* First token of each sequence (0 first), then the number of tokens: [n_sequences + 1]. */
    const size_t *offset;
    /* Corpus index of the batch's sequence 0. */
    size_t first_sequence;
    const uint32_t *id; /* [offset[n_sequences]] */
    /* Continued sequences: first position, complete length, [n_sequences]; NULL: whole. */
    const size_t *start, *whole;
} kvd_batch;

/* Return b->start[s] and b->whole[s]; if NULL, 0 and the tokens of sequence s. */
size_t kvd_batch_start(const kvd_batch *b, size_t s);
size_t kvd_batch_whole(const kvd_batch *b, size_t s);

/* Fails unless 1 <= max_tokens <= INT_MAX and 1 <= max_len <= max_positions. */
int kvd_batch_limits(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err);

/* Rows of the RoPE tables: max_len per set of frequencies; 0 without RoPE. */
size_t kvd_batch_rope_rows(const kvd_config *c, size_t max_len);
/* Fills `cosine` and `sine`, each [kvd_batch_rope_rows][d_head / 2]. */
void kvd_batch_rope(const kvd_config *c, size_t max_len, float *cosine, float *sine);

/* Returns the first row of the RoPE tables that this layer reads. */
size_t kvd_batch_rope_layer(const kvd_config *c, size_t max_len, int layer);

/* Returns max_len if LongRoPE's second set applies, else 0, relative to kvd_batch_rope_layer. */
size_t kvd_batch_rope_first(const kvd_config *c, size_t max_len, size_t whole);

/* Fills each token's position and RoPE row, [max_tokens]. *err names sequence and position. */
int kvd_batch_check(const kvd_config *c, const kvd_batch *b, size_t max_tokens, size_t max_len,
                    uint32_t *position, uint32_t *rope_row, kvd_err *err);

size_t kvd_batch_longest(const kvd_batch *b);

/* Fails with "layer 3, row 17 (sequence 2, position 5): ..."; `where` is "layer 3". */
int kvd_batch_not_finite(const kvd_batch *b, const char *where, size_t row, kvd_err *err);

#endif
