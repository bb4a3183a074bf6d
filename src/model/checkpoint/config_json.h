/*
 * Helpers with which the model families read config.json. A key whose value is null counts as
 * absent. Messages name the key and the value. Functions that return int return 0, or -1 with *err.
 */
#ifndef KVD_MODEL_CHECKPOINT_CONFIG_JSON_H
#define KVD_MODEL_CHECKPOINT_CONFIG_JSON_H

#include <jansson.h>
#include <stdbool.h>

#include "model/checkpoint/config.h"

/* Returns the member `key`, or NULL if it is absent or null. */
const json_t *kvd_cfg_member(const json_t *object, const char *key);

/*
 * Each reads an integer from 1 to KVD_CONFIG_MAX_SIZE into *out. If the key is absent, kvd_cfg_size
 * fails, and kvd_cfg_size_or leaves *out unchanged.
 */
int kvd_cfg_size(const json_t *root, const char *key, int *out, kvd_err *err);
int kvd_cfg_size_or(const json_t *root, const char *key, int *out, kvd_err *err);

/* Reads a positive finite number into *out; fails if it would be 0 or infinite in float32. */
int kvd_cfg_positive(const json_t *root, const char *key, double *out, kvd_err *err);

/* Reads a positive finite number into *out; if the key is absent, *out stays unchanged. */
int kvd_cfg_positive_or(const json_t *root, const char *key, double *out, kvd_err *err);

/* Reads true or false. If the key is absent, *out does not change. */
int kvd_cfg_bool(const json_t *root, const char *key, bool *out, kvd_err *err);

/*
 * Returns text_config, the configuration of the language model in a multimodal config.json. Returns
 * NULL with *err if it is missing or its weights are quantised.
 */
const json_t *kvd_cfg_text_config(const json_t *root, kvd_err *err);

/*
 * Reads num_hidden_layers, num_attention_heads, hidden_size, vocab_size and
 * max_position_embeddings, all of which are required.
 */
int kvd_cfg_sizes(const json_t *root, kvd_config *c, kvd_err *err);

/*
 * Reads num_key_value_heads into c->n_kv_heads and head_dim into c->d_head. kvd_cfg_sizes must have
 * been called before. If a key is absent, its default kv_heads or d_head is used. If the default is
 * 0 or the key is null, the number is computed: n_kv_heads = n_heads, or d_head = d_model /
 * n_heads. Fails if n_heads is not a multiple of n_kv_heads, or n_heads * d_head is too large.
 */
int kvd_cfg_heads(const json_t *root, int kv_heads, int d_head, kvd_config *c, kvd_err *err);
/*
 * Sets d_head to d_model / n_heads, and checks the numbers of heads and dimensions as kvd_cfg_heads
 * does.
 */
int kvd_cfg_split_heads(kvd_config *c, kvd_err *err);

/*
 * Reads tie_word_embeddings (`tied` if absent), bos_token_id and eos_token_id. vocab_size must have
 * been read before.
 */
int kvd_cfg_head_and_tokens(const json_t *root, bool tied, kvd_config *c, kvd_err *err);

/*
 * Reads the activation function under `key`; `absent` is its name if the key is absent. If `gated`,
 * only "silu" is accepted. Otherwise "relu", "gelu" (exact), and "gelu_new" or "gelu_pytorch_tanh"
 * (approximated by tanh) are accepted.
 */
int kvd_cfg_activation(const json_t *root, const char *key, bool gated, const char *absent,
                       kvd_config *c, kvd_err *err);

/* Reads the activation of a GeGLU block, which must be gelu_pytorch_tanh or absent. */
int kvd_cfg_geglu(const json_t *root, const char *key, kvd_config *c, kvd_err *err);

/* Fails if the key is true; the message names `what`, the unsupported feature. */
int kvd_cfg_refuse_true(const json_t *root, const char *key, const char *what, kvd_err *err);
/* Fails if the key is present, unless its value is null. */
int kvd_cfg_refuse_set(const json_t *root, const char *key, kvd_err *err);

/*
 * Sets the sliding window of layers first .. n_layers-1 to `window` tokens. Fails if the model has
 * more layers than KVD_CONFIG_WINDOW_LAYERS.
 */
int kvd_cfg_set_window(kvd_config *c, int window, int first, kvd_err *err);

/*
 * Sets a sliding window of `window` tokens in all layers except number `pattern`, 2 * `pattern`,
 * and so on, where the first layer has number 1.
 */
int kvd_cfg_window_pattern(kvd_config *c, int window, int pattern, kvd_err *err);

/*
 * Reads the list layer_types. If `decides`, the list must name every layer, and the function sets
 * the sliding window in the layers that the list calls sliding_attention. If not, it fails if the
 * list contradicts the sliding windows that are already set in *c.
 */
int kvd_cfg_layer_types(const json_t *root, int window, bool decides, kvd_config *c, kvd_err *err);

/* RoPE scalings that a model family supports: bits of the argument `types` of kvd_cfg_rope. */
enum {
    KVD_CFG_ROPE_ALL = (1 << KVD_ROPE_YARN << 1) - 1,
    KVD_CFG_ROPE_PARTIAL = 1 << KVD_ROPE_YARN << 1,
    KVD_CFG_ROPE_QUERY_SCALE = KVD_CFG_ROPE_PARTIAL << 1
};

/*
 * Reads the base rope_theta (10000 if absent) and the scaling of RoPE from rope_parameters,
 * rope_scaling or the top level of config.json. The model's sizes must have been read before.
 *
 *   original  default of the key original_max_position_embeddings; 0: required. YaRN's
 *             default is max_position_embeddings, as in the Hugging Face library
 *   types     scalings that the family supports, as bits 1 << kvd_rope_scaling, and
 *             KVD_CFG_ROPE_PARTIAL if it supports partial_rotary_factor. With
 *             KVD_CFG_ROPE_QUERY_SCALE, a yarn model may have llama_4_scaling_beta, and
 *             max_positions becomes at most the original context, where that factor is 1
 */
int kvd_cfg_rope(const json_t *root, int original, unsigned types, kvd_config *c, kvd_err *err);

/*
 * Reads the RoPE parameters of families that rotate the fraction `absent` of a head's dimensions,
 * unless partial_rotary_factor gives another. Fails if that number of dimensions is odd or 0.
 */
int kvd_cfg_rope_part(const json_t *root, double absent, kvd_config *c, kvd_err *err);

/*
 * Reads the RoPE parameters of families whose layers with a sliding window have their own RoPE base
 * and no scaling. rope_parameters may hold the objects `full_attention` and `sliding_attention`.
 * Otherwise the base of sliding layers is rope_local_base_freq at the top level. The defaults of
 * the bases are `theta` (full attention) and `local` (sliding); if `local` is 0, sliding layers use
 * the base of the full layers.
 */
int kvd_cfg_rope_by_layer(const json_t *root, double theta, double local, kvd_config *c,
                          kvd_err *err);

/*
 * Names of the keys of config.json that describe routed experts, and the value of each key if it is
 * absent. A default of 0 means that the key is required.
 */
typedef struct {
    const char *experts, *chosen, *width;
    int n_experts, n_chosen, d_expert;
} kvd_routed_keys;

/*
 * Reads the numbers of experts and their hidden size. kvd_cfg_sizes must have been called before.
 * num_experts and num_local_experts are accepted in place of each other. Fails if the model has
 * more than KVD_CONFIG_EXPERT_LAYERS layers, or if a token uses more experts than there are.
 */
int kvd_cfg_routed(const json_t *root, const kvd_routed_keys *keys, kvd_config *c, kvd_err *err);

/*
 * Reads which layers have no routed experts: those listed in mlp_only_layers, and those whose
 * number (the first layer is 1) is not a multiple of decoder_sparse_step.
 */
int kvd_cfg_dense_layers(const json_t *root, kvd_config *c, kvd_err *err);

/*
 * Mark layers without RoPE: those whose entry in the list `key` is 0, every `interval`-th, or those
 * without a sliding window. kvd_cfg_rope must have been called before.
 */
int kvd_cfg_unrotated(const json_t *root, const char *key, kvd_config *c, kvd_err *err);
int kvd_cfg_unrotated_every(int interval, kvd_config *c, kvd_err *err);
int kvd_cfg_unrotated_full(kvd_config *c, kvd_err *err);

/*
 * Sets the base of RoPE to `theta` if config.json has no key rope_theta. Must be called after
 * kvd_cfg_rope.
 */
void kvd_cfg_theta_or(const json_t *root, double theta, kvd_config *c);

#endif
