/* Divides attention scores into query blocks for scratch. A unit is one head of one sequence. */
#ifndef KVD_MODEL_PASS_CUDA_SCORE_BLOCKS_H
#define KVD_MODEL_PASS_CUDA_SCORE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

/* Most units (heads of sequences) in one batched product. */
enum { KVD_SCORE_UNITS = 4096 };

/* Scores of queries first .. first + rows - 1, keys from .. from + keys - 1, row stride ld. */
typedef struct {
    size_t first, rows, from, keys, ld;
} kvd_score_block;

/* Scores of scratch: query blocks of 16 sequences, at most 256 MiB, at least one query. */
size_t kvd_score_room(size_t per_score, size_t max_len, int n_heads);

/*
 * Advances *b (zeroed at first) to the next 1 to 256 queries, if possible within `room` scores;
 * false at the end.
 */
bool kvd_score_block_next(kvd_score_block *b, size_t len, size_t window, size_t room);

/* Returns how many units of block *b fit into `room` scores, at least 1. */
size_t kvd_score_units(const kvd_score_block *b, size_t room);

#endif
