/*
 * Cuts the scores of a prompt's attention into blocks that fit into their scratch, for the pass
 * (attention.c) and its gradient (attention_back.c).
 *
 * A unit is one head of one sequence. Units of sequences of equal length are computed together, one
 * block of query rows after another, by two batched products with a softmax between them.
 */
#ifndef KVD_MODEL_PASS_CUDA_SCORE_BLOCKS_H
#define KVD_MODEL_PASS_CUDA_SCORE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

enum { KVD_SCORE_UNITS = 4096 /* most units in one batched product */ };

/*
 * A block of attention scores: query rows first .. first + rows - 1 of a sequence, and the `keys`
 * keys from `from` on that they see; rows of scores are ld apart.
 */
typedef struct {
    size_t first, rows, from, keys, ld;
} kvd_score_block;

/*
 * Returns the number of scores of per_score bytes each that the scratch for sequences of up to
 * max_len tokens holds: blocks of 16 sequences of n_heads heads, within 256 MiB, and never fewer
 * than one row. The number rises with max_len.
 */
size_t kvd_score_room(size_t per_score, size_t max_len, int n_heads);

/*
 * Advances *b to the next block of a sequence of len tokens with attention over `window` keys (0:
 * all); from a zeroed *b, to the first block. The scores of one unit of the block fit into `room`.
 * Returns false if no block is left.
 */
bool kvd_score_block_next(kvd_score_block *b, size_t len, size_t window, size_t room);

/*
 * Returns how many units (a unit is one head of one sequence, in gradients one KV head) have scores
 * that fit into `room` together; at least 1.
 */
size_t kvd_score_units(const kvd_score_block *b, size_t room);

#endif
