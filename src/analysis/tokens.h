#ifndef KVD_ANALYSIS_TOKENS_H
#define KVD_ANALYSIS_TOKENS_H

#include "formats/tokens.h"

/*
 * Computes statistics of important tokens from *s, and allocates *out. `share` is the fraction of a
 * request's tokens that are called important, and also the fraction called unimportant (ZDC: 0.35).
 *
 * Consecutive layers form a group if the important tokens of each overlap those of the group's
 * first layer by more than `group_overlap` (ZDC: 0.95). The same must be true of the unimportant
 * tokens.
 */
int kvd_tokens_study(const kvd_attention_stats *s, double share, double group_overlap,
                     kvd_tokens *out, kvd_err *err);

#endif
