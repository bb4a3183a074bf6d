/* The door of model/attention.h on the device: through it Q, K and V of a layer leave the pass, and attention comes back. */
#ifndef KVD_MODEL_CUDA_ATTENTION_H
#define KVD_MODEL_CUDA_ATTENTION_H

#include <stddef.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "common/half.h"
#include "model/cuda/weights.h"

/*
 * One layer of one batch on one GPU, heads as kvd_gpu_share says. Work is queued on `stream`; the arrays are overwritten by what
 * the pass queues there after the door has returned. Row t of q starts at element t * ld, and holds the heads one after
 * another; likewise k and v (of the KV heads), q_pre and k_pre with ld_pre.
 */
typedef struct {
    const kvd_config *config; /* of the whole model                                                  */
    const kvd_gpu_share *share;
    int layer;
    size_t n_sequences;
    const size_t *offset;     /* host [n_sequences + 1]                                                 */
    size_t first_sequence;    /* index in the corpus                                                    */
    size_t n_tokens, longest; /* rows, and those of the longest sequence                             */
    kvd_dtype type;           /* KVD_F32 or KVD_BF16                                                 */
    const void *q, *k, *v;    /* after RoPE, unless the door wants them raw                          */
    size_t ld;
    const void *q_pre,
        *k_pre; /* before RoPE, NULL unless the door wants them; q and k themselves without RoPE */
    size_t ld_pre;
    size_t window; /* of this layer, 0: none                                                         */
    cudaStream_t stream;
    const kvd_cublas *lib;
    cublasHandle_t blas; /* on that stream                                                           */
} kvd_gpu_attention_in;

/* One per GPU. Several GPUs call theirs at once, from threads of their own with their device current. */
typedef struct kvd_gpu_attention kvd_gpu_attention;
struct kvd_gpu_attention {
    /* Queues attention: out [n_tokens][share's n_heads * d_head] of in->type. */
    int (*run)(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err);
    int wants_pre;
    int wants_raw; /* q, k and v as the product leaves them: the door adds bias, norms and RoPE itself, where the model has them */
};

/*
 * Exact attention. In bf16 with d_head a multiple of 16 up to 128, at most KVD_HEADS_MAX heads and no window shorter than max_len, the
 * kernels of kernels/cuda (Hopper's own, mma.sync elsewhere); otherwise a product, a softmax and a product per block of queries and
 * some heads, with scores and softmax in float32 and probabilities rounded to the type of the pass. The kernels want Q, K and V of a token
 * side by side, as one product leaves them; what lies otherwise goes the other way, whose scratch is then made.
 *
 * Made and used with one device current, on one stream. run() does not wait for the device, but for the copy of an earlier batch's
 * lengths when those of this one differ.
 */
typedef struct kvd_gpu_dense kvd_gpu_dense;
kvd_gpu_dense *kvd_gpu_dense_new(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype type,
                                 size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_gpu_dense_free(kvd_gpu_dense *d);
/* Bytes that kvd_gpu_dense_new takes on the device. */
size_t kvd_gpu_dense_bytes(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype type, size_t max_tokens,
                           size_t max_len);
kvd_gpu_attention *kvd_gpu_dense_door(kvd_gpu_dense *d);
/* "sm_90a kernel", "mma.sync kernel", "cuBLAS products": what a layer with this window runs on. */
const char *kvd_gpu_dense_engine(const kvd_gpu_dense *d, size_t window);

/*
 * The second way by itself, for the caches of methods/cuda, of heads with any leading dimensions: q [n_tokens][n_heads][d_head] of `type`,
 * rows ldq apart, heads d_head apart, k and v [n_tokens][n_kv_heads][d_head] likewise, out [n_tokens][n_heads][d_head]; the rest as *in
 * says, whose own q, k, v, type and n_tokens are not read. The caller fills narrower heads up with zeros. scratch is
 * kvd_gpu_attend_scratch bytes for a max_len of at least in->longest, at most 256 MB and 200 KB or one row of scores; n_heads are the
 * share's. Fastest where all rows of heads start at multiples of 16 bytes: all heads of all neighbours of equal length in one call.
 */
size_t kvd_gpu_attend_scratch(kvd_dtype type, size_t max_len, int n_heads);
int kvd_gpu_attend(const kvd_gpu_attention_in *in, kvd_dtype type, const void *q, size_t ldq, const void *k,
                   size_t ldk, const void *v, size_t ldv, void *out, size_t ldo, void *scratch, kvd_err *err);

/* Tap: record sees Q, K and V before `inner` computes; output, when not NULL, sees the attention output after. */
typedef struct {
    kvd_gpu_attention door;
    kvd_gpu_attention *inner;
    int (*record)(void *ctx, const kvd_gpu_attention_in *in, kvd_err *err);
    int (*output)(void *ctx, const kvd_gpu_attention_in *in, const void *out, kvd_err *err);
    void *ctx;
} kvd_gpu_tap;
void kvd_gpu_tap_init(kvd_gpu_tap *t, kvd_gpu_attention *inner);

#endif
