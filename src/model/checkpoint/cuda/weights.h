/*
 * Loads the weights of a model, or of some of its layers, onto one GPU (tensor parallelism as in
 * Megatron-LM, Shoeybi et al. 2019).
 *
 * Each of n GPUs holds the weights of 1/n of the KV heads with their query heads, and of 1/n of the
 * hidden units: rows of Q, K, V, gate and up, and columns of O and down. Products with O and down
 * are summed over the GPUs. Only the first GPU holds the output head.
 *
 * Experts that do not fit are streamed from the checkpoint into two device buffers in turn.
 */
#ifndef KVD_MODEL_CHECKPOINT_CUDA_WEIGHTS_H
#define KVD_MODEL_CHECKPOINT_CUDA_WEIGHTS_H

#include "common/cuda/memory.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/family.h"

/*
 * Purpose for which the weights are loaded: forward pass, gradients, or serving. Only KVD_GPU_PASS
 * supports all models.
 */
typedef enum { KVD_GPU_PASS, KVD_GPU_GRADIENTS, KVD_GPU_SERVING } kvd_gpu_use;

/* Part of a model that one of `count` GPUs holds: its heads and hidden units. */
typedef struct {
    int index, count; /* index of this GPU, and number of GPUs */
    int first_head, n_heads;
    int first_kv_head, n_kv_heads;
    int first_ffn, n_ffn;
    /* First hidden unit of each routed expert on this GPU, and number of units. */
    int first_expert, n_expert;
    /* First hidden unit of the shared expert on this GPU, and number of units. */
    int first_shared, n_shared;
} kvd_gpu_share;

/* Weights of one expert in device memory. n is the number of its hidden units there. */
typedef struct {
    /* Gate matrix followed by up matrix: [2 n][d_model]. */
    void *gate_up;
    /* Down matrix: [d_model][n]. */
    void *down;
    /* Biases: bias_gate_up [2 n], bias_down [d_model]. The latter is not split among GPUs. */
    float *bias_gate_up, *bias_down;
} kvd_gpu_expert;

/* Weights of latent attention (model/pass/latent.h), not split among GPUs. */
typedef struct {
    /* First of two matrices of the query projection, [q_rank][d_model], or NULL. */
    void *q_down;
    float *norm_q_down; /* gains of the norm after q_down: [q_rank], or NULL */
    /* Query projection: n_heads * (d_nope + rope_dims) rows of q_rank or d_model columns. */
    void *q;
    /* Projection to the latent and rotated key: [latent + rope_dims][d_model]. */
    void *down;
    float *norm; /* gains of the norm of the latent: [latent] */
    /* Matrix from latent to keys and values: [n_heads][d_nope + d_value][latent]. */
    void *up;
} kvd_gpu_latent;

/*
 * Computes which heads and hidden units GPU `index` of `count` holds. Fails if `count` does not
 * divide their numbers.
 */
int kvd_gpu_share_of(const kvd_config *c, kvd_gpu_use use, int index, int count, kvd_gpu_share *out,
                     kvd_err *err);

/*
 * Weights of one layer in the memory of one GPU, row-major [outputs][inputs]. NULL if the model
 * does not have them.
 */
typedef struct {
    /* Projections of Q, K and V: [(n_heads + 2 n_kv_heads) * d_head][d_model]. */
    void *qkv;
    /*
     * Output projection: [d_model][n_heads * d_head], with d_value for d_head in latent attention.
     */
    void *o;
    /*
     * Gate matrix followed by up matrix, [2 n_ffn][d_model]. If there is no gate, only the up
     * matrix, [n_ffn][d_model].
     */
    void *gate_up;
    void *down; /* [d_model][n_ffn] */
    /* Biases; bias_o and bias_down are not split among GPUs. */
    float *bias_qkv, *bias_o, *bias_gate_up, *bias_down;
    /*
     * Gains of the norms before attention [0] and feed-forward block [1]. With KVD_ORDER_AFTER
     * these norms come after the blocks.
     */
    float *norm[2], *norm_bias[2];
    /* Norms of the outputs of attention [0] and feed-forward block [1]. */
    float *branch[2], *branch_bias[2];
    /* Gains of the norms of Q and K: [d_head], or one per head and dimension. */
    float *norm_q, *norm_k;
    float *sinks;          /* logits of the attention sinks: [n_heads] */
    kvd_gpu_latent latent; /* replaces qkv */
    /*
     * Router matrix [n_experts][d_model], its bias [n_experts], and a bias that counts only for
     * choosing experts.
     */
    float *router, *bias_router, *bias_choice;
    /* Host array [n_experts] of device pointers, NULL if experts are streamed. */
    kvd_gpu_expert *expert;
    kvd_gpu_expert shared;
    /* Vector w [d_model]: the output of the shared expert is multiplied by sigmoid(x w). */
    float *shared_scale;
    /* Number of elements of Q, K and V together per token, and number of columns of `o`. */
    int n_qkv, n_o;
} kvd_gpu_layer;

typedef struct kvd_gpu_expert_stream kvd_gpu_expert_stream;

typedef struct kvd_gpu_weights {
    kvd_config config;
    kvd_dtype type;
    kvd_gpu_share share;
    kvd_gpu_layer *layer; /* host array [n_layers] */
    void *embedding;      /* [vocab_size][d_embed] */
    /* Output head [vocab_size][d_embed], on the first GPU only. */
    void *head;
    /* Learned positions [max_positions + 2][d_model]; NULL with RoPE. */
    float *positions;
    /* Matrix that projects the embedding to d_model: [d_model][d_embed], or NULL. */
    void *project_in;
    /*
     * Matrix that projects d_model to the width of the output head: [d_embed][d_model], or NULL;
     * first GPU only.
     */
    void *project_out;
    float *norm_final, *norm_final_bias;
    size_t bytes;
    /* Buffers for streamed experts; NULL if experts are in device memory. */
    kvd_gpu_expert_stream *streamed;
    void *arena;
} kvd_gpu_weights;

size_t kvd_gpu_weights_bytes(const kvd_config *c, kvd_dtype type, const kvd_gpu_share *share,
                             bool streamed);

/*
 * Loads the weights to the current device. If memory is short, fails with the needed bytes. If
 * `streamed`, experts are not loaded, and the checkpoint must stay open.
 */
int kvd_gpu_weights_load(kvd_gpu_weights *w, const kvd_checkpoint *c, kvd_dtype type,
                         const kvd_gpu_share *share, bool streamed, kvd_err *err);
void kvd_gpu_weights_release(kvd_gpu_weights *w);

/*
 * Copies the weights of an expert into a buffer for use on `stream`. kvd_gpu_expert_used must be
 * called before the next fetch.
 */
int kvd_gpu_expert_fetch(kvd_gpu_expert_stream *s, int layer, int expert, cudaStream_t stream,
                         kvd_gpu_expert *to, kvd_err *err);
int kvd_gpu_expert_used(kvd_gpu_expert_stream *s, cudaStream_t stream, kvd_err *err);

#endif
