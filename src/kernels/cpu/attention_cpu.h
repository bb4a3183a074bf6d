/*
 * Attention on heads with different numbers of dimensions on the CPU: blocked, vectorised (AVX2 or
 * AVX-512, chosen at run time, otherwise portable C) and parallel over OpenMP threads. Arguments
 * and layouts are those of kernels/attention_ref.h; the arithmetic is float32.
 */
#ifndef KVD_KERNELS_CPU_ATTENTION_CPU_H
#define KVD_KERNELS_CPU_ATTENTION_CPU_H

#include "common/err.h"
#include "kernels/layout.h"

typedef enum { KVD_CPU_AUTO, KVD_CPU_PORTABLE, KVD_CPU_AVX2, KVD_CPU_AVX512 } kvd_cpu_isa;

/*
 * Returns the best instruction set that this processor supports: KVD_CPU_PORTABLE, KVD_CPU_AVX2 or
 * KVD_CPU_AVX512.
 */
kvd_cpu_isa kvd_cpu_isa_best(void);
const char *kvd_cpu_isa_name(kvd_cpu_isa isa); /* Returns "portable", "avx2" or "avx512". */

/*
 * Computes prefill or decode attention; `out` is PLAIN O, float32. The keys of requests with few
 * queries are split into parts, so that every thread has work. Partial results are merged in a
 * fixed order, so the result depends on the number of threads but not on timing. Returns 0. Returns
 * -1 and fills *err if a shape is out of range, memory runs out, or the processor does not support
 * `isa`.
 */
int kvd_attention_cpu(const kvd_attn_heads *heads, const kvd_attn_batch *batch, kvd_cpu_isa isa,
                      const float *q, const float *k, const float *v, float *out, kvd_err *err);

#endif
