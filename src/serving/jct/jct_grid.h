/* Measures times of single iterations of an engine, which kvdim-serve interpolates. */
#ifndef KVD_SERVING_JCT_JCT_GRID_H
#define KVD_SERVING_JCT_JCT_GRID_H

#include "serving/jct/jct_loop.h"

/*
 * An iteration to measure:
 *
 *   piece = 0              a decode step of `batch` requests, each with `tokens` cached tokens
 *   piece > 0, batch = 1   `piece` tokens of a prompt, after `tokens` cached tokens
 *   piece > 0, batch > 1   `batch` prompts of `piece` tokens each
 */
typedef struct {
    size_t piece, batch, tokens;
} kvd_jct_point;

/*
 * Creates the list of iterations to measure; *point [n] is allocated. It has three parts:
 *
 * - Parts of prompts: 16, 64, 256 .. tokens up to the longest prompt (or chunk). Each part is run
 *   after 0 cached tokens, and after a quarter and a half of the longest sequence. If `whole` is
 *   true, prompts are never split.
 * - One iteration with as many prompts of the longest length as fit.
 * - Decode steps: 1, 2, 4, 8, 9, 16, 17 .. max_batch requests, with 16, 64, 256 .. tokens in the
 *   cache, up to the longest sequence or a full cache.
 */
int kvd_jct_grid(size_t longest_input, size_t max_len, const kvd_batching_limits *limits,
                 bool whole, size_t samples, kvd_jct_point **point, size_t *n, kvd_err *err);

/*
 * Creates the list of the longest decode steps: for each of the n_batches numbers of requests in
 * `batch`, one step with as many cached tokens as possible, so that the measured steps end within
 * max_len tokens. *point [n_batches] is allocated.
 */
int kvd_jct_longest_steps(size_t max_len, const size_t *batch, size_t n_batches, size_t samples,
                          kvd_jct_point **point, kvd_err *err);

/*
 * Runs the iteration *p several times and fills second [samples] with its times in seconds.
 * *context receives the mean number of cached tokens per request if *p is a decode step, otherwise
 * 0.
 */
int kvd_jct_grid_run(const kvd_jct_loop *l, const kvd_jct_point *p, size_t samples, double *second,
                     double *context, kvd_err *err);

#endif
