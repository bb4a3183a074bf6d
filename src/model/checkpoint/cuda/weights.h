/* Loads a model's weights onto one GPU (tensor parallelism as in Megatron-LM).
 *
 * Each of n GPUs holds 1/n of the heads and hidden units. Only the first GPU has the output head.
 * Experts that do not fit are streamed through two device buffers. */
#ifndef KVD_MODEL_CHECKPOINT_CUDA_WEIGHTS_H
#define KVD_MODEL_CHECKPOINT_CUDA_WEIGHTS_H

#include "common/cuda/memory.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/family.h"

/* purpose of loaded weights: forward pass, gradients or serving; only a forward pass supports all
 * models */
typedef enum { KVD_GPU_PASS, KVD_GPU_GRADIENTS, KVD_GPU_SERVING } kvd_gpu_use;

/* heads and hidden units that one of `count` GPUs holds in tensor parallelism */
typedef struct {
    int index, count; /* index of this GPU, and number of GPUs */
    int first_head, n_heads;
    int first_kv_head, n_kv_heads;
    int first_ffn, n_ffn;
    /* hidden units of each routed expert on this GPU: index of the first, and number */
    int first_expert, n_expert;
    /* hidden units of the shared expert on this GPU: index of the first, and number */
    int first_shared, n_shared;
} kvd_gpu_share;

/* weights of one expert with n hidden units, in device memory */
typedef struct {
    /* gate matrix, then up matrix: [2 n][d_model] */
    void *gate_up;
    /* second matrix (down projection) of the expert, [d_model][n] */
    void *down;
    /* biases, [2 n] and [d_model]; the latter is not split among GPUs */
    float *bias_gate_up, *bias_down;
} kvd_gpu_expert;

/* weights of latent attention, not split among GPUs */
typedef struct {
    /* first matrix of the query projection, [q_rank][d_model], or NULL */
    void *q_down;
    float *norm_q_down; /* gains of the norm after q_down: [q_rank], or NULL */
    /* query projection: [n_heads * (d_nope + rope_dims)][q_rank or d_model] */
    void *q;
    /* projection to latent and rotated key: [latent + rope_dims][d_model] */
    void *down;
    float *norm; /* gains of the norm of the latent: [latent] */
    /* matrix from latent to keys and values: [n_heads][d_nope + d_value][latent] */
    void *up;
} kvd_gpu_latent;

/* Computes which heads and hidden units GPU `index` has. Fails if `count` does not divide them. */
int kvd_gpu_share_of(const kvd_config *c, kvd_gpu_use use, int index, int count, kvd_gpu_share *out,
                     kvd_err *err);

/* a layer's weights on one GPU, matrices as [outputs][inputs]; NULL for weights that the model
 * lacks */
typedef struct {
    /* stacked matrices of the projections to Q, K and V, [(n_heads + 2 n_kv_heads) *
     * d_head][d_model] */
    void *qkv;
    /* output projection, [d_model][n_heads * d_head]; latent attention has d_value in place of
     * d_head */
    void *o;
    /* gate matrix, then up matrix: [2 n_ffn][d_model]; without a gate only the up matrix,
     * [n_ffn][d_model] */
    void *gate_up;
    void *down; /* [d_model][n_ffn] */
    /* biases; bias_o and bias_down are not split among GPUs */
    float *bias_qkv, *bias_o, *bias_gate_up, *bias_down;
    /* gains and biases of the layer's two norms, that of attention [0] and that of the feed-forward
     * block [1] */
    float *norm[2], *norm_bias[2];
    /* gains and biases of additional norms on the outputs of attention [0] and feed-forward block
     * [1] */
    float *branch[2], *branch_bias[2];
    /* gains of the norms of Q and K: [d_head], or [heads * d_head] if one norm covers all heads */
    float *norm_q, *norm_k;
    float *sinks;          /* logits of the attention sinks: [n_heads] */
    kvd_gpu_latent latent; /* replaces qkv */
    /* router: matrix [n_experts][d_model], bias of its logits, and bias that only the choice of
     * experts uses */
    float *router, *bias_router, *bias_choice;
    /* [n_experts] in host memory: addresses of the routed experts' weights on the GPU; NULL if the
     * weights are streamed to the GPU */
    kvd_gpu_expert *expert;
    kvd_gpu_expert shared;
    /* vector w [d_model]: the shared expert's output is multiplied by sigmoid(x w), for its
     * input x */
    float *shared_scale;
    /* number of elements of Q, K and V together per token, and of columns of the output projection
     * `o` */
    int n_qkv, n_o;
} kvd_gpu_layer;

typedef struct kvd_gpu_expert_stream kvd_gpu_expert_stream;

typedef struct kvd_gpu_weights {
    kvd_config config;
    kvd_dtype type;
    kvd_gpu_share share;
    kvd_gpu_layer *layer; /* host array [n_layers] */
    void *embedding;      /* [vocab_size][d_embed] */
    /* output head [vocab_size][d_embed], on the first GPU only */
    void *head;
    /* vectors of learned positions, [max_positions + 2][d_model]; NULL in models with RoPE */
    float *positions;
    /* matrix [d_model][d_embed] that maps embeddings to d_model dimensions; NULL if d_embed is
     * d_model */
    void *project_in;
    /* matrix [d_embed][d_model] before the output head; NULL if d_embed is d_model, and on all GPUs
     * but the first */
    void *project_out;
    float *norm_final, *norm_final_bias;
    size_t bytes;
    /* device buffers for experts that are streamed from the host; NULL if all weights are in device
     * memory */
    kvd_gpu_expert_stream *streamed;
    void *arena;
} kvd_gpu_weights;

size_t kvd_gpu_weights_bytes(const kvd_config *c, kvd_dtype type, const kvd_gpu_share *share,
                             bool streamed);

/* Loads the weights to the current device. If device memory is too small, fails and says how many
 * bytes are needed. If `streamed`, the checkpoint must stay open, because experts are read from it
 * later. */
int kvd_gpu_weights_load(kvd_gpu_weights *w, const kvd_checkpoint *c, kvd_dtype type,
                         const kvd_gpu_share *share, bool streamed, kvd_err *err);
void kvd_gpu_weights_release(kvd_gpu_weights *w);

/* Copies an expert's weights into a device buffer; *to receives their addresses for work on
 * `stream`. After that work is queued, call kvd_gpu_expert_used. */
int kvd_gpu_expert_fetch(kvd_gpu_expert_stream *s, int layer, int expert, cudaStream_t stream,
                         kvd_gpu_expert *to, kvd_err *err);
int kvd_gpu_expert_used(kvd_gpu_expert_stream *s, cudaStream_t stream, kvd_err *err);

#endif
