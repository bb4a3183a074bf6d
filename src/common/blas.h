/* Which kernels OpenBLAS uses. */
#ifndef KVD_COMMON_BLAS_H
#define KVD_COMMON_BLAS_H

/*
 * OpenBLAS picks its kernels by the processor's model number when it is loaded. A processor newer than the library
 * is unknown to it and gets the oldest kernels (SSE3), several times slower than what the processor can do.
 * When that has happened, this starts the program anew with OPENBLAS_CORETYPE set by what the processor
 * supports (AVX-512: SkylakeX; AVX2 and FMA: Haswell); otherwise, or when the user has set
 * OPENBLAS_CORETYPE, it returns at once. Call it first in main. The kernels in use are recorded in
 * /provenance (attribute blas_core).
 */
void kvd_blas_choose_core(char **argv);

/* "SkylakeX", "Haswell", ... */
const char *kvd_blas_core(void);

#endif
