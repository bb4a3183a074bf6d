#ifndef KVD_ANALYSIS_TOKENS_H
#define KVD_ANALYSIS_TOKENS_H

#include "formats/tokens.h"

/* Finds important tokens, a fraction `share` (ZDC: 0.35), and allocates *out. A group's layers
 * share more than `group_overlap` (ZDC: 0.95) of them with its first layer. */
int kvd_tokens_study(const kvd_attention_stats *s, double share, double group_overlap,
                     kvd_tokens *out, kvd_err *err);

#endif
