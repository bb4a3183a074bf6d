/*
 * The attention hook on the device (model/pass/attention.h is its CPU version): the forward pass
 * gives Q, K and V of a layer to the hook and receives the output of attention.
 */
#ifndef KVD_MODEL_PASS_CUDA_ATTENTION_H
#define KVD_MODEL_PASS_CUDA_ATTENTION_H

#include <stddef.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "common/half.h"
#include "model/checkpoint/cuda/weights.h"

/*
 * The input of attention for one layer of one batch on one GPU, with the heads that this GPU holds
 * (kvd_gpu_share). The hook queues its work on `stream`; the forward pass overwrites the arrays in
 * later work on that stream. Token t of q starts at element t * ld and holds the query heads one
 * after another. k and v, with the KV heads, have the same layout; q_pre and k_pre have it with
 * ld_pre.
 */
typedef struct {
    const kvd_config *config; /* configuration of the whole model */
    const kvd_gpu_share *share;
    int layer;
    size_t n_sequences;
    /* Host array: first token of each of the n_sequences sequences, followed by n_tokens. */
    const size_t *offset;
    size_t first_sequence; /* index in the corpus of the batch's first sequence */
    /* Number of tokens of the batch, and of its longest sequence. */
    size_t n_tokens, longest;
    /*
     * Host arrays for sequences of which the batch has only the last tokens, the earlier ones being
     * in a KV cache. start: position of each sequence's first token in the batch. whole: length
     * that each sequence will have in the end. NULL if the batch has all tokens of every sequence.
     */
    const size_t *start, *whole;
    kvd_dtype type; /* element type of Q, K and V: KVD_F32 or KVD_BF16 */
    /*
     * Q, K and V after RoPE. If the hook set wants_raw, they are the output of the QKV projection,
     * without bias, norm and RoPE.
     */
    const void *q, *k, *v;
    size_t ld;
    /*
     * Q and K before RoPE; NULL unless the hook set wants_pre. In a model without RoPE they point
     * to q and k.
     */
    const void *q_pre, *k_pre;
    size_t ld_pre;
    size_t window; /* sliding window of this layer in tokens; 0: none */
    /*
     * Device array with the attention sink logit of each query head of this GPU; NULL if the model
     * has no sinks.
     */
    const float *sinks;
    cudaStream_t stream;
    const kvd_cublas *lib;
    cublasHandle_t blas; /* cuBLAS handle that queues on `stream` */
} kvd_gpu_attention_in;

/*
 * Attention hook of one GPU. If several GPUs hold the model, their hooks are called at the same
 * time, each from its own thread with its device current.
 */
typedef struct kvd_gpu_attention kvd_gpu_attention;
struct kvd_gpu_attention {
    /*
     * Queues the attention of a layer on in->stream. Writes the attention output,
     * [n_tokens][n_heads of this GPU * d_head] of in->type, to out. Returns 0, or -1 with *err.
     */
    int (*run)(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err);
    int wants_pre; /* 1 if `run` reads in->q_pre and in->k_pre */
    /*
     * 1 if `run` wants q, k and v as the QKV projection returns them. It must then add the bias,
     * norms and RoPE itself, if the model has them.
     */
    int wants_raw;
};

/*
 * Exact attention, computed in one of two ways.
 *
 * The attention kernels of kernels/cuda (a Hopper kernel, or mma.sync on other GPUs) require bf16,
 * d_head a multiple of 16 up to 128, at most KVD_HEADS_MAX heads, scores without softcap and sinks,
 * and no sliding window shorter than max_len. They also require Q, K and V of a token next to each
 * other in memory, as the QKV projection leaves them.
 *
 * In all other cases cuBLAS is used. For a block of queries of some heads at a time, one product
 * computes the scores, a kernel their softmax, and a second product the output. Scores and softmax
 * are float32; probabilities are rounded to the element type of the pass. The scratch of this
 * second way is allocated on first use.
 *
 * Create and use it with one device current, on one stream. The hook does not wait for the device,
 * with one exception: if the sequence lengths differ from those of the last batch, it waits for the
 * copy of the last batch's lengths.
 */
typedef struct kvd_gpu_dense kvd_gpu_dense;
kvd_gpu_dense *kvd_gpu_dense_new(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype type,
                                 size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_gpu_dense_free(kvd_gpu_dense *d);
/* Returns the bytes of device memory that kvd_gpu_dense_new allocates. */
size_t kvd_gpu_dense_bytes(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype type,
                           size_t max_tokens, size_t max_len);
kvd_gpu_attention *kvd_gpu_dense_hook(kvd_gpu_dense *d);
/*
 * Returns the name of the implementation that computes a layer with this sliding window (0: none):
 * "sm_90a kernel", "mma.sync kernel" or "cuBLAS products".
 */
const char *kvd_gpu_dense_engine(const kvd_gpu_dense *d, size_t window);

/*
 * Attention by cuBLAS products with any leading dimensions, for the caches of methods/cuda. q
 * [n_tokens][n_heads][d_head] of `type` has tokens ldq elements apart and heads d_head apart; k and
 * v [n_tokens][n_kv_heads][d_head] likewise with ldk and ldv; out [n_tokens][n_heads][d_head] with
 * ldo. All other parameters come from *in, whose own q, k, v, type and n_tokens are not read. If a
 * cache keeps fewer dimensions than d_head, the caller must pad heads with zeros.
 *
 * kvd_gpu_attend_scratch returns the bytes of `scratch` for sequences of up to max_len tokens (at
 * least in->longest) and the n_heads query heads of this GPU. They are about 256 MiB at most. Only
 * if the scores of one query of one head are larger than that, they are the bytes of these scores.
 * The products are fastest if all rows of heads start at multiples of 16 bytes: then one call
 * handles all heads of all neighbouring sequences of equal length.
 */
size_t kvd_gpu_attend_scratch(kvd_dtype type, size_t max_len, int n_heads);
int kvd_gpu_attend(const kvd_gpu_attention_in *in, kvd_dtype type, const void *q, size_t ldq,
                   const void *k, size_t ldk, const void *v, size_t ldv, void *out, size_t ldo,
                   void *scratch, kvd_err *err);

/*
 * Attention hook that records: calls `record` with Q, K and V, then lets the hook `inner` compute
 * attention, then calls `output` with the result if `output` is not NULL.
 */
typedef struct {
    kvd_gpu_attention hook;
    kvd_gpu_attention *inner;
    int (*record)(void *ctx, const kvd_gpu_attention_in *in, kvd_err *err);
    int (*output)(void *ctx, const kvd_gpu_attention_in *in, const void *out, kvd_err *err);
    void *ctx;
} kvd_gpu_capture;
void kvd_gpu_capture_init(kvd_gpu_capture *t, kvd_gpu_attention *inner);

#endif
