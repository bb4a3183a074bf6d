/* A batch: tokens of whole sequences, or the next tokens of sequences that are continued. */
#ifndef KVD_MODEL_PASS_BATCH_H
#define KVD_MODEL_PASS_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint/checkpoint.h"

typedef struct {
    size_t n_sequences;
    /* [n_sequences + 1] First token of each sequence, then the number of tokens. */
    const size_t *offset;
    /* Index in the corpus of the batch's first sequence. */
    size_t first_sequence;
    const uint32_t *id; /* [offset[n_sequences]] */
    /*
     * Position of the first token of each sequence in its text, and length of the whole text; NULL
     * if sequences are whole.
     */
    const size_t *start, *whole;
} kvd_batch;

/*
 * Return b->start[s] and b->whole[s]. If the array is NULL, return the values for whole sequences.
 */
size_t kvd_batch_start(const kvd_batch *b, size_t s);
size_t kvd_batch_whole(const kvd_batch *b, size_t s);

/* Fails unless max_tokens is in 1 .. INT_MAX and max_len in 1 .. max_positions of the model. */
int kvd_batch_limits(const kvd_checkpoint *c, size_t max_tokens, size_t max_len, kvd_err *err);

/* Returns the number of rows of the RoPE tables, 0 without RoPE. */
size_t kvd_batch_rope_rows(const kvd_config *c, size_t max_len);
/* Fills the RoPE tables `cosine` and `sine`, each [kvd_batch_rope_rows][d_head / 2]. */
void kvd_batch_rope(const kvd_config *c, size_t max_len, float *cosine, float *sine);

/* Returns the first row of the RoPE tables that this layer reads. */
size_t kvd_batch_rope_layer(const kvd_config *c, size_t max_len, int layer);

/*
 * Returns the row of the RoPE tables for position 0 of a sequence of `whole` tokens, counted from
 * kvd_batch_rope_layer. In LongRoPE, long sequences have rows of their own.
 */
size_t kvd_batch_rope_first(const kvd_config *c, size_t max_len, size_t whole);

/*
 * Checks a batch. Computes the position and the row of the RoPE tables of each token, both
 * [max_tokens].
 */
int kvd_batch_check(const kvd_config *c, const kvd_batch *b, size_t max_tokens, size_t max_len,
                    uint32_t *position, uint32_t *rope_row, kvd_err *err);

/* Fails unless the model has this layer. */
int kvd_layer_check(const kvd_config *c, int layer, kvd_err *err);

/*
 * Computes for each token which token follows, UINT32_MAX at the end of a sequence, and, unless u
 * is NULL, random numbers in [0, 1) from the seed and the index of the sequence.
 */
void kvd_batch_targets(const kvd_batch *b, uint32_t *target, uint64_t seed, double *u);

size_t kvd_batch_longest(const kvd_batch *b);

/*
 * Fails because row `row` of an activation is not finite. The message is like "layer 3, row 17
 * (sequence 2, position 5): ...".
 */
int kvd_batch_not_finite(const kvd_batch *b, const char *where, size_t row, kvd_err *err);

#endif
