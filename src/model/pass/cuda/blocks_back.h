/*
 * Gradients of the arithmetic blocks on the device (model/pass/layer_back.h has them on the CPU).
 * dy is the gradient of a loss with respect to a block's output, dx the gradient with respect to
 * its input. The caller passes the block's input again.
 *
 * Unless a comment says otherwise, gradients are float32 and the inputs of products have the type
 * of the pass, KVD_F32 or KVD_BF16. Launchers as in model/pass/cuda/blocks.h.
 */
#ifndef KVD_MODEL_PASS_CUDA_BLOCKS_BACK_H
#define KVD_MODEL_PASS_CUDA_BLOCKS_BACK_H

#include "model/pass/cuda/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Computes the gradient of a norm in dx [n][d], or adds it if `add` is set; x, dy [n][d], gain [d].
 */
cudaError_t kvd_gpu_norm_back(kvd_norm kind, const float *x, const float *gain, double eps,
                              size_t n, size_t d, const float *dy, float *dx, int add,
                              cudaStream_t stream);

/*
 * Computes the gradient of kvd_gpu_activate, with the same `in` and `bias` and with dy [n][ffn].
 * `in` becomes the gradient with respect to it, of `type`.
 */
cudaError_t kvd_gpu_activate_back(kvd_activation kind, kvd_dtype type, void *in, const float *bias,
                                  size_t n, size_t ffn, const float *dy, cudaStream_t stream);

/*
 * Input of kvd_gpu_qkv_back, which computes the gradient of kvd_gpu_qkv_finish: from Q and K after
 * RoPE and V back to the output of their product. A row has n_heads * d_head numbers of Q, then
 * n_kv_heads * d_head each of K and V.
 */
typedef struct {
    kvd_dtype type;
    int n_heads, n_kv_heads, d_head;
    const void *product;          /* [n][...] of `type`, without the bias; read only with a norm */
    const float *bias;            /* bias of the product, or NULL */
    const float *gain_q, *gain_k; /* [d_head], or NULL: no norm */
    double eps;                   /* epsilon of the norms of Q and K */
    const float *cosine, *sine;   /* NULL without RoPE */
    const uint32_t *rope_row;
    kvd_rope_layout layout;
    const float *d; /* [n][...] gradients with respect to Q and K after RoPE, and to V */
    /*
     * Outputs: d_pre [n][(n_heads + n_kv_heads) * d_head], gradients before RoPE; d_raw [n][...],
     * gradients before the norm.
     */
    float *d_pre, *d_raw;
} kvd_gpu_qkv_back_args;
/*
 * Computes d_pre and d_raw. The first row of d that is not finite is recorded in *bad with `stage`.
 */
cudaError_t kvd_gpu_qkv_back(const kvd_gpu_qkv_back_args *a, size_t n, unsigned stage,
                             kvd_gpu_bad *bad, cudaStream_t stream);

/*
 * Computes the gradient of kvd_gpu_softmax: prob, d_prob [n_rows][ld] float32 with n_keys columns
 * each; prob is 0 where a row does not see the key. d_scores becomes prob (d_prob - prob . d_prob)
 * scale in `type`, and prob_out the probabilities in `type`. With KVD_F32 d_scores may be d_prob,
 * and prob_out is not written.
 */
cudaError_t kvd_gpu_softmax_back(kvd_dtype type, const float *prob, const float *d_prob,
                                 size_t n_rows, size_t ld, size_t n_keys, float scale,
                                 void *d_scores, void *prob_out, cudaStream_t stream);

/*
 * Computes the loss -log softmax(logits)[target] and its gradient: logits [n][vocab] float32,
 * d_logits [n][vocab] of `type` (with KVD_F32 it may be the logits), loss [n] in nats. If u is not
 * NULL, the target is drawn first and written to `target`: the first token at which the cumulative
 * probability, in double precision, exceeds u[i]. A row with target UINT32_MAX predicts nothing;
 * its d_logits and loss are 0.
 */
cudaError_t kvd_gpu_cross_entropy(kvd_dtype type, const float *logits, size_t n, size_t vocab,
                                  uint32_t *target, const double *u, void *d_logits, double *loss,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
