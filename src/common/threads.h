/*
 * Threads: OpenMP's are the only ones that work on kvdim's own loops; OpenBLAS has a pool beside them. Without
 * OpenMP (the fuzzers' build) there is one.
 */
#ifndef KVD_COMMON_THREADS_H
#define KVD_COMMON_THREADS_H

#include <stddef.h>

/* Threads that a parallel region started here would have: 1 inside of one. */
size_t kvd_thread_count(void);
/* The calling thread's number in its parallel region, from 0; for buffers of one piece a thread. */
size_t kvd_thread_index(void);

/*
 * Makes OpenBLAS run every call on the thread that makes it, and returns what kvd_blas_restore
 * takes to undo that. For code that calls BLAS from several threads of its own; to be used
 * outside of parallel regions (inside one both do nothing).
 */
int kvd_blas_serial(void);
void kvd_blas_restore(int saved);

#endif
