/*
 * Divides the attention scores of a prompt into blocks that fit into scratch memory, for the
 * forward pass (attention.c) and its gradient (attention_back.c).
 *
 * A unit is one head of one sequence. Units of sequences of equal length are computed together, one
 * block of queries after another, by two batched products with a softmax between them.
 */
#ifndef KVD_MODEL_PASS_CUDA_SCORE_BLOCKS_H
#define KVD_MODEL_PASS_CUDA_SCORE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Largest number of units (a unit is one head of one sequence) in one batched matrix product of
 * attention.
 */
enum { KVD_SCORE_UNITS = 4096 };

/*
 * A block of attention scores: those of queries first .. first + rows - 1 of a sequence with keys
 * from .. from + keys - 1, which include all keys that these queries see. Each query has a row of
 * scores; rows are ld elements apart.
 */
typedef struct {
    size_t first, rows, from, keys, ld;
} kvd_score_block;

/*
 * Returns for how many attention scores scratch memory should be allocated, if each takes per_score
 * bytes and sequences have up to max_len tokens. The result covers a block of queries of 16
 * sequences with n_heads heads each, or 256 MiB if that is less. It always covers the scores of one
 * query of one head, even if these exceed 256 MiB. It increases with max_len.
 */
size_t kvd_score_room(size_t per_score, size_t max_len, int n_heads);

/*
 * Advances *b to the next block of queries of a sequence of len tokens; a zeroed *b is advanced to
 * the first block. Each query sees the last `window` keys up to its position (0: all keys up to its
 * position). A block has up to 256 queries. It has fewer, but at least one, if one head would
 * otherwise have more than `room` scores for them. Returns false if no block is left.
 */
bool kvd_score_block_next(kvd_score_block *b, size_t len, size_t window, size_t room);

/*
 * Returns how many units can be computed at a time with scratch memory for `room` scores, if each
 * has the scores of block *b; at least 1. A unit is one head of one sequence (in the gradient of
 * attention a KV head).
 */
size_t kvd_score_units(const kvd_score_block *b, size_t room);

#endif
