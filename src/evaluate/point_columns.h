#ifndef KVD_EVALUATE_POINT_COLUMNS_H
#define KVD_EVALUATE_POINT_COLUMNS_H

#include "formats/accuracy.h"
#include "methods/points.h"

/* Fills the columns of the newest table row that describe the compression method. `label`,
 * `calibrated`: names of the evaluated and of the calibration text. `purpose`: why the method was
 * evaluated, such as "point" (values given by the user). */
void kvd_point_columns_put(kvd_rows *r, const kvd_config *config, const kvd_point *point,
                           const kvd_plan *plan, const char *label, const char *calibrated,
                           const char *purpose);

/* Returns the bytes of an uncompressed 16-bit cache of n tokens. Layers with a sliding window hold
 * only its tokens. */
double kvd_dense_bytes(const kvd_config *config, double n);

#endif
