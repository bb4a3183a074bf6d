/* Runs jobs of which only some decode steps are computed, whose times depend on position only. */
#ifndef KVD_SERVING_JCT_JCT_SAMPLED_H
#define KVD_SERVING_JCT_JCT_SAMPLED_H

#include "serving/jct/jct_loop.h"

/*
 * Runs `batch` equal requests that arrive together. The output - 1 decode steps form `steps` equal
 * groups; the middle step of each runs. `steps`: 1 .. output - 1.
 *
 * Sums of step times in out->run are multiplied by (output - 1) / steps, those in out->gap are not.
 * Requires facts.anywhere and room for all requests in the cache.
 */
int kvd_jct_serve_sampled(const kvd_jct_loop *l, size_t batch, size_t input, size_t output,
                          size_t steps, kvd_jct_served *out, kvd_err *err);

#endif
