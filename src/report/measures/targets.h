/*
 * Bytes saved at a share of the top-1 accuracy, from a search of kvdim-eval --target or from the
 * evaluated points of a series.
 */
#ifndef KVD_REPORT_MEASURES_TARGETS_H
#define KVD_REPORT_MEASURES_TARGETS_H

#include "report/rows.h"

/* Fewest evaluated points that show where a share is lost. */
enum { KVD_FEWEST_POINTS = 3 };

/*
 * Returns the search for a share of `target` of the method of the row, in the same file; or NULL.
 */
const kvd_target_result *kvd_entry_search(const kvd_accuracy_entry *e, double target);

/*
 * Reads the bytes saved at 99 % of the top-1 accuracy off items first .. last, which are one series
 * on one text, from many bytes to few.
 *
 * If one key, and at most one further key that rises or falls with it (h2o.recent with h2o.heavy),
 * tells the items apart, they are a line: the result is the last item before the first miss, and a
 * share of 1 at no saving precedes the first item. Otherwise the items are a grid of settings
 * without an order: the result is the setting that saves most among those that keep the share, with
 * the whole interval above the share, or with an interval that reaches the share.
 */
void kvd_target_from_points(const kvd_accuracy_entries *all, size_t first, size_t last,
                            kvd_target_result *x);

#endif
