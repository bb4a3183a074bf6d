/*
 * Runs jobs of which only some of the decode steps are computed, so that outputs may be of any
 * length. The time of a decode step must depend only on its position in the sequence.
 */
#ifndef KVD_SERVING_JCT_JCT_SAMPLED_H
#define KVD_SERVING_JCT_JCT_SAMPLED_H

#include "serving/jct/jct_loop.h"

/*
 * Runs a job of `batch` requests of one size that arrive together. Their prompts run as in
 * kvd_jct_serve. The output - 1 decode steps are divided into `steps` equal groups (1 .. output -
 * 1). Only the middle step of each group is run, and its time counts (output - 1) / steps times.
 *
 * The times out->run.decode and out->run.jct include the decode steps with this factor; out->gap
 * has the times of the steps that were run, without it. All requests must fit into the cache at
 * once. The engine must be able to start at any position (facts.anywhere), because tokens between
 * the computed steps are never processed.
 */
int kvd_jct_serve_sampled(const kvd_jct_loop *l, size_t batch, size_t input, size_t output,
                          size_t steps, kvd_jct_served *out, kvd_err *err);

#endif
