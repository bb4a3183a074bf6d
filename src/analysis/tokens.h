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
 *   share          fraction of a request's tokens that are called important, and equally the
 *                  fraction of tokens called unimportant (ZDC: 0.35)
 *   group_overlap  a layer joins the group of the layer below it if its sets of important and of
 *                  unimportant tokens have more than this fraction in common with those of the
 *                  group's first layer, whose importance the group would reuse (ZDC: 0.95)
 */
int kvd_tokens_study(const kvd_attention_stats *s, double share, double group_overlap,
                     kvd_tokens *out, kvd_err *err);

#endif
