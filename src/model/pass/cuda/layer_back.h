/*
 * The gradient of one layer on the device (model/pass/layer_back.h is the CPU version), for
 * backward.c, in three steps: the steps of the layer after attention, attention, and the steps
 * before it. The worker (layer.h) first recomputes the layer's forward pass. It leaves these
 * arrays: x [n][d_model], the layer's input; normed (and second), the inputs of attention and
 * feed-forward block; qkv, Q, K and V after RoPE; narrow, the output of attention.
 */
#ifndef KVD_MODEL_PASS_CUDA_LAYER_BACK_H
#define KVD_MODEL_PASS_CUDA_LAYER_BACK_H

#include <stdbool.h>

#include "model/pass/cuda/backward.h"
#include "model/pass/cuda/layer.h"

struct kvd_gpu_backward {
    /*
     * The worker of the forward pass, which recomputes a layer. Its buffers x, normed, second, qkv,
     * wide and narrow are read afterwards.
     */
    kvd_gpu_worker w;
    size_t d, d_embed, vocab, width_q, width_k, width, ffn, piece;
    kvd_device_memory memory;
    /*
     * Residual stream [n_layers + 1][max_tokens][d_model]: the input of each layer, then the output
     * of the last layer.
     */
    float *x;
    /*
     * Gradients with respect to the residual stream (dx) and to the output of a norm (dy):
     * [max_tokens][d_model] each.
     */
    float *dx, *dy;
    /*
     * Input [max_tokens][d_model] of the feed-forward block in models with norms after the sums
     * (KVD_ORDER_AFTER); else NULL.
     */
    float *between;
    /* Input [max_tokens][d_model] of the feed-forward block, in the element type of the pass. */
    void *y;
    /* Gradient inside the feed-forward block: [max_tokens][d_ffn]. */
    float *d_ffn;
    /* Gradient with respect to the output of attention: [max_tokens][width_q]. */
    float *d_o;
    /*
     * Gradients of Q, K and V after RoPE, and of the output of their projection:
     * [max_tokens][width_q + 2 width_k].
     */
    float *d_qkv, *d_raw;
    /* Gradients of Q and K before RoPE: [max_tokens][width_q + width_k]. */
    float *d_pre;
    /*
     * Output of the QKV projection before the norms of Q and K, [max_tokens][width_q + 2 width_k];
     * NULL in a model without such norms.
     */
    void *product;
    /*
     * A gradient converted to the element type of the pass, as input of a product; NULL in a
     * float32 pass.
     */
    void *narrowed;
    void *scratch; /* scratch of the gradient of attention */
    /*
     * Logits of up to `piece` tokens, the number of tokens that the output head processes at a
     * time: [piece][vocab].
     */
    float *logits;
    /*
     * Gradient of the logits in the element type of the pass; the same array as `logits` in a
     * float32 pass.
     */
    void *d_logits;
    /*
     * Gradient with respect to the output head's input, for the `piece` tokens that the output head
     * processes at a time: [piece][d_embed].
     */
    float *d_embedded;
    /* Token whose negative log probability is the loss of each position: [max_tokens]. */
    uint32_t *target;
    /*
     * For each of max_tokens positions: the random number u in [0, 1) by which a target token is
     * drawn, and the loss.
     */
    double *u, *loss;
    /*
     * This and the next two arrays are in pinned host memory. rows: token ids, positions, indices
     * of rows of the RoPE tables, and target tokens, max_tokens numbers each.
     */
    uint32_t *rows;
    /*
     * The host's copies of the device arrays `u` (random numbers by which target tokens are drawn)
     * and then `loss`, max_tokens numbers each.
     */
    double *numbers;
    kvd_gpu_bad *bad;
    bool draws;
    uint64_t seed;
    char engine[320];
};

/*
 * Computes the gradients of the steps of a layer after attention. Turns w->dx from the gradient
 * with respect to the layer's output into the gradient with respect to its input, except for the
 * contribution of attention. Computes w->d_o, the gradient with respect to the output of attention.
 */
int kvd_gpu_behind_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);
/*
 * Computes w->d_qkv, the gradient with respect to Q and K after RoPE and to V, from w->d_o, the
 * gradient with respect to the output of attention.
 */
int kvd_gpu_attention_back(const kvd_gpu_backward *w, const kvd_batch *b, int layer, kvd_err *err);
/*
 * Computes w->d_pre (gradients before RoPE) and w->d_raw (gradients before the norms of Q and K)
 * from w->d_qkv. Unless `last`, adds the gradient that reaches the layer's input through attention
 * to w->dx. Token rows that are not finite are recorded in the worker's `bad`: rows of d_qkv with
 * check number `stage`, rows of dx with stage + 1.
 */
int kvd_gpu_before_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, int layer, size_t n,
                        bool last, unsigned stage, kvd_err *err);

/*
 * Helpers for the gradients of layers and of the output head.
 *
 * kvd_back_narrow returns a gradient x [n][width] in the element type of the pass. In a float32
 * pass it is x itself, else a converted copy in the worker's buffer w->narrowed. On failure it
 * returns NULL and fills *err.
 */
const void *kvd_back_narrow(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                            kvd_err *err);
/*
 * Computes dx [n][in] = dy [n][out] W, or adds the product to dx if `add` is not 0; dy and W
 * [out][in] have the element type of the pass.
 */
int kvd_back_product(const kvd_gpu_backward *w, const void *dy, const void *matrix, size_t n,
                     size_t in, size_t out, float *dx, int add, kvd_err *err);
/* Queues kvd_gpu_norm_back, the gradient of a norm, with the model's kind of norm. */
int kvd_back_norm(const kvd_gpu_backward *w, const float *x, const float *gain, size_t n,
                  const float *dy, float *dx, int add, kvd_err *err);
/*
 * Checks x [n][width]: records the first row that is not finite, with check number `stage`, in the
 * worker's `bad`.
 */
int kvd_back_check(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                   unsigned stage, kvd_err *err);

#endif
