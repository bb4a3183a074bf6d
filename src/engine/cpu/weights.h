/*
 * All weights of a small model in float32, with the projections of a compression method folded
 * (multiplied) into them: those of V into W_V and W_O. Projections of Q and K are folded into W_Q
 * and W_K if no operation separates these products from the attention scores (methods/folded.h).
 * The folded weights are only as wide as the kept dimensions.
 */
#ifndef KVD_ENGINE_CPU_WEIGHTS_H
#define KVD_ENGINE_CPU_WEIGHTS_H

#include "methods/dims/dims.h"
#include "model/pass/layer.h"

/*
 * Kept dimensions of the heads of one layer, and the column at which each head begins in rows that
 * concatenate all heads.
 */
typedef struct {
    size_t *d_qk, *d_v; /* kept dimensions of Q-K and of V of each head, [n_kv_heads] */
    /*
     * Column at which each head of the projected K and V begins, [n_kv_heads + 1]: the sum of the
     * kept dimensions of the heads before it. In rows of Q and of the attention output, KV head g's
     * query heads begin at `group` times this column.
     */
    size_t *at_qk, *at_v;
} kvd_cpu_widths;

typedef struct {
    kvd_layer_weights w;
    /*
     * Memory of each weight of the layer that is copied or folded. NULL for a weight that is read
     * directly from the mapped file.
     */
    float *own[KVD_LAYER_WEIGHTS];
    /* Kept dimensions of the heads in the KV cache. */
    kvd_cpu_widths cut;
    /*
     * True if Q and K are projected after RoPE, by a separate product, instead of in W_Q and W_K.
     */
    bool rotates;
} kvd_cpu_layer;

typedef struct {
    const kvd_config *config;
    /* Projections of the compression method. NULL: heads keep all dimensions. */
    const kvd_dims *dims;
    size_t group, d_embed;
    kvd_cpu_layer *layer; /* weights of each layer, [n_layers] */
    kvd_weight embedding, positions;
    const float *head; /* weights of the output head, [vocab_size][d_embed] */
    float *own_head;
    /*
     * Weights (index 0) and biases (index 1) that the model has once: final norm, and the
     * projections after the embedding and before the output head. NULL if the model has none.
     */
    float *once[KVD_N_PARTS - KVD_N_LAYER_PARTS][2];
    /* Size in bytes of all weights, mapped or copied. */
    double bytes;
    /* Size in bytes of the copied weights. */
    double own_bytes;
} kvd_cpu_weights;

/*
 * Finds the weights of checkpoint `c` and fills *w, but does not yet copy or fold weights, so it
 * allocates little memory. The checkpoint and `dims` are borrowed. The caller must call
 * kvd_cpu_weights_release, also after a failure.
 */
int kvd_cpu_weights_find(kvd_cpu_weights *w, const kvd_checkpoint *c, const kvd_dims *dims,
                         kvd_err *err);
/*
 * Allocates and fills the weights that are copied or folded. Must be called after
 * kvd_cpu_weights_find.
 */
int kvd_cpu_weights_load(kvd_cpu_weights *w, const kvd_checkpoint *c, kvd_err *err);
void kvd_cpu_weights_release(kvd_cpu_weights *w);

/*
 * Returns a weight that the model has once and not per layer: the final norm, or a projection after
 * the embedding or before the output head (bias 0), or the bias of one of these (bias 1). Returns
 * NULL if the model has none.
 */
const float *kvd_cpu_once(const kvd_cpu_weights *w, kvd_part part, int bias);

/*
 * Returns the column at which query head `head` begins in a row of projected queries or of
 * attention output. `at` is the layer's at_qk for queries and at_v for output.
 */
static inline size_t kvd_cpu_query_at(const kvd_cpu_weights *w, const size_t *at, size_t head)
{
    const size_t g = head / w->group;
    return w->group * at[g] + (head - g * w->group) * (at[g + 1] - at[g]);
}

#endif
