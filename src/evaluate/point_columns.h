#ifndef KVD_EVALUATE_POINT_COLUMNS_H
#define KVD_EVALUATE_POINT_COLUMNS_H

#include "formats/accuracy.h"
#include "methods/points.h"

/*
 * Fills in the newest result row the columns that describe a method and its parameters. `label` and
 * `calibrated` are names of texts. `purpose` says why it was evaluated, such as "point" or "seed".
 */
void kvd_point_columns_put(kvd_rows *r, const kvd_config *config, const kvd_point *point,
                           const kvd_plan *plan, const char *label, const char *calibrated,
                           const char *purpose);

#endif
