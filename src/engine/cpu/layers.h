/*
 * The rows (tokens) of an iteration of the CPU engine, and the arithmetic of a layer on them before
 * and after its attention.
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
    float *x; /* [most][d_model] residual stream */
    /* [most][...] queries, keys and values as the products return them. */
    float *q, *k, *v;
    /* Queries and keys after the rotation; if the plan has no rotation, they point to q and k. */
    float *q_cut, *k_cut;
    /* Memory of q_cut and k_cut if the plan has a rotation. */
    float *q_own, *k_own;
    /* Keys before RoPE, kept if `keys` is true. */
    float *k_pre;
    float *o;             /* [most][group at_v] */
    float *work;          /* [block][kvd_layer_scratch] */
    float *cosine, *sine; /* [kvd_batch_rope_rows][d_head / 2] */
    uint32_t *position, *rope_row;
    double bytes;
} kvd_cpu_rows;

/* Returns the number of bytes that kvd_cpu_rows_init allocates. */
double kvd_cpu_rows_bytes(const kvd_cpu_weights *w, size_t most, size_t max_len, bool keys);
/* Allocates memory for up to `most` rows. If `keys` is true, keys before RoPE are kept as well. */
int kvd_cpu_rows_init(kvd_cpu_rows *r, const kvd_cpu_weights *w, size_t most, size_t max_len,
                      bool keys, kvd_err *err);
void kvd_cpu_rows_release(kvd_cpu_rows *r);

/* Fills the positions of the rows of the iteration. */
void kvd_cpu_place(kvd_cpu_rows *r, const kvd_iteration *it);
void kvd_cpu_embed(kvd_cpu_rows *r, const uint32_t *id, size_t n);

/* Computes q, k, v from x. Marks the phases norm, qkv and rope. */
void kvd_cpu_before_attention(kvd_cpu_rows *r, int layer, size_t n, kvd_cpu_clock *clock);
/* Computes q_cut and k_cut from q and k. */
void kvd_cpu_rotate(kvd_cpu_rows *r, int layer, size_t n);
/*
 * Computes the layer's output x from its attention output o and its input x. Marks the phases o,
 * norm and mlp.
 */
void kvd_cpu_behind_attention(kvd_cpu_rows *r, const kvd_cpu_layer *l, size_t n,
                              kvd_cpu_clock *clock);

#endif
