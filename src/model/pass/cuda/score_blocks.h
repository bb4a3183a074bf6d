/* Divides attention scores into blocks of queries that fit into scratch memory. */
#ifndef KVD_MODEL_PASS_CUDA_SCORE_BLOCKS_H
#define KVD_MODEL_PASS_CUDA_SCORE_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

/* Largest number of units in one batched product. A unit is one head of one sequence. */
enum { KVD_SCORE_UNITS = 4096 };

/* Scores of queries first .. first + rows - 1 with keys from .. from + keys - 1. */
typedef struct {
    size_t first, rows, from, keys, ld;
} kvd_score_block;

/* Returns the number of scores for which to allocate scratch, at most 256 MiB if possible. */
size_t kvd_score_room(size_t per_score, size_t max_len, int n_heads);

/* Advances *b, zeroed at first, to the next 1 to 256 queries; false at the end. */
bool kvd_score_block_next(kvd_score_block *b, size_t len, size_t window, size_t room);

/* Returns how many units (one head of one sequence) fit into `room` scores, at least 1. */
size_t kvd_score_units(const kvd_score_block *b, size_t room);

#endif
