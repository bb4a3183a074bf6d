/* The rates that the current GPU reaches, measured when they are needed (kernels/cuda/ceilings.h). */
#ifndef KVD_KERNELS_CEILINGS_GPU_H
#define KVD_KERNELS_CEILINGS_GPU_H

#include "kernels/timing/floors.h"

/* Copy, read, the bf16 product of 8192^3 through cuBLAS, exponentials. About a second. Fails without CUDA. */
int kvd_ceilings_gpu(kvd_rate_ceilings *c, kvd_err *err);

#endif
