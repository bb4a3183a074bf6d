/* Configuration of a model: its sizes and the variants of its blocks. */
#ifndef KVD_MODEL_CHECKPOINT_CONFIG_H
#define KVD_MODEL_CHECKPOINT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Variants of model architectures. In each enumeration below, the first value is that of Llama. */

typedef enum { KVD_POSITIONS_ROPE, KVD_POSITIONS_LEARNED } kvd_positions;

typedef enum {
    KVD_ROPE_HALF,       /* rotates dimension i with i + d_head/2 (Hugging Face) */
    KVD_ROPE_INTERLEAVED /* rotates dimension 2i with 2i + 1 (llama2.c, Meta) */
} kvd_rope_layout;

typedef enum {
    KVD_ROPE_DEFAULT,
    KVD_ROPE_LINEAR, /* positions are divided by rope_factor */
    KVD_ROPE_LLAMA3,
    /* LongRoPE: each frequency has a divisor for short sequences and another for long ones */
    KVD_ROPE_LONGROPE,
    /* YaRN: divides low frequencies by a factor, middle ones by less, and keeps high ones */
    KVD_ROPE_YARN
} kvd_rope_scaling;

/* Formulas of norms. RMS: x / rms(x) * gain. LAYER: (x - mean(x)) / std(x) * gain + bias. */
typedef enum { KVD_NORM_RMS, KVD_NORM_LAYER } kvd_norm;

/* Order of the steps of a layer; x is the residual stream. */
typedef enum {
    /* x += attention(norm(x)); x += ffn(norm'(x)). */
    KVD_ORDER_BEFORE,
    /* x = norm(x + attention(x)); x = norm'(x + ffn(x)). */
    KVD_ORDER_AFTER,
    /* x += attention(norm(x)) + ffn(norm'(x)); if shared_norm is true, norm' is the same norm. */
    KVD_ORDER_PARALLEL,
    /* x += norm2(attention(norm(x))); x += norm2'(ffn(norm'(x))). */
    KVD_ORDER_AROUND,
    /* norms only after the blocks: x += norm(attention(x)); x += norm'(ffn(x)) */
    KVD_ORDER_BRANCH
} kvd_order;

typedef enum {
    KVD_SWIGLU,     /* silu(x W_gate) * (x W_up) */
    KVD_GEGLU_TANH, /* gelu(x W_gate) * (x W_up), gelu approximated by tanh */
    KVD_GELU,       /* gelu(x W_up) by the error function, without W_gate */
    KVD_GELU_TANH,  /* gelu(x W_up) approximated by tanh, without W_gate */
    KVD_RELU,       /* max(x W_up, 0), without W_gate */
    KVD_RELU2       /* max(x W_up, 0)^2, without W_gate */
} kvd_activation;

enum {
    KVD_CONFIG_MAX_SIZE = 1 << 24,  /* bound of each model size, and of n_heads * d_head */
    KVD_CONFIG_WINDOW_LAYERS = 512, /* largest number of layers with sliding windows */
    KVD_CONFIG_EXPERT_LAYERS = 512, /* largest number of layers with routed experts */
    KVD_CONFIG_EXPERTS = 4096,
    /* largest number of RoPE frequencies, d_head / 2, in models with LongRoPE */
    KVD_CONFIG_LONGROPE_PAIRS = 256,
    KVD_CONFIG_EOS_MORE = 15 /* largest number of tokens that end a text, less 1 */
};

typedef struct {
    /* Path of the checkpoint, for messages, cut off after 255 bytes. */
    char path[256];
    /* Model family, such as "llama"; "llama2.c" for files of llama2.c. */
    char family[32];
    int n_layers, n_heads, n_kv_heads, d_head, d_model, d_ffn, vocab_size;
    /* Width of embedding and output head; 0 means d_model. */
    int d_embed;
    int max_positions;
    double norm_eps;
    kvd_norm norm;
    kvd_order order;
    kvd_activation activation;
    bool norm_no_bias; /* layer norms have no bias */
    bool shared_norm;
    bool no_final_norm;
    /* true if RMS norms multiply by 1 + the stored gain, as in Gemma */
    bool norm_plus_one;
    bool qk_norm; /* each head of Q and K has an RMS norm before RoPE */
    /* true if Q has one RMS norm over all its heads, and K another; false if each head is normed
     * alone */
    bool qk_norm_whole;
    bool bias_qkv, bias_o, bias_ffn;
    double embed_scale; /* factor on the embedding, or 0 for none */
    /* Factors on the outputs of attention and feed-forward block, and on the logits; 0 means no
     * factor. */
    double residual_scale, logit_scale;
    /* Factor on the attention score q . k; 0 means 1/sqrt(d_head). */
    double score_scale;
    /* Attention scores s become softcap * tanh(s / softcap), unless the softcap is 0. */
    double score_softcap;
    /* Logits x become softcap * tanh(x / softcap), unless the softcap is 0. */
    double logit_softcap;
    kvd_positions positions; /* KVD_POSITIONS_LEARNED ignores the rope_ fields */
    double rope_theta;
    /* Number of leading dimensions of each head that RoPE rotates; 0 means all. */
    int rope_dims;
    /* Base (theta) of RoPE in layers with a sliding window; 0 means rope_theta. */
    double rope_local_theta;
    /* Bit l is 1 if layer l has no RoPE. */
    uint64_t unrotated_layers[KVD_CONFIG_WINDOW_LAYERS / 64];
    kvd_rope_layout rope_layout;
    kvd_rope_scaling rope_scaling;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    /* Longest context in tokens that the model was trained on before RoPE was scaled. */
    int rope_original_positions;
    /* Factor by which LongRoPE and YaRN multiply RoPE's cosines and sines. */
    double rope_attention_factor;
    /* YaRN keeps RoPE frequencies that make more than rope_beta_fast turns in
     * rope_original_positions tokens, and divides those that make fewer than rope_beta_slow
     * turns. */
    double rope_beta_fast, rope_beta_slow;
    bool rope_truncate;
    /* LongRoPE's divisors of the RoPE frequencies, for short and for long sequences. */
    double rope_short[KVD_CONFIG_LONGROPE_PAIRS];
    double rope_long[KVD_CONFIG_LONGROPE_PAIRS];
    /* Sliding window: number of keys that a query sees, including the key of its own token; 0 means
     * all. */
    int window;
    /* Bit l is 1 if layer l uses the sliding window. */
    uint64_t window_layers[KVD_CONFIG_WINDOW_LAYERS / 64];
    /* numbers of routed experts per layer, of experts per token, and of hidden units per expert */
    int n_experts, n_chosen, d_expert;
    /* number of hidden units of the shared expert, which every token uses; 0 if there is none */
    int d_shared;
    /* true if the shared expert's output is multiplied by sigmoid(x w), for its input x and a
     * learned vector w */
    bool shared_gate;
    /* true if the router's probabilities of a token's chosen experts are divided by their sum */
    bool chosen_add_up;
    bool bias_experts;
    /* true for GGUF files of gpt-oss, which store gate and up matrices of experts in two tensors */
    bool experts_apart;
    /* constants of gpt-oss's experts: with gate g and up u, a hidden unit is min(g, limit) *
     * sigmoid(alpha * min(g, limit)) * (1 + clamp(u, -limit, limit)) */
    double expert_limit, expert_alpha;
    /* true if each query head has a learned logit in the softmax denominator */
    bool sinks;
    /* Bit l is 1 if layer l has no routed experts. */
    uint64_t dense_layers[KVD_CONFIG_EXPERT_LAYERS / 64];
    /* DeepSeek: experts form expert_groups groups; a token chooses experts only from its best
     * groups_chosen groups */
    int expert_groups, groups_chosen;
    double expert_scale;
    /* true if scores of routed experts are sigmoids of the router's logits */
    bool route_sigmoid;
    /* Sizes of latent attention (DeepSeek-V2, arXiv:2405.04434). latent is 0 in other models. For
     * each token, all heads share a cached vector of `latent` numbers and a rotated key of
     * rope_dims numbers. */
    int latent, d_nope, d_value;
    /* Rank of the query projection if it is a product of two matrices; 0 if it is one matrix. */
    int q_rank;
    /* number of layers that the file stores after the model's last layer, which are not read */
    int extra_layers;
    bool tied_head;
    /* Ids of the tokens that begin and end a text, or -1 for none. */
    int bos_id, eos_id;
    /* tokens other than eos_id that also end a text, and the number of these tokens */
    int eos_more[KVD_CONFIG_EOS_MORE], n_eos_more;
} kvd_config;

/* Read the configuration *c from the file config.json, or from its text `json`, called `name` in
 * messages.
 *
 * Absent keys take Hugging Face's defaults. Unsupported or contradictory settings are errors. */
int kvd_config_read(const char *path, kvd_config *c, kvd_err *err);
int kvd_config_parse(const char *name, const char *json, size_t len, kvd_config *c, kvd_err *err);

/* How attention computes a score: scale * q . k, or softcap * tanh(scale * q . k / softcap) if
 * softcap is not 0. `sink` is the logit of an attention sink, which adds to the softmax's
 * denominator, or NULL. */
typedef struct {
    float scale, softcap;
    const float *sink;
} kvd_scores;
kvd_scores kvd_config_scores(const kvd_config *c);

bool kvd_config_gated(const kvd_config *c);

/* Returns true if attention and feed-forward block have norms on their outputs, before the residual
 * addition. */
bool kvd_config_norms_branches(const kvd_config *c);

bool kvd_config_norms_inputs(const kvd_config *c);

size_t kvd_config_rope_dims(const kvd_config *c);

bool kvd_config_unrotated(const kvd_config *c, int layer);

int kvd_config_group(const kvd_config *c);

/* Returns true if the token ends a text. */
bool kvd_config_is_eos(const kvd_config *c, uint32_t token);

int kvd_config_d_embed(const kvd_config *c);

/* Returns the sliding window of a layer in tokens, or 0 if the layer has none. */
size_t kvd_config_window(const kvd_config *c, int layer);

/* Returns how many numbers per token and layer an uncompressed cache has. */
size_t kvd_config_cached(const kvd_config *c);

bool kvd_config_routed(const kvd_config *c, int layer);

#endif
