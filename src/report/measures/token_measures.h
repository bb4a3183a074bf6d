/* Numbers that are computed from kvdim/tokens files, for the ledger. */
#ifndef KVD_REPORT_MEASURES_TOKEN_MEASURES_H
#define KVD_REPORT_MEASURES_TOKEN_MEASURES_H

#include "report/measures/measures.h"

/*
 * One value per tokens file of a trained model:
 *   score-range             range of the scores (largest less smallest) of the last layer over that
 *                           of the first, percent
 *   near-unimportant        part of the unimportant tokens, ranked by the mean score as a query,
 *                           that neighbouring layers share: mean over neighbours, percent, with its
 *                           interval over requests; near-unimportant-as-key: by the mean score as a
 *                           key; near-unimportant-denominator: by softmax denominators;
 *                           near-important...: likewise
 *   rise-unimportant        near-unimportant less the part that the first and the last layer share,
 *                           percentage points; rise-important likewise
 *   received-decades        mean over layers of the decades that the mean mass received spans
 *   value-decades           the most decades that the norms of values span in a layer
 *   more-decades            the least difference of those two in a layer
 *   critical-layers         most over fewest tokens that hold 95 % of a layer's mass (means over
 *                           requests)
 *   critical-heads          most over fewest tokens that hold 95 % of a KV head's mass: mean over
 *                           layers of the ratio
 *   critical-requests       standard deviation over requests / mean of those of a KV head, mean
 *                           over heads, percent
 * A file of one layer (of one KV head) has no value of what compares layers (heads).
 *
 * The null is the range of the measure over the files of the same model and seq_len with random
 * weights. critical-layers and critical-heads: from 1 to the larger of the ratio that layers
 * (heads) of equal means would show by their spread over requests, and the largest ratio with
 * random weights.
 */
bool kvd_token_measure_known(const char *name);
int kvd_token_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err);

#endif
