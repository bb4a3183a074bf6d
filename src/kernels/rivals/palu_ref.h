/*
 * Palu's decode attention, the reference: double accumulation, PLAIN layout of kernels/rivals/palu_layout.h, any rank >= 1.
 */
#ifndef KVD_KERNELS_RIVALS_PALU_REF_H
#define KVD_KERNELS_RIVALS_PALU_REF_H

#include "common/err.h"
#include "kernels/rivals/palu_layout.h"

/*
 *   q         [batch][n_heads * 128]      in   after RoPE
 *   k_latent  [n_groups][n_kv][rank_k]    in   v_latent [n_groups][n_kv][rank_v] in; n_kv = sum of kv_len
 *   up        [n_kv_heads][rank_k][128]   in
 *   cos, sin  [>= max kv_len][64]         in   pairs (i, i + 64), as Hugging Face Llama
 *   out       [batch][n_heads * rank_v]   out  float64
 *
 * Returns 0, or -1 with *err when a count is out of range or memory runs out.
 */
int kvd_palu_ref(const kvd_palu_shape *shape, int batch, const int32_t *kv_len, const float *q,
                 const float *k_latent, const float *v_latent, const float *up, const float *cos,
                 const float *sin, double *out, kvd_err *err);

#endif
