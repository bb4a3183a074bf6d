/* Computes a layer before and after its attention, with one row of activations per token. */
#ifndef KVD_ENGINE_CPU_LAYERS_H
#define KVD_ENGINE_CPU_LAYERS_H

#include "engine/cpu/clock.h"
#include "engine/cpu/weights.h"
#include "methods/axis.h"
#include "methods/iteration.h"

typedef struct {
    const kvd_cpu_weights *model;
    size_t most, max_len;
    /* Activations that the compression method reads, as bits of kvd_needs. */
    unsigned needs;
    /* Residual stream, [most][d_model]. */
    float *x;
    /* Queries, keys and values: products of the input with W_Q, W_K and W_V, one row per token. */
    float *q, *k, *v;
    /* Queries and keys after projection; equal to q and k if kvd_cpu_layer.rotates is false. */
    float *q_cut, *k_cut;
    /* Memory of q_cut and k_cut if they differ from q and k. */
    float *q_own, *k_own;
    /* Keys before RoPE, and layer inputs [most][d_model]; NULL unless `needs` has their bit. */
    float *k_pre, *input;
    /* Attention output; query heads have the kept V dimensions of their KV head. */
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

/* Computes queries, keys and values from r->x, and times the phases norm, qkv and rope. */
void kvd_cpu_before_attention(kvd_cpu_rows *r, int layer, size_t n, kvd_cpu_clock *clock);
void kvd_cpu_rotate(kvd_cpu_rows *r, int layer, size_t n);
/* Updates the residual stream from the attention output, and times the phases o, norm and mlp. */
void kvd_cpu_behind_attention(kvd_cpu_rows *r, const kvd_cpu_layer *l, size_t n,
                              kvd_cpu_clock *clock);

#endif
