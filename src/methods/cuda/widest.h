/*
 * Projections padded for kernels that require one width for all heads: the projections of each
 * layer are padded with zero columns to those of its widest head.
 */
#ifndef KVD_METHODS_CUDA_WIDEST_H
#define KVD_METHODS_CUDA_WIDEST_H

#include "methods/dims/dims.h"

/*
 * Makes a padded copy of `from` in *to, which gives the same attention scores and outputs. The
 * caller must release *to with kvd_dims_release, also after a failure.
 */
int kvd_dims_widest(const kvd_dims *from, kvd_dims *to, kvd_err *err);

#endif
