/*
 * Measures the times of single iterations of an engine for a grid of prompt lengths, batch sizes
 * and cache lengths. kvdim-serve interpolates these times.
 */
#ifndef KVD_SERVING_JCT_JCT_GRID_H
#define KVD_SERVING_JCT_JCT_GRID_H

#include "serving/jct/jct_loop.h"

/*
 * One iteration to measure. If `piece` is 0, it is a decode step of `batch` requests with `tokens`
 * tokens each in the cache. Otherwise it is a part of a prompt, `piece` tokens after `tokens`
 * earlier ones. If `batch` is then above 1, it is `batch` prompts of `piece` tokens each in one
 * iteration.
 */
typedef struct {
    size_t piece, batch, tokens;
} kvd_jct_point;

/*
 * Creates the list of iterations to measure; *point [n] is allocated. It has three parts.
 *
 * Parts of prompts: 16, 64, 256 .. tokens up to the longest prompt (or chunk), after 0 tokens, a
 * quarter and half of the longest sequence. If `whole` is true, prompts are never split.
 *
 * One iteration with as many prompts of the longest length as fit.
 *
 * Decode steps: 1, 2, 4, 8, 9, 16, 17 .. max_batch requests, with 16 tokens in the cache and, by
 * factors of 4, up to the longest sequence or a full cache.
 */
int kvd_jct_grid(size_t longest_input, size_t max_len, const kvd_batching_limits *limits,
                 bool whole, size_t samples, kvd_jct_point **point, size_t *n, kvd_err *err);

/*
 * Runs the iteration *p several times and fills second [samples] with its times in seconds.
 * Between two parts of prompts, decode steps of another request run. For decode steps *context
 * receives the mean number of tokens in the cache over the samples.
 */
int kvd_jct_grid_run(const kvd_jct_loop *l, const kvd_jct_point *p, size_t samples, double *second,
                     double *context, kvd_err *err);

#endif
