/* Runs jobs but computes only some of their decode steps. */
#ifndef KVD_SERVING_JCT_JCT_SAMPLED_H
#define KVD_SERVING_JCT_JCT_SAMPLED_H

#include "serving/jct/jct_loop.h"

/*
 * Runs `batch` equal requests that arrive together. The output - 1 decode steps are divided into
 * `steps` groups, of which only the middle step runs.
 *
 * Sums of step times in out->run are multiplied by (output - 1) / steps. Requires facts.anywhere
 * and a cache that holds all requests.
 */
int kvd_jct_serve_sampled(const kvd_jct_loop *l, size_t batch, size_t input, size_t output,
                          size_t steps, kvd_jct_served *out, kvd_err *err);

#endif
