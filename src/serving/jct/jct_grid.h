/* Measures times of single iterations of an engine. kvdim-serve interpolates between them. */
#ifndef KVD_SERVING_JCT_JCT_GRID_H
#define KVD_SERVING_JCT_JCT_GRID_H

#include "serving/jct/jct_loop.h"

/*
 * An iteration to measure:
 *
 *   piece = 0              decode step of `batch` requests with `tokens` cached tokens each
 *   piece > 0, batch = 1   `piece` prompt tokens after `tokens` cached tokens
 *   piece > 0, batch > 1   `batch` prompts of `piece` tokens each
 */
typedef struct {
    size_t piece, batch, tokens;
} kvd_jct_point;

/*
 * Creates the list of iterations to measure; *point [n] is allocated:
 *
 * - prompt parts of 16, 64, 256 .. tokens, after 0, 1/4 and 1/2 of the longest sequence;
 * - one iteration with as many of the longest prompts as fit;
 * - decode steps of 1, 2, 4, 8, 9, 16, 17 .. max_batch requests with 16, 64, 256 .. cached tokens.
 *
 * If `whole`, prompts are not split.
 */
int kvd_jct_grid(size_t longest_input, size_t max_len, const kvd_batching_limits *limits,
                 bool whole, size_t samples, kvd_jct_point **point, size_t *n, kvd_err *err);

/* Creates a list with the longest decode step within max_len tokens for each batch size. */
int kvd_jct_longest_steps(size_t max_len, const size_t *batch, size_t n_batches, size_t samples,
                          kvd_jct_point **point, kvd_err *err);

/*
 * Measures iteration *p. Fills second [samples] with its times, and *context with the mean number
 * of cached tokens of a decode step.
 */
int kvd_jct_grid_run(const kvd_jct_loop *l, const kvd_jct_point *p, size_t samples, double *second,
                     double *context, kvd_err *err);

#endif
