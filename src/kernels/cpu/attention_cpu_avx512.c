/* Attention kernel for x86-64 processors with AVX-512 F and DQ. */
#if defined(__x86_64__)
#define VL     16
#define NV     3
#define MR     8
#define MR_ONE 8
#define PANELS 3
#define KERNEL kvd_cpu_kernel_avx512

#include <immintrin.h>
#include <math.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,fma")
#endif

typedef __m512 vf;

#define v_load    _mm512_loadu_ps
#define v_store   _mm512_storeu_ps
#define v_set1(x) _mm512_set1_ps(x)
#define v_fma     _mm512_fmadd_ps
#define v_max     _mm512_max_ps

static inline vf v_keep(vf x, vf key, vf limit)
{
    return _mm512_mask_mov_ps(v_set1(-INFINITY), _mm512_cmp_ps_mask(key, limit, _CMP_LE_OQ), x);
}

#define V_EXP2
/* Computes 2^x by a minimax polynomial of degree 6, error 2e-9. Subnormal results become 0. */
static inline vf v_exp2(vf x)
{
    const vf f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = v_set1(0.00021702254889532924f);
    p = v_fma(p, f, v_set1(0.001243968727067113f));
    p = v_fma(p, f, v_set1(0.009678840637207031f));
    p = v_fma(p, f, v_set1(0.055483341217041016f));
    p = v_fma(p, f, v_set1(0.24022983014583588f));
    p = v_fma(p, f, v_set1(0.6931470036506653f));
    p = v_fma(p, f, v_set1(1));
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, v_set1(-126), _CMP_NLT_UQ), p, x);
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
