/* Types and functions shared by the files of palu in the CUDA engine. */
#ifndef KVD_METHODS_DIMS_CUDA_PALU_PARTS_H
#define KVD_METHODS_DIMS_CUDA_PALU_PARTS_H

#include "kernels/rivals/palu_decode.h"
#include "methods/dims/cuda/latent_store.h"

/* Matrices of one layer; offsets are elements of kvd_palu.matrix. */
typedef struct {
    bool direct;        /* attention reads latents of values, and B_v is folded into W_O */
    size_t down[2];     /* A [heads * d_head][rank] of all groups in a row; [2]: K, V */
    size_t up, up_pair; /* up: B^T of all heads; up_pair: B_k in the fused kernel's order */
    size_t back;        /* B_v [rank][d_head] of all KV heads */
} kvd_palu_layer;

/* palu as a method of the engine. */
typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_latent_store store;
    kvd_gpu_worker *w;
    const kvd_dims *dims; /* projections of the GPU's heads: `own` */
    kvd_dims own;         /* those of the plan, without the heads of other GPUs */
    /*
     * True if latents are outputs of the product of Q, K and V; false if they need a product of
     * their own after norms and biases.
     */
    bool folded;
    bool fused;
    kvd_palu_layer *layer;
    uint16_t *matrix; /* device, bf16 */
    /* [max_tokens][latent_pitch]: latents from separate products; NULL if `folded` */
    uint16_t *rows;
    size_t rows_pitch;
    /* members of the fused kernel */
    int n_clusters;
    void *workspace;
    uint16_t *o;         /* [max_slices][n_heads * rank_v] */
    const void **factor; /* device [n_layers][3][n_heads]: pointers for the products with B_v */
} kvd_palu;

static inline const kvd_dims_head *kvd_palu_head(const kvd_palu *p, int layer, int g)
{
    return &p->dims->head[layer * p->dims->n_kv_heads + g];
}

/* Returns the shape of a layer as the fused kernel takes it. */
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
 * Folds down-projections into the weights of K and V if `folded` is set, and B_v into W_O in layers
 * with `direct`.
 */
int kvd_palu_fold(const kvd_palu *p, kvd_err *err);

#endif
