/* Types and functions shared by the files of method palu in the CUDA engine. */
#ifndef KVD_METHODS_DIMS_CUDA_PALU_PARTS_H
#define KVD_METHODS_DIMS_CUDA_PALU_PARTS_H

#include "kernels/rivals/palu_decode.h"
#include "methods/dims/cuda/latent_store.h"

/* Offsets of the matrices of one layer, in elements of kvd_palu.matrix. */
typedef struct {
    bool direct; /* true: attention reads latents of values, and B_v is folded into W_O */
    /* projections A [heads * d_head][rank] of all groups, one after another; [2]: K, V */
    size_t down[2];
    size_t up, up_pair; /* up: B^T of all heads; up_pair: B_k in the fused kernel's order */
    size_t back;        /* B_v [rank][d_head] of all KV heads */
} kvd_palu_layer;

/* State of method palu in the engine. */
typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_latent_store store;
    kvd_gpu_worker *w;
    const kvd_dims *dims; /* projections of the GPU's heads: `own` */
    kvd_dims own;         /* those of the plan, without the heads of other GPUs */
    /*
     * True if the product of Q, K and V computes latents. False if norms or biases require a
     * separate product after it.
     */
    bool folded;
    bool fused;
    kvd_palu_layer *layer;
    uint16_t *matrix; /* device, bf16 */
    /* Latents from separate products, [max_tokens][latent_pitch]; NULL if `folded`. */
    uint16_t *rows;
    size_t rows_pitch;
    /* Members of the fused kernel. */
    int n_clusters;
    void *workspace;
    uint16_t *o;         /* [max_slices][n_heads * rank_v] */
    const void **factor; /* device [n_layers][3][n_heads]: pointers for the products with B_v */
} kvd_palu;

static inline const kvd_dims_head *kvd_palu_head(const kvd_palu *p, int layer, int g)
{
    return &p->dims->head[layer * p->dims->n_kv_heads + g];
}

/* Returns the shape of a layer in the structure that the fused kernel takes. */
static inline kvd_palu_shape kvd_palu_shape_of(const kvd_palu *p, int layer)
{
    return (kvd_palu_shape){.n_heads = p->method.cache->share->n_heads,
                            .n_kv_heads = p->method.cache->share->n_kv_heads,
                            .rank_k = p->store.layer[layer].rank[KVD_KEYS][0],
                            .rank_v = p->store.layer[layer].rank[KVD_VALUES][0]};
}

/* Copies all matrices to the device in bf16 and sets the layers' offsets. */
int kvd_palu_make_matrices(kvd_palu *p, kvd_err *err);
/*
 * Folds projections to latents into W_K and W_V if `folded` is set, and B_v into W_O in layers with
 * `direct`.
 */
int kvd_palu_fold(const kvd_palu *p, kvd_err *err);

#endif
