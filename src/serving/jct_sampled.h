/* A job whose prompts all run and whose steps run in part: outputs of any length, where a step's time depends on its place alone. */
#ifndef KVD_SERVING_JCT_SAMPLED_H
#define KVD_SERVING_JCT_SAMPLED_H

#include "serving/jct_loop.h"

/*
 * batch requests of one size arrive together; their prompts go as kvd_jct_serve takes them. Of the output - 1 steps of all of them together `steps`
 * run (1 .. output - 1), evenly spread, each in the middle of those it stands for, and count for (output - 1) / steps: run.decode and run.jct are such
 * sums, gaps are those of the steps that ran. All requests must fit at once, and the engine start anywhere (facts.anywhere); tokens between steps never
 * go through.
 */
int kvd_jct_serve_sampled(const kvd_jct_loop *l, size_t batch, size_t input, size_t output, size_t steps,
                          kvd_jct_served *out, kvd_err *err);

#endif
