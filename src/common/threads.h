/* Numbers of threads. OpenMP and OpenBLAS each have their own threads. */
#ifndef KVD_COMMON_THREADS_H
#define KVD_COMMON_THREADS_H

#include <stddef.h>

/*
 * Returns the largest number of threads that a parallel region would have if it began at this call.
 * Inside a parallel region the result is 1, unless the program allows nested regions
 * (OMP_MAX_ACTIVE_LEVELS).
 */
size_t kvd_thread_count(void);
/* Returns the index of the calling thread in its parallel region, from 0. */
size_t kvd_thread_index(void);

/*
 * Limits the number of OpenMP threads in parallel regions that the calling thread starts. A thread
 * that OpenMP did not create has no limit at first.
 */
void kvd_threads_limit(int n);

/*
 * kvd_blas_serial makes OpenBLAS compute every call on the calling thread. It returns a value with
 * which kvd_blas_restore restores the number of threads. Inside parallel regions the two functions
 * have no effect. They are defined in common/blas.c.
 */
int kvd_blas_serial(void);
void kvd_blas_restore(int saved);

#endif
