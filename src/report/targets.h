/* What the evaluated points of one series say about the bytes that keep 99 % of the top-1 accuracy, where nobody searched. */
#ifndef KVD_REPORT_TARGETS_H
#define KVD_REPORT_TARGETS_H

#include "report/accuracy_rows.h"

/*
 * Items first .. last of one series and text, from many bytes to few. Where one key leads from one to the next (and with it at most one more, as
 * h2o.recent goes with h2o.heavy), they are a line: what counts is the last before the first miss, and a share of 1 at no saving stands before
 * them. A grid of settings has no such order: what counts is the setting that saves most of those that keep the share, surely keep it, or may.
 */
void kvd_target_from_points(const kvd_accuracy_entries *all, size_t first, size_t last, kvd_target_result *x);

#endif
