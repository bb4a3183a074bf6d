/* Computes one layer backward on the device. The worker first recomputes the layer forward. */
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
     * [n_layers + 1][max_tokens][d_model] Input of each layer, then the output of the last layer.
     */
    float *x;
    /* [max_tokens][d_model] Gradients by the residual stream, and by a norm's output. */
    float *dx, *dy;
    /* Input of the feed-forward block if norms come after blocks (KVD_ORDER_AFTER), or NULL. */
    float *between;
    /* Input of the feed-forward block in the number type of the pass. */
    void *y;
    float *d_ffn; /* gradient of the hidden units: [max_tokens][d_ffn] */
    /* [max_tokens][width_q] Gradient by the output of attention. */
    float *d_o;
    /* Gradients by Q, K and V after RoPE, and by the output of their projection. */
    float *d_qkv, *d_raw;
    float *d_pre; /* gradients of Q and K before RoPE: [max_tokens][width_q + width_k] */
    /* Output of the QKV projection before norms, or NULL. */
    void *product;
    /*
     * Scratch memory for a gradient in the number type of the pass, or NULL if that type is
     * float32.
     */
    void *narrowed;
    void *scratch;
    /* [piece][vocab] Logits of `piece` tokens, the number that is processed at a time. */
    float *logits;
    /* Gradient by the logits in the number type of the pass. */
    void *d_logits;
    /*
     * [piece][d_embed] Gradient of the loss by the input of the output head, for `piece` tokens at
     * a time.
     */
    float *d_embedded;
    /* [max_tokens] Target token of each position. */
    uint32_t *target;
    /* For each position, the random number by which its target is drawn, and its loss. */
    double *u, *loss;
    /* Token ids, positions, RoPE table rows and targets in pinned memory. */
    uint32_t *rows;
    /* Copies of `u` and `loss` in pinned memory. */
    double *numbers;
    kvd_gpu_bad *bad;
    bool draws;
    uint64_t seed;
    char engine[320];
};

/*
 * Computes a layer's steps after attention backward: turns w->dx from the gradient by the layer's
 * output into that by its input, without the part through Q, K and V, and computes w->d_o.
 */
int kvd_gpu_behind_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);
/*
 * Computes attention backward: w->d_qkv, the gradient by Q, K and V, from w->d_o, the gradient by
 * its output.
 */
int kvd_gpu_attention_back(const kvd_gpu_backward *w, const kvd_batch *b, int layer, kvd_err *err);
/*
 * Computes the gradients of Q and K before RoPE (w->d_pre) and before norms (w->d_raw). Unless
 * `last`, adds the part of Q, K and V to w->dx.
 */
int kvd_gpu_before_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, int layer, size_t n,
                        bool last, unsigned stage, kvd_err *err);

/*
 * Returns x [n][width] in the number type of the pass, converted if necessary, or NULL on failure.
 */
const void *kvd_back_narrow(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                            kvd_err *err);
/*
 * Computes dx [n][in] = dy [n][out] W, the gradient by the input of a product with W. If `add`,
 * adds it to dx.
 */
int kvd_back_product(const kvd_gpu_backward *w, const void *dy, const void *matrix, size_t n,
                     size_t in, size_t out, float *dx, int add, kvd_err *err);
int kvd_back_norm(const kvd_gpu_backward *w, const float *x, const float *gain, size_t n,
                  const float *dy, float *dx, int add, kvd_err *err);
/*
 * Records the first row of x [n][width] that is not finite, together with the check number `stage`.
 */
int kvd_back_check(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                   unsigned stage, kvd_err *err);

#endif
