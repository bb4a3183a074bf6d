/*
 * The attention hook on the GPU: the interface through which the forward pass gives Q, K and V to
 * attention (model/pass/attention.h is its CPU version).
 */
#ifndef KVD_MODEL_PASS_CUDA_ATTENTION_H
#define KVD_MODEL_PASS_CUDA_ATTENTION_H

#include <stddef.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "common/half.h"
#include "model/checkpoint/cuda/weights.h"

/*
 * The input of attention for one layer of one batch, with the heads that this GPU holds. The hook
 * queues its work on `stream`; the forward pass overwrites the arrays in later work on that stream.
 * In q, k and v, two adjacent tokens are ld elements apart, in q_pre and k_pre ld_pre elements. The
 * heads of a token follow one another.
 */
typedef struct {
    const kvd_config *config; /* whole model */
    const kvd_gpu_share *share;
    int layer;
    size_t n_sequences;
    /* Host array: first token of each sequence, then n_tokens. */
    const size_t *offset;
    size_t first_sequence; /* index in the corpus of sequence 0 of the batch */
    /* Numbers of tokens of the batch, and of its longest sequence. */
    size_t n_tokens, longest;
    /*
     * Host arrays [n_sequences] if earlier tokens are in a KV cache, else NULL: position of the
     * first token in this batch (start), and length of the complete sequence (whole).
     */
    const size_t *start, *whole;
    kvd_dtype type; /* type of Q, K and V: KVD_F32 or KVD_BF16 */
    /*
     * Q, K and V after RoPE. If hook.wants_raw is set, they are the output of the QKV projection,
     * without bias, norm and RoPE.
     */
    const void *q, *k, *v;
    size_t ld;
    /*
     * Q and K before RoPE; NULL unless the hook set wants_pre. Without RoPE, q_pre and k_pre point
     * to q and k.
     */
    const void *q_pre, *k_pre;
    size_t ld_pre;
    /*
     * [n_tokens][d_model] Input of the products that give Q, K and V; NULL unless the hook set
     * wants_input.
     */
    const void *input;
    size_t window; /* sliding window in tokens; 0: none */
    /* Device array of the attention sink logits of this GPU's query heads, or NULL. */
    const float *sinks;
    cudaStream_t stream;
    const kvd_cublas *lib;
    cublasHandle_t blas;
} kvd_gpu_attention_in;

/*
 * Attention hook on one GPU. If several GPUs hold parts of one model, their hooks run at the same
 * time. Each hook runs in its own thread, with its device current.
 */
typedef struct kvd_gpu_attention kvd_gpu_attention;
struct kvd_gpu_attention {
    /*
     * Queues the attention of a layer on in->stream. `out` is [n_tokens][n_heads of this GPU *
     * d_head] of in->type. Returns 0, or -1 with *err.
     */
    int (*run)(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err);
    int wants_pre;
    int wants_input;
    /*
     * True if `run` wants the output of the QKV projection, and then adds bias, norms and RoPE
     * itself.
     */
    int wants_raw;
};

/*
 * Exact attention on one device and one stream, by kernels or by cuBLAS. The hook does not wait for
 * the device, except if the lengths of this batch differ from those of the last one; it then waits
 * for the copy of the last batch's lengths.
 *
 * The attention kernels of kernels/cuda require bf16, d_head a multiple of 16 up to 256, at most
 * KVD_HEADS_MAX heads, and no softcap. The kernels also require that Q, K and V of a token follow
 * one another in memory.
 *
 * In all other cases cuBLAS computes the scores and the output, and a kernel computes the softmax
 * in float32. Probabilities are rounded to the element type of the pass.
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
 * Attention by cuBLAS products. q and out are [n_tokens][n_heads][d_head], k and v are
 * [n_tokens][n_kv_heads][d_head]. ldq, ldo, ldk and ldv are the numbers of elements from one token
 * to the next. *in gives all other parameters; its members q, k, v, type and n_tokens are not read.
 * Heads with fewer than d_head dimensions must be padded with zeros.
 *
 * kvd_gpu_attend_scratch returns the bytes of `scratch` for sequences of up to max_len tokens (at
 * least in->longest) and n_heads query heads: about 256 MiB at most, or the scores of one query of
 * one head if these are larger.
 */
size_t kvd_gpu_attend_scratch(kvd_dtype type, size_t max_len, int n_heads);
int kvd_gpu_attend(const kvd_gpu_attention_in *in, kvd_dtype type, const void *q, size_t ldq,
                   const void *k, size_t ldk, const void *v, size_t ldv, void *out, size_t ldo,
                   void *scratch, kvd_err *err);

/*
 * Attention hook that observes another one: calls `record` with Q, K and V, then the hook `inner`,
 * then `output` with the attention output of `inner`. `output` may be NULL.
 */
typedef struct {
    kvd_gpu_attention hook;
    kvd_gpu_attention *inner;
    int (*record)(void *ctx, const kvd_gpu_attention_in *in, kvd_err *err);
    int (*output)(void *ctx, const kvd_gpu_attention_in *in, const void *out, kvd_err *err);
    void *ctx;
} kvd_gpu_capture;
void kvd_gpu_capture_init(kvd_gpu_capture *t, kvd_gpu_attention *inner);

/*
 * The gradient of exact attention on the device (kvd_attend_back is the CPU version). Sums are
 * float32. With KVD_BF16 the inputs of products are rounded to bf16, including probabilities and
 * gradients of scores.
 */

/*
 * Input and output of kvd_gpu_attend_back. Rows of arrays are tokens; the heads of a token follow
 * one another.
 */
typedef struct {
    /* window is the sliding window in tokens; 0: none. */
    size_t n_sequences, longest, window;
    /* Host array: first token of each sequence, then the number of tokens n. */
    const size_t *offset;
    int n_heads, n_kv_heads, d_head;
    kvd_dtype type;
    const void *q, *k, *v; /* of `type`; tokens are ld elements apart */
    size_t ld;
    /* Gradient of the output of attention: [n][n_heads * d_head] of `type`. */
    const void *d_o;
    /*
     * Gradients of q (overwritten), and of k and v (added to what is there). Tokens are ld_d
     * elements apart.
     */
    float *dq, *dk, *dv;
    size_t ld_d;
    cudaStream_t stream;
    const kvd_cublas *lib;
    cublasHandle_t blas;
} kvd_gpu_attention_back_in;

/*
 * Returns the bytes of scratch for sequences of up to max_len tokens: about 256 MiB at most, or the
 * scores, probabilities and gradients of one query of one head if these are larger.
 */
size_t kvd_gpu_attend_back_scratch(kvd_dtype type, size_t max_len, int n_kv_heads);

int kvd_gpu_attend_back(const kvd_gpu_attention_back_in *in, void *scratch, kvd_err *err);

#endif
