/* Attention hook on the GPU (CPU: model/pass/attention.h), which receives Q, K and V. */
#ifndef KVD_MODEL_PASS_CUDA_ATTENTION_H
#define KVD_MODEL_PASS_CUDA_ATTENTION_H

#include <stddef.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "common/half.h"
#include "model/checkpoint/cuda/weights.h"

/*
 * Input of attention for this GPU's heads in one layer, overwritten by later work on `stream`.
 * Token strides: ld of q, k, v, ld_pre of q_pre, k_pre.
 */
typedef struct {
    const kvd_config *config; /* whole model */
    const kvd_gpu_share *share;
    int layer;
    size_t n_sequences;
    /* Host array: first token of each sequence, then n_tokens. */
    const size_t *offset;
    size_t first_sequence; /* corpus index of the batch's sequence 0 */
    /* Tokens of the batch, and of its longest sequence. */
    size_t n_tokens, longest;
    /* Host arrays [n_sequences]: first position, complete length; or NULL. */
    const size_t *start, *whole;
    kvd_dtype type; /* KVD_F32 or KVD_BF16 */
    /* After RoPE; with hook.wants_raw: projections without bias, norm and RoPE. */
    const void *q, *k, *v;
    size_t ld;
    /* Q and K before RoPE; NULL unless wants_pre. Without RoPE: q and k. */
    const void *q_pre, *k_pre;
    size_t ld_pre;
    /* Input of the QKV projections, [n_tokens][d_model]; NULL unless wants_input. */
    const void *input;
    size_t window; /* sliding window in tokens; 0: none */
    /* Device array: sink logits of this GPU's query heads, or NULL. */
    const float *sinks;
    cudaStream_t stream;
    const kvd_cublas *lib;
    cublasHandle_t blas;
} kvd_gpu_attention_in;

/* Attention hook on one GPU; hooks of several GPUs run at the same time in threads. */
typedef struct kvd_gpu_attention kvd_gpu_attention;
struct kvd_gpu_attention {
    /*
     * Queues attention on in->stream into out [n_tokens][n_heads of this GPU * d_head] of in->type.
     */
    int (*run)(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err);
    int wants_pre;
    int wants_input;
    /* `run` wants the bare QKV projection, and adds bias, norms and RoPE. */
    int wants_raw;
};

/*
 * Exact attention on one device and stream, which waits only for copies of changed lengths.
 *
 * Kernels require bf16, d_head a multiple of 16 up to 256, at most KVD_HEADS_MAX heads, no softcap,
 * and contiguous Q, K, V of a token; otherwise cuBLAS and a float32 softmax.
 */
typedef struct kvd_gpu_dense kvd_gpu_dense;
kvd_gpu_dense *kvd_gpu_dense_new(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype type,
                                 size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_gpu_dense_free(kvd_gpu_dense *d);
size_t kvd_gpu_dense_bytes(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype type,
                           size_t max_tokens, size_t max_len);
kvd_gpu_attention *kvd_gpu_dense_hook(kvd_gpu_dense *d);
/* Returns "sm_90a kernel", "mma.sync kernel" or "cuBLAS products". */
const char *kvd_gpu_dense_engine(const kvd_gpu_dense *d);

/*
 * cuBLAS attention: q, out [n_tokens][n_heads][d_head], k, v [n_tokens][n_kv_heads][d_head]; *in
 * gives lengths and settings only. Pad short heads with zeros.
 *
 * kvd_gpu_attend_scratch: bytes for max_len >= in->longest, about 256 MiB or one query's scores.
 */
size_t kvd_gpu_attend_scratch(kvd_dtype type, size_t max_len, int n_heads);
int kvd_gpu_attend(const kvd_gpu_attention_in *in, kvd_dtype type, const void *q, size_t ldq,
                   const void *k, size_t ldk, const void *v, size_t ldv, void *out, size_t ldo,
                   void *scratch, kvd_err *err);

/* Observing hook: calls `record` with Q, K and V, the hook `inner`, then `output` (or NULL). */
typedef struct {
    kvd_gpu_attention hook;
    kvd_gpu_attention *inner;
    int (*record)(void *ctx, const kvd_gpu_attention_in *in, kvd_err *err);
    int (*output)(void *ctx, const kvd_gpu_attention_in *in, const void *out, kvd_err *err);
    void *ctx;
} kvd_gpu_capture;
void kvd_gpu_capture_init(kvd_gpu_capture *t, kvd_gpu_attention *inner);

/*
 * Gradient of exact attention (CPU: kvd_attend_back), with float32 sums of bf16 or float32 inputs.
 */

/* Input and output of kvd_gpu_attend_back; rows are tokens, and heads are contiguous. */
typedef struct {
    /* `window`: sliding window in tokens; 0: none. */
    size_t n_sequences, longest, window;
    /* Host array: first token of each sequence, then the number n of tokens. */
    const size_t *offset;
    int n_heads, n_kv_heads, d_head;
    kvd_dtype type;
    const void *q, *k, *v; /* of `type`; tokens are ld elements apart */
    size_t ld;
    /* Gradient of the attention output, [n][n_heads * d_head] of `type`. */
    const void *d_o;
    /* dq is overwritten; dk and dv are added to. Token stride ld_d. */
    float *dq, *dk, *dv;
    size_t ld_d;
    cudaStream_t stream;
    const kvd_cublas *lib;
    cublasHandle_t blas;
} kvd_gpu_attention_back_in;

/* Scratch bytes for max_len tokens: about 256 MiB, or one query of one head if larger. */
size_t kvd_gpu_attend_back_scratch(kvd_dtype type, size_t max_len, int n_kv_heads);

int kvd_gpu_attend_back(const kvd_gpu_attention_back_in *in, void *scratch, kvd_err *err);

#endif
