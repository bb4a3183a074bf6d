/* Gradient of one layer on the device. The worker first recomputes the layer. */
#ifndef KVD_MODEL_PASS_CUDA_LAYER_BACK_H
#define KVD_MODEL_PASS_CUDA_LAYER_BACK_H

#include <stdbool.h>

#include "model/pass/cuda/backward.h"
#include "model/pass/cuda/layer.h"

struct kvd_gpu_backward {
    kvd_gpu_worker w;
    size_t d, d_embed, vocab, width_q, width_k, width, ffn, piece;
    kvd_device_memory memory;
    /* Input of each layer, then output of the last: [n_layers + 1][max_tokens][d_model]. */
    float *x;
    /* Gradients of the residual stream and of a norm's output, [max_tokens][d_model]. */
    float *dx, *dy;
    /* Input of the feed-forward block with KVD_ORDER_AFTER, or NULL. */
    float *between;
    /* Input of the feed-forward block in the type of the pass. */
    void *y;
    float *d_ffn; /* gradient of the hidden units: [max_tokens][d_ffn] */
    /* Gradient of the output of attention: [max_tokens][width_q]. */
    float *d_o;
    /* Gradients of Q, K, V after RoPE, and of their projection. */
    float *d_qkv, *d_raw;
    float *d_pre; /* gradients of Q and K before RoPE: [max_tokens][width_q + width_k] */
    /* Output of the QKV projection before norms, or NULL. */
    void *product;
    /* Scratch for a gradient converted to the type of the pass, or NULL if that type is float32. */
    void *narrowed;
    void *scratch;
    /* Logits of `piece` tokens, [piece][vocab]. */
    float *logits;
    /* Gradient of the logits in the type of the pass. */
    void *d_logits;
    /* Gradient of the output head's input: [piece][d_embed]. */
    float *d_embedded;
    /* Target token of each position: [max_tokens]. */
    uint32_t *target;
    /* Random number that draws each position's target, and its loss. */
    double *u, *loss;
    /* Token ids, positions, RoPE rows and targets in pinned memory. */
    uint32_t *rows;
    /* Copies of `u` and `loss` in pinned memory. */
    double *numbers;
    kvd_gpu_bad *bad;
    bool draws;
    uint64_t seed;
    char engine[320];
};

/*
 * Turns w->dx from the gradient of the layer's output into that of its input, without the part
 * through Q, K and V, and computes w->d_o.
 */
int kvd_gpu_behind_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);
/* Computes w->d_qkv, the gradient of Q, K and V, from w->d_o. */
int kvd_gpu_attention_back(const kvd_gpu_backward *w, const kvd_batch *b, int layer, kvd_err *err);
/*
 * Computes the gradients of Q and K before RoPE (w->d_pre) and before norms (w->d_raw). Unless
 * `last`, adds the part of Q, K and V to w->dx.
 */
int kvd_gpu_before_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, int layer, size_t n,
                        bool last, unsigned stage, kvd_err *err);

/* Returns x [n][width], converted to the type of the pass if necessary; NULL on failure. */
const void *kvd_back_narrow(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                            kvd_err *err);
/* Computes dx [n][in] = dy [n][out] W, added to dx if `add`. */
int kvd_back_product(const kvd_gpu_backward *w, const void *dy, const void *matrix, size_t n,
                     size_t in, size_t out, float *dx, int add, kvd_err *err);
int kvd_back_norm(const kvd_gpu_backward *w, const float *x, const float *gain, size_t n,
                  const float *dy, float *dx, int add, kvd_err *err);
/* Records the first row of x that is not finite, with the check number `stage`. */
int kvd_back_check(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                   unsigned stage, kvd_err *err);

#endif
