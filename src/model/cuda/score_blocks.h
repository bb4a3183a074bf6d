/*
 * How the scores of a prompt's attention are cut to fit their scratch: what the pass (attention.c) and its gradient (attention_back.c) share.
 *
 * A unit is one head of one sequence. Units of sequences of equal length are computed together, block of query rows by block, by two
 * batched products with a softmax between them.
 */
#ifndef KVD_MODEL_CUDA_SCORE_BLOCKS_H
#define KVD_MODEL_CUDA_SCORE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

enum { KVD_SCORE_UNITS = 4096 /* in one batched product at most */ };

/* Query rows first .. first + rows - 1 of a sequence, and the keys from `from` on that they see; rows of scores are ld apart. */
typedef struct {
    size_t first, rows, from, keys, ld;
} kvd_score_block;

/*
 * Scores that the scratch of sequences of up to max_len tokens holds, of per_score bytes each: of blocks of 16 sequences of n_heads heads,
 * within 256 MiB, and never fewer than one row. Rises with max_len.
 */
size_t kvd_score_room(size_t per_score, size_t max_len, int n_heads);

/*
 * The block behind *b, of a sequence of len tokens with attention over `window` (0: all); zeroed, the first. One unit's scores fit in
 * `room`. false: none is left.
 */
bool kvd_score_block_next(kvd_score_block *b, size_t len, size_t window, size_t room);

/* Units whose scores of the block fit in `room` together, at least 1. */
size_t kvd_score_units(const kvd_score_block *b, size_t room);

#endif
