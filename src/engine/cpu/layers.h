/* Computes a layer before and after its attention on the CPU. */
#ifndef KVD_ENGINE_CPU_LAYERS_H
#define KVD_ENGINE_CPU_LAYERS_H

#include "engine/cpu/clock.h"
#include "engine/cpu/weights.h"
#include "methods/axis.h"
#include "methods/iteration.h"

typedef struct {
    const kvd_cpu_weights *model;
    size_t most, max_len;
    /* activations that the method reads, as bits of kvd_needs */
    unsigned needs;
    /* residual stream [tokens][d_model] */
    float *x;
    /* queries, keys and values of all tokens */
    float *q, *k, *v;
    /* projected queries and keys; equal to q and k if kvd_cpu_layer.rotates is false */
    float *q_cut, *k_cut;
    /* memory of q_cut and k_cut if kvd_cpu_layer.rotates is true */
    float *q_own, *k_own;
    /* keys before RoPE, and layer inputs [tokens][d_model], or NULL */
    float *k_pre, *input;
    /* attention output; query heads have their KV head's kept dimensions */
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

/* Computes queries, keys and values from r->x. */
void kvd_cpu_before_attention(kvd_cpu_rows *r, int layer, size_t n, kvd_cpu_clock *clock);
void kvd_cpu_rotate(kvd_cpu_rows *r, int layer, size_t n);
/* Updates the residual stream from the attention output. */
void kvd_cpu_behind_attention(kvd_cpu_rows *r, const kvd_cpu_layer *l, size_t n,
                              kvd_cpu_clock *clock);

#endif
