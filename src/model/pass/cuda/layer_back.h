/*
 * Gradient of one layer on the device (CPU: model/pass/layer_back.h), from the recomputed layer in
 * kvd_gpu_worker.
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
    /* Input of each layer, then the last output: [n_layers + 1][max_tokens][d_model]. */
    float *x;
    /* Gradients of the residual stream and of a norm's output, [max_tokens][d_model]. */
    float *dx, *dy;
    /* Feed-forward input with KVD_ORDER_AFTER, [max_tokens][d_model], or NULL. */
    float *between;
    /* Feed-forward input in the pass's type, [max_tokens][d_model]. */
    void *y;
    float *d_ffn; /* gradient of the hidden units: [max_tokens][d_ffn] */
    /* Gradient of the output of attention: [max_tokens][width_q]. */
    float *d_o;
    /* Gradients after RoPE and of the projection: [max_tokens][width_q + 2 width_k]. */
    float *d_qkv, *d_raw;
    float *d_pre; /* gradients of Q and K before RoPE: [max_tokens][width_q + width_k] */
    /* QKV projection before norms, [max_tokens][width_q + 2 width_k], or NULL. */
    void *product;
    /* A gradient in the pass's type; NULL in a float32 pass. */
    void *narrowed;
    void *scratch;
    /* Logits of `piece` tokens at a time, [piece][vocab]. */
    float *logits;
    /* Gradient of the logits in the pass's type; in a float32 pass `logits`. */
    void *d_logits;
    /* Gradient of the output head's input: [piece][d_embed]. */
    float *d_embedded;
    /* Target token of each position: [max_tokens]. */
    uint32_t *target;
    /* Random numbers in [0, 1) to draw targets, and losses, [max_tokens]. */
    double *u, *loss;
    /* Pinned ids, positions, RoPE rows and targets, max_tokens each. */
    uint32_t *rows;
    /* Pinned copies of `u` and `loss`, max_tokens each. */
    double *numbers;
    kvd_gpu_bad *bad;
    bool draws;
    uint64_t seed;
    char engine[320];
};

/* Turns w->dx into the layer input's gradient without Q, K and V; computes w->d_o. */
int kvd_gpu_behind_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);
/* Computes w->d_qkv, the gradient of Q and K after RoPE and of V, from w->d_o. */
int kvd_gpu_attention_back(const kvd_gpu_backward *w, const kvd_batch *b, int layer, kvd_err *err);
/*
 * Computes w->d_pre (before RoPE) and w->d_raw (before norms) from w->d_qkv; adds Q, K, V's part to
 * w->dx unless `last`. Checks `stage` and stage + 1.
 */
int kvd_gpu_before_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, int layer, size_t n,
                        bool last, unsigned stage, kvd_err *err);

/* Returns x [n][width], or a copy in w->narrowed, in the pass's type; NULL on failure. */
const void *kvd_back_narrow(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                            kvd_err *err);
/* dx [n][in] = dy [n][out] W, added to dx if `add`; dy and W [out][in] have the pass's type. */
int kvd_back_product(const kvd_gpu_backward *w, const void *dy, const void *matrix, size_t n,
                     size_t in, size_t out, float *dx, int add, kvd_err *err);
/* kvd_gpu_norm_back with the model's kind of norm. */
int kvd_back_norm(const kvd_gpu_backward *w, const float *x, const float *gain, size_t n,
                  const float *dy, float *dx, int add, kvd_err *err);
/* Records the first non-finite row of x [n][width] with number `stage`. */
int kvd_back_check(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                   unsigned stage, kvd_err *err);

#endif
