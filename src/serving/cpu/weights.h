/*
 * All weights of a small model in float32, with the projections of a plan folded in: V into W_V and W_O, Q and K into W_Q and W_K where
 * nothing stands between these and the scores (export/folded.h). Products are then as narrow as what is kept.
 */
#ifndef KVD_SERVING_CPU_WEIGHTS_H
#define KVD_SERVING_CPU_WEIGHTS_H

#include "methods/dims/dims.h"
#include "model/layer.h"

/* Widths of the heads of one layer, and where each begins in rows whose heads stand side by side. */
typedef struct {
    size_t *d_qk, *d_v; /* [n_kv_heads]                                                 */
    size_t *at_qk,
        *at_v; /* [n_kv_heads + 1] sums of those before: of K' and V'; Q' and O have group times as many */
} kvd_cpu_widths;

typedef struct {
    kvd_layer_weights w;
    float *own[KVD_LAYER_WEIGHTS]; /* those that are not used in the file */
    kvd_cpu_widths cut;            /* of the cache                        */
    bool rotates;                  /* Q and K are cut behind RoPE, by a product of their own */
} kvd_cpu_layer;

typedef struct {
    const kvd_config *config;
    const kvd_dims *dims; /* NULL: whole heads */
    size_t group, d_embed;
    kvd_cpu_layer *layer; /* [n_layers] */
    kvd_weight embedding, positions;
    const float *head; /* [vocab_size][d_embed] */
    float *own_head;
    float *once[KVD_N_PARTS - KVD_N_LAYER_PARTS]
               [2]; /* final norm and projections, the second its bias; NULL: none */
    double bytes;
} kvd_cpu_weights;

/* The checkpoint and dims are borrowed. Release after a failure too. */
int kvd_cpu_weights_open(kvd_cpu_weights *w, const kvd_checkpoint *c, const kvd_dims *dims, kvd_err *err);
void kvd_cpu_weights_release(kvd_cpu_weights *w);

/* Final norm, projections of embedding and head. */
const float *kvd_cpu_once(const kvd_cpu_weights *w, kvd_part part, int bias);

/* Columns of Q' and O: of query head `head` begins at .. */
static inline size_t kvd_cpu_query_at(const kvd_cpu_weights *w, const size_t *at, size_t head)
{
    const size_t g = head / w->group;
    return w->group * at[g] + (head - g * w->group) * (at[g + 1] - at[g]);
}

#endif
