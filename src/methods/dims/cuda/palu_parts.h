/* Types and functions shared by the files of method palu in the CUDA engine. */
#ifndef KVD_METHODS_DIMS_CUDA_PALU_PARTS_H
#define KVD_METHODS_DIMS_CUDA_PALU_PARTS_H

#include "kernels/rivals/palu_decode.h"
#include "methods/dims/cuda/latent_store.h"

/*
 * Offsets of the matrices of one layer, in elements of kvd_palu.matrix. A projects K or V of a
 * group of heads, B rebuilds K or V of one head (methods/dims/palu.c).
 */
typedef struct {
    /*
     * True if B of the values is folded into W_O. Attention then outputs sums of latents of values.
     */
    bool direct;
    /* Offsets of the matrices A [heads * d_head][rank] of all groups, for K and for V. */
    size_t down[2];
    /*
     * Offsets of the matrices B. up: B^T of K and of V. up_pair: B of the keys in the element order
     * of the fused kernel.
     */
    size_t up, up_pair;
    /* Offset of the matrices B [rank][d_head] of the values, not transposed. */
    size_t back;
} kvd_palu_layer;

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_latent_store store;
    kvd_gpu_worker *w;
    /* Points to `own`: the projections of this GPU's KV heads. */
    const kvd_dims *dims;
    kvd_dims own;
    /*
     * True if the matrix product of Q, K and V gives latents. False if norms of K or biases prevent
     * it; a separate product then computes latents.
     */
    bool folded;
    bool fused;
    kvd_palu_layer *layer;
    /* All matrices in device memory, bf16. */
    uint16_t *matrix;
    /* Latents from separate products, [max_tokens][latent_pitch]. NULL if `folded`. */
    uint16_t *rows;
    size_t rows_pitch;
    int n_clusters;
    void *workspace;
    uint16_t *o; /* attention output as latents of values, [max_slices][n_heads * rank_v] */
    /*
     * Device array [n_layers][3][n_heads] of pointers for the batched product of `o` with B_v: B_v
     * [rank_v][d_head], the part of `o`, and the output of each query head.
     */
    const void **factor;
} kvd_palu;

static inline const kvd_dims_head *kvd_palu_head(const kvd_palu *p, int layer, int g)
{
    return &p->dims->head[layer * p->dims->n_kv_heads + g];
}

static inline kvd_palu_shape kvd_palu_shape_of(const kvd_palu *p, int layer)
{
    return (kvd_palu_shape){.n_heads = p->method.cache->share->n_heads,
                            .n_kv_heads = p->method.cache->share->n_kv_heads,
                            .rank_k = p->store.layer[layer].rank[KVD_KEYS][0],
                            .rank_v = p->store.layer[layer].rank[KVD_VALUES][0]};
}

int kvd_palu_make_matrices(kvd_palu *p, kvd_err *err);
/*
 * If `folded` is set, multiplies W_K and W_V by A. In layers with kvd_palu_layer.direct, multiplies
 * W_O by B of the values.
 */
int kvd_palu_fold(const kvd_palu *p, kvd_err *err);

#endif
