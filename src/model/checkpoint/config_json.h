/*
 * Helpers to read config.json, in which null counts as absent. Functions that return int return 0,
 * or -1 with *err.
 */
#ifndef KVD_MODEL_CHECKPOINT_CONFIG_JSON_H
#define KVD_MODEL_CHECKPOINT_CONFIG_JSON_H

#include <jansson.h>
#include <stdbool.h>

#include "model/checkpoint/config.h"

/* Sets the bit of layer `layer` in a bit field of kvd_config, such as dense_layers. */
void kvd_cfg_mark(uint64_t *layers, int layer);

/* Returns the member `key` of a JSON object, or NULL if it is absent or null. */
const json_t *kvd_cfg_member(const json_t *object, const char *key);

/* Read an integer from 1 to KVD_CONFIG_MAX_SIZE. If the key is absent, kvd_cfg_size fails. */
int kvd_cfg_size(const json_t *root, const char *key, int *out, kvd_err *err);
int kvd_cfg_size_or(const json_t *root, const char *key, int *out, kvd_err *err);

/* Reads a positive number that is finite and not zero in float32. */
int kvd_cfg_positive(const json_t *root, const char *key, double *out, kvd_err *err);

/* Reads a positive number; if the key is absent, *out does not change. */
int kvd_cfg_positive_or(const json_t *root, const char *key, double *out, kvd_err *err);

/* Reads true or false; if the key is absent, *out does not change. */
int kvd_cfg_bool(const json_t *root, const char *key, bool *out, kvd_err *err);

/* Returns a multimodal model's text_config. Returns NULL with *err if its weights are quantised. */
const json_t *kvd_cfg_text_config(const json_t *root, kvd_err *err);

/* Reads the sizes that all models must state, such as num_hidden_layers. */
int kvd_cfg_sizes(const json_t *root, kvd_config *c, kvd_err *err);

/*
 * Reads num_key_value_heads and head_dim of config.json. If absent, they are kv_heads and d_head.
 */
int kvd_cfg_heads(const json_t *root, int kv_heads, int d_head, kvd_config *c, kvd_err *err);
int kvd_cfg_split_heads(kvd_config *c, kvd_err *err);

/*
 * Reads from config.json tie_word_embeddings (`tied` if absent), bos_token_id and eos_token_id. The
 * caller must set c->vocab_size before.
 */
int kvd_cfg_head_and_tokens(const json_t *root, bool tied, kvd_config *c, kvd_err *err);

/* Values that kvd_cfg_usual takes for keys that are absent in config.json. */
typedef struct {
    const char *activation; /* of a feed-forward block without gate; NULL means SwiGLU */
    const char *eps;        /* name of the key, or NULL for rms_norm_eps */
    int kv_heads, d_head;   /* as in kvd_cfg_heads */
    bool no_ffn;            /* intermediate_size is not read */
    bool tied;
    double theta;   /* base of RoPE; 0 means 10000 */
    double rotated; /* partial_rotary_factor; 0 means that only 1 may be stated */
} kvd_usual;

/*
 * Reads from config.json hidden_act, sizes, heads, the norms' epsilon, tie_word_embeddings and
 * special tokens.
 */
int kvd_cfg_usual(const json_t *root, const kvd_usual *u, kvd_config *c, kvd_err *err);

/* Reads from config.json the keys of kvd_cfg_usual and the parameters of RoPE. */
int kvd_cfg_usual_rope(const json_t *root, const kvd_usual *u, kvd_config *c, kvd_err *err);

/*
 * Reads attention_bias, which tells if Q, K, V and the output projection have biases. If absent, *c
 * keeps its value.
 */
int kvd_cfg_attention_bias(const json_t *root, kvd_config *c, kvd_err *err);

/*
 * Reads the name of an activation function, `absent` if the key is absent. If `gated`, only "silu"
 * is accepted.
 */
int kvd_cfg_activation(const json_t *root, const char *key, bool gated, const char *absent,
                       kvd_config *c, kvd_err *err);

/* Reads the activation of a GeGLU block. The key must be absent or "gelu_pytorch_tanh". */
int kvd_cfg_geglu(const json_t *root, const char *key, kvd_config *c, kvd_err *err);

/* Fails if the key is true, because `what` is not supported. */
int kvd_cfg_refuse_true(const json_t *root, const char *key, const char *what, kvd_err *err);
/* Fails if the key is present, unless its value is null. */
int kvd_cfg_refuse_set(const json_t *root, const char *key, kvd_err *err);

/* Gives layers first .. n_layers-1 a sliding window of `window` tokens. */
int kvd_cfg_set_window(kvd_config *c, int window, int first, kvd_err *err);

/* Reads sliding_window in tokens, `absent` if the key is absent. A null means no window, 0. */
int kvd_cfg_window(const json_t *root, int absent, int *window, kvd_err *err);

/*
 * Gives a sliding window to the layers that layer_types lists. If that key is absent, to all layers
 * from `first` on.
 */
int kvd_cfg_window_from(const json_t *root, int window, int first, kvd_config *c, kvd_err *err);

/*
 * Gives a sliding window to the layers that layer_types lists. If that key is absent, to all layers
 * except every `pattern`-th.
 */
int kvd_cfg_window_pattern(const json_t *root, int window, int pattern, kvd_config *c,
                           kvd_err *err);

/*
 * Reads which layers have a sliding window from layer_types. Unless `decides`, the list must agree
 * with the windows already in *c.
 */
int kvd_cfg_layer_types(const json_t *root, int window, bool decides, kvd_config *c, kvd_err *err);

/*
 * Bits of the parameter `types` of kvd_cfg_rope. They tell which RoPE scalings the family supports.
 */
enum {
    KVD_CFG_ROPE_ALL = (1 << KVD_ROPE_YARN << 1) - 1,
    KVD_CFG_ROPE_PARTIAL = 1 << KVD_ROPE_YARN << 1,
    KVD_CFG_ROPE_QUERY_SCALE = KVD_CFG_ROPE_PARTIAL << 1
};

/*
 * Reads rope_theta (10000 if absent) and RoPE scaling from rope_parameters, rope_scaling or the top
 * level. The caller must read the sizes before.
 *
 *   original  default of original_max_position_embeddings; 0 means that the key is required, for
 *             YaRN that max_position_embeddings is the default
 *   types     a bit 1 << kvd_rope_scaling for each supported scaling, and
 *             KVD_CFG_ROPE_PARTIAL      to read partial_rotary_factor
 *             KVD_CFG_ROPE_QUERY_SCALE  to accept llama_4_scaling_beta, a factor on queries that
 *                                       is 1 in the original context, to which max_positions is
 *                                       limited
 */
int kvd_cfg_rope(const json_t *root, int original, unsigned types, kvd_config *c, kvd_err *err);

/*
 * Reads RoPE's parameters. `absent` is the rotated fraction of dimensions if partial_rotary_factor
 * is absent.
 */
int kvd_cfg_rope_part(const json_t *root, double absent, kvd_config *c, kvd_err *err);

/*
 * Reads RoPE's parameters. If absent, its base is `theta` and, in layers with a sliding window,
 * `local`.
 */
int kvd_cfg_rope_by_layer(const json_t *root, double theta, double local, kvd_config *c,
                          kvd_err *err);

/*
 * Names of the keys of config.json for routed experts, and the values if they are absent. A default
 * of 0 means that the key is required.
 */
typedef struct {
    const char *experts, *chosen, *width;
    int n_experts, n_chosen, d_expert;
} kvd_routed_keys;

/*
 * Reads from config.json the numbers of routed experts and their hidden size. kvd_cfg_sizes must be
 * called before.
 */
int kvd_cfg_routed(const json_t *root, const kvd_routed_keys *keys, kvd_config *c, kvd_err *err);

/*
 * Reads which layers have a plain feed-forward block instead of experts: those in mlp_only_layers,
 * and those whose number is no multiple of decoder_sparse_step.
 */
int kvd_cfg_dense_layers(const json_t *root, kvd_config *c, kvd_err *err);

/*
 * Mark layers that do not use RoPE: those that the list `key` names, every `interval`-th layer, or
 * all layers without a sliding window.
 */
int kvd_cfg_unrotated(const json_t *root, const char *key, kvd_config *c, kvd_err *err);
int kvd_cfg_unrotated_every(int interval, kvd_config *c, kvd_err *err);
int kvd_cfg_unrotated_full(kvd_config *c, kvd_err *err);

/* Sets the base of RoPE to `theta` if config.json states none. */
void kvd_cfg_theta_or(const json_t *root, double theta, kvd_config *c);

#endif
