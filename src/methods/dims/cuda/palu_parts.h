/* State of method palu on the GPU, and functions that prepare its matrices. */
#ifndef KVD_METHODS_DIMS_CUDA_PALU_PARTS_H
#define KVD_METHODS_DIMS_CUDA_PALU_PARTS_H

#include "kernels/rivals/palu_decode.h"
#include "methods/dims/cuda/latents.h"

/* Offsets of a layer's matrices in kvd_palu.matrix, in elements. */
typedef struct {
    /* True if attention reads latent V, and the projection that restores V is multiplied into
     * W_O. */
    bool direct;
    /* Offsets in kvd_palu.matrix, in elements, of the projections [heads * d_head][rank] that turn
     * K (index 0) and V (index 1) into latent vectors. */
    size_t down[2];
    /* Offsets in kvd_palu.matrix, in elements. up: projections with which kvd_latent_restore
     * restores K and V. up_pair: projections with which kvd_palu_decode restores K. */
    size_t up, up_pair;
    /* Offset in kvd_palu.matrix, in elements, of the projections [rank][d_head] that are applied to
     * the attention-weighted sums of latent V. */
    size_t back;
} kvd_palu_layer;

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_latent_store store;
    kvd_gpu_worker *w;
    kvd_dims dims; /* projections of this GPU's KV heads */
    /* True if projections are multiplied into W_K and W_V, so that the QKV product yields latent
     * vectors. Impossible for models with biases or with norms of K. */
    bool folded;
    bool fused;
    kvd_latent_codes codes;
    bool coded;  /* true: the GPU codes the latents, by method allot or kvquant */
    bool hosted; /* true: the CPU codes the latents */
    /* Method that drops tokens, used together with palu. NULL: all tokens are kept. */
    kvd_gpu_method *evict;
    kvd_palu_layer *layer;
    uint16_t *matrix;
    /* [max_tokens][latent_pitch] Latent vectors of new tokens, or NULL if the QKV product outputs
     * them. */
    uint16_t *rows;
    size_t rows_pitch;
    int n_clusters;
    void *workspace;
    uint16_t *o; /* attention output as latents: [max_slices][n_heads * rank_v] */
    /* [n_layers][3][n_heads] Device addresses of three matrices per query head: projection B, which
     * restores V; attention output o in latent dimensions; and o B. */
    const void **factor;
} kvd_palu;

/* Returns the projections of KV head g of a layer. */
static inline const kvd_dims_head *kvd_palu_head(const kvd_palu *p, int layer, int g)
{
    return &p->dims.head[layer * p->dims.n_kv_heads + g];
}

/* Returns the numbers of heads and the ranks of a layer, which kvd_palu_decode requires. */
static inline kvd_palu_shape kvd_palu_shape_of(const kvd_palu *p, int layer)
{
    return (kvd_palu_shape){.n_heads = p->method.cache->share->n_heads,
                            .n_kv_heads = p->method.cache->share->n_kv_heads,
                            .rank_k = p->store.layer[layer].rank[KVD_KEYS][0],
                            .rank_v = p->store.layer[layer].rank[KVD_VALUES][0]};
}

/* Copies the projections of all layers to the GPU as p->matrix, in bf16. Sets their offsets in
 * p->layer, and their addresses in p->store and the cache. The ranks in p->store must be set
 * before. */
int kvd_palu_make_matrices(kvd_palu *p, kvd_err *err);

/* Multiplies projections into the model's weights: into W_K and W_V if p->folded is set, and into
 * W_O in layers that attend to latent V. */
int kvd_palu_fold(const kvd_palu *p, kvd_err *err);

#endif
