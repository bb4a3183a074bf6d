/*
 * The attention hook of model/pass/attention.h on the device: the forward pass passes Q, K and V of
 * a layer to it and receives the output of attention.
 */
#ifndef KVD_MODEL_PASS_CUDA_ATTENTION_H
#define KVD_MODEL_PASS_CUDA_ATTENTION_H

#include <stddef.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "common/half.h"
#include "model/checkpoint/cuda/weights.h"

/*
 * The input of attention for one layer of one batch on one GPU, with the heads of kvd_gpu_share.
 * Work is queued on `stream`; the pass overwrites the arrays in later work on that stream. Row t of
 * q starts at element t * ld and holds the heads one after another. k and v (with the KV heads)
 * have the same layout; q_pre and k_pre have it with ld_pre.
 */
typedef struct {
    const kvd_config *config; /* configuration of the whole model */
    const kvd_gpu_share *share;
    int layer;
    size_t n_sequences;
    const size_t *offset;     /* host [n_sequences + 1] */
    size_t first_sequence;    /* index in the corpus */
    size_t n_tokens, longest; /* number of rows, and of rows of the longest sequence */
    /* host arrays [n_sequences], or NULL for whole sequences, as in kvd_attention_in */
    const size_t *start, *whole;
    kvd_dtype type; /* KVD_F32 or KVD_BF16 */
    /*
     * Q, K and V after RoPE, or the output of the QKV product without bias, norm and RoPE if the
     * hook set wants_raw
     */
    const void *q, *k, *v;
    size_t ld;
    /*
     * Q and K before RoPE; NULL unless the hook set wants_pre. In a model without RoPE they point
     * to q and k.
     */
    const void *q_pre, *k_pre;
    size_t ld_pre;
    size_t window;      /* sliding window of this layer; 0: none */
    const float *sinks; /* device [share's n_heads] sink of each head; NULL: the model has none */
    cudaStream_t stream;
    const kvd_cublas *lib;
    cublasHandle_t blas; /* handle that queues on `stream` */
} kvd_gpu_attention_in;

/*
 * Attention hook of one GPU. The hooks of several GPUs are called at the same time, each from its
 * own thread with its device current.
 */
typedef struct kvd_gpu_attention kvd_gpu_attention;
struct kvd_gpu_attention {
    /*
     * Queues the attention of a layer on the stream. Its output, [n_tokens][share's n_heads *
     * d_head] of in->type, is written to out.
     */
    int (*run)(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err);
    int wants_pre; /* 1 if the hook needs q_pre and k_pre */
    /*
     * 1 if the hook wants q, k and v as the QKV product gives them. The hook must then add bias,
     * norms and RoPE itself, if the model has them.
     */
    int wants_raw;
};

/*
 * Exact attention, computed in one of two ways. The first is the kernels of kernels/cuda (a Hopper
 * kernel, or mma.sync on other GPUs). They require bf16, d_head a multiple of 16 up to 128, at most
 * KVD_HEADS_MAX heads, scores without cap and sinks, and no window shorter than max_len. They also
 * require Q, K and V of a token next to each other, as one product leaves them. In all other cases
 * cuBLAS computes a product, a softmax and a product per block of queries and some heads, with
 * scores and softmax in float32 and probabilities rounded to the type of the pass. The scratch of
 * this second way is allocated on first use.
 *
 * Create and use it with one device current, on one stream. run() does not wait for the device,
 * except for the copy of an earlier batch's lengths if the lengths of this batch differ.
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
 * Returns the engine of a layer with this window: "sm_90a kernel", "mma.sync kernel" or "cuBLAS
 * products".
 */
const char *kvd_gpu_dense_engine(const kvd_gpu_dense *d, size_t window);

/*
 * Attention by cuBLAS products, for the caches of methods/cuda, with any leading dimensions. q
 * [n_tokens][n_heads][d_head] of `type` has rows ldq apart and heads d_head apart; k and v
 * [n_tokens][n_kv_heads][d_head] likewise with ldk and ldv; out [n_tokens][n_heads][d_head]. All
 * else comes from *in, whose own q, k, v, type and n_tokens are not read. The caller must pad
 * narrower heads with zeros.
 *
 * scratch holds kvd_gpu_attend_scratch bytes for a max_len of at least in->longest: at most 256 MB
 * plus 200 KB, or one row of scores. n_heads is the share's number of heads. The products are
 * fastest if all rows of heads start at multiples of 16 bytes: then one call takes all heads of all
 * neighbouring sequences of equal length.
 */
size_t kvd_gpu_attend_scratch(kvd_dtype type, size_t max_len, int n_heads);
int kvd_gpu_attend(const kvd_gpu_attention_in *in, kvd_dtype type, const void *q, size_t ldq,
                   const void *k, size_t ldk, const void *v, size_t ldv, void *out, size_t ldo,
                   void *scratch, kvd_err *err);

/*
 * Attention hook that records: it calls `record` with Q, K and V before `inner` computes. If
 * `output` is not NULL, it is called with the attention output afterwards.
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
