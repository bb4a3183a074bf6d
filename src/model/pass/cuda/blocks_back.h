/*
 * Gradients of the functions of blocks.h on the device (model/pass/layer_back.h is the CPU
 * version). dy is the gradient of a loss with respect to a function's output, dx the gradient with
 * respect to its input. The caller passes the function's input again.
 *
 * Unless a comment says otherwise, gradients are float32 and the inputs of products have the
 * element type of the pass, KVD_F32 or KVD_BF16. The functions launch a kernel on the stream and
 * return its error, as those of model/pass/cuda/blocks.h do.
 */
#ifndef KVD_MODEL_PASS_CUDA_BLOCKS_BACK_H
#define KVD_MODEL_PASS_CUDA_BLOCKS_BACK_H

#include "model/pass/cuda/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Computes dx [n][d], the gradient with respect to the input x [n][d] of a norm with gain [d], from
 * dy [n][d]. If `add` is not 0, adds the gradient to dx.
 */
cudaError_t kvd_gpu_norm_back(kvd_norm kind, const float *x, const float *gain, double eps,
                              size_t n, size_t d, const float *dy, float *dx, int add,
                              cudaStream_t stream);

/*
 * Computes the gradient of kvd_gpu_activate from dy [n][ffn] and the same `in` and `bias`.
 * Overwrites `in` with the gradient with respect to `in`, of `type`.
 */
cudaError_t kvd_gpu_activate_back(kvd_activation kind, kvd_dtype type, void *in, const float *bias,
                                  size_t n, size_t ffn, const float *dy, cudaStream_t stream);

/*
 * Input and output of kvd_gpu_qkv_back, which computes the gradient of kvd_gpu_qkv_finish (bias,
 * norms and RoPE): from Q and K after RoPE and V back to the output of the QKV projection. A token
 * has n_heads * d_head numbers of Q, then n_kv_heads * d_head each of K and V: together one row.
 */
typedef struct {
    kvd_dtype type;
    int n_heads, n_kv_heads, d_head;
    /*
     * Output of the QKV projection without bias: n rows of `type`; read only if the model has norms
     * of Q and K.
     */
    const void *product;
    const float *bias; /* bias of the QKV projection, or NULL */
    /* Gains of the norms of Q and K, [d_head] each, or NULL: no norm. */
    const float *gain_q, *gain_k;
    double eps;                 /* epsilon of the norms of Q and K */
    const float *cosine, *sine; /* RoPE tables; NULL without RoPE */
    const uint32_t *rope_row;
    kvd_rope_layout layout;
    /*
     * Input: gradients with respect to Q and K after RoPE and to V, [n][(n_heads + 2 n_kv_heads) *
     * d_head].
     */
    const float *d;
    /*
     * Outputs: d_pre [n][(n_heads + n_kv_heads) * d_head], gradients of Q and K before RoPE; d_raw
     * [n][(n_heads + 2 n_kv_heads) * d_head], gradients of Q, K and V before the norms.
     */
    float *d_pre, *d_raw;
} kvd_gpu_qkv_back_args;
/*
 * Computes the outputs d_pre and d_raw of the arguments *a: the gradients with respect to Q and K
 * before RoPE, and those with respect to Q, K and V before the norms. a->d is the input: the
 * gradients with respect to Q and K after RoPE and to V. The first token whose row of a->d is not
 * finite is recorded in *bad with the check number `stage`.
 */
cudaError_t kvd_gpu_qkv_back(const kvd_gpu_qkv_back_args *a, size_t n, unsigned stage,
                             kvd_gpu_bad *bad, cudaStream_t stream);

/*
 * Computes the gradient of kvd_gpu_softmax for n_rows queries of n_keys keys each; rows of all
 * arrays are ld elements apart. prob holds the probabilities in float32, 0 for keys that a query
 * does not see, d_prob their gradients. d_scores becomes prob (d_prob - prob . d_prob) scale in
 * `type`, and prob_out the probabilities in `type`. With KVD_F32 d_scores may be d_prob, and
 * prob_out is not written.
 */
cudaError_t kvd_gpu_softmax_back(kvd_dtype type, const float *prob, const float *d_prob,
                                 size_t n_rows, size_t ld, size_t n_keys, float scale,
                                 void *d_scores, void *prob_out, cudaStream_t stream);

/*
 * Computes the loss -log softmax(logits)[target] of n positions, and its gradient: logits
 * [n][vocab] float32, d_logits [n][vocab] of `type` (with KVD_F32 it may be the logits), loss [n]
 * in nats. If u is not NULL, the target is drawn from the model first and written to `target`: the
 * first token at which the cumulative probability, in double precision, exceeds u[i]. A position
 * with target UINT32_MAX predicts nothing; its d_logits and loss are 0.
 */
cudaError_t kvd_gpu_cross_entropy(kvd_dtype type, const float *logits, size_t n, size_t vocab,
                                  uint32_t *target, const double *u, void *d_logits, double *loss,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
