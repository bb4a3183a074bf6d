/*
 * Computes the data of a file of schema kvdim/tokens from the statistics of a kvdim/attention file.
 */
#ifndef KVD_ANALYSIS_TOKENS_H
#define KVD_ANALYSIS_TOKENS_H

#include "formats/tokens.h"

/*
 * Computes the statistics of important tokens from *s and allocates *out for them.
 *
 *   share          share of each request's tokens that are called important, and share of those
 *                  called unimportant (ZDC: 0.35)
 *   group_overlap  a layer joins the group of the layer below it if its sets of important and of
 *                  unimportant tokens share more than this fraction with those of the group's
 *                  first layer, whose importance the others would reuse (ZDC: 0.95)
 */
int kvd_tokens_study(const kvd_attention_stats *s, double share, double group_overlap,
                     kvd_tokens *out, kvd_err *err);

#endif
