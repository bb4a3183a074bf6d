/*
 * Computes the data of a file of schema kvdim/tokens from the statistics of a kvdim/attention file.
 */
#ifndef KVD_ANALYSIS_TOKENS_H
#define KVD_ANALYSIS_TOKENS_H

#include "formats/tokens.h"

/*
 * Computes statistics of important tokens from the attention statistics *s, and allocates *out for
 * them.
 *
 * `share` is the fraction of a request's tokens that are called important, and equally the fraction
 * that are called unimportant (ZDC: 0.35).
 *
 * Consecutive layers form a group, which could use the important tokens of its first layer. A layer
 * joins the group of the layer below it if it has enough tokens in common with the first layer of
 * that group: more than the fraction `group_overlap` of the important tokens, and also of the
 * unimportant ones (ZDC: 0.95).
 */
int kvd_tokens_study(const kvd_attention_stats *s, double share, double group_overlap,
                     kvd_tokens *out, kvd_err *err);

#endif
