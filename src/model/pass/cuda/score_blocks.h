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
 * Returns the number of scores, of per_score bytes each, for which the scratch memory has room if
 * sequences have up to max_len tokens. It is meant for the scores of a block of queries of 16
 * sequences of n_heads heads. It takes at most 256 MiB, but always has room for the scores of one
 * query. The number increases with max_len.
 */
size_t kvd_score_room(size_t per_score, size_t max_len, int n_heads);

/*
 * Advances *b to the next block of queries of a sequence of len tokens; a zeroed *b is advanced to
 * the first block. Queries see `window` keys (0: all keys up to their position). The block is
 * chosen such that the scores of one head of one sequence fit into `room` scores. Returns false if
 * no block is left.
 */
bool kvd_score_block_next(kvd_score_block *b, size_t len, size_t window, size_t room);

/*
 * Returns the number of units whose scores of block *b fit into scratch memory for `room` scores;
 * at least 1. A unit is one head of one sequence, in gradients one KV head.
 */
size_t kvd_score_units(const kvd_score_block *b, size_t room);

#endif
