/*
 * Gradients of the arithmetic blocks on the device (model/blocks_back.h has them on the CPU). dy is the gradient of a loss with respect to
 * what a block returns, dx that with respect to what it takes; what the block took is given again.
 *
 * Gradients are float32 and what went into a product has the type of the pass, KVD_F32 or KVD_BF16, unless it says otherwise. Launchers as in
 * model/cuda/blocks.h.
 */
#ifndef KVD_MODEL_CUDA_BLOCKS_BACK_H
#define KVD_MODEL_CUDA_BLOCKS_BACK_H

#include "model/cuda/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x, dy [n][d], gain [d]; dx [n][d] becomes the gradient, or with `add` that and what it was. */
cudaError_t kvd_gpu_norm_back(kvd_norm kind, const float *x, const float *gain, double eps, size_t n,
                              size_t d, const float *dy, float *dx, int add, cudaStream_t stream);

/* in, bias as kvd_gpu_activate takes them, dy [n][ffn]; in becomes the gradient with respect to it, of `type`. */
cudaError_t kvd_gpu_activate_back(kvd_activation kind, kvd_dtype type, void *in, const float *bias, size_t n,
                                  size_t ffn, const float *dy, cudaStream_t stream);

/* Of kvd_gpu_qkv_finish: from Q and K after RoPE and V back to what their product gives. Rows of n_heads * d_head, then n_kv_heads *
 * d_head twice. */
typedef struct {
    kvd_dtype type;
    int n_heads, n_kv_heads, d_head;
    const void *product; /* [n][...] of `type`, without the bias; read where there is a norm          */
    const float *bias;   /* or NULL                                                                */
    const float *gain_q, *gain_k; /* [d_head], or NULL: no norm                                             */
    double eps;                   /* of the norms                                                           */
    const float *cosine, *sine; /* NULL without RoPE                                                       */
    const uint32_t *rope_row;
    kvd_rope_layout layout;
    const float *d; /* [n][...] gradients with respect to Q and K after RoPE, and V                 */
    float *d_pre,
        *d_raw; /* out: [n][(n_heads + n_kv_heads) * d_head] before RoPE; [n][...] before the norm */
} kvd_gpu_qkv_back_args;
/* Rows of d that are not finite go to *bad as `stage`. */
cudaError_t kvd_gpu_qkv_back(const kvd_gpu_qkv_back_args *a, size_t n, unsigned stage, kvd_gpu_bad *bad,
                             cudaStream_t stream);

/*
 * Of kvd_gpu_softmax: prob, d_prob [n_rows][ld] float32, of n_keys columns each, prob 0 where a row does not see. d_scores becomes
 * prob (d_prob - prob . d_prob) scale, in `type`, and prob_out the probabilities in it; with KVD_F32 d_scores may be d_prob, and
 * prob_out is not written.
 */
cudaError_t kvd_gpu_softmax_back(kvd_dtype type, const float *prob, const float *d_prob, size_t n_rows,
                                 size_t ld, size_t n_keys, float scale, void *d_scores, void *prob_out,
                                 cudaStream_t stream);

/*
 * Of the loss -log softmax(logits)[target]: logits [n][vocab] float32, d_logits [n][vocab] of `type` (with KVD_F32 it may be the
 * logits), loss [n] in nats. Where u is not NULL, the target is drawn first: the token where the probabilities of the ones up to it exceed u[i],
 * in double precision, and put into target. A target of UINT32_MAX: the row predicts nothing, d_logits and loss are 0.
 */
cudaError_t kvd_gpu_cross_entropy(kvd_dtype type, const float *logits, size_t n, size_t vocab,
                                  uint32_t *target, const double *u, void *d_logits, double *loss,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
