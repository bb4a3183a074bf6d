#ifndef KVD_ANALYSIS_TOKENS_H
#define KVD_ANALYSIS_TOKENS_H

#include "formats/tokens.h"

/* Finds each layer's set of most important tokens and set of least important tokens. Each set holds
 * the fraction `share` of all tokens, typically 0.35.
 *
 * Consecutive layers form a group if their sets overlap by more than `group_overlap`, typically
 * 0.95, with the sets of the group's first layer. Allocates *out. */
int kvd_tokens_study(const kvd_attention_stats *s, double share, double group_overlap,
                     kvd_tokens *out, kvd_err *err);

#endif
