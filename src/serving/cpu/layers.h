/* The rows of an iteration of the CPU engine, and the arithmetic of a layer on them, before and behind its attention. */
#ifndef KVD_SERVING_CPU_LAYERS_H
#define KVD_SERVING_CPU_LAYERS_H

#include "serving/batching.h"
#include "serving/cpu/clock.h"
#include "serving/cpu/weights.h"

typedef struct {
    const kvd_cpu_weights *model;
    size_t most, max_len;
    bool keys;
    float *x;             /* [most][d_model] residual stream                                             */
    float *q, *k, *v;     /* [most][...] as they come out of the products                                */
    float *q_cut, *k_cut; /* behind the rotation: q and k themselves where there is none                 */
    float *q_own, *k_own; /* memory of those                                                             */
    float *k_pre;         /* keys before RoPE, with `keys` */
    float *o;             /* [most][group at_v]                                                          */
    float *work;          /* [block][d_model + 2 d_ffn]                                                  */
    float *cosine, *sine; /* [kvd_batch_rope_rows][d_head / 2]                                           */
    uint32_t *position, *rope_row;
    double bytes;
} kvd_cpu_rows;

/* keys: those before RoPE are kept. */
int kvd_cpu_rows_init(kvd_cpu_rows *r, const kvd_cpu_weights *w, size_t most, size_t max_len, bool keys,
                      kvd_err *err);
void kvd_cpu_rows_release(kvd_cpu_rows *r);

/* Positions of the rows. */
void kvd_cpu_place(kvd_cpu_rows *r, const kvd_iteration *it);
void kvd_cpu_embed(kvd_cpu_rows *r, const uint32_t *id, size_t n);

/* x -> q, k, v. Marks norm, qkv, rope. */
void kvd_cpu_before_attention(kvd_cpu_rows *r, const kvd_cpu_layer *l, size_t n, kvd_cpu_clock *clock);
/* q, k -> q_cut, k_cut. */
void kvd_cpu_rotate(kvd_cpu_rows *r, int layer, size_t n);
/* o and x -> x behind the layer. Marks o, norm, mlp. */
void kvd_cpu_behind_attention(kvd_cpu_rows *r, const kvd_cpu_layer *l, size_t n, kvd_cpu_clock *clock);

#endif
