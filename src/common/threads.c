#include "common/threads.h"

#include <cblas.h>
#ifdef _OPENMP
#include <omp.h>
#endif

size_t kvd_thread_count(void)
{
#ifdef _OPENMP
    return omp_in_parallel() ? 1 : (size_t)omp_get_max_threads();
#else
    return 1;
#endif
}

size_t kvd_thread_index(void)
{
#ifdef _OPENMP
    return (size_t)omp_get_thread_num();
#else
    return 0;
#endif
}

int kvd_blas_serial(void)
{
    /* An OpenMP build of OpenBLAS notices parallel regions itself, and its setter would change
     * the number of threads of ours. */
    if (openblas_get_parallel() != OPENBLAS_THREAD)
        return 0;
#ifdef _OPENMP
    if (omp_in_parallel())
        return 0;
#endif
    const int saved = openblas_get_num_threads();
    if (saved == 1)
        return 0;
    openblas_set_num_threads(1);
    return saved;
}

void kvd_blas_restore(int saved)
{
    if (saved > 0)
        openblas_set_num_threads(saved);
}
