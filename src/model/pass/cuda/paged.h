/*
 * Attention of a layer by the kernels of kernels/cuda, on heads of which different numbers of
 * dimensions are kept. Exact attention (all dimensions) and the caches of methods/cuda use it. The
 * kernels read Q in blocks and K and V in pages (kernels/layout.h); kvd_append multiplies Q, K and
 * V by the projection matrices and stores the results in these blocks and pages. In the kernels'
 * output O each sequence starts at a multiple of 8 rows. If this leaves unused rows between
 * sequences, the rows of O are then copied to an array without gaps. bf16 only.
 *
 * Create and use it with one device current, on one stream. kvd_gpu_paged_run does not wait for the
 * device, with one exception: if the sequence lengths differ from those of the last batch, it waits
 * for the copy of the last batch's lengths.
 */
#ifndef KVD_MODEL_PASS_CUDA_PAGED_H
#define KVD_MODEL_PASS_CUDA_PAGED_H

#include "kernels/layout.h"
#include "model/pass/cuda/attention.h"

/*
 * Projection matrices of one layer. They reduce each head from d_head dimensions to those that are
 * kept: map.d_qk[g] dimensions of Q and K, map.d_v[g] of V, for KV head g. a_q, a_k and a_v are
 * bf16 on the device, aligned to 16 bytes: one matrix [d_head][d_qk] (a_v: [d_head][d_v]) per KV
 * head, one after another. NULL means that the leading dimensions are kept unchanged.
 *
 * If Q and K have the same matrices, a_k equals a_q. If not, the kernel kvd_append, which applies
 * one matrix to both, is launched once for each.
 */
typedef struct {
    kvd_attn_map map;
    const void *a_q, *a_k, *a_v;
} kvd_paged_layer;

/*
 * Fills *map for heads of which d_qk dimensions of Q and K and d_v of V are kept, one number per KV
 * head of this GPU; NULL means that all d_head dimensions are kept. Returns -1 without a message if
 * the kernels do not support such heads.
 */
int kvd_gpu_paged_map(const kvd_config *c, const kvd_gpu_share *share, const int *d_qk,
                      const int *d_v, kvd_attn_map *map);

typedef struct kvd_gpu_paged kvd_gpu_paged;
kvd_gpu_paged *kvd_gpu_paged_new(const kvd_config *c, const kvd_gpu_share *share, size_t max_tokens,
                                 size_t max_len, kvd_err *err);
void kvd_gpu_paged_free(kvd_gpu_paged *p);
/* Returns the bytes of device memory that kvd_gpu_paged_new takes. */
size_t kvd_gpu_paged_bytes(const kvd_config *c, const kvd_gpu_share *share, size_t max_tokens,
                           size_t max_len);
const char *kvd_gpu_paged_engine(const kvd_gpu_paged *p); /* "sm_90a kernel" or "mma.sync kernel" */

/*
 * Returns 1 if Q, K and V of each token are next to each other in memory, as the QKV projection
 * leaves them and as kvd_append requires.
 */
int kvd_gpu_paged_reads(const kvd_gpu_attention_in *in);
/*
 * Queues the attention of a layer. Writes its output in bf16 to the device array out
 * [n_tokens][o_pitch], aligned to 16 bytes; o_pitch is layer->map.o_pitch, the number of kept
 * dimensions of V summed over the query heads.
 */
int kvd_gpu_paged_run(kvd_gpu_paged *p, const kvd_paged_layer *layer,
                      const kvd_gpu_attention_in *in, void *out, kvd_err *err);

#endif
