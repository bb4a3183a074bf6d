/*
 * Loads the weights of a model onto one GPU. Several GPUs can hold one model, each a section of it
 * (tensor parallelism as in Megatron-LM, Shoeybi et al. 2019). Matrices have the element type of
 * the forward pass; vectors are float32.
 *
 * Each of n GPUs holds n_kv_heads / n KV heads and the query heads that share them. The first KV
 * head of GPU g is head g n_kv_heads / n, its first hidden unit of the feed-forward block is unit
 * g d_ffn / n. The matrices of Q, K, V, gate and up are split by rows, those of O (attention
 * output) and down by columns. The products with O and down are summed over the GPUs. Every GPU
 * holds the norms, the embedding and the biases that are added after a sum over the GPUs. Only the
 * first GPU holds the output head.
 *
 * Routed experts that do not fit are streamed: read from the checkpoint when a batch needs them,
 * into one of two device buffers (slots). One slot is filled while products read the other.
 */
#ifndef KVD_MODEL_CHECKPOINT_CUDA_WEIGHTS_H
#define KVD_MODEL_CHECKPOINT_CUDA_WEIGHTS_H

#include "common/cuda/memory.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/family.h"

/*
 * Purpose of the weights. KVD_GPU_PASS, the forward pass, supports all models. The other purposes
 * fail for models with an unsupported feature, and name the feature.
 */
typedef enum { KVD_GPU_PASS, KVD_GPU_GRADIENTS, KVD_GPU_SERVING } kvd_gpu_use;

/* Heads and hidden units that one of `count` GPUs holds. */
typedef struct {
    int index, count; /* index of this GPU, and number of GPUs */
    int first_head, n_heads;
    int first_kv_head, n_kv_heads;
    int first_ffn, n_ffn;
    /* First hidden unit and number of hidden units of each routed expert on this GPU. */
    int first_expert, n_expert;
    /* First hidden unit and number of hidden units of the shared expert, which every token uses. */
    int first_shared, n_shared;
} kvd_gpu_share;

/*
 * Device arrays with the weights of one expert. `n` in the shapes is the number of its hidden units
 * on this GPU.
 */
typedef struct {
    /* Gate matrix followed by up matrix: [2 n][d_model]. */
    void *gate_up;
    /* [d_model][n] */
    void *down;
    /* bias_gate_up [2 n]; bias_down [d_model], whose values are not split among GPUs. */
    float *bias_gate_up, *bias_down;
} kvd_gpu_expert;

/* Weights of latent attention (model/pass/latent.h). Every GPU holds all heads. */
typedef struct {
    /*
     * First of the two matrices whose product is the query projection (latent attention):
     * [q_rank][d_model], or NULL.
     */
    void *q_down;
    float *norm_q_down; /* gains of the norm after q_down: [q_rank], or NULL */
    /*
     * Query projection: [n_heads * (d_nope + rope_dims)] rows of q_rank columns, or of d_model
     * without q_down.
     */
    void *q;
    /* Projection to the latent and rotated key: [latent + rope_dims][d_model]. */
    void *down;
    float *norm; /* gains of the norm of the latent: [latent] */
    /*
     * Maps the latent to keys and values: [n_heads][d_nope + d_value][latent]. For each head, the
     * first d_nope rows give the key without rotation, the next d_value rows the value.
     */
    void *up;
} kvd_gpu_latent;

/*
 * Fills *out with the heads and hidden units that GPU `index` of `count` holds. Fails if `use` does
 * not support the model, or if the numbers of heads or hidden units are not multiples of count.
 */
int kvd_gpu_share_of(const kvd_config *c, kvd_gpu_use use, int index, int count, kvd_gpu_share *out,
                     kvd_err *err);

/*
 * Weights of one layer on one GPU. Matrices are [outputs][inputs] row-major, as in checkpoints. A
 * pointer is NULL if the model has no such weights. n_heads and n_kv_heads in shapes are the
 * numbers of heads on this GPU.
 */
typedef struct {
    /* Projections of Q, K and V: [(n_heads + 2 n_kv_heads) * d_head][d_model]. */
    void *qkv;
    /*
     * Output projection of attention: [d_model][n_heads * d_head], with latent attention
     * [d_model][n_heads * d_value].
     */
    void *o;
    /*
     * Gate matrix followed by up matrix: [2 n_ffn][d_model]. A model without a gate has only the up
     * matrix [n_ffn][d_model].
     */
    void *gate_up;
    void *down; /* [d_model][n_ffn] */
    /* Biases. bias_o and bias_down are not split among GPUs. */
    float *bias_qkv, *bias_o, *bias_gate_up, *bias_down;
    /*
     * Norms of attention [0] and of the feed-forward block [1]. A norm is applied to the input of
     * its block. In models of order KVD_ORDER_AFTER it is applied to the sum of the block's output
     * and the residual stream.
     */
    float *norm[2], *norm_bias[2];
    /*
     * Norms applied to the outputs, before they are added to the residual stream, of attention [0]
     * and of the feed-forward block [1].
     */
    float *branch[2], *branch_bias[2];
    /*
     * Gains of the norms of Q and K: [d_head], common to all heads. With qk_norm_whole, [n_heads *
     * d_head] for Q and [n_kv_heads * d_head] for K.
     */
    float *norm_q, *norm_k;
    float *sinks;          /* logits of the attention sinks: [n_heads] */
    kvd_gpu_latent latent; /* replaces qkv */
    /*
     * In a layer with routed experts, gate_up and down are NULL. `router` is [n_experts][d_model]
     * and its bias [n_experts]. bias_choice [n_experts] is added to the scores only to choose
     * experts.
     */
    float *router, *bias_router, *bias_choice;
    /*
     * Host array [n_experts] with the device pointers of each expert, which are NULL if experts are
     * streamed.
     */
    kvd_gpu_expert *expert;
    kvd_gpu_expert shared;
    /*
     * Vector w [d_model]: the output of the shared expert is multiplied by sigmoid(x w), where x is
     * the input of the feed-forward block.
     */
    float *shared_scale;
    /*
     * n_qkv is the number of values of Q, K and V per token. n_o is the number of columns of the
     * matrix `o`. A compression method that truncates V makes both smaller (methods/cuda/fold.h).
     */
    int n_qkv, n_o;
} kvd_gpu_layer;

typedef struct kvd_gpu_expert_stream kvd_gpu_expert_stream;

typedef struct kvd_gpu_weights {
    kvd_config config;
    kvd_dtype type;
    kvd_gpu_share share;
    kvd_gpu_layer *layer; /* weights of the layers: host array [n_layers] */
    void *embedding;      /* [vocab_size][d_embed] */
    /*
     * Output head [vocab_size][d_embed], on the first GPU only; if tied, the pointer `embedding`.
     */
    void *head;
    /* Learned position vectors [max_positions + 2][d_model]; NULL if the model uses RoPE. */
    float *positions;
    /* Projection from the embedding to the residual stream: [d_model][d_embed], or NULL. */
    void *project_in;
    /*
     * Projection from the residual stream to the output head's input: [d_embed][d_model], or NULL;
     * first GPU only.
     */
    void *project_out;
    float *norm_final, *norm_final_bias;
    size_t bytes;
    /* Buffers into which experts are streamed; NULL if all experts are in device memory. */
    kvd_gpu_expert_stream *streamed;
    void *arena;
} kvd_gpu_weights;

size_t kvd_gpu_weights_bytes(const kvd_config *c, kvd_dtype type, const kvd_gpu_share *share,
                             bool streamed);

/*
 * Allocates and fills the weights on the current device. All threads read the checkpoint. If the
 * device has too little free memory, fails with the needed and the free bytes. If `streamed`,
 * routed experts are not loaded, and the checkpoint must stay open.
 */
int kvd_gpu_weights_load(kvd_gpu_weights *w, const kvd_checkpoint *c, kvd_dtype type,
                         const kvd_gpu_share *share, bool streamed, kvd_err *err);
void kvd_gpu_weights_release(kvd_gpu_weights *w);

/*
 * Copies a routed expert into one of the two device slots and fills *to with its addresses. Work
 * queued on `stream` after this call may read the expert. When all such work is queued, the caller
 * must call kvd_gpu_expert_used before it fetches another expert.
 */
int kvd_gpu_expert_fetch(kvd_gpu_expert_stream *s, int layer, int expert, cudaStream_t stream,
                         kvd_gpu_expert *to, kvd_err *err);
int kvd_gpu_expert_used(kvd_gpu_expert_stream *s, cudaStream_t stream, kvd_err *err);

#endif
