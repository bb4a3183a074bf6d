#ifndef KVD_EVALUATE_POINT_COLUMNS_H
#define KVD_EVALUATE_POINT_COLUMNS_H

#include "formats/accuracy.h"
#include "methods/points.h"

/* Fills the newest row's columns of method and parameters. `label`: name of the evaluated text.
 * `calibrated`: name of the calibration text. `purpose`: why it was evaluated, such as "point". */
void kvd_point_columns_put(kvd_rows *r, const kvd_config *config, const kvd_point *point,
                           const kvd_plan *plan, const char *label, const char *calibrated,
                           const char *purpose);

#endif
