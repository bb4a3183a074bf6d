/*
 * The gradient of one layer on the device (model/pass/layer_back.h is the CPU version), for
 * backward.c. The worker (kvd_gpu_worker) first recomputes the layer. The functions here then read
 * the worker's arrays x, normed, second, qkv and narrow (the output of attention).
 */
#ifndef KVD_MODEL_PASS_CUDA_LAYER_BACK_H
#define KVD_MODEL_PASS_CUDA_LAYER_BACK_H

#include <stdbool.h>

#include "model/pass/cuda/backward.h"
#include "model/pass/cuda/layer.h"

struct kvd_gpu_backward {
    kvd_gpu_worker w;
    size_t d, d_embed, vocab, width_q, width_k, width, ffn, piece;
    kvd_device_memory memory;
    /*
     * [n_layers + 1][max_tokens][d_model]: the input of each layer, then the output of the last
     * layer.
     */
    float *x;
    /*
     * Gradients of the residual stream (dx) and of the output of a norm (dy): [max_tokens][d_model]
     * each.
     */
    float *dx, *dy;
    /* Input [max_tokens][d_model] of the feed-forward block with KVD_ORDER_AFTER; else NULL. */
    float *between;
    /* Input of the feed-forward block in the element type of the pass: [max_tokens][d_model]. */
    void *y;
    float *d_ffn; /* gradient of the hidden units of the feed-forward block: [max_tokens][d_ffn] */
    /* Gradient of the output of attention: [max_tokens][width_q]. */
    float *d_o;
    /*
     * Gradients of Q, K and V after RoPE, and of the output of their projection:
     * [max_tokens][width_q + 2 width_k].
     */
    float *d_qkv, *d_raw;
    float *d_pre; /* gradients of Q and K before RoPE: [max_tokens][width_q + width_k] */
    /*
     * Output of the QKV projection before the norms of Q and K, [max_tokens][width_q + 2 width_k];
     * NULL without such norms.
     */
    void *product;
    /* A gradient converted to the element type of the pass; NULL in a float32 pass. */
    void *narrowed;
    void *scratch;
    /*
     * Logits of a group of `piece` tokens: [piece][vocab]. The output head processes one group at a
     * time.
     */
    float *logits;
    /*
     * Gradient of the logits in the element type of the pass; the same array as `logits` in a
     * float32 pass.
     */
    void *d_logits;
    /* Gradient of the output head's input: [piece][d_embed]. */
    float *d_embedded;
    /* Token whose negative log probability is the loss of each position: [max_tokens]. */
    uint32_t *target;
    /* [max_tokens] each: the random number in [0, 1) by which a target is drawn, and the loss. */
    double *u, *loss;
    /*
     * Pinned host memory: token ids, positions, rows of the RoPE tables, and targets, max_tokens
     * numbers each.
     */
    uint32_t *rows;
    /* Pinned host copies of `u` and `loss`, max_tokens numbers each. */
    double *numbers;
    kvd_gpu_bad *bad;
    bool draws;
    uint64_t seed;
    char engine[320];
};

/*
 * Turns w->dx from the gradient of the layer's output into the gradient of its input, without the
 * contribution through Q, K and V. Computes w->d_o, the gradient of the attention output.
 */
int kvd_gpu_behind_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);
/* Computes w->d_qkv, the gradient of Q and K after RoPE and of V, from w->d_o. */
int kvd_gpu_attention_back(const kvd_gpu_backward *w, const kvd_batch *b, int layer, kvd_err *err);
/*
 * Computes two gradients from w->d_qkv: w->d_pre of Q and K before RoPE, and w->d_raw of Q, K and V
 * before the norms of Q and K. Unless `last` is true (no lower layer needs it), adds the
 * contribution of Q, K and V to w->dx. Rows of d_qkv that are not finite are recorded with check
 * number `stage`, rows of dx with stage + 1.
 */
int kvd_gpu_before_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, int layer, size_t n,
                        bool last, unsigned stage, kvd_err *err);

/*
 * Returns x [n][width] in the element type of the pass: x itself, or a converted copy in
 * w->narrowed. On failure returns NULL and fills *err.
 */
const void *kvd_back_narrow(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                            kvd_err *err);
/*
 * Computes dx [n][in] = dy [n][out] W, or adds the product to dx if `add` is not 0. dy and W
 * [out][in] have the element type of the pass.
 */
int kvd_back_product(const kvd_gpu_backward *w, const void *dy, const void *matrix, size_t n,
                     size_t in, size_t out, float *dx, int add, kvd_err *err);
/* Computes kvd_gpu_norm_back with the model's kind of norm. */
int kvd_back_norm(const kvd_gpu_backward *w, const float *x, const float *gain, size_t n,
                  const float *dy, float *dx, int add, kvd_err *err);
/*
 * Records the first row of x [n][width] that is not finite, with check number `stage`, in the
 * worker's `bad`.
 */
int kvd_back_check(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                   unsigned stage, kvd_err *err);

#endif
