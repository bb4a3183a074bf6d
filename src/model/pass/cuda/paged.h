/*
 * Attention of a layer by the bf16 kernels of kernels/cuda, with kept dimensions per KV head; Q in
 * blocks, K and V in pages (kernels/layout.h).
 *
 * A kvd_gpu_paged object is for one device and stream, and waits only for copies of changed
 * lengths.
 */
#ifndef KVD_MODEL_PASS_CUDA_PAGED_H
#define KVD_MODEL_PASS_CUDA_PAGED_H

#include "kernels/layout.h"
#include "model/pass/cuda/attention.h"

/*
 * Projections a_q, a_k [d_head][d_qk[g]], a_v [d_head][d_v[g]] of KV head g, bf16 on the device,
 * aligned to 16 bytes; NULL keeps leading dimensions. a_q != a_k needs a second launch.
 */
typedef struct {
    kvd_attn_map map;
    const void *a_q, *a_k, *a_v;
} kvd_paged_layer;

/*
 * Describes this GPU's heads; d_qk, d_v: kept dimensions (NULL: d_head). Returns -1 without a
 * message if unsupported.
 */
int kvd_gpu_paged_map(const kvd_config *c, const kvd_gpu_share *share, const int *d_qk,
                      const int *d_v, kvd_attn_map *map);

typedef struct kvd_gpu_paged kvd_gpu_paged;
kvd_gpu_paged *kvd_gpu_paged_new(const kvd_config *c, const kvd_gpu_share *share, size_t max_tokens,
                                 size_t max_len, kvd_err *err);
void kvd_gpu_paged_free(kvd_gpu_paged *p);
size_t kvd_gpu_paged_bytes(const kvd_config *c, const kvd_gpu_share *share, size_t max_tokens,
                           size_t max_len);
const char *kvd_gpu_paged_engine(const kvd_gpu_paged *p);

/* Returns 1 if Q, K and V of a token are contiguous, as kvd_append requires. */
int kvd_gpu_paged_reads(const kvd_gpu_attention_in *in);
/*
 * Writes bf16 attention to the device array out [n_tokens][layer->map.o_pitch], aligned to 16
 * bytes.
 */
int kvd_gpu_paged_run(kvd_gpu_paged *p, const kvd_paged_layer *layer,
                      const kvd_gpu_attention_in *in, void *out, kvd_err *err);

#endif
