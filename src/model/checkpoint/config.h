/*
 * Configuration of a model: its sizes, and the variant of each building block. It is read from
 * config.json or from the header of another format.
 */
#ifndef KVD_MODEL_CHECKPOINT_CONFIG_H
#define KVD_MODEL_CHECKPOINT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* In each enumeration below, the first value (0) is the variant that Llama models use. */

typedef enum {
    KVD_POSITIONS_ROPE, /* rotary position embedding (RoPE): Q and K are rotated */
    /* A table of learned position vectors is added to the embedding; Q and K are not rotated. */
    KVD_POSITIONS_LEARNED
} kvd_positions;

typedef enum {
    KVD_ROPE_HALF,       /* Hugging Face's RoPE rotates dimension i together with i + d_head/2 */
    KVD_ROPE_INTERLEAVED /* llama2.c's and Meta's RoPE rotates dimension 2i together with 2i + 1 */
} kvd_rope_layout;

typedef enum {
    KVD_ROPE_DEFAULT, /* RoPE frequencies follow from the base theta alone */
    KVD_ROPE_LINEAR,  /* positions are divided by rope_factor */
    KVD_ROPE_LLAMA3,  /* Llama 3.1: low RoPE frequencies are divided, middle ones blended */
    /*
     * Phi-3: each RoPE frequency has its own divisor; long sequences use a second set of divisors.
     */
    KVD_ROPE_LONGROPE,
    /*
     * YaRN: low RoPE frequencies are divided by a factor, middle ones by a blend of 1 and the
     * factor.
     */
    KVD_ROPE_YARN
} kvd_rope_scaling;

typedef enum {
    KVD_NORM_RMS,  /* RMS norm: x / rms(x) * gain */
    KVD_NORM_LAYER /* layer norm: (x - mean(x)) / std(x) * gain + bias */
} kvd_norm;

/*
 * Order of the steps of a layer. In the formulas, x is the residual stream, A is attention, F is
 * the feed-forward block, and norm, norm', out and out' are norms.
 */
typedef enum {
    /* Norms before attention A and feed-forward block F: x += A(norm(x)); x += F(norm'(x)). */
    KVD_ORDER_BEFORE,
    /* Norms after the sums with residual x: x = norm(x + A(x)); x = norm'(x + F(x)). */
    KVD_ORDER_AFTER,
    /*
     * Attention A and feed-forward block F read the same residual x: x += A(norm(x)) + F(norm'(x)).
     * The norms norm and norm' may be one and the same (shared_norm).
     */
    KVD_ORDER_PARALLEL,
    /*
     * Norms before and after attention A and feed-forward block F: x += out(A(norm(x))); x +=
     * out'(F(norm'(x))), where norm, norm', out and out' are norms.
     */
    KVD_ORDER_AROUND,
    /*
     * Norms (out and out') only on the outputs of attention A and feed-forward block F: x +=
     * out(A(x)); x += out'(F(x)).
     */
    KVD_ORDER_BRANCH
} kvd_order;

typedef enum {
    KVD_SWIGLU,     /* silu(x W_gate) * (x W_up) */
    KVD_GEGLU_TANH, /* gelu(x W_gate) * (x W_up), gelu approximated by tanh */
    KVD_GELU,       /* gelu(x W_up) by the error function; this and the following have no W_gate */
    KVD_GELU_TANH,  /* gelu(x W_up), approximated by tanh */
    KVD_RELU
} kvd_activation;

enum {
    KVD_CONFIG_MAX_SIZE = 1 << 24,  /* upper bound of each model size, and of n_heads * d_head */
    KVD_CONFIG_WINDOW_LAYERS = 512, /* largest number of layers of a model with sliding windows */
    KVD_CONFIG_EXPERT_LAYERS = 512, /* largest number of layers of a model with routed experts */
    KVD_CONFIG_EXPERTS = 4096,      /* largest number of experts of a layer */
    /* Largest number of RoPE frequencies (d_head / 2) with LongRoPE. */
    KVD_CONFIG_LONGROPE_PAIRS = 256
};

typedef struct {
    /* model_type of config.json, such as "llama" (the families are in family.h), or "llama2.c". */
    char family[32];
    int n_layers, n_heads, n_kv_heads, d_head, d_model, d_ffn, vocab_size;
    /* Number of columns of the embedding and of the output head; 0 if it equals d_model. */
    int d_embed;
    int max_positions; /* length in tokens of the longest sequence that the model supports */
    double norm_eps;
    kvd_norm norm;
    kvd_order order;
    kvd_activation activation;
    /* With KVD_ORDER_PARALLEL, attention and feed-forward block read the output of one norm. */
    bool shared_norm;
    /* If true, the output head reads the output of the last layer without a norm. */
    bool no_final_norm;
    /* If true, RMS norms multiply by 1 + g, where g is the gain that the file stores. */
    bool norm_plus_one;
    bool qk_norm; /* true if an RMS norm is applied to each head of Q and K before RoPE */
    /* With qk_norm: one RMS norm covers all heads of a token's Q (or K) together. */
    bool qk_norm_whole;
    /*
     * True if the projections of Q, K and V, the attention output and the feed-forward block have
     * biases. A layer norm always has a bias.
     */
    bool bias_qkv, bias_o, bias_ffn;
    /* Factor by which the embedding is multiplied; 0 means no factor. */
    double embed_scale;
    /* Factor on the attention score q . k; 0 means 1/sqrt(d_head). */
    double score_scale;
    /* An attention score s becomes softcap * tanh(s / softcap); 0 leaves scores unchanged. */
    double score_softcap;
    /*
     * A logit x of the output head becomes softcap * tanh(x / softcap); 0 leaves logits unchanged.
     */
    double logit_softcap;
    kvd_positions positions; /* with KVD_POSITIONS_LEARNED the rope_ fields are unused */
    double rope_theta;
    /* Number of leading dimensions of a head that RoPE rotates, an even number; 0 means all. */
    int rope_dims;
    /*
     * RoPE base theta of the layers with a sliding window, whose frequencies are not scaled; 0
     * means that these layers use the base and scaling of the other layers.
     */
    double rope_local_theta;
    kvd_rope_layout rope_layout;
    kvd_rope_scaling rope_scaling;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    /*
     * Context length in tokens before RoPE was extended to longer sequences by scaling LLAMA3, YARN
     * or LONGROPE. With LONGROPE, sequences longer than this use the divisors rope_long.
     */
    int rope_original_positions;
    /* With scaling LONGROPE or YARN: factor by which RoPE's cosines and sines are multiplied. */
    double rope_attention_factor;
    /*
     * Parameters of YARN scaling. A RoPE frequency is kept if it makes more than beta_fast turns
     * within the original context, and divided by the factor if it makes fewer than beta_slow
     * turns. Frequencies between are blended along a ramp; rope_truncate rounds the ends of the
     * ramp to whole frequencies.
     */
    double rope_beta_fast, rope_beta_slow;
    bool rope_truncate;
    /*
     * With scaling LONGROPE: divisors of the d_head / 2 RoPE frequencies in short and in long
     * sequences.
     */
    double rope_short[KVD_CONFIG_LONGROPE_PAIRS];
    double rope_long[KVD_CONFIG_LONGROPE_PAIRS];
    /*
     * Sliding window: number of keys that a query sees, the query's own included; 0 means all keys
     * up to the query's position.
     */
    int window;
    /* Bit set over layers: bit l is 1 if layer l uses the sliding window. */
    uint64_t window_layers[KVD_CONFIG_WINDOW_LAYERS / 64];
    /*
     * Routed experts (mixture of experts, Shazeer et al. 2017): for each token, a router picks
     * n_chosen of the n_experts feed-forward blocks of a layer, each of hidden size d_expert. If
     * n_experts is 0, no layer has routed experts.
     */
    int n_experts, n_chosen, d_expert;
    /*
     * Hidden size of the shared expert, which every token uses in addition to the routed experts; 0
     * means none.
     */
    int d_shared;
    /* If true, the shared expert's output is multiplied by sigmoid(x w) with a learned vector w. */
    bool shared_gate;
    /* If true, router probabilities of the chosen experts are divided by their sum. */
    bool chosen_add_up;
    bool bias_experts; /* true if the router and the experts have biases */
    /*
     * True if the file of a gpt-oss model holds the gate and up matrices of the experts as two
     * tensors; false if it interleaves their rows in one.
     */
    bool experts_apart;
    /*
     * If expert_limit is not 0 (gpt-oss), an expert with gate g and up projection u computes min(g,
     * limit) sigmoid(alpha min(g, limit)) (1 + clamp(u, -limit, limit)) in place of SwiGLU.
     */
    double expert_limit, expert_alpha;
    /*
     * Attention sinks: each head has a learned logit that enters the sum of its softmax and has no
     * value vector.
     */
    bool sinks;
    /*
     * Bit set over layers: bit l is 1 if layer l has one feed-forward block of hidden size d_ffn
     * and no routed experts.
     */
    uint64_t dense_layers[KVD_CONFIG_EXPERT_LAYERS / 64];
    /*
     * Grouped routing of DeepSeek. The experts form expert_groups groups of equal size, and the
     * n_chosen experts of a token come from its groups_chosen best groups. The router weights of
     * chosen experts are multiplied by expert_scale. If expert_groups is 0, the n_chosen experts
     * with the largest softmax probabilities are chosen from all.
     */
    int expert_groups, groups_chosen;
    double expert_scale;
    /*
     * If true (DeepSeek-V3), router scores are sigmoids. A learned bias is added to them for
     * choosing experts, but not for weighting the chosen ones.
     */
    bool route_sigmoid;
    /*
     * Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) in its absorbed form. There is
     * one KV head, and the cache holds d_head = rope_dims + latent numbers once per token and
     * layer. Its key is rope_dims rotated dimensions followed by a latent of `latent` dimensions.
     * Its value is rope_dims zeros followed by that latent. Each query head has d_nope dimensions
     * that are mapped to the latent, and its output is mapped from the latent to d_value
     * dimensions. If `latent` is 0, the model has ordinary keys and values.
     */
    int latent, d_nope, d_value;
    /* Rank of the query projection if it is a product of two matrices; 0 if it is one matrix. */
    int q_rank;
    /*
     * Number of layers after the last one that a file may contain and that are not read, such as
     * the multi-token prediction layers of DeepSeek-V3.
     */
    int extra_layers;
    bool tied_head; /* true if the output head is the embedding */
    /*
     * Ids of the tokens that begin and end a text: -1 if the file states none, the first id if it
     * states a list.
     */
    int bos_id, eos_id;
} kvd_config;

/*
 * Fills *c from the config.json of a model family that family.h lists. kvd_config_read reads the
 * file `path`; kvd_config_parse reads `len` bytes of `json`, and `name` is the file's name in
 * messages. Both return 0, or -1 with *err.
 *
 * A key that is absent or null takes the default that the Hugging Face library has for the model
 * family. A size or the epsilon of norms has no default here if the library's default is only the
 * value of one published model: its key is then required.
 *
 * Fails, naming key and value, for unknown families, unsupported settings that change the
 * arithmetic, and quantised weights. Also fails for sizes that are not positive or overflow, for a
 * size that must be a multiple of another and is not (such as n_heads of n_kv_heads), for an
 * epsilon or theta that is not positive and finite, and for two statements that contradict each
 * other.
 */
int kvd_config_read(const char *path, kvd_config *c, kvd_err *err);
int kvd_config_parse(const char *name, const char *json, size_t len, kvd_config *c, kvd_err *err);

/*
 * Parameters of attention scores. The score is softcap * tanh(scale * q . k / softcap), or scale *
 * q . k if softcap is 0. If `sink` is not NULL, exp(*sink) is added to the denominator of the
 * softmax (attention sinks of gpt-oss); a query's probabilities then add up to less than 1.
 */
typedef struct {
    float scale, softcap;
    const float *sink;
} kvd_scores;
/* Returns the parameters of a model's attention scores (scale and softcap), without a sink. */
kvd_scores kvd_config_scores(const kvd_config *c);

/* Returns true if the feed-forward block has a gate matrix (SwiGLU, GeGLU). */
bool kvd_config_gated(const kvd_config *c);

/*
 * Returns true if a norm is applied to the outputs of attention and feed-forward block before they
 * are added to the residual stream.
 */
bool kvd_config_norms_branches(const kvd_config *c);

/* Returns true if a norm is applied to the inputs of attention and feed-forward block. */
bool kvd_config_norms_inputs(const kvd_config *c);

/* Returns the number of leading dimensions of a head that RoPE rotates. */
size_t kvd_config_rope_dims(const kvd_config *c);

/* Returns the number of query heads per KV head. */
int kvd_config_group(const kvd_config *c);

/* Returns the number of columns of the embedding and of the output head. */
int kvd_config_d_embed(const kvd_config *c);

/*
 * Returns the sliding window of a layer in tokens: position t attends to positions t - window + 1
 * .. t. Returns 0 if the layer has no window, so that position t attends to 0 .. t.
 */
size_t kvd_config_window(const kvd_config *c, int layer);

/*
 * Returns how many numbers an uncompressed KV cache holds per token and layer: keys and values of
 * all KV heads, or with latent attention one latent and its rotated key.
 */
size_t kvd_config_cached(const kvd_config *c);

/* Returns true if the layer has routed experts in place of one feed-forward block. */
bool kvd_config_routed(const kvd_config *c, int layer);

#endif
