/*
 * One GPU of a forward pass: its share of the weights, its buffers, its stream, and what it computes of a batch, from the
 * embedding through the layers to the final norm (model/layer.h and model/forward.h on the CPU).
 *
 * Everything is queued on the stream. With several GPUs each has the whole residual stream: the products of O and of down
 * go into it, on the first GPU beside what it holds, and the sum over the GPUs is the residual behind them. Many rows go in two halves, so
 * that the sum of one runs on a stream of its own beside the products of the other: KVD_GPU_SUM is then the time that the products wait.
 */
#ifndef KVD_MODEL_CUDA_LAYER_H
#define KVD_MODEL_CUDA_LAYER_H

#include "model/batch.h"
#include "model/cuda/attention.h"
#include "model/cuda/blocks.h"
#include "model/cuda/forward.h"
#include "model/cuda/sum.h"

typedef struct {
    kvd_config config;
    int device;
    size_t max_tokens, max_len;
    kvd_gpu_weights weights;
    kvd_gpu_dense *dense; /* or NULL */
    kvd_gpu_sum *sum;     /* NULL on one GPU; borrowed */
    cudaStream_t stream;
    cudaStream_t sums;                 /* of halves */
    cudaEvent_t written[2], summed[2]; /* a half of the residual: before and behind its sum */
    const kvd_cublas *lib;
    cublasHandle_t blas;
    kvd_gpu_queued queued; /* NULL, or who wants to know what has been queued */
    void *queued_ctx;

    /* buffers, of the type of the pass where nothing else is said; rows are tokens */
    kvd_device_memory memory;
    float *x;     /* [max_tokens][d_model] float32, the residual stream                   */
    void *normed; /* [max_tokens][d_model], what goes into the products                   */
    void *second; /* the same of a second norm beside attention's, where a model has one  */
    void *qkv;    /* [max_tokens][(n_heads + 2 n_kv_heads) * d_head] of the share         */
    void *wide;   /* gate and up; before them Q and K before RoPE, or the embedding behind a projection */
    void *narrow; /* the activation of those; before it the attention output              */
    uint32_t *id, *position, *rope_row; /* [max_tokens] each, one after another           */
    float *cosine, *sine;
    kvd_gpu_bad *bad; /* where the first row that is not finite is */

    /* of the running batch */
    const float *pending; /* a bias that the residual still lacks, or NULL   */
    unsigned stage;       /* what a row of the residual that is not finite now comes from */
    unsigned under_way;   /* bit i: `stream` has not waited yet for the sum of half i  */
} kvd_gpu_worker;

/* Bytes of everything. */
size_t kvd_gpu_worker_bytes(const kvd_config *c, const kvd_gpu_forward_spec *s, const kvd_gpu_share *share,
                            bool dense);

/* On the device first_gpu + share->index, which becomes current. Zeroed before; free it whatever came back. dense: with dense attention;
 * without it a door comes with every run. */
int kvd_gpu_worker_open(kvd_gpu_worker *w, const kvd_checkpoint *c, const kvd_gpu_forward_spec *s,
                        const kvd_gpu_share *share, bool dense, kvd_err *err);
void kvd_gpu_worker_close(kvd_gpu_worker *w);

/* ids, positions and rope rows of n tokens, max_tokens apart in pinned memory, to the device; no bad row so far. */
int kvd_gpu_worker_begin(kvd_gpu_worker *w, const uint32_t *rows, size_t n, kvd_err *err);

/* The residual becomes the embedding, or a given one (on the first GPU), which enters `layer`. */
int kvd_gpu_embedding(kvd_gpu_worker *w, size_t n, kvd_err *err);
int kvd_gpu_residual_in(kvd_gpu_worker *w, const float *residual, int layer, size_t n, kvd_err *err);

/* One layer; with `stop` only to its attention output. Behind another than the last, sums may be under way. */
int kvd_gpu_layer_run(kvd_gpu_worker *w, const kvd_batch *b, int layer, kvd_gpu_attention *door, int stop,
                      kvd_err *err);

/* The stream waits for sums that run beside it. */
int kvd_gpu_join_sums(kvd_gpu_worker *w, kvd_err *err);

/* Queues the sum over the GPUs of what stands where the residual does: n rows. On one GPU nothing. */
int kvd_gpu_residual_sum(const kvd_gpu_worker *w, size_t n, kvd_err *err);

/* The residual, or what the final norm makes of it, into [n][d_model] on this GPU. */
int kvd_gpu_residual_out(kvd_gpu_worker *w, size_t n, float *residual, kvd_err *err);
int kvd_gpu_hidden_out(kvd_gpu_worker *w, size_t n, float *hidden, kvd_err *err);

/* logits [n][vocab_size] of n <= max_tokens rows of hidden. */
int kvd_gpu_head(kvd_gpu_worker *w, const float *hidden, size_t n, float *logits, kvd_err *err);
/* The same of rows of the pass's type. */
int kvd_gpu_head_of(kvd_gpu_worker *w, const void *in, size_t n, float *logits, kvd_err *err);

/* Waits. *bad is what is in w->bad. */
int kvd_gpu_worker_wait(kvd_gpu_worker *w, kvd_gpu_bad *bad, kvd_err *err);

/* Of the residual that enters a layer; layer n_layers: that enters the final norm. */
unsigned kvd_gpu_stage_before(int layer);
/* Of what comes out of the final norm. */
unsigned kvd_gpu_stage_final(const kvd_config *c);
/* "embedding", "layer 3", "final norm": where a stage is. */
void kvd_gpu_stage_name(const kvd_config *c, unsigned stage, char *to, size_t size);

#endif
