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
    /* True if attention sums latents of values, and B of the values is folded into W_O. */
    bool direct;
    /* Matrices A [heads * d_head][rank] of all groups, for K and for V. */
    size_t down[2];
    /*
     * Matrices B of K and V. up: transposed. up_pair: of the keys alone, in the element order of
     * the fused kernel.
     */
    size_t up, up_pair;
    /* Matrices B of values, [rank][d_head], not transposed. */
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
     * True if the matrix product of Q, K and V gives latents. Norms or biases make it false, and a
     * separate product is then necessary.
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
    uint16_t *o; /* sums of latent values, [max_slices][n_heads * rank_v] */
    /*
     * Pointers for the batched product of sums of latents with B_v, in device memory,
     * [n_layers][3][n_heads]. The three are B_v [rank_v][d_head], the sums and the output.
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
 * Folds A into W_K and W_V if `folded` is set. In layers with kvd_palu_layer.direct, folds B of the
 * values into W_O.
 */
int kvd_palu_fold(const kvd_palu *p, kvd_err *err);

#endif
