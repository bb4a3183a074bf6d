/* Attention on the CPU in float32, with AVX2, AVX-512 or portable C, on all threads. */
#ifndef KVD_KERNELS_CPU_ATTENTION_CPU_H
#define KVD_KERNELS_CPU_ATTENTION_CPU_H

#include "common/err.h"
#include "kernels/layout.h"

typedef enum { KVD_CPU_AUTO, KVD_CPU_PORTABLE, KVD_CPU_AVX2, KVD_CPU_AVX512 } kvd_cpu_isa;

kvd_cpu_isa kvd_cpu_isa_best(void);
const char *kvd_cpu_isa_name(kvd_cpu_isa isa);

/* Computes causal attention. `out` is float32, one matrix [n_q][d_v] per query head. The rounding
 * of the result depends on the number of threads. */
int kvd_attention_cpu(const kvd_attn_heads *heads, const kvd_attn_batch *batch, kvd_cpu_isa isa,
                      const float *q, const float *k, const float *v, float *out, kvd_err *err);

#endif
