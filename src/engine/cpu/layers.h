/*
 * Activations of one iteration of the CPU engine (one row of each array per token), and the
 * computation of a layer on them before and after its attention.
 */
#ifndef KVD_ENGINE_CPU_LAYERS_H
#define KVD_ENGINE_CPU_LAYERS_H

#include "engine/cpu/clock.h"
#include "engine/cpu/weights.h"
#include "methods/iteration.h"

typedef struct {
    const kvd_cpu_weights *model;
    size_t most, max_len;
    bool keys;
    /* Residual stream of up to `most` tokens, d_model floats each. */
    float *x;
    /*
     * Queries, keys and values of all heads as the products with W_Q, W_K and W_V return them, one
     * row for each of up to `most` tokens.
     */
    float *q, *k, *v;
    /*
     * Queries and keys projected to the kept dimensions. They point to q and k if the weights
     * already contain the projections or the compression method projects nothing.
     */
    float *q_cut, *k_cut;
    /* Allocated memory of q_cut and k_cut; unused in layers where they point to q and k. */
    float *q_own, *k_own;
    /* Keys before RoPE. Allocated only if kvd_cpu_rows_init was called with `keys`. */
    float *k_pre;
    /*
     * Attention output of up to `most` tokens. A token has the outputs of all query heads; the
     * output of a query head has as many floats as its KV head keeps dimensions of V.
     */
    float *o;
    float *work;          /* scratch memory, [block][kvd_layer_scratch] */
    float *cosine, *sine; /* RoPE tables, [kvd_batch_rope_rows][d_head / 2] */
    uint32_t *position, *rope_row;
    double bytes;
} kvd_cpu_rows;

/* Returns the size in bytes of the memory that kvd_cpu_rows_init allocates. */
double kvd_cpu_rows_bytes(const kvd_cpu_weights *w, size_t most, size_t max_len, bool keys);
/*
 * Allocates memory for iterations of up to `most` tokens. If `keys` is true, keys before RoPE are
 * stored too.
 */
int kvd_cpu_rows_init(kvd_cpu_rows *r, const kvd_cpu_weights *w, size_t most, size_t max_len,
                      bool keys, kvd_err *err);
void kvd_cpu_rows_release(kvd_cpu_rows *r);

/* Fills the position of every token of iteration *it. */
void kvd_cpu_place(kvd_cpu_rows *r, const kvd_iteration *it);
void kvd_cpu_embed(kvd_cpu_rows *r, const uint32_t *id, size_t n);

/*
 * Computes queries, keys and values of a layer from the residual stream x of n tokens. The times
 * are added to the phases norm, qkv and rope.
 */
void kvd_cpu_before_attention(kvd_cpu_rows *r, int layer, size_t n, kvd_cpu_clock *clock);
/*
 * Projects queries and keys of n tokens to the kept dimensions: computes q_cut and k_cut from q and
 * k.
 */
void kvd_cpu_rotate(kvd_cpu_rows *r, int layer, size_t n);
/*
 * Computes the part of a layer after its attention, for n tokens: updates the residual stream x
 * from the attention output o. The times are added to the phases o, norm and mlp.
 */
void kvd_cpu_behind_attention(kvd_cpu_rows *r, const kvd_cpu_layer *l, size_t n,
                              kvd_cpu_clock *clock);

#endif
