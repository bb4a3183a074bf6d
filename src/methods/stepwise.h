/*
 * Runs KV heads of one layer of one sequence through a compressed cache, token by token. The tokens
 * of the prompt attend to each other exactly, then the prompt is compressed. Each later token is
 * appended, attends to the cached tokens, and may change them. This is the plain definition of what
 * a plan (a set of compression methods) does. Plans that choose no tokens (to drop or to store with
 * fewer bits) and do not quantise are run by cache.c, in blocks of tokens and with the same result.
 */
#ifndef KVD_METHODS_STEPWISE_H
#define KVD_METHODS_STEPWISE_H

#include "methods/account.h"
#include "methods/prompts.h"
#include "model/pass/attention.h"

/*
 * Writes the attention output of the query heads of KV heads g .. g+n-1 to `out`, in the layout of
 * kvd_attention. If kvd_plan_heads_together(p), these must be all KV heads of the layer. Runs on
 * the calling thread, between kvd_blas_serial and kvd_blas_restore. If keys are stored before RoPE,
 * cosine and sine are the tables [n][d_head / 2] of kvd_rope_tables for the n tokens of this
 * sequence; else NULL. `prompts` are the first-pass prompts of the batch if kvd_plan_first_pass(p),
 * else NULL.
 */
int kvd_stepwise_heads(const kvd_plan *p, const kvd_prompts *prompts, const kvd_attention_in *in,
                       size_t sequence, int g, size_t n, const float *cosine, const float *sine,
                       float *out, kvd_stepwise_account *account, kvd_err *err);

#endif
