/* Interface of attention on the GPU: the forward pass gives Q, K and V to a hook. */
#ifndef KVD_MODEL_PASS_CUDA_ATTENTION_H
#define KVD_MODEL_PASS_CUDA_ATTENTION_H

#include <stddef.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "common/half.h"
#include "model/checkpoint/cuda/weights.h"

/*
 * Input of attention for one layer and the heads of this GPU. Later work on `stream` overwrites the
 * arrays. Tokens are ld (q, k, v) or ld_pre (q_pre, k_pre) elements apart.
 */
typedef struct {
    const kvd_config *config; /* whole model */
    const kvd_gpu_share *share;
    int layer;
    size_t n_sequences;
    /* Host array [n_sequences + 1]: first token of each sequence, then n_tokens. */
    const size_t *offset;
    size_t first_sequence; /* index in the corpus of the batch's first sequence */
    /* Number of tokens of the batch, and of its longest sequence. */
    size_t n_tokens, longest;
    /*
     * Position of the first token of each sequence in its text, and length of the whole text (host
     * arrays), or NULL.
     */
    const size_t *start, *whole;
    kvd_dtype type; /* KVD_F32 or KVD_BF16 */
    /* Q, K and V after RoPE. If the hook sets wants_raw, without bias, norm and RoPE. */
    const void *q, *k, *v;
    size_t ld;
    /* Q and K before RoPE. NULL if the hook does not set wants_pre. */
    const void *q_pre, *k_pre;
    size_t ld_pre;
    /*
     * Input of the QKV projections, [n_tokens][d_model]. NULL if the hook does not set wants_input.
     */
    const void *input;
    size_t window; /* sliding window in tokens, or 0 for none */
    /* Attention sink logits of this GPU's query heads (device array), or NULL. */
    const float *sinks;
    cudaStream_t stream;
    const kvd_cublas *lib;
    cublasHandle_t blas;
} kvd_gpu_attention_in;

/* Attention hook of one GPU. If there are several GPUs, each hook runs in its own host thread. */
typedef struct kvd_gpu_attention kvd_gpu_attention;
struct kvd_gpu_attention {
    /*
     * Queues attention on in->stream. `out` is [n_tokens][this GPU's heads * d_head] of in->type.
     */
    int (*run)(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err);
    int wants_pre;
    int wants_input;
    /* True if `run` applies bias, norms and RoPE to Q, K and V itself. */
    int wants_raw;
};

/*
 * Exact attention on one device and stream.
 *
 * The attention kernels require bf16, d_head a multiple of 16 up to 256, at most KVD_HEADS_MAX
 * heads, no softcap, and contiguous Q, K, V of a token. Otherwise cuBLAS computes products and a
 * kernel the softmax in float32.
 */
typedef struct kvd_gpu_dense kvd_gpu_dense;
kvd_gpu_dense *kvd_gpu_dense_new(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype type,
                                 size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_gpu_dense_free(kvd_gpu_dense *d);
size_t kvd_gpu_dense_bytes(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype type,
                           size_t max_tokens, size_t max_len);
kvd_gpu_attention *kvd_gpu_dense_hook(kvd_gpu_dense *d);
/*
 * Returns the name of the implementation: "sm_90a kernel", "mma.sync kernel" or "cuBLAS products".
 */
const char *kvd_gpu_dense_engine(const kvd_gpu_dense *d);

/*
 * Attention by cuBLAS products: q and out are [n_tokens][n_heads][d_head], k and v
 * [n_tokens][n_kv_heads][d_head]. Heads with fewer than d_head dimensions must be padded with
 * zeros.
 *
 * kvd_gpu_attend_scratch returns the number of bytes of scratch: about 256 MiB, or more if the
 * scores of one query need more.
 */
size_t kvd_gpu_attend_scratch(kvd_dtype type, size_t max_len, int n_heads);
int kvd_gpu_attend(const kvd_gpu_attention_in *in, kvd_dtype type, const void *q, size_t ldq,
                   const void *k, size_t ldk, const void *v, size_t ldv, void *out, size_t ldo,
                   void *scratch, kvd_err *err);

/*
 * Hook that surrounds another hook, `inner`: calls `record` with Q, K and V before it, and `output`
 * after it.
 */
typedef struct {
    kvd_gpu_attention hook;
    kvd_gpu_attention *inner;
    int (*record)(void *ctx, const kvd_gpu_attention_in *in, kvd_err *err);
    int (*output)(void *ctx, const kvd_gpu_attention_in *in, const void *out, kvd_err *err);
    void *ctx;
} kvd_gpu_capture;
void kvd_gpu_capture_init(kvd_gpu_capture *t, kvd_gpu_attention *inner);

/* ---- Gradient of exact attention with float32 sums (kvd_attend_back on the CPU) ---- */

/*
 * Input and output of kvd_gpu_attend_back. Rows belong to tokens, and the heads of a row are
 * contiguous.
 */
typedef struct {
    /* `window` is the sliding window in tokens, or 0 for none. */
    size_t n_sequences, longest, window;
    /* Host array [n_sequences + 1]: first token of each sequence, then the number n of tokens. */
    const size_t *offset;
    int n_heads, n_kv_heads, d_head;
    kvd_dtype type;
    const void *q, *k, *v; /* of `type`; tokens are ld elements apart */
    size_t ld;
    /* Gradient by the attention output, [n][n_heads * d_head] of number type `type`. */
    const void *d_o;
    /* Gradients by Q, K and V. dq is overwritten; dk and dv are added to. */
    float *dq, *dk, *dv;
    size_t ld_d;
    cudaStream_t stream;
    const kvd_cublas *lib;
    cublasHandle_t blas;
} kvd_gpu_attention_back_in;

/*
 * Returns the bytes of scratch memory of kvd_gpu_attend_back: about 256 MiB, or what one query of
 * one head needs if that is more.
 */
size_t kvd_gpu_attend_back_scratch(kvd_dtype type, size_t max_len, int n_kv_heads);

int kvd_gpu_attend_back(const kvd_gpu_attention_back_in *in, void *scratch, kvd_err *err);

#endif
