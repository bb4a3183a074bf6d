#ifndef KVD_ANALYSIS_TOKENS_H
#define KVD_ANALYSIS_TOKENS_H

#include "formats/tokens.h"

/*
 * Computes from attention statistics which tokens are important, and allocates *out. `share` is the
 * fraction of important tokens (ZDC: 0.35). Layers of a group have more than `group_overlap` (ZDC:
 * 0.95) of their important tokens in common with the group's first layer.
 */
int kvd_tokens_study(const kvd_attention_stats *s, double share, double group_overlap,
                     kvd_tokens *out, kvd_err *err);

#endif
