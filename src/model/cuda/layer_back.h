/*
 * One layer of the backward pass on the device (model/layer_back.h is the CPU's), for backward.c: behind attention, attention, and in front of it.
 * What a layer computes forward is computed again by the worker (layer.h), which is left with x [n][d_model] as it enters the layer, normed
 * (and second) as the products read it, Q, K and V after RoPE in qkv, and the output of attention in narrow.
 */
#ifndef KVD_MODEL_CUDA_LAYER_BACK_H
#define KVD_MODEL_CUDA_LAYER_BACK_H

#include <stdbool.h>

#include "model/cuda/backward.h"
#include "model/cuda/layer.h"

struct kvd_gpu_backward {
    kvd_gpu_worker
        w; /* the pass forward: its x, normed, second, qkv, wide and narrow are used as it leaves them */
    size_t d, d_embed, vocab, width_q, width_k, width, ffn, piece;
    kvd_device_memory memory;
    float *x;       /* [n_layers + 1][max_tokens][d_model] entering each layer, leaving the last */
    float *dx, *dy; /* [max_tokens][d_model] */
    float
        *between; /* [max_tokens][d_model], what enters the feed-forward block of KVD_ORDER_AFTER, or NULL */
    void *y;      /* [max_tokens][d_model], the same of the type of the pass */
    float *d_ffn; /* [max_tokens][d_ffn] */
    float *d_o;   /* [max_tokens][width_q] */
    float *d_qkv, *d_raw; /* [max_tokens][width_q + 2 width_k] */
    float *d_pre;         /* [max_tokens][width_q + width_k] */
    void *product;        /* [max_tokens][width_q + 2 width_k] in front of the norms of Q and K, or NULL */
    void *narrowed;       /* a gradient that goes into a product, of the type of the pass; NULL in float32 */
    void *scratch;        /* of attention */
    float *logits;        /* [piece][vocab] */
    void *d_logits;       /* the same of the type of the pass; the logits in float32 */
    float *d_embedded;    /* [piece][d_embed] */
    uint32_t *target;     /* [max_tokens] */
    double *u, *loss;     /* [max_tokens]: uniform in [0, 1), for draws; of each row */
    /* pinned */
    uint32_t *rows;  /* ids, positions, rope rows, targets: max_tokens each */
    double *numbers; /* u and loss, max_tokens each */
    kvd_gpu_bad *bad;
    bool draws;
    uint64_t seed;
    char engine[320];
};

/* From dx, the gradient with respect to what leaves the layer, to that with respect to what enters it, without what comes through attention;
 * d_o, with respect to the output of attention. */
int kvd_gpu_behind_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);
/* d_o -> d_qkv: with respect to Q and K after RoPE, and V. */
int kvd_gpu_attention_back(const kvd_gpu_backward *w, const kvd_batch *b, int layer, kvd_err *err);
/* From there to d_pre and d_raw and, unless nobody wants what is below (`last`), dx. Rows that are not finite go to the worker's bad: of d_qkv as
 * `stage`, of dx as stage + 1. */
int kvd_gpu_before_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, int layer, size_t n, bool last,
                        unsigned stage, kvd_err *err);

/* What the head's gradient needs too. A gradient [n][width] in the type of the pass: itself, or in w->narrowed; NULL with *err. */
const void *kvd_back_narrow(const kvd_gpu_backward *w, const float *x, size_t n, size_t width, kvd_err *err);
/* dx [n][in] = dy [n][out] W, or += that; dy and W [out][in] of the type of the pass. */
int kvd_back_product(const kvd_gpu_backward *w, const void *dy, const void *matrix, size_t n, size_t in,
                     size_t out, float *dx, int add, kvd_err *err);
/* Of the model's norm: kvd_gpu_norm_back. */
int kvd_back_norm(const kvd_gpu_backward *w, const float *x, const float *gain, size_t n, const float *dy,
                  float *dx, int add, kvd_err *err);
/* Rows of x [n][width] that are not finite go to the worker's bad as `stage`. */
int kvd_back_check(const kvd_gpu_backward *w, const float *x, size_t n, size_t width, unsigned stage,
                   kvd_err *err);

#endif
