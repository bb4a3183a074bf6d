/* Float32 weights of a model on the CPU. The projections to the kept dimensions are multiplied into
 * W_V and W_O and, where the model allows it, into W_Q and W_K. */
#ifndef KVD_ENGINE_CPU_WEIGHTS_H
#define KVD_ENGINE_CPU_WEIGHTS_H

#include "common/memory.h"
#include "methods/dims/dims.h"
#include "model/pass/layer.h"

typedef struct {
    size_t *d_qk, *d_v; /* kept dimensions of each head, [n_kv_heads] */
    /* [n_kv_heads + 1] index of the first column of each KV head in a row of K, and in a row of
     * V */
    size_t *at_qk, *at_v;
} kvd_cpu_widths;

typedef struct {
    kvd_layer_weights w;
    kvd_cpu_widths cut;
    /* True if Q and K are projected to the kept dimensions after RoPE. False if W_Q and W_K already
     * contain the projection. */
    bool rotates;
} kvd_cpu_layer;

typedef struct {
    kvd_pool memory;
    const kvd_config *config;
    /* projections of each head to its kept dimensions; NULL if all dimensions are kept */
    const kvd_dims *dims;
    size_t group, d_embed;
    kvd_cpu_layer *layer; /* [n_layers] */
    kvd_weight embedding, positions;
    const float *head; /* output head, [vocab_size][d_embed] */
    /* Weights [0] and biases [1] that are not part of a layer, such as the final norm. NULL if the
     * model has none. */
    float *once[KVD_N_PARTS - KVD_N_LAYER_PARTS][2];
    double bytes;     /* bytes of all weights, mapped or copied */
    double own_bytes; /* bytes of copied and folded weights */
} kvd_cpu_weights;

/* Finds the weights in checkpoint `c` and counts their bytes. Borrows `c` and `dims`. The caller
 * must call kvd_cpu_weights_release, also on failure. */
int kvd_cpu_weights_find(kvd_cpu_weights *w, const kvd_checkpoint *c, const kvd_dims *dims,
                         kvd_err *err);
int kvd_cpu_weights_load(kvd_cpu_weights *w, const kvd_checkpoint *c, kvd_err *err);
void kvd_cpu_weights_release(kvd_cpu_weights *w);

/* Returns a weight (`bias` 0) or bias (`bias` 1) that is not part of a layer, such as the final
 * norm's, or NULL if the model has none. */
const float *kvd_cpu_once(const kvd_cpu_weights *w, kvd_part part, int bias);

/* Returns the first column of query head `head` in a row of queries or of attention outputs. `at`:
 * first column of each KV head in a row of keys (for queries) or of values (for outputs). */
static inline size_t kvd_cpu_query_at(const kvd_cpu_weights *w, const size_t *at, size_t head)
{
    const size_t g = head / w->group;
    return w->group * at[g] + (head - g * w->group) * (at[g + 1] - at[g]);
}

#endif
