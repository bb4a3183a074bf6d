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

/* Largest number of units (heads of sequences) in one batched product. */
enum { KVD_SCORE_UNITS = 4096 };

/*
 * A block of attention scores: queries first .. first + rows - 1 of a sequence, and the `keys` keys
 * from key `from` on that they see. The scores of one query are ld elements apart from those of the
 * next.
 */
typedef struct {
    size_t first, rows, from, keys, ld;
} kvd_score_block;

/*
 * Returns the number of scores, of per_score bytes each, that the scratch for sequences of up to
 * max_len tokens holds: blocks of 16 sequences of n_heads heads, at most 256 MiB, and at least the
 * scores of one query. The number increases with max_len.
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
 * Returns for how many units (a unit is one head of one sequence, in gradients one KV head) the
 * scores of the block fit into `room` scores together; at least 1.
 */
size_t kvd_score_units(const kvd_score_block *b, size_t room);

#endif
