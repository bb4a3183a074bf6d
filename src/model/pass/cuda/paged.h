/*
 * Attention of a layer by the bf16 kernels of kernels/cuda. The number of kept dimensions may
 * differ between KV heads. kvd_append multiplies Q, K and V by projection matrices, and stores Q in
 * blocks and K and V in pages (kernels/layout.h). A kvd_gpu_paged object must be used on one device
 * and one stream only. A query attends to the newest map.window tokens, or to all if map.window is
 * 0. kvd_gpu_paged_run does not wait for the device, except for the copy of the last batch's
 * lengths if the lengths differ.
 */
#ifndef KVD_MODEL_PASS_CUDA_PAGED_H
#define KVD_MODEL_PASS_CUDA_PAGED_H

#include "kernels/layout.h"
#include "model/pass/cuda/attention.h"

/*
 * Projection matrices of one layer, from d_head dimensions to map.d_qk[g] dimensions of Q and K and
 * map.d_v[g] of V, for KV head g. a_q, a_k [d_head][d_qk] and a_v [d_head][d_v] are bf16 on the
 * device, aligned to 16 bytes, one matrix per KV head. NULL means that the leading dimensions are
 * kept unchanged.
 *
 * If Q and K have the same matrices, pass the same pointer as a_q and a_k: different pointers need
 * a second launch of kvd_append.
 */
typedef struct {
    kvd_attn_map map;
    const void *a_q, *a_k, *a_v;
} kvd_paged_layer;

/*
 * Describes the heads of this GPU in *map. d_qk and d_v are the kept dimensions of each KV head;
 * NULL means all d_head dimensions. Returns -1 without a message if the kernels do not support such
 * heads.
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

/* Returns 1 if Q, K and V of a token are next to each other, as kvd_append requires. */
int kvd_gpu_paged_reads(const kvd_gpu_attention_in *in);
/*
 * Computes attention. Writes the output in bf16 to the device array out [n_tokens][o_pitch],
 * aligned to 16 bytes. o_pitch is layer->map.o_pitch, the kept dimensions of V summed over the
 * query heads.
 */
int kvd_gpu_paged_run(kvd_gpu_paged *p, const kvd_paged_layer *layer,
                      const kvd_gpu_attention_in *in, void *out, kvd_err *err);

#endif
