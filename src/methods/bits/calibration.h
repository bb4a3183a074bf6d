/* Calibration rows as a bits method will see them: of a head, behind the dims axis. */
#ifndef KVD_METHODS_BITS_CALIBRATION_H
#define KVD_METHODS_BITS_CALIBRATION_H

#include "methods/axis.h"

typedef struct {
    const kvd_method_setup *setup; /* borrowed */
    bool pre;                      /* keys before RoPE */
    size_t n;
    float *rows, *cut; /* cut [n][width]: what kvd_calibration_rows_read leaves; private: rows */
} kvd_calibration_rows;

/* Whether the calibration of *s has all layers, and K before RoPE where `pre` asks for it. */
int kvd_calibration_fits(const kvd_method_setup *s, bool pre, kvd_err *err);
/* Room for n rows of a head, or of the heads that share a latent. On failure, too, it is to be closed. */
int kvd_calibration_rows_open(kvd_calibration_rows *r, const kvd_method_setup *s, bool pre, size_t n,
                              kvd_err *err);
/* The first n rows of a KV head of one side: x->cut [n][*width]. */
int kvd_calibration_rows_read(kvd_calibration_rows *r, kvd_side side, int layer, int kv_head, size_t *width,
                              kvd_err *err);
void kvd_calibration_rows_close(kvd_calibration_rows *r);

#endif
