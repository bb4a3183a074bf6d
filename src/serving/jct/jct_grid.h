/*
 * Times single iterations of an engine for a grid of prompt lengths, batch sizes and cache lengths;
 * kvdim-serve interpolates these times.
 */
#ifndef KVD_SERVING_JCT_JCT_GRID_H
#define KVD_SERVING_JCT_JCT_GRID_H

#include "serving/jct/jct_loop.h"

/*
 * Measurement point of the grid. If piece is 0: a decode step of `batch` requests with `tokens`
 * tokens each in the cache. Otherwise a piece of a prompt of `piece` tokens after `tokens` earlier
 * ones or, if batch is above 1, `batch` prompts of `piece` tokens in one iteration.
 */
typedef struct {
    size_t piece, batch, tokens;
} kvd_jct_point;

/*
 * Creates the grid of measurement points; *point is allocated. It has pieces of prompts of 16, 64,
 * 256 .. tokens up to the longest prompt (or chunk), after no token, a quarter and half of the
 * longest sequence. It has an iteration with as many prompts of the longest length as fit. It has
 * decode steps of 1, 2, 4, 8, 9, 16, 17 .. max_batch requests with 16 tokens in the cache, and by
 * factors of 4 up to the longest sequence or a full cache. If `whole` is true, prompts are never
 * split.
 */
int kvd_jct_grid(size_t longest_input, size_t max_len, const kvd_batching_limits *limits,
                 bool whole, size_t samples, kvd_jct_point **point, size_t *n, kvd_err *err);

/*
 * Runs the iteration of point *p several times and fills second [samples] with its times. Pieces of
 * prompts run with decode steps of another request between them. For decode steps *context receives
 * the mean number of tokens in the cache over the samples.
 */
int kvd_jct_grid_run(const kvd_jct_loop *l, const kvd_jct_point *p, size_t samples, double *second,
                     double *context, kvd_err *err);

#endif
