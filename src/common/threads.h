/* Numbers of threads: OpenMP and OpenBLAS each have their own. */
#ifndef KVD_COMMON_THREADS_H
#define KVD_COMMON_THREADS_H

#include <stddef.h>

/*
 * Returns the threads that a parallel region would have now; inside one, 1 unless nested regions
 * are allowed.
 */
size_t kvd_thread_count(void);
/* Returns the index of the calling thread in its parallel region, from 0. */
size_t kvd_thread_index(void);

/* Limits the OpenMP threads of parallel regions that the calling thread starts. */
void kvd_threads_limit(int n);

/*
 * kvd_blas_serial makes OpenBLAS compute on the calling thread and returns the value for
 * kvd_blas_restore. No effect inside parallel regions. Defined in common/blas.c.
 */
int kvd_blas_serial(void);
void kvd_blas_restore(int saved);

#endif
