/*
 * Configuration of a model: its sizes, and the variants of its layers. It is read from config.json
 * or from the header of another format.
 */
#ifndef KVD_MODEL_CHECKPOINT_CONFIG_H
#define KVD_MODEL_CHECKPOINT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* In each enumeration below, the first value (0) is the variant that Llama models use. */

typedef enum {
    KVD_POSITIONS_ROPE,   /* rotary embedding: Q and K are rotated */
    KVD_POSITIONS_LEARNED /* a table is added to the embedding; Q and K are not changed */
} kvd_positions;

typedef enum {
    KVD_ROPE_HALF,       /* Hugging Face: dimension i pairs with i + d_head/2 */
    KVD_ROPE_INTERLEAVED /* llama2.c, Meta: dimension 2i pairs with 2i + 1 */
} kvd_rope_layout;

typedef enum {
    KVD_ROPE_DEFAULT,  /* frequencies follow from theta alone */
    KVD_ROPE_LINEAR,   /* positions are divided by rope_factor */
    KVD_ROPE_LLAMA3,   /* Llama 3.1: low frequencies are divided, middle ones blended */
    KVD_ROPE_LONGROPE, /* Phi-3: one divisor per pair, another set for long sequences */
    KVD_ROPE_YARN /* low frequencies are divided, a ramp over the pairs blends the middle ones */
} kvd_rope_scaling;

typedef enum {
    KVD_NORM_RMS,  /* x / rms(x) * gain */
    KVD_NORM_LAYER /* (x - mean(x)) / std(x) * gain + bias */
} kvd_norm;

/* Order of the steps of a layer: attention A, feed-forward block F and the norms. */
typedef enum {
    KVD_ORDER_BEFORE,   /* x += A(norm(x)); x += F(norm'(x)) */
    KVD_ORDER_AFTER,    /* x = norm(x + A(x)); x = norm'(x + F(x)) */
    KVD_ORDER_PARALLEL, /* x += A(norm(x)) + F(norm'(x)); norm' may be norm */
    KVD_ORDER_AROUND,   /* x += out(A(norm(x))); x += out'(F(norm'(x))), with norms out and out' */
    KVD_ORDER_BRANCH    /* x += out(A(x)); x += out'(F(x)) */
} kvd_order;

typedef enum {
    KVD_SWIGLU,     /* silu(x W_gate) * (x W_up) */
    KVD_GEGLU_TANH, /* gelu(x W_gate) * (x W_up), gelu approximated by tanh */
    KVD_GELU,       /* gelu(x W_up) by the error function; from here on there is no gate */
    KVD_GELU_TANH,  /* gelu(x W_up), approximated by tanh */
    KVD_RELU
} kvd_activation;

enum {
    KVD_CONFIG_MAX_SIZE = 1 << 24,  /* largest value of any size below, and of n_heads * d_head */
    KVD_CONFIG_WINDOW_LAYERS = 512, /* most layers of a model with a sliding window */
    KVD_CONFIG_EXPERT_LAYERS = 512, /* most layers of a model with routed experts */
    KVD_CONFIG_EXPERTS = 4096,      /* most experts of a layer */
    KVD_CONFIG_LONGROPE_PAIRS = 256 /* largest d_head / 2 of a model with longrope */
};

typedef struct {
    char family[32]; /* model_type of config.json (family.h), or "llama2.c" */
    int n_layers, n_heads, n_kv_heads, d_head, d_model, d_ffn, vocab_size;
    int d_embed;       /* width of embedding and head; 0 if it equals d_model */
    int max_positions; /* longest sequence that the model was trained for */
    double norm_eps;
    kvd_norm norm;
    kvd_order order;
    kvd_activation activation;
    bool shared_norm;   /* KVD_ORDER_PARALLEL: attention and feed-forward share one norm */
    bool no_final_norm; /* the head reads the last layer's output without a norm */
    bool norm_plus_one; /* RMS norms multiply by 1 + the stored gain */
    bool qk_norm;       /* RMS norm of every head of Q and K, before RoPE */
    bool qk_norm_whole; /* qk_norm over all heads of a row at once, with one gain per dimension */
    bool bias_qkv, bias_o, bias_ffn; /* biases of the matrices; a layer norm always has one */
    double embed_scale;              /* factor on the embedding; 0: none */
    double score_scale;              /* factor on q . k; 0: 1/sqrt(d_head) */
    double score_softcap;    /* scores s become softcap * tanh(s / softcap); 0: they do not */
    double logit_softcap;    /* as score_softcap, for the logits of the head */
    kvd_positions positions; /* with KVD_POSITIONS_LEARNED the rope fields have no meaning */
    double rope_theta;
    int rope_dims; /* leading dimensions of a head that are rotated, an even number; 0: all */
    /*
     * RoPE base of layers with a sliding window, whose frequencies are not scaled; 0 means that
     * these layers use the base and scaling of all layers.
     */
    double rope_local_theta;
    kvd_rope_layout rope_layout;
    kvd_rope_scaling rope_scaling;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    /*
     * Context length before the extension of RoPE, in tokens, with scaling LLAMA3 or YARN. With
     * LONGROPE, sequences longer than this use rope_long.
     */
    int rope_original_positions;
    double rope_attention_factor; /* LONGROPE, YARN: factor on cosines and sines */
    /*
     * Parameters of YARN scaling. Dimension pairs that turn more than beta_fast times within the
     * original context keep their frequency; for those that turn less than beta_slow times it is
     * divided by the factor. If rope_truncate, the ends of the ramp between the two are rounded to
     * whole pairs.
     */
    double rope_beta_fast, rope_beta_slow;
    bool rope_truncate;
    /* LONGROPE: divisors [d_head / 2] of the RoPE frequencies in short sequences */
    double rope_short[KVD_CONFIG_LONGROPE_PAIRS];
    double rope_long[KVD_CONFIG_LONGROPE_PAIRS];
    /*
     * sliding window: number of keys that a query sees, itself included; 0: all keys up to its
     * position
     */
    int window;
    /* bit set over layers: bit l is 1 if layer l uses the sliding window */
    uint64_t window_layers[KVD_CONFIG_WINDOW_LAYERS / 64];
    /*
     * Routed experts (Shazeer et al. 2017): a router picks n_chosen of the n_experts feed-forward
     * blocks of a layer for each token. If n_experts is 0, no layer has routed experts.
     */
    int n_experts, n_chosen, d_expert; /* d_expert: width of an expert */
    int d_shared;                      /* width of the expert that every token uses; 0: none */
    bool shared_gate;   /* the shared expert's output is multiplied by sigmoid(x w) */
    bool chosen_add_up; /* probabilities of the chosen experts are divided by their sum */
    bool bias_experts;  /* the router and the experts have biases */
    bool experts_apart; /* gpt-oss: the file holds gate and up in two tensors, not interleaved */
    /*
     * If expert_limit is not 0, an expert with gate g and up branch u computes min(g, limit)
     * sigmoid(alpha min(g, limit)) (1 + clamp(u, -limit, limit)) in place of SwiGLU.
     */
    double expert_limit, expert_alpha;
    bool sinks; /* each head has a logit that counts in the softmax's sum and has no value */
    /*
     * bit set over layers: bit l is 1 if layer l has one feed-forward block of width d_ffn and no
     * experts
     */
    uint64_t dense_layers[KVD_CONFIG_EXPERT_LAYERS / 64];
    /*
     * Grouped routing of DeepSeek. The experts form expert_groups groups of equal size, and the
     * n_chosen experts of a token come from its groups_chosen best groups. Their factors are
     * multiplied by expert_scale. If expert_groups is 0, the n_chosen experts with the largest
     * softmax probabilities are chosen from all.
     */
    int expert_groups, groups_chosen;
    double expert_scale;
    /*
     * If true (DeepSeek-V3), router scores are sigmoids, and a learned bias is added to them only
     * to choose the experts.
     */
    bool route_sigmoid;
    /*
     * Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) in its absorbed form: one KV head
     * whose key is rope_dims rotated dimensions followed by a latent of `latent` dimensions, and
     * whose value is that latent after rope_dims zeros. A cache holds these d_head = rope_dims +
     * latent numbers once per token and layer. Each query head has d_nope dimensions that are
     * mapped to the latent, and its output is mapped from the latent to d_value dimensions. latent
     * 0: the model has keys and values of its own.
     */
    int latent, d_nope, d_value;
    int q_rank; /* rank of the factored projection of Q; 0: one matrix */
    /*
     * Number of layers after the last layer whose tensors may be in a file and are not read (layers
     * for multi-token prediction in DeepSeek-V3).
     */
    int extra_layers;
    bool tied_head;     /* true if the output head is the embedding */
    int bos_id, eos_id; /* -1 if the file states none; the first id if it states a list */
} kvd_config;

/*
 * Fills *c from the config.json of a family that family.h lists. kvd_config_read reads the file
 * `path`; kvd_config_parse reads `len` bytes of `json`, and `name` is the file's name in messages.
 * Both return 0, or -1 with *err.
 *
 * A key that is absent or null takes the value that the Hugging Face library gives such a model.
 * Sizes and the norm's epsilon are required where the library's default is that of one published
 * model.
 *
 * Refuses, by name and value: unknown families, settings that change the arithmetic and are not
 * implemented, quantised weights, sizes that are not positive, do not divide or overflow, an
 * epsilon or theta that is not positive and finite, and two statements that contradict each other.
 */
int kvd_config_read(const char *path, kvd_config *c, kvd_err *err);
int kvd_config_parse(const char *name, const char *json, size_t len, kvd_config *c, kvd_err *err);

/*
 * Parameters of attention scores: softcap * tanh(scale * q . k / softcap), or scale * q . k if
 * softcap is 0. If `sink` is not NULL, exp(*sink) is added to the sum that divides the exponentials
 * of a row (attention sinks of gpt-oss); probabilities then add up to less than 1.
 */
typedef struct {
    float scale, softcap;
    const float *sink;
} kvd_scores;
/*
 * Returns the parameters of the attention scores of a model's heads, without a sink
 * (model/pass/attention.h).
 */
kvd_scores kvd_config_scores(const kvd_config *c);

/* Returns true if the feed-forward block has a gate. */
bool kvd_config_gated(const kvd_config *c);

/* Returns true if a norm is applied to the output of each branch before the residual is added. */
bool kvd_config_norms_branches(const kvd_config *c);

/* Returns true if a norm is applied to the input of each branch (attention, feed-forward block). */
bool kvd_config_norms_inputs(const kvd_config *c);

/* Returns the number of leading dimensions of a head that RoPE rotates. */
size_t kvd_config_rope_dims(const kvd_config *c);

/* Returns the number of query heads per KV head. */
int kvd_config_group(const kvd_config *c);

/* Returns the width of the embedding and of the output head's input. */
int kvd_config_d_embed(const kvd_config *c);

/*
 * Returns the sliding window of a layer in tokens: position t attends to positions t - window + 1
 * .. t. Returns 0 if the layer has no window and attends to positions 0 .. t.
 */
size_t kvd_config_window(const kvd_config *c, int layer);

/*
 * Returns the number of values that an uncompressed KV cache holds per token and layer: keys and
 * values of all KV heads, or one latent with its rotated key.
 */
size_t kvd_config_cached(const kvd_config *c);

/* Returns true if the layer has routed experts in place of one feed-forward block. */
bool kvd_config_routed(const kvd_config *c, int layer);

#endif
