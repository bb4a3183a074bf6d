/*
 * All weights of a small model in float32. Projections of V are folded (multiplied) into W_V and
 * W_O, which then have only the kept dimensions. Projections of Q and K are folded into W_Q and W_K
 * only if the model allows it: an operation between these products and the attention scores, such
 * as RoPE, can make folding impossible (methods/folded.h).
 */
#ifndef KVD_ENGINE_CPU_WEIGHTS_H
#define KVD_ENGINE_CPU_WEIGHTS_H

#include "methods/dims/dims.h"
#include "model/pass/layer.h"

typedef struct {
    size_t *d_qk, *d_v; /* kept dimensions of each head, [n_kv_heads] */
    /*
     * Column at which each KV head begins in rows of K and V, [n_kv_heads + 1]. In rows of Q and of
     * the attention output, its query heads begin at `group` times this column.
     */
    size_t *at_qk, *at_v;
} kvd_cpu_widths;

typedef struct {
    kvd_layer_weights w;
    /* Allocated memory of each weight. NULL if the weight is read directly from the mapped file. */
    float *own[KVD_LAYER_WEIGHTS];
    kvd_cpu_widths cut;
    /* True if Q and K are projected after RoPE by a separate product. */
    bool rotates;
} kvd_cpu_layer;

typedef struct {
    const kvd_config *config;
    /* NULL means that heads keep all dimensions. */
    const kvd_dims *dims;
    size_t group, d_embed;
    kvd_cpu_layer *layer; /* [n_layers] */
    kvd_weight embedding, positions;
    const float *head; /* output head, [vocab_size][d_embed] */
    float *own_head;
    /* Weights [0] and biases [1] that belong to no layer. NULL if the model has none. */
    float *once[KVD_N_PARTS - KVD_N_LAYER_PARTS][2];
    double bytes;     /* bytes of all weights, mapped or copied */
    double own_bytes; /* bytes of the copied and folded weights */
} kvd_cpu_weights;

/*
 * Finds the weights of `c` without copying or folding them. `c` and `dims` are borrowed. The caller
 * must call kvd_cpu_weights_release, also after a failure.
 */
int kvd_cpu_weights_find(kvd_cpu_weights *w, const kvd_checkpoint *c, const kvd_dims *dims,
                         kvd_err *err);
/* Copies and folds weights. Must be called after kvd_cpu_weights_find. */
int kvd_cpu_weights_load(kvd_cpu_weights *w, const kvd_checkpoint *c, kvd_err *err);
void kvd_cpu_weights_release(kvd_cpu_weights *w);

/*
 * Returns a weight (bias 0) or a bias (bias 1) outside the layers, such as the final norm. Returns
 * NULL if the model has none.
 */
const float *kvd_cpu_once(const kvd_cpu_weights *w, kvd_part part, int bias);

/*
 * Returns the column at which a query head begins, in rows of queries (if `at` is
 * kvd_cpu_widths.at_qk) or in rows of attention output (if `at` is at_v).
 */
static inline size_t kvd_cpu_query_at(const kvd_cpu_weights *w, const size_t *at, size_t head)
{
    const size_t g = head / w->group;
    return w->group * at[g] + (head - g * w->group) * (at[g + 1] - at[g]);
}

#endif
