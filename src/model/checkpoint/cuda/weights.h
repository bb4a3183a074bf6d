/*
 * Loads all weights of a model onto one GPU, or one GPU's section ("share") of them if several GPUs
 * hold one model (tensor parallelism as in Megatron-LM, Shoeybi et al. 2019). Matrices have the
 * element type of the forward pass; vectors are float32.
 *
 * GPU g of n holds the KV heads from g n_kv_heads / n on with their query heads, and the hidden
 * units of the feed-forward block from g d_ffn / n on. The matrices of Q, K, V, gate and up are
 * split by rows, those of O (attention output) and down by columns; products with O and down are
 * summed over the GPUs. Every GPU holds the norms, the embedding and the biases that are added
 * after such a sum. Only the first GPU holds the output head with its projection.
 *
 * Routed experts that do not fit are streamed. When a batch needs an expert, it is read from the
 * checkpoint through two pinned buffers, on a separate CUDA stream, into one of two device buffers
 * (slots). One slot is filled while products read the other.
 */
#ifndef KVD_MODEL_CHECKPOINT_CUDA_WEIGHTS_H
#define KVD_MODEL_CHECKPOINT_CUDA_WEIGHTS_H

#include "common/cuda/memory.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/family.h"

/*
 * Computations on a GPU: forward pass, gradients, serving. The forward pass supports all models.
 * The others fail for models with a feature that they do not support, and name the feature.
 */
typedef enum { KVD_GPU_PASS, KVD_GPU_GRADIENTS, KVD_GPU_SERVING } kvd_gpu_use;

/* Heads and hidden units of the feed-forward block that one GPU holds ("share" of the model). */
typedef struct {
    int index, count;        /* index of this GPU, and number of GPUs that hold the model */
    int first_head, n_heads; /* query heads of this GPU */
    int first_kv_head, n_kv_heads;
    int first_ffn, n_ffn;
    /*
     * Range of the hidden units of a routed expert that this GPU holds. It is the same for all
     * experts.
     */
    int first_expert, n_expert;
    /*
     * Range of the hidden units of the shared expert, which every token uses, that this GPU holds.
     */
    int first_shared, n_shared;
} kvd_gpu_share;

/*
 * Device arrays with the weights of one expert, a feed-forward block with n hidden units on this
 * GPU.
 */
typedef struct {
    /* Gate matrix followed by up matrix: [2 n][d_model], for n hidden units on this GPU. */
    void *gate_up;
    /* Down matrix: [d_model][n], for n hidden units on this GPU. */
    void *down;
    /*
     * Biases: bias_gate_up [2 n], for n hidden units on this GPU, and bias_down [d_model], which
     * every GPU holds whole.
     */
    float *bias_gate_up, *bias_down;
} kvd_gpu_expert;

/* Weights of latent attention (model/pass/latent.h). Every GPU holds all heads. */
typedef struct {
    /*
     * First matrix of a factored query projection: [q_rank][d_model], or NULL if the projection is
     * one matrix.
     */
    void *q_down;
    float *norm_q_down; /* gains of the norm after q_down: [q_rank], or NULL */
    /*
     * Query projection: [n_heads * (d_nope + rope_dims)] rows of q_rank columns, or of d_model
     * columns if q_down is NULL.
     */
    void *q;
    /* Projection to the latent and rotated key: [latent + rope_dims][d_model]. */
    void *down;
    float *norm; /* gains of the norm of the latent: [latent] */
    /*
     * Matrices that map the latent to the keys and values of each head: first d_nope rows for the
     * unrotated key dimensions, then d_value rows for the value: [n_heads][d_nope +
     * d_value][latent].
     */
    void *up;
} kvd_gpu_latent;

/*
 * Fills *out with the heads and hidden units that GPU `index` of `count` holds. Fails if the
 * computation `use` does not support the model, naming the feature, or if the numbers of heads or
 * hidden units are not multiples of count, naming the numbers.
 */
int kvd_gpu_share_of(const kvd_config *c, kvd_gpu_use use, int index, int count, kvd_gpu_share *out,
                     kvd_err *err);

/*
 * Weights of one layer on one GPU. Matrices are [outputs][inputs] row-major, as checkpoints store
 * them. A pointer is NULL if the model has no such weights. Numbers of heads are those of this GPU.
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
     * Gate matrix followed by up matrix: [2 n_ffn][d_model]; without a gate only up
     * [n_ffn][d_model].
     */
    void *gate_up;
    void *down; /* down matrix of the feed-forward block: [d_model][n_ffn] */
    /* Biases of the matrices above. bias_o and bias_down are whole on every GPU. */
    float *bias_qkv, *bias_o, *bias_gate_up, *bias_down;
    /*
     * Gains and biases of two norms: [0] of attention, [1] of the feed-forward block. Each norm
     * reads the input of its block; with KVD_ORDER_AFTER it reads the sum of the block's output and
     * the residual.
     */
    float *norm[2], *norm_bias[2];
    /*
     * Gains and biases of the norms applied to the outputs of attention [0] and feed-forward block
     * [1].
     */
    float *branch[2], *branch_bias[2];
    /*
     * Gains of the norms of Q and K: vectors [d_head], common to all heads. If the configuration
     * sets qk_norm_whole, each norm covers all heads together: [n_heads * d_head] for Q,
     * [n_kv_heads * d_head] for K.
     */
    float *norm_q, *norm_k;
    float *sinks;          /* logits of the attention sinks: [n_heads] */
    kvd_gpu_latent latent; /* weights of latent attention, which replace qkv */
    /*
     * Routing of a layer with routed experts, in which gate_up and down are NULL. `router` is the
     * matrix [n_experts][d_model] that scores the experts, and bias_router [n_experts] its bias.
     * bias_choice [n_experts] is a second bias of the scores that is used only to choose experts.
     */
    float *router, *bias_router, *bias_choice;
    /*
     * Weights of the routed experts: host array [n_experts] of device pointers, which are NULL if
     * experts are streamed.
     */
    kvd_gpu_expert *expert;
    kvd_gpu_expert shared; /* weights of the shared expert, which every token uses */
    /*
     * Vector w [d_model]: the output of the shared expert is multiplied by sigmoid(x w), where x is
     * the input of the feed-forward block.
     */
    float *shared_scale;
    /*
     * n_qkv: number of values of Q, K and V per token. n_o: number of columns of the output
     * projection. Both are smaller than in the model if a compression method has truncated V
     * (methods/cuda/fold.h).
     */
    int n_qkv, n_o;
} kvd_gpu_layer;

typedef struct kvd_gpu_expert_stream kvd_gpu_expert_stream;

typedef struct kvd_gpu_weights {
    kvd_config config;
    kvd_dtype type;
    kvd_gpu_share share;
    kvd_gpu_layer *layer; /* host array [n_layers] */
    void *embedding;      /* embedding of each token: [vocab_size][d_embed] */
    /*
     * Output head [vocab_size][d_embed], on the first GPU only; if tied, the same pointer as
     * `embedding`.
     */
    void *head;
    /* Learned position vectors [max_positions + 2][d_model], or NULL. */
    float *positions;
    /* Projection of the embedding to the residual stream: [d_model][d_embed], or NULL. */
    void *project_in;
    /*
     * Projection of the residual stream to the output head: [d_embed][d_model], or NULL; first GPU
     * only.
     */
    void *project_out;
    float *norm_final, *norm_final_bias;
    size_t bytes; /* bytes of device memory that the weights take on this GPU */
    /* Copies routed experts to the device on demand; NULL if all experts are in device memory. */
    kvd_gpu_expert_stream *streamed;
    /* Private: the device allocation that contains all weight arrays. */
    void *arena;
} kvd_gpu_weights;

/* Returns the bytes of device memory that kvd_gpu_weights_load allocates on one GPU. */
size_t kvd_gpu_weights_bytes(const kvd_config *c, kvd_dtype type, const kvd_gpu_share *share,
                             bool streamed);

/*
 * Allocates and fills the weights on the current device. All threads read and convert the file
 * piecewise into pinned memory while earlier pieces are copied. Weights that the file stores in
 * `type` are copied without conversion. Random weights (model/checkpoint/shapes.h) are made on the
 * device. If the device has too little free memory, fails with the needed and the free bytes. If
 * `streamed`, routed experts are not loaded, and the checkpoint must stay open.
 */
int kvd_gpu_weights_load(kvd_gpu_weights *w, const kvd_checkpoint *c, kvd_dtype type,
                         const kvd_gpu_share *share, bool streamed, kvd_err *err);
void kvd_gpu_weights_release(kvd_gpu_weights *w);

/*
 * Copies a routed expert into one of the two device slots and fills *to with its addresses. Work
 * queued on `stream` after this call may read it. Returns when the file has been read; the copies
 * may still be running. When all work that reads the expert is queued, the caller must call
 * kvd_gpu_expert_used before it fetches another expert.
 */
int kvd_gpu_expert_fetch(kvd_gpu_expert_stream *s, int layer, int expert, cudaStream_t stream,
                         kvd_gpu_expert *to, kvd_err *err);
int kvd_gpu_expert_used(kvd_gpu_expert_stream *s, cudaStream_t stream, kvd_err *err);

#endif
