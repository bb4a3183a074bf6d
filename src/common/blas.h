/* Selects OpenBLAS's kernels and number of threads, and maps the memory of its threads. */
#ifndef KVD_COMMON_BLAS_H
#define KVD_COMMON_BLAS_H

#include "common/err.h"

/*
 * Restarts the program with better OpenBLAS kernels if OpenBLAS does not know the processor and
 * OPENBLAS_CORETYPE is not set. Call first in main.
 */
void kvd_blas_choose_core(char **argv);

/* Returns the name of the OpenBLAS kernels in use, such as "SkylakeX". */
const char *kvd_blas_core(void);

/*
 * Largest number of threads that may call OpenBLAS at the same time: 64 in Debian and Ubuntu.
 * OpenBLAS 0.3.26 crashes with more.
 */
int kvd_blas_most_threads(void);

/*
 * Makes OpenBLAS and OpenMP use `threads` threads. Call once, from main, before the first BLAS
 * call.
 *
 * Under a memory limit (ulimit -v or -d), maps all thread buffers (128 MB each) and uses fewer
 * threads if buffers would take more than half of the memory. Returns the number of threads, or -1
 * if one buffer does not fit.
 */
int kvd_blas_start(int threads, kvd_err *err);

#endif
