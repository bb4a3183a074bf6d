/*
 * Helpers with which the families read config.json. A key whose value is null counts as absent.
 * Messages name the key and the value. Functions that return int return 0, or -1 with *err.
 */
#ifndef KVD_MODEL_CHECKPOINT_CONFIG_JSON_H
#define KVD_MODEL_CHECKPOINT_CONFIG_JSON_H

#include <jansson.h>
#include <stdbool.h>

#include "model/checkpoint/config.h"

/* Returns the member `key` of a JSON object, or NULL if it is absent or null. */
const json_t *kvd_cfg_member(const json_t *object, const char *key);

/*
 * Reads an integer of 1 to KVD_CONFIG_MAX_SIZE into *out. If the key is absent, kvd_cfg_size fails
 * and kvd_cfg_size_or leaves *out unchanged.
 */
int kvd_cfg_size(const json_t *root, const char *key, int *out, kvd_err *err);
int kvd_cfg_size_or(const json_t *root, const char *key, int *out, kvd_err *err);

/* Reads a positive finite number into *out, which must not become 0 or infinity in float32. */
int kvd_cfg_positive(const json_t *root, const char *key, double *out, kvd_err *err);

/* Reads a positive finite number into *out; an absent key leaves *out unchanged. */
int kvd_cfg_positive_or(const json_t *root, const char *key, double *out, kvd_err *err);

/* Reads true or false into *out; an absent key leaves *out unchanged. */
int kvd_cfg_bool(const json_t *root, const char *key, bool *out, kvd_err *err);

/*
 * Reads the keys that most families share, all of them required: num_hidden_layers,
 * num_attention_heads, hidden_size, vocab_size, max_position_embeddings.
 */
int kvd_cfg_sizes(const json_t *root, kvd_config *c, kvd_err *err);

/*
 * Reads num_key_value_heads and head_dim; the sizes must have been read before. If the keys are
 * absent, their values are `kv_heads` and `d_head`, of which 0 means the number of query heads and
 * hidden_size / num_attention_heads. If the keys are null, the values are always these two. Checks
 * that the heads divide and that n_heads * d_head is not too large.
 */
int kvd_cfg_heads(const json_t *root, int kv_heads, int d_head, kvd_config *c, kvd_err *err);
/*
 * Sets d_head to d_model / n_heads and makes the checks of kvd_cfg_heads, for families that read
 * the numbers of heads in another way.
 */
int kvd_cfg_split_heads(kvd_config *c, kvd_err *err);

/*
 * Reads tie_word_embeddings (`tied` if absent), bos_token_id and eos_token_id; vocab_size must have
 * been read before.
 */
int kvd_cfg_head_and_tokens(const json_t *root, bool tied, kvd_config *c, kvd_err *err);

/*
 * Reads the activation under `key`, or takes `absent` if there is none. If `gated`, only silu is
 * accepted (the gate of SwiGLU), else gelu in its two forms and relu.
 */
int kvd_cfg_activation(const json_t *root, const char *key, bool gated, const char *absent,
                       kvd_config *c, kvd_err *err);

/*
 * Reads the activation of a gated feed-forward block (GeGLU) under `key`, which must be
 * gelu_pytorch_tanh or absent.
 */
int kvd_cfg_geglu(const json_t *root, const char *key, kvd_config *c, kvd_err *err);

/*
 * Fails if the configuration sets `key` to true; `what` names the unsupported feature in the
 * message.
 */
int kvd_cfg_refuse_true(const json_t *root, const char *key, const char *what, kvd_err *err);
/* Fails if the configuration has the key `key` with a value other than null. */
int kvd_cfg_refuse_set(const json_t *root, const char *key, kvd_err *err);

/* ---- layers with a sliding window --------------------------------------------------------- */

/*
 * Sets the sliding window of layers first .. n_layers-1 to `window` tokens. Fails if the model has
 * more layers than the bit set in a kvd_config has bits.
 */
int kvd_cfg_set_window(kvd_config *c, int window, int first, kvd_err *err);

/*
 * Sets the sliding window of all layers but every `pattern`-th, counted from 1; used if no list
 * names the layers. Fails if the model has more layers than the bit set in a kvd_config has bits.
 */
int kvd_cfg_window_pattern(kvd_config *c, int window, int pattern, kvd_err *err);

/*
 * Reads layer_types. If `decides`, the list must name every layer; its sliding_attention layers get
 * the window and its full_attention layers none. Otherwise the list must agree with *c.
 */
int kvd_cfg_layer_types(const json_t *root, int window, bool decides, kvd_config *c, kvd_err *err);

/*
 * Reads the RoPE settings of config.json: theta and scaling, from every place that may state them.
 */

/*
 * Reads rope_theta (10000 if absent) from the top level or from rope_parameters / rope_scaling, and
 * the scaling from the latter. original_max_position_embeddings is also read from the top level.
 * The sizes must have been read before. Returns 0, or -1 with *err.
 *
 *   original  value of original_max_position_embeddings if no place states it; 0: it is required,
 *             except by yarn, which takes max_position_embeddings as the Hugging Face library does
 *   types     scalings that the family supports, as bits 1 << kvd_rope_scaling, and
 *             KVD_CFG_ROPE_PARTIAL if it supports partial_rotary_factor
 */
enum {
    KVD_CFG_ROPE_ALL = (1 << KVD_ROPE_YARN << 1) - 1,
    KVD_CFG_ROPE_PARTIAL = 1 << KVD_ROPE_YARN << 1
};
int kvd_cfg_rope(const json_t *root, int original, unsigned types, kvd_config *c, kvd_err *err);

/*
 * Reads RoPE as kvd_cfg_rope does, for families whose layers with a window have a base of their own
 * and no scaling. rope_parameters may hold one object for `full_attention` and one for
 * `sliding_attention`; otherwise the base of the latter is the top level's rope_local_base_freq.
 * `theta` and `local` are the bases if the file states none; local 0: the base of the other layers.
 */
int kvd_cfg_rope_by_layer(const json_t *root, double theta, double local, kvd_config *c,
                          kvd_err *err);

/*
 * Names of the keys in config.json that describe routed experts, and the values used for absent
 * keys; 0: the key is required.
 */
typedef struct {
    const char *experts, *chosen, *width;
    int n_experts, n_chosen, d_expert;
} kvd_routed_keys;

/*
 * Reads the number of experts, how many of them a token uses, and the width of each. The number of
 * experts is read from its key, or from the other of num_experts and num_local_experts. The sizes
 * of the model must have been read before. Fails if the model has more layers than a configuration
 * can mark, or if a token uses more experts than there are.
 */
int kvd_cfg_routed(const json_t *root, const kvd_routed_keys *keys, kvd_config *c, kvd_err *err);

/*
 * Reads the layers without experts: those in the list mlp_only_layers, and with decoder_sparse_step
 * N those whose number, counted from 1, is not a multiple of N.
 */
int kvd_cfg_dense_layers(const json_t *root, kvd_config *c, kvd_err *err);

/* Sets rope_theta to `theta` if config.json does not give it. Must be called after kvd_cfg_rope. */
void kvd_cfg_theta_or(const json_t *root, double theta, kvd_config *c);

#endif
