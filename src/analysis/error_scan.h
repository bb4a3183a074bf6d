/*
 * The table that kvd_widths_by_error reads: what the predictions lose when a single head of a single pair
 * is cut to a width and everything else stays whole.
 */
#ifndef KVD_ANALYSIS_ERROR_SCAN_H
#define KVD_ANALYSIS_ERROR_SCAN_H

#include "analysis/evaluate.h"
#include "analysis/points.h"
#include "formats/error_table.h"

/*
 * Mean KL divergence (nats per predicted token) from the uncompressed model, for every layer, KV head and
 * side at widths d/8, d/4, 3d/8, d/2, 5d/8, 3d/4 and d, where it is 0 by definition. Layers below the cut one are
 * those of the uncompressed run, so each run starts at its layer; runs of one layer share what is below it, and the uncompressed
 * logits, as far as there is room for their rows. type: in which K' and V' are stored. e must keep the reference.
 * *t is allocated; kvd_error_table_release.
 */
int kvd_error_scan(kvd_evaluator *e, const kvd_point_source *s, const kvd_model_info *model, kvd_dtype type,
                   kvd_progress *progress, kvd_error_table *t, kvd_err *err);

/* Forward passes that a scan makes, and the tokens they take in whole-model runs, for the progress bar. */
size_t kvd_error_scan_runs(const kvd_config *c);

#endif
