/*
 * Attention on heads of unequal width on the CPU: blocked, vectorised (AVX2 or AVX-512, chosen at run time; portable
 * C otherwise), spread over OpenMP threads. Same contract and layouts as kernels/attention_ref.h, float32 arithmetic.
 */
#ifndef KVD_KERNELS_ATTENTION_CPU_H
#define KVD_KERNELS_ATTENTION_CPU_H

#include "common/err.h"
#include "kernels/layout.h"

typedef enum { KVD_CPU_AUTO, KVD_CPU_PORTABLE, KVD_CPU_AVX2, KVD_CPU_AVX512 } kvd_cpu_isa;

/* What this processor can run: KVD_CPU_PORTABLE, _AVX2 or _AVX512. */
kvd_cpu_isa kvd_cpu_isa_best(void);
const char *kvd_cpu_isa_name(kvd_cpu_isa isa); /* "portable", "avx2", "avx512" */

/*
 * out PLAIN O float32. Prefill and decode (requests with few queries split over the KV length so that every thread has
 * work; partial results are merged in a fixed order, so the result does not depend on timing, only on the number of
 * threads). Asking for an isa that the processor lacks is an error. Any width >= 1.
 */
int kvd_attention_cpu(const kvd_attn_heads *heads, const kvd_attn_batch *batch, kvd_cpu_isa isa,
                      const float *q, const float *k, const float *v, float *out, kvd_err *err);

#endif
