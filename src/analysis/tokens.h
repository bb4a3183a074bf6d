#ifndef KVD_ANALYSIS_TOKENS_H
#define KVD_ANALYSIS_TOKENS_H

#include "formats/tokens.h"

/*
 * Computes statistics of important tokens and allocates *out. `share`: fraction of a request's
 * tokens that are important, and unimportant (ZDC: 0.35).
 *
 * Consecutive layers form a group if each shares more than `group_overlap` (ZDC: 0.95) of its
 * important, and of its unimportant, tokens with the first layer.
 */
int kvd_tokens_study(const kvd_attention_stats *s, double share, double group_overlap,
                     kvd_tokens *out, kvd_err *err);

#endif
