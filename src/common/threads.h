/* Reads and limits the numbers of threads. OpenMP and OpenBLAS each have their own threads. */
#ifndef KVD_COMMON_THREADS_H
#define KVD_COMMON_THREADS_H

#include <stddef.h>

/* Returns how many threads an OpenMP parallel region would have now; 1 inside such a region. */
size_t kvd_thread_count(void);
/* Returns the index, from 0, of the calling thread in its parallel region. */
size_t kvd_thread_index(void);

/* Limits the number of OpenMP threads in parallel regions that the calling thread starts. */
void kvd_threads_limit(int n);

/* Makes OpenBLAS use one thread. Returns a value with which kvd_blas_restore restores the earlier
 * number. */
int kvd_blas_serial(void);
void kvd_blas_restore(int saved);

#endif
