/* CPU code for the parts of a layer other than attention, such as the output projection and
 * feed-forward. */
#ifndef KVD_ENGINE_CPU_LAYERS_H
#define KVD_ENGINE_CPU_LAYERS_H

#include "engine/cpu/clock.h"
#include "engine/cpu/weights.h"
#include "methods/axis.h"
#include "methods/iteration.h"

typedef struct {
    const kvd_cpu_weights *model;
    size_t most, max_len;
    /* Activations that the compression method reads in addition to Q, K and V, as bits of
     * kvd_needs. */
    unsigned needs;
    /* [tokens][d_model] residual stream of all tokens of the iteration */
    float *x;
    /* queries, keys and values of all tokens of the iteration, one row per token */
    float *q, *k, *v;
    /* Queries and keys projected to the kept dimensions. They are q and k themselves if W_Q and W_K
     * already contain the projection (kvd_cpu_layer.rotates is false). */
    float *q_cut, *k_cut;
    /* buffers for the queries and keys that are projected to the kept dimensions */
    float *q_own, *k_own;
    /* Keys before RoPE, and inputs of W_Q, W_K and W_V [tokens][d_model]. Each is NULL if the
     * compression method does not read it. */
    float *k_pre, *input;
    /* attention outputs of all tokens; if a KV head keeps d dimensions of V, each of its query
     * heads has d outputs */
    float *o;
    float *work;          /* [block][kvd_layer_scratch] */
    float *cosine, *sine; /* RoPE tables, [kvd_batch_rope_rows][d_head / 2] */
    uint32_t *position, *rope_row;
    double bytes;
    kvd_pool memory;
} kvd_cpu_rows;

double kvd_cpu_rows_bytes(const kvd_cpu_weights *w, size_t most, size_t max_len, unsigned needs);
int kvd_cpu_rows_init(kvd_cpu_rows *r, const kvd_cpu_weights *w, size_t most, size_t max_len,
                      unsigned needs, kvd_err *err);
void kvd_cpu_rows_release(kvd_cpu_rows *r);

void kvd_cpu_place(kvd_cpu_rows *r, const kvd_iteration *it);
void kvd_cpu_embed(kvd_cpu_rows *r, const uint32_t *id, size_t n);

/* Computes Q, K and V of n tokens of a layer from the residual stream r->x. */
void kvd_cpu_before_attention(kvd_cpu_rows *r, int layer, size_t n, kvd_cpu_clock *clock);
void kvd_cpu_rotate(kvd_cpu_rows *r, int layer, size_t n);
/* Computes the part of a layer that follows attention, from the attention output r->o. Updates the
 * residual stream r->x. */
void kvd_cpu_behind_attention(kvd_cpu_rows *r, const kvd_cpu_layer *l, size_t n,
                              kvd_cpu_clock *clock);

#endif
