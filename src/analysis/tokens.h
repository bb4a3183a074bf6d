#ifndef KVD_ANALYSIS_TOKENS_H
#define KVD_ANALYSIS_TOKENS_H

#include "formats/tokens.h"

/*
 * Computes statistics of important tokens from *s, and allocates *out. `share` is the fraction of a
 * request's tokens that are called important, and also the fraction called unimportant (ZDC: 0.35).
 *
 * Consecutive layers form a group if each layer has in common with the group's first layer more
 * than the fraction `group_overlap` (ZDC: 0.95) of its important tokens, and more than this
 * fraction of its unimportant tokens.
 */
int kvd_tokens_study(const kvd_attention_stats *s, double share, double group_overlap,
                     kvd_tokens *out, kvd_err *err);

#endif
