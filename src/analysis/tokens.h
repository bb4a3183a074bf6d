#ifndef KVD_ANALYSIS_TOKENS_H
#define KVD_ANALYSIS_TOKENS_H

#include "formats/tokens.h"

/* Finds the most and the least important tokens of each layer, the fraction `share` (ZDC: 0.35) of
 * each kind. Layers form a group if each shares more than `group_overlap` (ZDC: 0.95) of both kinds
 * with the group's first layer. Allocates *out. */
int kvd_tokens_study(const kvd_attention_stats *s, double share, double group_overlap,
                     kvd_tokens *out, kvd_err *err);

#endif
