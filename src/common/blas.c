#include "common/blas.h"

#include <cblas.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

const char *kvd_blas_core(void)
{
    return openblas_get_corename();
}

void kvd_blas_choose_core(char **argv)
{
#if defined(__x86_64__)
    static const char *const oldest[] = {"Prescott", "Core2", "Katmai", "Coppermine", "Northwood", "Banias"};
    const char *core = openblas_get_corename(), *better = NULL;
    int is_oldest = 0;
    for (size_t i = 0; i < sizeof oldest / sizeof *oldest; i++)
        is_oldest |= !strcasecmp(core, oldest[i]);
    if (!is_oldest || getenv("OPENBLAS_CORETYPE"))
        return;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        better = "SkylakeX";
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        better = "Haswell";
    char self[PATH_MAX];
    const ssize_t n = better ? readlink("/proc/self/exe", self, sizeof self - 1) : -1;
    if (n <= 0 || setenv("OPENBLAS_CORETYPE", better, 1))
        return;
    self[n] = '\0';
    execv(self, argv);
    /* Could not: go on with the slow kernels, which are right all the same. */
    unsetenv("OPENBLAS_CORETYPE");
#else
    (void)argv;
#endif
}
