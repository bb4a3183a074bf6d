#ifndef KVD_ANALYSIS_TOKENS_H
#define KVD_ANALYSIS_TOKENS_H

#include "formats/tokens.h"

/*
 * Computes statistics of important tokens, and allocates *out. `share` (ZDC: 0.35): fraction of
 * important tokens. A layer joins a group if it shares over `group_overlap` (ZDC: 0.95) of
 * important and unimportant tokens with the first layer.
 */
int kvd_tokens_study(const kvd_attention_stats *s, double share, double group_overlap,
                     kvd_tokens *out, kvd_err *err);

#endif
