/* Attention by bf16 kernels. KV heads may differ in the numbers of dimensions of K and V that they
 * keep.
 *
 * A kvd_gpu_paged must be used on one device and one stream only. */
#ifndef KVD_MODEL_PASS_CUDA_PAGED_H
#define KVD_MODEL_PASS_CUDA_PAGED_H

#include "kernels/layout.h"
#include "model/pass/cuda/attention.h"

/* projection matrices of one layer for each KV head g, bf16 on the device: a_q and a_k
 * [d_head][d_qk[g]], a_v [d_head][d_v[g]]. If they are NULL, heads keep their leading
 * dimensions. */
typedef struct {
    kvd_attn_map map;
    const void *a_q, *a_k, *a_v;
} kvd_paged_layer;

/* Describes this GPU's heads in *map. KV head g keeps d_qk[g] dimensions of K and d_v[g] of V.
 * Returns -1 if the kernels do not support this. */
int kvd_gpu_paged_map(const kvd_config *c, const kvd_gpu_share *share, const int *d_qk,
                      const int *d_v, kvd_attn_map *map);

typedef struct kvd_gpu_paged kvd_gpu_paged;
kvd_gpu_paged *kvd_gpu_paged_new(const kvd_config *c, const kvd_gpu_share *share, size_t max_tokens,
                                 size_t max_len, kvd_err *err);
void kvd_gpu_paged_free(kvd_gpu_paged *p);
size_t kvd_gpu_paged_bytes(const kvd_config *c, const kvd_gpu_share *share, size_t max_tokens,
                           size_t max_len);
const char *kvd_gpu_paged_engine(const kvd_gpu_paged *p);

/* Returns 1 if each token's Q, K and V follow one another in memory, as the kernel kvd_append
 * requires. */
int kvd_gpu_paged_reads(const kvd_gpu_attention_in *in);
/* Writes the attention output of one layer to the bf16 device array out
 * [n_tokens][layer->map.o_pitch]. */
int kvd_gpu_paged_run(kvd_gpu_paged *p, const kvd_paged_layer *layer,
                      const kvd_gpu_attention_in *in, void *out, kvd_err *err);

#endif
