#ifndef KVD_ANALYSIS_TOKENS_H
#define KVD_ANALYSIS_TOKENS_H

#include "formats/tokens.h"

/*
 * Computes and allocates *out. `share`: fraction of important tokens (ZDC: 0.35). Layers of a group
 * share over `group_overlap` (ZDC: 0.95) of these with the first layer.
 */
int kvd_tokens_study(const kvd_attention_stats *s, double share, double group_overlap,
                     kvd_tokens *out, kvd_err *err);

#endif
