/* Selects OpenBLAS's kernels and number of threads, and maps the memory of its threads. */
#ifndef KVD_COMMON_BLAS_H
#define KVD_COMMON_BLAS_H

#include "common/err.h"

/*
 * Restarts the program with a better choice of OpenBLAS kernels if OpenBLAS does not know the
 * processor. OpenBLAS would otherwise use its oldest kernels (SSE3), which are several times
 * slower. Does nothing if the user has set OPENBLAS_CORETYPE. Must be called first in main.
 */
void kvd_blas_choose_core(char **argv);

/* Returns the name of the OpenBLAS kernels in use: "SkylakeX", "Haswell", ... */
const char *kvd_blas_core(void);

/*
 * Largest number of threads that may call OpenBLAS at the same time: 64 in the packages of Debian
 * and Ubuntu. OpenBLAS 0.3.26 crashes if there are more. At the start of a program OpenMP's threads
 * are limited to this number.
 */
int kvd_blas_most_threads(void);

/*
 * Makes OpenBLAS and OpenMP use `threads` threads. Must be called once, from main, before the first
 * BLAS call.
 *
 * OpenBLAS maps 128 MB per thread, and retries forever if mmap fails. Under a memory limit (ulimit
 * -v or -d) this function therefore maps all buffers at once. If the buffers of all threads would
 * use more than half of the memory that is left, it uses fewer threads. Returns the number of
 * threads, or -1 if there is no room for one buffer.
 */
int kvd_blas_start(int threads, kvd_err *err);

#endif
