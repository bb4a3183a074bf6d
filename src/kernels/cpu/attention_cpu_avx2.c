/* Attention kernel for x86-64 processors with AVX2 and FMA. */
#if defined(__x86_64__)
#define VL     8
#define NV     3
#define MR     4
#define MR_ONE 8
#define PANELS 4
#define KERNEL kvd_cpu_kernel_avx2

#include <immintrin.h>
#include <math.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

typedef __m256 vf;
typedef int vi __attribute__((vector_size(32)));

#define v_load    _mm256_loadu_ps
#define v_store   _mm256_storeu_ps
#define v_set1(x) _mm256_set1_ps(x)
#define v_fma     _mm256_fmadd_ps
#define v_max     _mm256_max_ps

static inline vf v_keep(vf x, vf key, vf limit)
{
    return _mm256_blendv_ps(v_set1(-INFINITY), x, _mm256_cmp_ps(key, limit, _CMP_LE_OQ));
}

#include "kernels/cpu/attention_cpu_kernel.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
#include "kernels/cpu/attention_cpu_task.h"
#endif
