/*
 * Divides attention scores into blocks of queries that fit into scratch memory. A unit is one head
 * of one sequence. Units of sequences of equal length are computed together.
 */
#ifndef KVD_MODEL_PASS_CUDA_SCORE_BLOCKS_H
#define KVD_MODEL_PASS_CUDA_SCORE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

/* Largest number of units (heads of sequences) in one batched product of attention. */
enum { KVD_SCORE_UNITS = 4096 };

/*
 * Scores of queries first .. first + rows - 1 with keys from .. from + keys - 1, which include all
 * keys that these queries see. Rows are ld elements apart.
 */
typedef struct {
    size_t first, rows, from, keys, ld;
} kvd_score_block;

/*
 * Returns for how many scores, of per_score bytes each, scratch memory should be allocated: enough
 * for a block of queries of 16 sequences, but at most 256 MiB. The result is at least enough for
 * one query of one head, and increases with max_len.
 */
size_t kvd_score_room(size_t per_score, size_t max_len, int n_heads);

/*
 * Advances *b (zeroed at first) to the next block of queries of a sequence of len tokens. Each
 * query sees the last `window` keys up to its position; 0 means all of them. A block has between 1
 * and 256 queries. If possible, one head of the block has at most `room` scores. Returns false if
 * no block is left.
 */
bool kvd_score_block_next(kvd_score_block *b, size_t len, size_t window, size_t room);

/*
 * Returns for how many units (heads of sequences) the scores of block *b fit into scratch of `room`
 * scores; at least 1.
 */
size_t kvd_score_units(const kvd_score_block *b, size_t room);

#endif
