/*
 * Helpers with which the model families read config.json. A key whose value is null counts as
 * absent. Messages name the key and the value. Functions that return int return 0, or -1 with *err.
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

/* Reads a positive finite number into *out; fails if it would be 0 or infinite in float32. */
int kvd_cfg_positive(const json_t *root, const char *key, double *out, kvd_err *err);

/* Reads a positive finite number into *out; if the key is absent, *out stays unchanged. */
int kvd_cfg_positive_or(const json_t *root, const char *key, double *out, kvd_err *err);

/* Reads true or false into *out; if the key is absent, *out stays unchanged. */
int kvd_cfg_bool(const json_t *root, const char *key, bool *out, kvd_err *err);

/*
 * Reads the sizes that most families share: num_hidden_layers, num_attention_heads, hidden_size,
 * vocab_size and max_position_embeddings. All of these keys are required.
 */
int kvd_cfg_sizes(const json_t *root, kvd_config *c, kvd_err *err);

/*
 * Reads num_key_value_heads into c->n_kv_heads and head_dim into c->d_head; kvd_cfg_sizes must have
 * been called before. If a key is absent, its default is the argument `kv_heads` or `d_head`. If
 * the key is null, or if it is absent and the argument is 0, n_kv_heads becomes the number of query
 * heads, and d_head becomes hidden_size / num_attention_heads. Fails if n_heads is not a multiple
 * of n_kv_heads, or if n_heads * d_head is too large.
 */
int kvd_cfg_heads(const json_t *root, int kv_heads, int d_head, kvd_config *c, kvd_err *err);
/*
 * Sets d_head to d_model / n_heads and makes the checks of kvd_cfg_heads. For families whose
 * config.json states the numbers of heads under other keys.
 */
int kvd_cfg_split_heads(kvd_config *c, kvd_err *err);

/*
 * Reads tie_word_embeddings, bos_token_id and eos_token_id from config.json. If the key
 * tie_word_embeddings is absent, the argument `tied` takes its place. vocab_size must have been
 * read before.
 */
int kvd_cfg_head_and_tokens(const json_t *root, bool tied, kvd_config *c, kvd_err *err);

/*
 * Reads the name of the activation function from the key `key` of config.json; if the key is
 * absent, the name is `absent`. If `gated` (a feed-forward block with a gate, SwiGLU), only "silu"
 * is accepted. Otherwise "relu", "gelu" (exact) and "gelu_new" or "gelu_pytorch_tanh" (approximated
 * by tanh) are accepted.
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
 * more layers than KVD_CONFIG_WINDOW_LAYERS.
 */
int kvd_cfg_set_window(kvd_config *c, int window, int first, kvd_err *err);

/*
 * Sets a sliding window of `window` tokens in all layers except every `pattern`-th, counted from 1.
 * Used if config.json has no list that names the layers. Fails if the model has more layers than
 * KVD_CONFIG_WINDOW_LAYERS.
 */
int kvd_cfg_window_pattern(kvd_config *c, int window, int pattern, kvd_err *err);

/*
 * Reads the list layer_types. If `decides`, the list must name every layer; layers called
 * sliding_attention get the window, and layers called full_attention get none. Otherwise fails if
 * the list disagrees with the windows already set in *c.
 */
int kvd_cfg_layer_types(const json_t *root, int window, bool decides, kvd_config *c, kvd_err *err);

/*
 * Reads the base rope_theta (10000 if absent) and the scaling of RoPE into *c. They may be in
 * rope_parameters or rope_scaling; rope_theta and original_max_position_embeddings also at the top
 * level. The model's sizes must have been read before. Returns 0, or -1 with *err.
 *
 *   original  value of original_max_position_embeddings if the file does not state it; 0: the key
 *             is required, except for YaRN, which takes max_position_embeddings as Hugging Face
 *             does
 *   types     scalings that the family supports, as bits 1 << kvd_rope_scaling, and
 *             KVD_CFG_ROPE_PARTIAL if it supports partial_rotary_factor
 */
enum {
    KVD_CFG_ROPE_ALL = (1 << KVD_ROPE_YARN << 1) - 1,
    KVD_CFG_ROPE_PARTIAL = 1 << KVD_ROPE_YARN << 1
};
int kvd_cfg_rope(const json_t *root, int original, unsigned types, kvd_config *c, kvd_err *err);

/*
 * Reads RoPE as kvd_cfg_rope does, for families whose layers with a sliding window have their own
 * base and no scaling. rope_parameters may hold one object for `full_attention` and one for
 * `sliding_attention`. Otherwise the base of sliding layers is the key rope_local_base_freq at the
 * top level. `theta` (full attention) and `local` (sliding) are the bases if the file states none;
 * if `local` is 0, sliding layers use the base of the full layers.
 */
int kvd_cfg_rope_by_layer(const json_t *root, double theta, double local, kvd_config *c,
                          kvd_err *err);

/*
 * Names of the keys in config.json that describe routed experts, followed by the values for absent
 * keys. A value of 0 means that the key is required.
 */
typedef struct {
    const char *experts, *chosen, *width;
    int n_experts, n_chosen, d_expert;
} kvd_routed_keys;

/*
 * Reads the number of experts, how many of them a token uses, and the hidden size of each. If the
 * key of the number of experts is num_experts or num_local_experts, the other of these two names is
 * accepted too. The sizes of the model must have been read before. Fails if the model has more than
 * KVD_CONFIG_EXPERT_LAYERS layers, or if a token uses more experts than there are.
 */
int kvd_cfg_routed(const json_t *root, const kvd_routed_keys *keys, kvd_config *c, kvd_err *err);

/*
 * Marks the layers that have no routed experts: layers listed in mlp_only_layers, and layers whose
 * number, counted from 1, is not a multiple of decoder_sparse_step.
 */
int kvd_cfg_dense_layers(const json_t *root, kvd_config *c, kvd_err *err);

/* Sets rope_theta to `theta` if config.json does not give it. Must be called after kvd_cfg_rope. */
void kvd_cfg_theta_or(const json_t *root, double theta, kvd_config *c);

#endif
