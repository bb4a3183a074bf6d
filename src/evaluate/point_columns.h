/* Columns of a result row that identify its compression method and settings. */
#ifndef KVD_EVALUATE_POINT_COLUMNS_H
#define KVD_EVALUATE_POINT_COLUMNS_H

#include "formats/accuracy.h"
#include "methods/points.h"

/*
 * Fills kvd_point_columns of the row begun last. `plan` is the open plan of the point. `label`:
 * name of the texts. `calibrated`: name of the text of the calibration activations. `purpose`:
 * "point" or "seed", for example.
 */
void kvd_point_columns_put(kvd_rows *r, const kvd_config *config, const kvd_point *point,
                           const kvd_plan *plan, const char *label, const char *calibrated,
                           const char *purpose);

#endif
