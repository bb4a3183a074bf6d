/* Interface of attention on the GPU. The forward pass calls a hook with Q, K and V; the hook
 * computes attention. */
#ifndef KVD_MODEL_PASS_CUDA_ATTENTION_H
#define KVD_MODEL_PASS_CUDA_ATTENTION_H

#include <stddef.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "common/half.h"
#include "model/checkpoint/cuda/weights.h"

/* Input of attention for one layer, with the heads of this GPU. Tokens of q, k and v are ld
 * elements apart, tokens of q_pre and k_pre ld_pre elements. Later work on `stream` overwrites the
 * arrays. */
typedef struct {
    const kvd_config *config; /* whole model */
    const kvd_gpu_share *share;
    int layer;
    size_t n_sequences;
    /* host array [n_sequences + 1]: index of each sequence's first token; the last element is
     * n_tokens */
    const size_t *offset;
    size_t first_sequence; /* index in the corpus of the batch's first sequence */
    /* number of tokens of the batch, and of its longest sequence */
    size_t n_tokens, longest;
    /* host arrays: position of each sequence's first token in its text, and the text's length; NULL
     * if sequences are whole texts */
    const size_t *start, *whole;
    kvd_dtype type; /* KVD_F32 or KVD_BF16 */
    /* Q, K and V after RoPE; without bias, norm and RoPE if the hook sets wants_raw */
    const void *q, *k, *v;
    size_t ld;
    /* Q and K before RoPE; NULL unless kvd_gpu_attention.wants_pre is set */
    const void *q_pre, *k_pre;
    size_t ld_pre;
    /* [n_tokens][d_model] input of the layer; NULL unless kvd_gpu_attention.wants_input is set */
    const void *input;
    size_t window; /* sliding window in tokens, or 0 for none */
    /* device array: logits of the attention sinks of this GPU's query heads; NULL if the model has
     * none */
    const float *sinks;
    cudaStream_t stream;
    const kvd_cublas *lib;
    cublasHandle_t blas;
} kvd_gpu_attention_in;

/* attention hook: callback that computes attention on one GPU in the forward pass; each GPU has its
 * own host thread */
typedef struct kvd_gpu_attention kvd_gpu_attention;
struct kvd_gpu_attention {
    /* Queues the computation of attention on in->stream. `out` is [n_tokens][this GPU's heads *
     * d_head]. */
    int (*run)(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err);
    int wants_pre;
    int wants_input;
    /* true if `run` itself applies biases, norms and RoPE to Q and K */
    int wants_raw;
};

/* Exact attention on one device and stream.
 *
 * Uses attention kernels for bf16 and supported heads, otherwise products of cuBLAS. */
typedef struct kvd_gpu_dense kvd_gpu_dense;
kvd_gpu_dense *kvd_gpu_dense_new(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype type,
                                 size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_gpu_dense_free(kvd_gpu_dense *d);
size_t kvd_gpu_dense_bytes(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype type,
                           size_t max_tokens, size_t max_len);
kvd_gpu_attention *kvd_gpu_dense_hook(kvd_gpu_dense *d);
/* Returns how attention is computed: "sm_90a kernel", "mma.sync kernel" or "cuBLAS products". */
const char *kvd_gpu_dense_engine(const kvd_gpu_dense *d);

/* Attention by cuBLAS: q and out are [n_tokens][n_heads][d_head], k and v
 * [n_tokens][n_kv_heads][d_head].
 *
 * kvd_gpu_attend_scratch returns how many bytes of scratch memory kvd_gpu_attend needs, about 256
 * MiB. */
size_t kvd_gpu_attend_scratch(kvd_dtype type, size_t max_len, int n_heads);
int kvd_gpu_attend(const kvd_gpu_attention_in *in, kvd_dtype type, const void *q, size_t ldq,
                   const void *k, size_t ldk, const void *v, size_t ldv, void *out, size_t ldo,
                   void *scratch, kvd_err *err);

/* hook that calls `record` with Q, K and V, then runs the hook `inner`, then calls `output` with
 * the result of `inner` */
typedef struct {
    kvd_gpu_attention hook;
    kvd_gpu_attention *inner;
    int (*record)(void *ctx, const kvd_gpu_attention_in *in, kvd_err *err);
    int (*output)(void *ctx, const kvd_gpu_attention_in *in, const void *out, kvd_err *err);
    void *ctx;
} kvd_gpu_capture;
void kvd_gpu_capture_init(kvd_gpu_capture *t, kvd_gpu_attention *inner);

/* arguments of kvd_gpu_attend_back; a token's heads follow one another in memory */
typedef struct {
    /* number of sequences, tokens of the longest one, tokens in the sliding window (or 0) */
    size_t n_sequences, longest, window;
    /* host array [n_sequences + 1]: index of the first token of each sequence, then the number of
     * tokens */
    const size_t *offset;
    int n_heads, n_kv_heads, d_head;
    kvd_dtype type;
    const void *q, *k, *v; /* of `type`; tokens are ld elements apart */
    size_t ld;
    /* gradient of the attention output, [n][n_heads * d_head] in `type` */
    const void *d_o;
    /* gradients of Q, K and V: results overwrite dq, and are added to dk and dv */
    float *dq, *dk, *dv;
    size_t ld_d;
    cudaStream_t stream;
    const kvd_cublas *lib;
    cublasHandle_t blas;
} kvd_gpu_attention_back_in;

/* Returns how many bytes of scratch memory kvd_gpu_attend_back needs, about 256 MiB. */
size_t kvd_gpu_attend_back_scratch(kvd_dtype type, size_t max_len, int n_kv_heads);

int kvd_gpu_attend_back(const kvd_gpu_attention_back_in *in, void *scratch, kvd_err *err);

#endif
