/*
 * One layer of the backward pass on the device (model/pass/layer_back.h is the CPU version), for
 * backward.c, in three steps: the part after attention, attention, and the part before it. The
 * worker (layer.h) recomputes the layer forward first. It leaves x [n][d_model] as it enters the
 * layer, normed (and second) as the products read it, Q, K and V after RoPE in qkv, and the output
 * of attention in narrow.
 */
#ifndef KVD_MODEL_PASS_CUDA_LAYER_BACK_H
#define KVD_MODEL_PASS_CUDA_LAYER_BACK_H

#include <stdbool.h>

#include "model/pass/cuda/backward.h"
#include "model/pass/cuda/layer.h"

struct kvd_gpu_backward {
    /*
     * worker of the forward pass, which recomputes a layer; its x, normed, second, qkv, wide and
     * narrow are used as the worker leaves them
     */
    kvd_gpu_worker w;
    size_t d, d_embed, vocab, width_q, width_k, width, ffn, piece;
    kvd_device_memory memory;
    /*
     * [n_layers + 1][max_tokens][d_model] residual that enters each layer, then the last layer's
     * output
     */
    float *x;
    float *dx, *dy; /* [max_tokens][d_model] */
    /*
     * [max_tokens][d_model], input of the feed-forward block in layers with norms after the sums
     * (KVD_ORDER_AFTER); else NULL
     */
    float *between;
    /* [max_tokens][d_model], input of the feed-forward block in the type of the pass */
    void *y;
    float *d_ffn;         /* [max_tokens][d_ffn] */
    float *d_o;           /* [max_tokens][width_q] */
    float *d_qkv, *d_raw; /* [max_tokens][width_q + 2 width_k] */
    float *d_pre;         /* [max_tokens][width_q + width_k] */
    /*
     * [max_tokens][width_q + 2 width_k], the QKV product before the norms of Q and K, or NULL in a
     * model without such norms
     */
    void *product;
    /* gradient converted to the type of the pass, as input of a product; NULL in float32 */
    void *narrowed;
    void *scratch; /* scratch of attention */
    float *logits; /* [piece][vocab] */
    /* gradient of the logits in the type of the pass; equals `logits` in float32 */
    void *d_logits;
    float *d_embedded; /* [piece][d_embed] */
    uint32_t *target;  /* [max_tokens] */
    double *u, *loss;  /* [max_tokens] for each row: uniform number in [0, 1), for draws; loss */
    /* arrays in pinned host memory */
    uint32_t *rows;  /* ids, positions, rope rows, targets: max_tokens each */
    double *numbers; /* u and loss, max_tokens each */
    kvd_gpu_bad *bad;
    bool draws;
    uint64_t seed;
    char engine[320];
};

/*
 * Updates dx from the gradient with respect to the layer's output to the gradient with respect to
 * its input, without the part that comes through attention; computes d_o, the gradient with respect
 * to the output of attention.
 */
int kvd_gpu_behind_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);
/* Computes d_qkv, the gradient with respect to Q and K after RoPE and to V, from d_o. */
int kvd_gpu_attention_back(const kvd_gpu_backward *w, const kvd_batch *b, int layer, kvd_err *err);
/*
 * Computes d_pre (gradient before RoPE) and d_raw (gradient before the norms of Q and K) from
 * d_qkv. Unless `last` is set, adds the gradient that comes through attention to dx. Rows that are
 * not finite are recorded in the worker's `bad`: rows of d_qkv as `stage`, rows of dx as stage + 1.
 */
int kvd_gpu_before_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, int layer, size_t n,
                        bool last, unsigned stage, kvd_err *err);

/*
 * Helpers that the head's gradient needs too.
 *
 * Returns a gradient x [n][width] in the type of the pass: x itself, or a copy in w->narrowed. On
 * failure returns NULL and fills *err.
 */
const void *kvd_back_narrow(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                            kvd_err *err);
/*
 * Computes dx [n][in] = dy [n][out] W, or adds it if `add` is set; dy and W [out][in] have the type
 * of the pass.
 */
int kvd_back_product(const kvd_gpu_backward *w, const void *dy, const void *matrix, size_t n,
                     size_t in, size_t out, float *dx, int add, kvd_err *err);
/* Queues kvd_gpu_norm_back, the gradient of a norm, with the model's kind of norm. */
int kvd_back_norm(const kvd_gpu_backward *w, const float *x, const float *gain, size_t n,
                  const float *dy, float *dx, int add, kvd_err *err);
/*
 * Checks x [n][width]: records the first row that is not finite, with `stage`, in the worker's
 * `bad`.
 */
int kvd_back_check(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                   unsigned stage, kvd_err *err);

#endif
