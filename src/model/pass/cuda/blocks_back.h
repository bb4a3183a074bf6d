/* Gradients of the functions of blocks.h, in float32. dy and dx are the gradients of the loss with
 * respect to a function's output and to its input.
 *
 * Functions launch a kernel on the stream and return its error. */
#ifndef KVD_MODEL_PASS_CUDA_BLOCKS_BACK_H
#define KVD_MODEL_PASS_CUDA_BLOCKS_BACK_H

#include "model/pass/cuda/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes the gradient of a norm's input x [n][d] and writes it to dx [n][d] or, if `add`, adds it
 * to dx. */
cudaError_t kvd_gpu_norm_back(kvd_norm kind, const float *x, const float *gain, double eps,
                              size_t n, size_t d, const float *dy, float *dx, int add,
                              cudaStream_t stream);

/* Replaces `in`, the input of kvd_gpu_activate, by its gradient. dy [n][ffn] is the gradient of the
 * output. */
cudaError_t kvd_gpu_activate_back(kvd_activation kind, kvd_dtype type, void *in, const float *bias,
                                  size_t n, size_t ffn, const float *dy, cudaStream_t stream);

/* arguments for the backward pass of bias, norms and RoPE of Q, K and V (kvd_gpu_qkv_finish) */
typedef struct {
    kvd_dtype type;
    int n_heads, n_kv_heads, d_head;
    /* output of the QKV projection without biases; unused if Q and K have no norms */
    const void *product;
    const float *bias;
    /* gains of the norms of Q and K, [d_head], or NULL */
    const float *gain_q, *gain_k;
    double eps;
    const float *cosine, *sine; /* NULL without RoPE */
    const uint32_t *rope_row;
    kvd_rope_layout layout;
    /* input: gradients of Q and K after RoPE, and of V */
    const float *d;
    /* output: gradients of Q and K before RoPE (d_pre), and of Q, K and V before their norms
     * (d_raw) */
    float *d_pre, *d_raw;
} kvd_gpu_qkv_back_args;
/* Computes the gradients of Q and K before RoPE (a->d_pre), and of Q, K and V before norms
 * (a->d_raw). Records in *bad the first row of a->d that is not finite. */
cudaError_t kvd_gpu_qkv_back(const kvd_gpu_qkv_back_args *a, size_t n, unsigned stage,
                             kvd_gpu_bad *bad, cudaStream_t stream);

/* Backward pass of softmax. d_prob is the gradient of the attention probabilities. Computes
 * d_scores = scale * prob * (d_prob - sum over keys of prob * d_prob). Also copies prob to
 * prob_out. d_scores and prob_out have number type `type`. */
cudaError_t kvd_gpu_softmax_back(kvd_dtype type, const float *prob, const float *d_prob,
                                 size_t n_rows, size_t ld, size_t n_keys, float scale,
                                 void *d_scores, void *prob_out, cudaStream_t stream);

/* Computes loss = -log softmax(logits)[target] in nats, and its gradient d_logits [n][vocab].
 * Unless u is NULL, first draws each target token from the probabilities by a random number of
 * u. */
cudaError_t kvd_gpu_cross_entropy(kvd_dtype type, const float *logits, size_t n, size_t vocab,
                                  uint32_t *target, const double *u, void *d_logits, double *loss,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
