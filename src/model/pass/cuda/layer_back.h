/* Computes one layer backward on the GPU, after computing it forward again. */
#ifndef KVD_MODEL_PASS_CUDA_LAYER_BACK_H
#define KVD_MODEL_PASS_CUDA_LAYER_BACK_H

#include <stdbool.h>

#include "model/pass/cuda/backward.h"
#include "model/pass/cuda/layer.h"

struct kvd_gpu_backward {
    kvd_gpu_worker w;
    size_t d, d_embed, vocab, width_q, width_k, width, ffn, piece;
    kvd_device_memory memory;
    /* [n_layers + 1][max_tokens][d_model] input of each layer, then the last output */
    float *x;
    /* [max_tokens][d_model] gradients of the residual stream and of a norm's output */
    float *dx, *dy;
    /* input of the feed-forward block in models whose norms come after the blocks; else NULL */
    float *between;
    /* input of the feed-forward block, in float32 or bf16 */
    void *y;
    float *d_ffn; /* gradient of the hidden units: [max_tokens][d_ffn] */
    /* [max_tokens][width_q] gradient of the attention output */
    float *d_o;
    /* gradients of Q, K and V after RoPE (d_qkv), and before biases, norms and RoPE (d_raw) */
    float *d_qkv, *d_raw;
    float *d_pre; /* gradients of Q and K before RoPE: [max_tokens][width_q + width_k] */
    /* output of the QKV projection before norms; NULL if Q and K have no norms */
    void *product;
    /* scratch memory for a gradient rounded to bf16; NULL in float32 */
    void *narrowed;
    void *scratch;
    /* [piece][vocab] logits of one piece of the batch; the output head processes `piece` tokens at
     * a time */
    float *logits;
    /* gradient of the logits in float32 or bf16 */
    void *d_logits;
    /* [piece][d_embed] gradient of the output head's input; the head processes `piece` tokens at a
     * time */
    float *d_embedded;
    /* [max_tokens] target token of each position */
    uint32_t *target;
    /* one number per token: random number that draws the token's target (u), and loss of the token
     * (loss) */
    double *u, *loss;
    /* token ids, positions, RoPE table rows and target tokens, max_tokens each, in pinned memory */
    uint32_t *rows;
    double *numbers;
    kvd_gpu_bad *bad;
    bool draws;
    uint64_t seed;
    char engine[320];
};

/* Computes the backward pass of the part of a layer that follows attention.
 *
 * - w->dx: on entry, gradient of the layer's output; on return, gradient of the layer's input
 *   without the contribution through attention
 * - w->d_o: receives the gradient of the attention output */
int kvd_gpu_behind_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err);
/* Computes w->d_qkv, the gradients of Q, K and V, from w->d_o, the gradient of the attention
 * output. */
int kvd_gpu_attention_back(const kvd_gpu_backward *w, const kvd_batch *b, int layer, kvd_err *err);
/* Computes the gradients of Q and K before RoPE and norms. If `last` is false, also adds the
 * gradient that passes through Q, K and V to w->dx, the gradient of the layer's input. */
int kvd_gpu_before_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, int layer, size_t n,
                        bool last, unsigned stage, kvd_err *err);

/* Returns x [n][width] in the number type of the weights (float32 or bf16), or NULL on failure. The
 * next call overwrites the result if it is bf16. */
const void *kvd_back_narrow(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                            kvd_err *err);
/* Computes the product dy [n][out] W and writes it to dx [n][in] or, if `add`, adds it to dx. */
int kvd_back_product(const kvd_gpu_backward *w, const void *dy, const void *matrix, size_t n,
                     size_t in, size_t out, float *dx, int add, kvd_err *err);
int kvd_back_norm(const kvd_gpu_backward *w, const float *x, const float *gain, size_t n,
                  const float *dy, float *dx, int add, kvd_err *err);
/* If a row of x has a NaN or infinity, records the first such row together with `stage`, the number
 * of this check. */
int kvd_back_check(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                   unsigned stage, kvd_err *err);

#endif
