/*
 * Runs KV heads of one layer of one sequence through a compressed cache, token by token. The tokens
 * of the prompt attend to each other exactly, then the prompt is compressed. This code defines what
 * a plan computes; for some plans, cache.c computes the same result faster, by whole sequences.
 */
#ifndef KVD_METHODS_STEPWISE_H
#define KVD_METHODS_STEPWISE_H

#include "methods/account.h"
#include "methods/prompts.h"
#include "model/pass/attention.h"

/*
 * Writes the attention output of KV heads g .. g+n-1 to `out`, in the layout of kvd_attention. If
 * kvd_plan_heads_together(p) is true, these must be all KV heads. Runs on the calling thread, and
 * must run between kvd_blas_serial and kvd_blas_restore. If keys are stored before RoPE, cosine and
 * sine are tables [n][d_head / 2] of kvd_rope_tables for the n tokens of this sequence; else NULL.
 * `prompts` is required if kvd_plan_first_pass(p), else NULL.
 */
int kvd_stepwise_heads(const kvd_plan *p, const kvd_prompts *prompts, const kvd_attention_in *in,
                       size_t sequence, int g, size_t n, const float *cosine, const float *sine,
                       float *out, kvd_stepwise_account *account, kvd_err *err);

#endif
