/*
 * Pads projections with zero columns to the widest head of each layer, for kernels that require one
 * width for all heads.
 */
#ifndef KVD_METHODS_CUDA_WIDEST_H
#define KVD_METHODS_CUDA_WIDEST_H

#include "methods/dims/dims.h"

/*
 * Makes a padded copy of `from`, which gives the same attention scores and outputs. The caller must
 * release `*to` with kvd_dims_release, also after a failure.
 */
int kvd_dims_widest(const kvd_dims *from, kvd_dims *to, kvd_err *err);

#endif
