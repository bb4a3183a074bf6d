/* Columns of a results line that identify the compression method and its settings. */
#ifndef KVD_EVALUATE_POINT_COLUMNS_H
#define KVD_EVALUATE_POINT_COLUMNS_H

#include "formats/accuracy.h"
#include "methods/points.h"

/*
 * Fills the columns kvd_point_columns of the newest results line. `plan`: the open cache plan of
 * the setting. `label`: name of the evaluated texts. `calibrated`: name of the calibration text.
 * `purpose`: e.g. "point" (a setting that the user asked for) or "seed".
 */
void kvd_point_columns_put(kvd_rows *r, const kvd_config *config, const kvd_point *point,
                           const kvd_plan *plan, const char *label, const char *calibrated,
                           const char *purpose);

#endif
