/* Single iterations of an engine on a grid of sizes: what kvdim-serve interpolates. */
#ifndef KVD_SERVING_JCT_GRID_H
#define KVD_SERVING_JCT_GRID_H

#include "serving/jct_loop.h"

/* A point of the grid. piece 0: a step of `batch` requests that hold `tokens` each; else a piece of a prompt behind `tokens`, or `batch` whole
 * prompts in one iteration. */
typedef struct {
    size_t piece, batch, tokens;
} kvd_jct_point;

/*
 * Pieces of 16, 64, 256 .. tokens up to the longest prompt (or chunk) behind none, a quarter and half of the longest sequence; as many of the
 * longest prompt as go into one iteration; steps of
 * 1, 2, 4, 8, 9, 16, 17 .. max_batch requests that hold from 16 tokens up to the longest sequence, by factors of 4, or as much as the
 * cache holds. whole: prompts are never in pieces.
 * *point is allocated.
 */
int kvd_jct_grid(size_t longest_input, size_t max_len, const kvd_batching_limits *limits, bool whole,
                 size_t samples, kvd_jct_point **point, size_t *n, kvd_err *err);

/* Runs it: second [samples]; pieces with steps of another request between them; steps hold *context tokens on average over the samples. */
int kvd_jct_grid_run(const kvd_jct_loop *l, const kvd_jct_point *p, size_t samples, double *second,
                     double *context, kvd_err *err);

#endif
