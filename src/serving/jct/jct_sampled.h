/*
 * Runs jobs of which only some decode steps are computed, so that outputs may be of any length. The
 * time of a decode step must depend only on its position in the sequence.
 */
#ifndef KVD_SERVING_JCT_JCT_SAMPLED_H
#define KVD_SERVING_JCT_JCT_SAMPLED_H

#include "serving/jct/jct_loop.h"

/*
 * Runs a job of `batch` equal requests that arrive together. The output - 1 decode steps are
 * divided into `steps` equal groups, and only the middle step of each group runs. `steps` must be
 * in 1 .. output - 1. Sums of step times in out->run are multiplied by (output - 1) / steps; the
 * times in out->gap are not multiplied.
 *
 * All requests must fit into the cache at once. The engine must be able to start at any position
 * (facts.anywhere).
 */
int kvd_jct_serve_sampled(const kvd_jct_loop *l, size_t batch, size_t input, size_t output,
                          size_t steps, kvd_jct_served *out, kvd_err *err);

#endif
