/* Computation of a layer before and after its attention, and its activations, one row per token. */
#ifndef KVD_ENGINE_CPU_LAYERS_H
#define KVD_ENGINE_CPU_LAYERS_H

#include "engine/cpu/clock.h"
#include "engine/cpu/weights.h"
#include "methods/axis.h"
#include "methods/iteration.h"

typedef struct {
    const kvd_cpu_weights *model;
    size_t most, max_len;
    /* bits of kvd_needs that are set if a method reads keys before RoPE or layer inputs */
    unsigned needs;
    /* Residual stream, [most][d_model]. */
    float *x;
    /* Products with W_Q, W_K and W_V, one row for each of up to `most` tokens. */
    float *q, *k, *v;
    /*
     * Queries and keys with only the kept dimensions. In layers that need no separate
     * multiplication to get them (kvd_cpu_layer.rotates is false), they point to q and k.
     */
    float *q_cut, *k_cut;
    /* Memory of q_cut and k_cut, unused in layers where these point to q and k. */
    float *q_own, *k_own;
    /*
     * Keys before RoPE, and inputs of the layer [most][d_model]. Each is allocated only if its bit
     * in `needs` is set.
     */
    float *k_pre, *input;
    /* Attention output. A query head is as wide as the kept dimensions of V of its KV head. */
    float *o;
    float *work;          /* scratch memory, [block][kvd_layer_scratch] */
    float *cosine, *sine; /* RoPE tables, [kvd_batch_rope_rows][d_head / 2] */
    uint32_t *position, *rope_row;
    double bytes;
} kvd_cpu_rows;

/* Returns the bytes that kvd_cpu_rows_init allocates. */
double kvd_cpu_rows_bytes(const kvd_cpu_weights *w, size_t most, size_t max_len, unsigned needs);
/* Allocates the buffers. `needs` has the meaning that it has in kvd_cpu_rows. */
int kvd_cpu_rows_init(kvd_cpu_rows *r, const kvd_cpu_weights *w, size_t most, size_t max_len,
                      unsigned needs, kvd_err *err);
void kvd_cpu_rows_release(kvd_cpu_rows *r);

/* Fills `position` and `rope_row` of every token of the iteration. */
void kvd_cpu_place(kvd_cpu_rows *r, const kvd_iteration *it);
void kvd_cpu_embed(kvd_cpu_rows *r, const uint32_t *id, size_t n);

/*
 * Computes q, k and v of a layer from the residual stream x of n tokens. Adds the times to the
 * phases norm, qkv and rope.
 */
void kvd_cpu_before_attention(kvd_cpu_rows *r, int layer, size_t n, kvd_cpu_clock *clock);
/* Projects q and k of n tokens to q_cut and k_cut. */
void kvd_cpu_rotate(kvd_cpu_rows *r, int layer, size_t n);
/*
 * Computes the part of a layer after attention: updates x from the attention output o. Adds the
 * times to the phases o, norm and mlp.
 */
void kvd_cpu_behind_attention(kvd_cpu_rows *r, const kvd_cpu_layer *l, size_t n,
                              kvd_cpu_clock *clock);

#endif
