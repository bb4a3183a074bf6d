/* Compresses the KV heads of one sequence token by token, and computes their attention. */
#ifndef KVD_METHODS_STEPWISE_H
#define KVD_METHODS_STEPWISE_H

#include "methods/account.h"
#include "methods/prompts.h"
#include "model/pass/attention.h"

/* Writes the attention output of KV heads g .. g + n - 1. Must run between kvd_blas_serial and
 * kvd_blas_restore. `cosine` and `sine` [n][d_head / 2] are NULL unless keys are stored before
 * RoPE. `prompts` is NULL unless a method needs a first pass over prompts (kvd_plan_first_pass). */
int kvd_stepwise_heads(const kvd_plan *p, const kvd_prompts *prompts, const kvd_attention_in *in,
                       size_t sequence, int g, size_t n, const float *cosine, const float *sine,
                       float *out, kvd_stepwise_account *account, kvd_err *err);

#endif
