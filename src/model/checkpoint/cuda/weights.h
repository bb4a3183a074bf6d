/*
 * Loads all weights of a model onto one GPU, or one GPU's share of them if several GPUs hold one
 * model (tensor parallelism, split as in Megatron-LM: Shoeybi et al. 2019). Matrices have the type
 * of the pass; vectors are float32.
 *
 * Share g of n has the KV heads from g n_kv_heads / n on with their query heads, and the columns of
 * the feed-forward block from g ffn / n on. Q, K, V, gate and up are split by rows of the stored
 * matrices, O and down by columns, and the products of these two are summed over the shares. Every
 * GPU holds the norms, the embedding and the values added after a sum (the biases of O and down).
 * Only the first GPU holds the head with its projection.
 *
 * Routed experts that do not fit are streamed: an expert is read from the checkpoint, through two
 * pinned buffers and on a stream of its own, into one of two slots on the device when a batch needs
 * it. While one slot is read by the products, the other is filled.
 */
#ifndef KVD_MODEL_CHECKPOINT_CUDA_WEIGHTS_H
#define KVD_MODEL_CHECKPOINT_CUDA_WEIGHTS_H

#include "common/cuda/memory.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/family.h"

/*
 * Computations on a GPU: forward pass, gradients, serving. Each rejects models with a feature that
 * it does not support, and names the feature.
 */
typedef enum { KVD_GPU_PASS, KVD_GPU_GRADIENTS, KVD_GPU_SERVING } kvd_gpu_use;

/* Heads and feed-forward columns of one share of the model. */
typedef struct {
    int index, count;        /* index of this share, and number of shares */
    int first_head, n_heads; /* query heads */
    int first_kv_head, n_kv_heads;
    int first_ffn, n_ffn;
    int first_expert, n_expert; /* columns of every routed expert */
    int first_shared, n_shared; /* columns of the expert that every token uses */
} kvd_gpu_share;

/* Device arrays with the weights of one expert, whose feed-forward block has n columns. */
typedef struct {
    void *gate_up;                   /* [2 n][d_model], gate first */
    void *down;                      /* [d_model][n] */
    float *bias_gate_up, *bias_down; /* bias_down: complete on every share */
} kvd_gpu_expert;

/* Weights of latent attention (model/pass/latent.h), of all heads. */
typedef struct {
    void *q_down;       /* [q_rank][d_model], or NULL */
    float *norm_q_down; /* [q_rank], or NULL */
    void *q;            /* [n_heads * (d_nope + rope_dims)][q_rank, or d_model without q_down] */
    void *down;         /* [latent + rope_dims][d_model] */
    float *norm;        /* [latent] */
    void *up;           /* [n_heads][d_nope + d_value][latent] */
} kvd_gpu_latent;

/*
 * Fills *out with share `index` of `count`. Fails if `use` does not compute such a model, naming
 * the feature, or if heads or ffn are not multiples of count, naming the numbers.
 */
int kvd_gpu_share_of(const kvd_config *c, kvd_gpu_use use, int index, int count, kvd_gpu_share *out,
                     kvd_err *err);

/*
 * Weights of one layer. Matrices are [out][in] row-major, as checkpoints store them. A pointer is
 * NULL if the model has no such weights.
 */
typedef struct {
    void *qkv;     /* [(n_heads + 2 n_kv_heads) * d_head][d_model] of the share */
    void *o;       /* [d_model][n_heads * d_head]; with latents [d_model][n_heads * d_value] */
    void *gate_up; /* [2 n_ffn][d_model], gate first; without a gate [n_ffn][d_model] */
    void *down;    /* [d_model][n_ffn] */
    /*
     * Biases of the output projection and of the down matrix; every share holds all of their
     * elements.
     */
    float *bias_qkv, *bias_o, *bias_gate_up, *bias_down;
    /*
     * gains and biases of the norms of attention and of the feed-forward block. They are before
     * these blocks; with KVD_ORDER_AFTER they are after their sums with the residual
     */
    float *norm[2], *norm_bias[2];
    /* gains of the norms after attention and after the feed-forward block, with their biases */
    float *branch[2], *branch_bias[2];
    /*
     * gains of the norms of Q and K: [d_head], or with qk_norm_whole [n_heads * d_head] and
     * [n_kv_heads * d_head]
     */
    float *norm_q, *norm_k;
    float *sinks;          /* [n_heads] of the share */
    kvd_gpu_latent latent; /* latent attention, in place of qkv */
    /*
     * Arrays of a layer with routed experts, which has no gate_up and down. Router: matrix
     * [n_experts][d_model], bias [n_experts], and a second bias [n_experts] used only to choose
     * experts. On the host: the list [n_experts] of experts, whose pointers are NULL if experts are
     * streamed. Shared expert, which every token uses: its weights, and those [d_model] of its
     * factor.
     */
    float *router, *bias_router, *bias_choice;
    kvd_gpu_expert *expert;
    kvd_gpu_expert shared;
    float *shared_scale;
    /*
     * n_qkv: number of values of Q, K and V per token. n_o: number of columns of the output
     * projection. They are smaller than in the model if V is truncated (methods/cuda/fold.h).
     */
    int n_qkv, n_o;
} kvd_gpu_layer;

typedef struct kvd_gpu_expert_stream kvd_gpu_expert_stream;

typedef struct kvd_gpu_weights {
    kvd_config config;
    kvd_dtype type;
    kvd_gpu_share share;
    kvd_gpu_layer *layer; /* [n_layers] */
    void *embedding;      /* [vocab_size][d_embed] */
    void *head;           /* [vocab_size][d_embed], the embedding itself if tied; share 0 only */
    float *positions;     /* [max_positions + 2][d_model] or NULL */
    void *project_in;     /* [d_model][d_embed] or NULL */
    void *project_out;    /* [d_embed][d_model] or NULL; share 0 only */
    float *norm_final, *norm_final_bias;
    size_t bytes;                    /* bytes on this GPU */
    kvd_gpu_expert_stream *streamed; /* NULL if all experts are resident */
    /* base address of the device allocation that holds all arrays; private */
    void *arena;
} kvd_gpu_weights;

/* Returns the bytes of device memory that kvd_gpu_weights_load allocates on one GPU. */
size_t kvd_gpu_weights_bytes(const kvd_config *c, kvd_dtype type, const kvd_gpu_share *share,
                             bool streamed);

/*
 * Allocates and fills the weights on the current device. All threads read and convert the file in
 * pieces in pinned memory while earlier pieces are copied. Weights that the file stores in `type`
 * are copied without conversion. Random weights (model/checkpoint/shapes.h) are made on the device.
 * If the device has too little free memory, fails with the needed and the free bytes. If `streamed`
 * is set, routed experts are left out, and the checkpoint must stay open.
 */
int kvd_gpu_weights_load(kvd_gpu_weights *w, const kvd_checkpoint *c, kvd_dtype type,
                         const kvd_gpu_share *share, bool streamed, kvd_err *err);
void kvd_gpu_weights_release(kvd_gpu_weights *w);

/*
 * Fills *to with the weights of a routed expert in a slot, which work queued on `stream` from now
 * on may read. Returns when the file has been read; the copies may still be running. The caller
 * must call kvd_gpu_expert_used when it has queued all work that reads the slot, before it fetches
 * another expert.
 */
int kvd_gpu_expert_fetch(kvd_gpu_expert_stream *s, int layer, int expert, cudaStream_t stream,
                         kvd_gpu_expert *to, kvd_err *err);
int kvd_gpu_expert_used(kvd_gpu_expert_stream *s, cudaStream_t stream, kvd_err *err);

#endif
