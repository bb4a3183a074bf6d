/* Selects OpenBLAS's kernels and number of threads, and maps the memory that its threads need. */
#ifndef KVD_COMMON_BLAS_H
#define KVD_COMMON_BLAS_H

#include "common/err.h"

/*
 * Restarts the program with better OpenBLAS kernels if the processor is newer than the library.
 * OpenBLAS selects its kernels by the processor's model number when it is loaded. It gives a
 * processor that it does not know the oldest kernels (SSE3), which are several times slower.
 *
 * In that case this function starts the program anew with OPENBLAS_CORETYPE set by what the
 * processor supports (AVX-512: SkylakeX; AVX2 and FMA: Haswell). Otherwise, or if the user has set
 * OPENBLAS_CORETYPE, it returns at once. Call it first in main. The attribute blas_core of
 * /provenance records the kernels in use.
 */
void kvd_blas_choose_core(char **argv);

/* Returns the name of the OpenBLAS kernels in use: "SkylakeX", "Haswell", ... */
const char *kvd_blas_core(void);

/*
 * Makes OpenBLAS and OpenMP use `threads` threads. Call it once, from main, before the first BLAS
 * call.
 *
 * OpenBLAS maps a buffer of 128 MB for every thread that calls it and for every thread of its own
 * pool, and if mmap fails it tries again without end. If the memory of the process is limited
 * (ulimit -v or -d), this function therefore maps all buffers at once and starts all threads. It
 * takes fewer threads if they would use more than half of the memory that is left.
 *
 * Returns the number of threads in use, or -1 if there is no room for one buffer.
 */
int kvd_blas_start(int threads, kvd_err *err);

#endif
