/*
 * Gradients of the functions that blocks.h computes on the device (model/pass/layer_back.h is the
 * CPU version). dy is the gradient of a loss with respect to a function's output, dx with respect
 * to its input.
 *
 * Gradients are float32, and the inputs of products have the element type of the pass, KVD_F32 or
 * KVD_BF16. The functions launch a kernel on the stream and return its error.
 */
#ifndef KVD_MODEL_PASS_CUDA_BLOCKS_BACK_H
#define KVD_MODEL_PASS_CUDA_BLOCKS_BACK_H

#include "model/pass/cuda/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Computes dx [n][d], the gradient of a norm of x [n][d] with gain [d]. If `add` is not 0, the
 * gradient is added to dx.
 */
cudaError_t kvd_gpu_norm_back(kvd_norm kind, const float *x, const float *gain, double eps,
                              size_t n, size_t d, const float *dy, float *dx, int add,
                              cudaStream_t stream);

/*
 * Computes the gradient of the input of kvd_gpu_activate from dy [n][ffn], the gradient of its
 * output, and the same `in` and `bias`. Overwrites `in` with the gradient, in the element type
 * `type`.
 */
cudaError_t kvd_gpu_activate_back(kvd_activation kind, kvd_dtype type, void *in, const float *bias,
                                  size_t n, size_t ffn, const float *dy, cudaStream_t stream);

/*
 * Gradient of kvd_gpu_qkv_finish: turns the gradients of Q and K after RoPE and of V into the
 * gradient of the output of the QKV projection. A row has n_heads * d_head numbers of Q, then
 * n_kv_heads * d_head of K and as many of V.
 */
typedef struct {
    kvd_dtype type;
    int n_heads, n_kv_heads, d_head;
    /*
     * Output of the QKV projection without bias: n rows in the element type `type`. Read only if
     * the model has norms of Q and K.
     */
    const void *product;
    const float *bias;
    /* Gains of the norms of Q and K: [d_head], or NULL. */
    const float *gain_q, *gain_k;
    double eps;
    const float *cosine, *sine; /* NULL without RoPE */
    const uint32_t *rope_row;
    kvd_rope_layout layout;
    /* Input: gradients of Q and K after RoPE and of V, [n][(n_heads + 2 n_kv_heads) * d_head]. */
    const float *d;
    /*
     * Outputs. d_pre [n][(n_heads + n_kv_heads) * d_head] is the gradient of Q and K before RoPE.
     * d_raw [n][(n_heads + 2 n_kv_heads) * d_head] is the gradient of Q, K and V before the norms
     * of Q and K.
     */
    float *d_pre, *d_raw;
} kvd_gpu_qkv_back_args;
/*
 * Computes the gradient that *a describes for n rows. The first row of a->d that is not finite is
 * recorded in *bad with check number `stage`.
 */
cudaError_t kvd_gpu_qkv_back(const kvd_gpu_qkv_back_args *a, size_t n, unsigned stage,
                             kvd_gpu_bad *bad, cudaStream_t stream);

/*
 * Computes the gradient of kvd_gpu_softmax for n_rows queries of n_keys keys; rows of all arrays
 * are ld elements apart. prob and its gradient d_prob are float32; prob is 0 for keys that a query
 * does not see. d_scores receives scale * prob * (d_prob - s) in `type`, where s is the sum of prob
 * * d_prob over the row. prob_out receives prob converted to `type`. With KVD_F32, d_scores may be
 * d_prob, and prob_out is not written.
 */
cudaError_t kvd_gpu_softmax_back(kvd_dtype type, const float *prob, const float *d_prob,
                                 size_t n_rows, size_t ld, size_t n_keys, float scale,
                                 void *d_scores, void *prob_out, cudaStream_t stream);

/*
 * Computes the loss -log softmax(logits)[target] of n positions in nats, and its gradient d_logits
 * [n][vocab] in the element type `type`. With KVD_F32, d_logits and `logits` may be one array. If
 * the random numbers u are given (not NULL), the targets are first drawn from the model's
 * probabilities and written to `target`: that of position i is the first token at which the
 * cumulative probability exceeds u[i]. A position with target UINT32_MAX predicts nothing; its
 * d_logits and loss are 0.
 */
cudaError_t kvd_gpu_cross_entropy(kvd_dtype type, const float *logits, size_t n, size_t vocab,
                                  uint32_t *target, const double *u, void *d_logits, double *loss,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
