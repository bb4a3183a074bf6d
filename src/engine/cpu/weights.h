/*
 * All weights of a small model in float32, with the projections of a compression method folded
 * (multiplied) into them: V into W_V and W_O. Q and K are folded into W_Q and W_K if no operation
 * separates these products from the scores (methods/folded.h). The folded products are only as wide
 * as the kept dimensions.
 */
#ifndef KVD_ENGINE_CPU_WEIGHTS_H
#define KVD_ENGINE_CPU_WEIGHTS_H

#include "methods/dims/dims.h"
#include "model/pass/layer.h"

/*
 * Kept widths of the heads of one layer, and the column at which each head begins in rows that
 * concatenate all heads.
 */
typedef struct {
    size_t *d_qk, *d_v; /* [n_kv_heads] */
    /*
     * Column at which each head of K' and V' begins, [n_kv_heads + 1]: the sum of the widths of the
     * heads before it. The columns of Q' and O are `group` times these.
     */
    size_t *at_qk, *at_v;
} kvd_cpu_widths;

typedef struct {
    kvd_layer_weights w;
    /*
     * Memory of each weight that is copied or folded; NULL for a weight that is read directly from
     * the mapped file.
     */
    float *own[KVD_LAYER_WEIGHTS];
    /* Widths of the heads in the KV cache. */
    kvd_cpu_widths cut;
    /* True if Q and K are projected after RoPE, by a separate product, and not in W_Q and W_K. */
    bool rotates;
} kvd_cpu_layer;

typedef struct {
    const kvd_config *config;
    /* Projections of the compression method; NULL means heads keep all dimensions. */
    const kvd_dims *dims;
    size_t group, d_embed;
    kvd_cpu_layer *layer; /* [n_layers] */
    kvd_weight embedding, positions;
    const float *head; /* [vocab_size][d_embed] */
    float *own_head;
    /*
     * Final norm, and projections after the embedding and before the head [0], with their biases
     * [1]; NULL if the model has none.
     */
    float *once[KVD_N_PARTS - KVD_N_LAYER_PARTS][2];
    /* Size of all weights in bytes, mapped or copied. */
    double bytes;
    /* Size of the copied weights in bytes. */
    double own_bytes;
} kvd_cpu_weights;

/*
 * Finds the weights of checkpoint `c` and fills *w, but does not yet copy or fold weights;
 * allocates little memory. The checkpoint and `dims` are borrowed. The caller must call
 * kvd_cpu_weights_release after a failure too.
 */
int kvd_cpu_weights_find(kvd_cpu_weights *w, const kvd_checkpoint *c, const kvd_dims *dims,
                         kvd_err *err);
/* Allocates and fills the weights that are copied or folded. Call it after kvd_cpu_weights_find. */
int kvd_cpu_weights_load(kvd_cpu_weights *w, const kvd_checkpoint *c, kvd_err *err);
void kvd_cpu_weights_release(kvd_cpu_weights *w);

/*
 * Returns a weight that the model has once and not per layer: the final norm, or a projection of
 * the embedding or head (bias 0), or its bias (bias 1). Returns NULL if the model has none.
 */
const float *kvd_cpu_once(const kvd_cpu_weights *w, kvd_part part, int bias);

/*
 * Returns the column at which query head `head` begins in a row of Q' or O. `at` is the layer's
 * at_qk for Q' and at_v for O.
 */
static inline size_t kvd_cpu_query_at(const kvd_cpu_weights *w, const size_t *at, size_t head)
{
    const size_t g = head / w->group;
    return w->group * at[g] + (head - g * w->group) * (at[g + 1] - at[g]);
}

#endif
