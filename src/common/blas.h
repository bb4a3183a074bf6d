/* Selects OpenBLAS's kernels and number of threads. If memory is limited, allocates the threads'
 * buffers at the start, so that later calls do not fail. */
#ifndef KVD_COMMON_BLAS_H
#define KVD_COMMON_BLAS_H

#include "common/err.h"

/* Restarts the program with better kernels if OpenBLAS does not know the processor. Call first in
 * main. */
void kvd_blas_choose_core(char **argv);

const char *kvd_blas_core(void);

/* Returns the largest number of threads that may call OpenBLAS at once, which is 64 in Debian's
 * build. */
int kvd_blas_most_threads(void);

/* Makes OpenBLAS and OpenMP use up to `threads` threads. Returns their number or -1. Call once. */
int kvd_blas_start(int threads, kvd_err *err);

#endif
