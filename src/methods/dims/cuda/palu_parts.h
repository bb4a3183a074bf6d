/* Types and functions shared by the files of method palu in the CUDA engine. */
#ifndef KVD_METHODS_DIMS_CUDA_PALU_PARTS_H
#define KVD_METHODS_DIMS_CUDA_PALU_PARTS_H

#include "kernels/rivals/palu_decode.h"
#include "methods/dims/cuda/latent_store.h"

/*
 * Offsets of the matrices of one layer, in elements of kvd_palu.matrix. A computes the latent of a
 * group of heads from their K or V; B rebuilds K or V of one head from the latent
 * (methods/dims/palu.c).
 */
typedef struct {
    /*
     * True: attention sums latents of values directly, and the matrices B of the values are folded
     * into W_O.
     */
    bool direct;
    /*
     * Offsets of the projections A [heads * d_head][rank] of all groups of heads, for K and for V.
     */
    size_t down[2];
    /*
     * Offsets of the matrices B that rebuild K and V from latents. up: transposed matrices of all
     * heads. up_pair: those of the keys, in the element order of the fused kernel.
     */
    size_t up, up_pair;
    /*
     * Offset of the matrices B that rebuild values from latents, [rank][d_head], not transposed, of
     * all KV heads one after another.
     */
    size_t back;
} kvd_palu_layer;

/* State of method palu in the CUDA engine. */
typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_latent_store store;
    kvd_gpu_worker *w;
    /* Projections of the KV heads of this GPU; points to `own`. */
    const kvd_dims *dims;
    /* Projections of the plan without the heads of other GPUs. */
    kvd_dims own;
    /*
     * True if the matrix product that computes Q, K and V computes latents instead of K and V.
     * False if norms or biases require a separate product after it.
     */
    bool folded;
    bool fused;
    kvd_palu_layer *layer;
    /* All matrices in device memory, bf16. */
    uint16_t *matrix;
    /* Latents computed by separate products, [max_tokens][latent_pitch]. NULL if `folded`. */
    uint16_t *rows;
    size_t rows_pitch;
    /* Members for the kernel that fuses restoring keys and attention. */
    int n_clusters;
    void *workspace;
    uint16_t *o; /* sums of latent values, [max_slices][n_heads * rank_v] */
    /*
     * Pointers for the batched product that turns sums of latents into attention output, in device
     * memory, [n_layers][3][n_heads]. The three are: the matrix B [rank_v][d_head] that rebuilds
     * values, the sums, and the output.
     */
    const void **factor;
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
 * If `folded` is set, folds the matrices that compute latents into W_K and W_V. In layers in which
 * attention sums latents of values directly (kvd_palu_layer.direct), also folds the matrices that
 * rebuild values into W_O.
 */
int kvd_palu_fold(const kvd_palu *p, kvd_err *err);

#endif
