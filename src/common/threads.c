#include "common/threads.h"

#ifdef _OPENMP
#include <omp.h>
#endif

size_t kvd_thread_count(void)
{
#ifdef _OPENMP
    return omp_get_active_level() >= omp_get_max_active_levels() ? 1
                                                                 : (size_t)omp_get_max_threads();
#else
    return 1;
#endif
}

void kvd_threads_limit(int n)
{
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
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
