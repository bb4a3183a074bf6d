/* Measures the times of single iterations. kvdim-serve interpolates between these times. */
#ifndef KVD_SERVING_JCT_JCT_GRID_H
#define KVD_SERVING_JCT_JCT_GRID_H

#include "serving/jct/jct_loop.h"

/* One iteration to measure. `piece` and `batch` tell its kind:
 *
 * piece = 0              decode step of `batch` requests with `tokens` cached tokens each
 * piece > 0, batch = 1   `piece` prompt tokens after `tokens` cached tokens
 * piece > 0, batch > 1   `batch` prompts of `piece` tokens each */
typedef struct {
    size_t piece, batch, tokens;
} kvd_jct_point;

/* Lists the iterations to measure: parts of prompts, several whole prompts at once, and decode
 * steps. If `whole`, does not split prompts into parts. The caller frees *point [n]. */
int kvd_jct_grid(size_t longest_input, size_t max_len, const kvd_batching_limits *limits,
                 bool whole, size_t samples, kvd_jct_point **point, size_t *n, kvd_err *err);

/* Fills *point with one decode step per batch size, with as many cached tokens as possible.
 * max_len: limit of tokens per request after `samples` measured steps. The caller frees *point
 * [n_batches]. */
int kvd_jct_longest_steps(size_t max_len, const size_t *batch, size_t n_batches, size_t samples,
                          kvd_jct_point **point, kvd_err *err);

/* Runs iteration *p on the engine `samples` times. second [samples]: seconds of each run. *context:
 * mean number of cached tokens per request, if the iteration is a decode step. */
int kvd_jct_grid_run(const kvd_jct_loop *l, const kvd_jct_point *p, size_t samples, double *second,
                     double *context, kvd_err *err);

#endif
