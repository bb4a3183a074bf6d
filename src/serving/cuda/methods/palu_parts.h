/* What the files of palu in the CUDA engine share. */
#ifndef KVD_SERVING_CUDA_PALU_PARTS_H
#define KVD_SERVING_CUDA_PALU_PARTS_H

#include "kernels/rivals/palu_decode.h"
#include "serving/cuda/methods/latent_store.h"

/* One layer; offsets are elements of the matrices. */
typedef struct {
    bool direct;        /* values are read as latents, B_v is in W_O                */
    size_t down[2];     /* A of the groups [heads * d_head][rank], one after another */
    size_t up, up_pair; /* B^T of all heads; B_k as the fused kernel reads it        */
    size_t back;        /* B_v [rank][d_head] of all KV heads                        */
} kvd_palu_layer;

typedef struct {
    kvd_serving_method method; /* first */
    kvd_latent_store store;
    kvd_gpu_worker *w;
    const kvd_dims *dims;
    bool folded; /* latents come out of the product; else out of one behind norms and biases */
    bool fused;
    kvd_palu_layer *layer;
    uint16_t *matrix; /* device */
    uint16_t *rows;   /* [max_tokens][latent_pitch] of products of their own */
    size_t rows_pitch;
    /* of the fused kernel */
    int n_clusters;
    void *workspace;
    uint16_t *o;         /* [max_slices][n_heads * rank_v] */
    const void **factor; /* device [n_layers][3][n_heads] pointers of the product with B_v */
} kvd_palu;

static inline const kvd_dims_head *kvd_palu_head(const kvd_palu *p, int layer, int g)
{
    return &p->dims->head[layer * p->dims->n_kv_heads + g];
}

/* As the fused kernel has it. */
static inline kvd_palu_shape kvd_palu_shape_of(const kvd_palu *p, int layer)
{
    return (kvd_palu_shape){.n_heads = p->method.cache->share->n_heads,
                            .n_kv_heads = p->method.cache->share->n_kv_heads,
                            .rank_k = p->store.layer[layer].rank[KVD_KEYS][0],
                            .rank_v = p->store.layer[layer].rank[KVD_VALUES][0]};
}

/* All matrices in bf16 on the device, at the offsets of the layers. */
int kvd_palu_make_matrices(kvd_palu *p, kvd_err *err);
/* Down-projections into the weights of K and V, B_v into W_O, where they go there. */
int kvd_palu_fold(const kvd_palu *p, kvd_err *err);

#endif
