/* Configuration of a model: its sizes, and the variant of each building block. */
#ifndef KVD_MODEL_CHECKPOINT_CONFIG_H
#define KVD_MODEL_CHECKPOINT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/*
 * In each of the enumerations from here on, the first value (0) is the variant that Llama models
 * use.
 */

typedef enum { KVD_POSITIONS_ROPE, KVD_POSITIONS_LEARNED } kvd_positions;

typedef enum {
    KVD_ROPE_HALF,       /* dimension i is rotated together with i + d_head/2 (Hugging Face) */
    KVD_ROPE_INTERLEAVED /* dimension 2i is rotated together with 2i + 1 (llama2.c, Meta) */
} kvd_rope_layout;

typedef enum {
    KVD_ROPE_DEFAULT,
    KVD_ROPE_LINEAR, /* positions are divided by rope_factor */
    KVD_ROPE_LLAMA3,
    /*
     * LongRoPE of Phi-3: each frequency is divided by a number of its own. Sequences longer than
     * the original context use a second set of these divisors.
     */
    KVD_ROPE_LONGROPE,
    /*
     * YaRN: low frequencies are divided by a factor. Middle frequencies are divided by numbers
     * between 1 and the factor.
     */
    KVD_ROPE_YARN
} kvd_rope_scaling;

/* Norm of a vector x. RMS: x / rms(x) * gain. LAYER: (x - mean(x)) / std(x) * gain + bias. */
typedef enum { KVD_NORM_RMS, KVD_NORM_LAYER } kvd_norm;

/* Order of the steps of a layer; x is the residual stream. */
typedef enum {
    /*
     * norm and norm' are two norms with gains of their own: x += attention(norm(x)); x +=
     * ffn(norm'(x)).
     */
    KVD_ORDER_BEFORE,
    /* The norms follow the residual sums: x = norm(x + attention(x)); x = norm'(x + ffn(x)). */
    KVD_ORDER_AFTER,
    /*
     * Both blocks read the same x: x += attention(norm(x)) + ffn(norm'(x)). If shared_norm is true,
     * norm' is norm.
     */
    KVD_ORDER_PARALLEL,
    /*
     * Norms before and after each block: x += norm2(attention(norm(x))); x +=
     * norm2'(ffn(norm'(x))).
     */
    KVD_ORDER_AROUND,
    /*
     * Norms only after each block; x is the residual stream: x += norm2(attention(x)); x +=
     * norm2'(ffn(x)).
     */
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
    KVD_CONFIG_MAX_SIZE = 1 << 24,  /* upper bound of each model size, and of n_heads * d_head */
    KVD_CONFIG_WINDOW_LAYERS = 512, /* largest number of layers of a model with sliding windows */
    KVD_CONFIG_EXPERT_LAYERS = 512, /* largest number of layers of a model with routed experts */
    KVD_CONFIG_EXPERTS = 4096,
    /* Largest d_head / 2 with LongRoPE. */
    KVD_CONFIG_LONGROPE_PAIRS = 256
};

typedef struct {
    /* Name of a family in family.h, such as "llama"; for llama2.c files "llama2.c". */
    char family[32];
    int n_layers, n_heads, n_kv_heads, d_head, d_model, d_ffn, vocab_size;
    /* Width of the embedding and of the output head; 0 if equal to d_model. */
    int d_embed;
    int max_positions;
    double norm_eps;
    kvd_norm norm;
    kvd_order order;
    kvd_activation activation;
    bool norm_no_bias; /* layer norms have no bias */
    bool shared_norm;
    bool no_final_norm;
    /* RMS norms multiply by 1 + g, where g is the gain that the file stores. */
    bool norm_plus_one;
    bool qk_norm; /* an RMS norm is applied to each head of Q and K before RoPE */
    /*
     * With qk_norm: if true, one RMS norm is taken over all heads of a token's Q together, and one
     * over all heads of its K.
     */
    bool qk_norm_whole;
    bool bias_qkv, bias_o, bias_ffn;
    double embed_scale; /* factor on the embedding; 0 means no factor */
    /*
     * Factor on the outputs of attention and feed-forward block, and factor on the logits; 0 means
     * no factor. W_O, W_down and the gain of the final norm are multiplied when they are read.
     */
    double residual_scale, logit_scale;
    /* Factor on the attention score q . k; 0 means 1/sqrt(d_head). */
    double score_scale;
    /* An attention score s becomes softcap * tanh(s / softcap); 0 means no softcap. */
    double score_softcap;
    /* A logit x of the output head becomes softcap * tanh(x / softcap); 0 means no softcap. */
    double logit_softcap;
    kvd_positions positions; /* with KVD_POSITIONS_LEARNED the rope_ fields are unused */
    double rope_theta;
    /* Leading dimensions of a head that RoPE rotates, an even number; 0 means all. */
    int rope_dims;
    /*
     * RoPE base theta of the layers with a sliding window, which then have no RoPE scaling. If 0,
     * these layers use rope_theta and the scaling of the other layers. If infinite, the layers in
     * unrotated_layers have no RoPE, and all others use rope_theta.
     */
    double rope_local_theta;
    /* Bit l is 1 if layer l has no RoPE. */
    uint64_t unrotated_layers[KVD_CONFIG_WINDOW_LAYERS / 64];
    kvd_rope_layout rope_layout;
    kvd_rope_scaling rope_scaling;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    /*
     * Context length in tokens before RoPE scaling extended it. With LongRoPE, longer sequences use
     * the divisors rope_long.
     */
    int rope_original_positions;
    /* With LongRoPE or YaRN: factor on RoPE's cosines and sines. */
    double rope_attention_factor;
    /*
     * YaRN leaves RoPE frequencies unchanged that make more than beta_fast turns within the
     * original context. Frequencies that make fewer than beta_slow turns are divided by the scaling
     * factor. Frequencies between these limits are a linear blend of both. If rope_truncate is
     * true, the indices of the frequencies at the two limits are rounded to whole numbers.
     */
    double rope_beta_fast, rope_beta_slow;
    bool rope_truncate;
    /* With LongRoPE: divisors of the d_head / 2 frequencies in short and in long sequences. */
    double rope_short[KVD_CONFIG_LONGROPE_PAIRS];
    double rope_long[KVD_CONFIG_LONGROPE_PAIRS];
    /* Number of keys that a query sees, its own included; 0 means all keys up to its position. */
    int window;
    /* Bit l is 1 if layer l uses the sliding window. */
    uint64_t window_layers[KVD_CONFIG_WINDOW_LAYERS / 64];
    /*
     * Routed experts (mixture of experts, Shazeer et al. 2017): for each token, a router picks
     * n_chosen of a layer's n_experts feed-forward blocks. Each expert has the hidden size
     * d_expert. If n_experts is 0, no layer has routed experts.
     */
    int n_experts, n_chosen, d_expert;
    /* Hidden size of the shared expert, which every token uses. 0: there is no shared expert. */
    int d_shared;
    /* The shared expert's output is multiplied by sigmoid(x w) with a learned vector w. */
    bool shared_gate;
    /* Router probabilities of a token's chosen experts are divided by their sum. */
    bool chosen_add_up;
    bool bias_experts;
    /*
     * In a gpt-oss file: true if the gate and up matrices of the experts are in two tensors, false
     * if one tensor interleaves their rows.
     */
    bool experts_apart;
    /*
     * If expert_limit is not 0 (gpt-oss), an expert computes, from gate g and up projection u,
     * min(g, limit) sigmoid(alpha min(g, limit)) (1 + clamp(u, -limit, limit)).
     */
    double expert_limit, expert_alpha;
    /*
     * Attention sinks (gpt-oss): each head has a learned logit, whose exponential is added to the
     * denominator of its softmax.
     */
    bool sinks;
    /* Bit l is 1 if layer l has one feed-forward block and no routed experts. */
    uint64_t dense_layers[KVD_CONFIG_EXPERT_LAYERS / 64];
    /*
     * Grouped routing of DeepSeek: the experts form expert_groups groups of equal size. The
     * n_chosen experts of a token come from its groups_chosen best groups. If expert_groups is 0, a
     * token's experts come from all experts. expert_scale is a factor on the router weights of
     * chosen experts.
     */
    int expert_groups, groups_chosen;
    double expert_scale;
    /*
     * Router scores are sigmoids (DeepSeek-V3). A learned bias is added for choosing experts, but
     * not for weighting the chosen ones.
     */
    bool route_sigmoid;
    /*
     * Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) in its absorbed form. There is
     * one KV head, and the cache holds d_head = rope_dims + latent numbers once per token and
     * layer. A key has rope_dims rotated dimensions, then a latent of `latent` dimensions. The
     * value has zeros in place of the rotated dimensions, then the same latent. Each query head has
     * a matrix that maps d_nope dimensions of the query to `latent` dimensions, and one that maps
     * the attention output from `latent` to d_value dimensions. If `latent` is 0, the model has
     * ordinary keys and values.
     */
    int latent, d_nope, d_value;
    /* Rank of the query projection if it is a product of two matrices; 0 if it is one matrix. */
    int q_rank;
    /*
     * Number of layers that a file may contain after the model's last layer and that are not read,
     * such as the multi-token prediction layers of DeepSeek-V3.
     */
    int extra_layers;
    bool tied_head;
    /*
     * Ids of the tokens that begin and end a text. An id is -1 if the file states none. If the file
     * states a list of ids, the first one is used.
     */
    int bos_id, eos_id;
} kvd_config;

/*
 * Read the configuration of a model from config.json into *c. Return 0, or -1 with *err. In
 * kvd_config_parse, `name` is the file's name in messages.
 *
 * An absent or null key takes the default that the Hugging Face library has for the model family. A
 * size or norm_eps is required if the library's default is only the value of one published model.
 *
 * Unknown families, quantised weights and unsupported settings that change the arithmetic are
 * errors. Sizes that do not fit each other, and statements that contradict each other, are errors
 * too.
 */
int kvd_config_read(const char *path, kvd_config *c, kvd_err *err);
int kvd_config_parse(const char *name, const char *json, size_t len, kvd_config *c, kvd_err *err);

/*
 * Parameters of attention scores. The score is softcap * tanh(scale * q . k / softcap), or scale *
 * q . k if softcap is 0. If `sink` is not NULL, exp(*sink) is added to the denominator of the
 * softmax (attention sinks of gpt-oss).
 */
typedef struct {
    float scale, softcap;
    const float *sink;
} kvd_scores;
/*
 * Returns scale and softcap of the model. The member `sink`, the logit of an attention sink, is
 * NULL.
 */
kvd_scores kvd_config_scores(const kvd_config *c);

bool kvd_config_gated(const kvd_config *c);

/*
 * Returns true if a norm is applied to the outputs of attention and feed-forward block before they
 * are added to the residual stream.
 */
bool kvd_config_norms_branches(const kvd_config *c);

bool kvd_config_norms_inputs(const kvd_config *c);

size_t kvd_config_rope_dims(const kvd_config *c);

/* Returns true if layer `layer` of a model with RoPE has none. */
bool kvd_config_unrotated(const kvd_config *c, int layer);

/* Returns the number of query heads per KV head. */
int kvd_config_group(const kvd_config *c);

int kvd_config_d_embed(const kvd_config *c);

/*
 * Returns the sliding window of a layer in tokens: position t attends to positions t - window + 1
 * .. t. Returns 0 if the layer has no window, so that position t attends to 0 .. t.
 */
size_t kvd_config_window(const kvd_config *c, int layer);

/*
 * Returns how many numbers an uncompressed KV cache holds per token and layer: all keys and values,
 * or with latent attention one latent and its rotated key.
 */
size_t kvd_config_cached(const kvd_config *c);

bool kvd_config_routed(const kvd_config *c, int layer);

#endif
