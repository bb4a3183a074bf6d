/* Attention kernel in compiler vectors of four floats, for processors of any kind. */
#define VL     4
#define NV     2
#define MR     6
#define MR_ONE 8
#define PANELS 8
#define KERNEL kvd_cpu_kernel_portable

#include <math.h>
#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

typedef float vf __attribute__((vector_size(16)));
typedef int vi __attribute__((vector_size(16)));

static inline vf v_load(const float *x)
{
    vf v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void v_store(float *x, vf v)
{
    memcpy(x, &v, sizeof v);
}

static inline vf v_set1(float x)
{
    return (vf){x, x, x, x};
}

static inline vf v_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

static inline vf v_select(vi which, vf a, vf b)
{
    return (vf)((which & (vi)a) | (~which & (vi)b));
}

static inline vf v_max(vf a, vf b)
{
#if defined(__SSE__)
    return _mm_max_ps(a, b);
#else
    return v_select(a > b, a, b);
#endif
}

static inline vf v_keep(vf x, vf key, vf limit)
{
    return v_select(key <= limit, x, v_set1(-INFINITY));
}

#include "kernels/cpu/attention_cpu_kernel.h"
