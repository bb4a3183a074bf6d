/*
 * All weights of a model on one GPU, or its share of them when several GPUs hold one model between them (tensor parallelism,
 * as Megatron-LM cuts: Shoeybi et al. 2019). Matrices have the type of the pass, vectors are float32.
 *
 * Share g of n has KV heads g n_kv_heads / n .. and their query heads, and columns g ffn / n .. of the feed-forward block: Q, K,
 * V, gate and up are cut by rows of the stored matrices, O and down by columns, whose products are then summed over the
 * shares. Norms, embedding and what is added after a sum (the biases of O and down) stand on every GPU, the head (with its
 * projection) on the first.
 */
#ifndef KVD_MODEL_CUDA_WEIGHTS_H
#define KVD_MODEL_CUDA_WEIGHTS_H

#include "common/cuda/memory.h"
#include "model/checkpoint.h"
#include "model/family.h"

/* Where a share stands in the model. */
typedef struct {
    int index, count;        /* this one, of so many                       */
    int first_head, n_heads; /* query heads                                */
    int first_kv_head, n_kv_heads;
    int first_ffn, n_ffn;
} kvd_gpu_share;

/* Fails, naming the numbers, when heads or ffn do not divide by count. */
int kvd_gpu_share_of(const kvd_config *c, int index, int count, kvd_gpu_share *out, kvd_err *err);

/* One layer. Matrices [out][in] row-major as checkpoints store them. NULL where the model has none. */
typedef struct {
    void *qkv;     /* [(n_heads + 2 n_kv_heads) * d_head][d_model] of the share             */
    void *o;       /* [d_model][n_heads * d_head]                                          */
    void *gate_up; /* [2 n_ffn][d_model], gate first; without a gate [n_ffn][d_model]      */
    void *down;    /* [d_model][n_ffn]                                                     */
    float *bias_qkv, *bias_o, *bias_gate_up, *bias_down; /* o, down: whole on every share  */
    float *norm[2], *norm_bias[2];                       /* attention's, feed-forward's    */
    float *norm_q, *norm_k;                              /* [d_head]                       */
    /* Rows of qkv and columns of o: as above, fewer where V is cut (serving/cuda/fold.h). */
    int n_qkv, n_o;
} kvd_gpu_layer;

typedef struct {
    kvd_config config;
    kvd_dtype type;
    kvd_gpu_share share;
    kvd_gpu_layer *layer; /* [n_layers]                                                       */
    void *embedding;      /* [vocab_size][d_embed]                                            */
    void *head;           /* [vocab_size][d_embed], the embedding itself when tied; share 0   */
    float *positions;     /* [max_positions + 2][d_model] or NULL                             */
    void *project_in;     /* [d_model][d_embed] or NULL                                      */
    void *project_out;    /* [d_embed][d_model] or NULL; share 0                              */
    float *norm_final, *norm_final_bias;
    size_t bytes; /* on this GPU                                                                 */
    /* private */
    void *arena;
} kvd_gpu_weights;

/* Bytes that kvd_gpu_weights_load takes on one GPU. */
size_t kvd_gpu_weights_bytes(const kvd_config *c, kvd_dtype type, const kvd_gpu_share *share);

/*
 * Allocates and fills, on the current device: the file is read and converted by all threads in pieces, in pinned memory, while
 * earlier pieces are copied. Weights of the same type are copied as they are stored. Random weights (model/shapes.h) are made
 * on the device. Fails with both numbers when the device has not enough memory left.
 */
int kvd_gpu_weights_load(kvd_gpu_weights *w, const kvd_checkpoint *c, kvd_dtype type,
                         const kvd_gpu_share *share, kvd_err *err);
void kvd_gpu_weights_release(kvd_gpu_weights *w);

#endif
