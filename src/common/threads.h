/*
 * Numbers of threads and thread indices. OpenMP threads run kvdim's own loops; OpenBLAS has a pool
 * of its own. Without OpenMP (the fuzzers' build) there is one thread.
 */
#ifndef KVD_COMMON_THREADS_H
#define KVD_COMMON_THREADS_H

#include <stddef.h>

/*
 * Returns the number of threads that an OpenMP parallel region would have if it began at this
 * point; 1 inside a region.
 */
size_t kvd_thread_count(void);
/*
 * Returns the index of the calling thread in its parallel region, from 0. It selects the thread's
 * part of a shared buffer.
 */
size_t kvd_thread_index(void);

/*
 * Sets the number of OpenMP threads in parallel regions that the calling thread starts to n. A
 * thread that OpenMP did not create has no limit before this call.
 */
void kvd_threads_limit(int n);

/*
 * Makes OpenBLAS run every call on the calling thread. Returns the value that kvd_blas_restore
 * needs to undo this. Code that calls BLAS from several threads of its own needs it. Call both
 * functions outside parallel regions; inside a region they do nothing.
 *
 * The functions are defined in common/blas.c and not in common/threads.c. A program that uses
 * threads but not BLAS can then be linked without BLAS.
 */
int kvd_blas_serial(void);
void kvd_blas_restore(int saved);

#endif
