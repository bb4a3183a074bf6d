/* Projections as a kernel for heads of one width wants them: those of each layer padded with zeros to the widest of its heads. */
#ifndef KVD_SERVING_CUDA_WIDEST_H
#define KVD_SERVING_CUDA_WIDEST_H

#include "methods/dims/dims.h"

/* *to is a copy, to be given back with kvd_dims_release whatever came back; scores and outputs are the same. */
int kvd_dims_widest(const kvd_dims *from, kvd_dims *to, kvd_err *err);

#endif
