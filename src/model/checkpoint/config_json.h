/* Helpers to read config.json. A key whose value is null counts as absent. Functions that return
 * int return 0, or -1 on failure and fill *err. */
#ifndef KVD_MODEL_CHECKPOINT_CONFIG_JSON_H
#define KVD_MODEL_CHECKPOINT_CONFIG_JSON_H

#include <jansson.h>
#include <stdbool.h>

#include "model/checkpoint/config.h"

/* Sets the bit of layer `layer` in the bit field `layers`, which has a bit per layer. */
void kvd_cfg_mark(uint64_t *layers, int layer);

/* Returns a member of a JSON object, or NULL if it is absent or null. */
const json_t *kvd_cfg_member(const json_t *object, const char *key);

/* Reads an integer from 1 to KVD_CONFIG_MAX_SIZE. Fails if the key is absent. */
int kvd_cfg_size(const json_t *root, const char *key, int *out, kvd_err *err);
/* Reads an integer from 1 to KVD_CONFIG_MAX_SIZE. If the key is absent, *out does not change. */
int kvd_cfg_size_or(const json_t *root, const char *key, int *out, kvd_err *err);

/* Reads a positive number that float32 can hold. */
int kvd_cfg_positive(const json_t *root, const char *key, double *out, kvd_err *err);

/* Reads a positive number; if the key is absent, *out does not change. */
int kvd_cfg_positive_or(const json_t *root, const char *key, double *out, kvd_err *err);

/* Reads true or false; if the key is absent, *out does not change. */
int kvd_cfg_bool(const json_t *root, const char *key, bool *out, kvd_err *err);

/* Returns the object "text_config" of a multimodal model. Returns NULL and fills *err if it is
 * missing or says that the weights are quantised. */
const json_t *kvd_cfg_text_config(const json_t *root, kvd_err *err);

/* Reads the sizes that config.json must state for every model, such as num_hidden_layers. */
int kvd_cfg_sizes(const json_t *root, kvd_config *c, kvd_err *err);

/* Reads num_key_value_heads and head_dim. Their defaults are `kv_heads` and `d_head`. */
int kvd_cfg_heads(const json_t *root, int kv_heads, int d_head, kvd_config *c, kvd_err *err);
int kvd_cfg_split_heads(const json_t *root, kvd_config *c, kvd_err *err);

/* Reads tie_word_embeddings (default: `tied`), and the tokens that begin and end a text. The caller
 * must have set c->vocab_size. */
int kvd_cfg_head_and_tokens(const json_t *root, bool tied, kvd_config *c, kvd_err *err);

/* defaults that kvd_cfg_usual takes for fields missing in config.json */
typedef struct {
    /* activation function of a feed-forward block without gate; NULL means SwiGLU */
    const char *activation;
    const char *eps;      /* key for the epsilon of norms; NULL means rms_norm_eps */
    int kv_heads, d_head; /* defaults of num_key_value_heads and head_dim */
    bool no_ffn;          /* true if intermediate_size is not read */
    bool tied;
    double theta;   /* base of RoPE; 0 means 10000 */
    double rotated; /* partial_rotary_factor; 0 means that only 1 may be stated */
} kvd_usual;

/* Reads the fields that most model families have: sizes, heads, hidden_act, the norms' epsilon, and
 * the tokens that begin and end a text. *u has the defaults. */
int kvd_cfg_usual(const json_t *root, const kvd_usual *u, kvd_config *c, kvd_err *err);

/* Reads RoPE's parameters and the fields that most model families have, such as sizes and numbers
 * of heads. *u has the defaults. */
int kvd_cfg_usual_rope(const json_t *root, const kvd_usual *u, kvd_config *c, kvd_err *err);

/* Reads from config.json whether the projections to Q, K and V and the output projection have
 * biases. If the key is absent, *c does not change. */
int kvd_cfg_attention_bias(const json_t *root, kvd_config *c, kvd_err *err);

/* Reads the name of an activation function; if the key is absent, the name is `absent`. If `gated`,
 * only "silu" is accepted, else any name but "silu" that kvdim knows. */
int kvd_cfg_activation(const json_t *root, const char *key, bool gated, const char *absent,
                       kvd_config *c, kvd_err *err);

/* Selects the activation function GeGLU (tanh form). Fails if the key has another value than
 * "gelu_pytorch_tanh". */
int kvd_cfg_geglu(const json_t *root, const char *key, kvd_config *c, kvd_err *err);

/* Fails if the key is true, because kvdim does not support `what`. */
int kvd_cfg_refuse_true(const json_t *root, const char *key, const char *what, kvd_err *err);
/* Fails if the key is present, unless its value is null. */
int kvd_cfg_refuse_set(const json_t *root, const char *key, kvd_err *err);

/* Gives layer `first` and all later layers a sliding window of `window` tokens. */
int kvd_cfg_set_window(kvd_config *c, int window, int first, kvd_err *err);

/* Reads sliding_window in tokens. If its value is null, *window is 0 (no window); if the key is
 * absent, *window is `absent`. */
int kvd_cfg_window(const json_t *root, int absent, int *window, kvd_err *err);

/* Gives a sliding window to the layers that layer_types calls sliding or, if layer_types is absent,
 * to layer `first` and all later ones. */
int kvd_cfg_window_from(const json_t *root, int window, int first, kvd_config *c, kvd_err *err);

/* Gives a sliding window to the layers that layer_types calls sliding or, if layer_types is absent,
 * to all layers but every `pattern`-th. */
int kvd_cfg_window_pattern(const json_t *root, int window, int pattern, kvd_config *c,
                           kvd_err *err);

/* Reads layer_types, which says for each layer if it has a sliding window. If `decides` is true,
 * sets the windows in *c; else fails if layer_types contradicts them. */
int kvd_cfg_layer_types(const json_t *root, int window, bool decides, kvd_config *c, kvd_err *err);

/* Bits of a mask of the RoPE settings that a model family supports, for example 1 << KVD_ROPE_YARN.
 * KVD_CFG_ROPE_PARTIAL: RoPE may leave some dimensions unrotated. */
enum {
    KVD_CFG_ROPE_ALL = (1 << KVD_ROPE_YARN << 1) - 1,
    KVD_CFG_ROPE_PARTIAL = 1 << KVD_ROPE_YARN << 1,
    KVD_CFG_ROPE_QUERY_SCALE = KVD_CFG_ROPE_PARTIAL << 1
};

/* Reads rope_theta and RoPE scaling. The caller must have set c->d_head and c->max_positions.
 *
 * original  default of original_max_position_embeddings; if 0, the key is required
 * types     mask of the supported RoPE settings, such as KVD_CFG_ROPE_ALL */
int kvd_cfg_rope(const json_t *root, int original, unsigned types, kvd_config *c, kvd_err *err);

/* Fails if config.json has no parameters of RoPE. In some model families, the Hugging Face library
 * then takes defaults of the family, which kvdim does not know. */
int kvd_cfg_need_rope(const json_t *root, kvd_err *err);

/* Reads RoPE's parameters. `absent` is the default of partial_rotary_factor, the rotated fraction
 * of each head. */
int kvd_cfg_rope_part(const json_t *root, double absent, kvd_config *c, kvd_err *err);

/* Reads RoPE's parameters for layers with and without a sliding window. The default base is `local`
 * in layers with a window, and `theta` in the others. */
int kvd_cfg_rope_by_layer(const json_t *root, double theta, double local, kvd_config *c,
                          kvd_err *err);

/* keys of config.json for routed experts, and their default values */
typedef struct {
    /* keys in config.json: experts in a layer, experts that a token uses, hidden size of an
     * expert */
    const char *experts, *chosen, *width;
    /* values to use if config.json lacks a key; 0: the key is required */
    int n_experts, n_chosen, d_expert;
} kvd_routed_keys;

/* Reads how many routed experts each layer has, how many a token uses, and their hidden size. The
 * caller must have set c->n_layers. */
int kvd_cfg_routed(const json_t *root, const kvd_routed_keys *keys, kvd_config *c, kvd_err *err);

/* Reads which layers have a plain feed-forward block instead of experts. */
int kvd_cfg_dense_layers(const json_t *root, kvd_config *c, kvd_err *err);

/* Records that layer l has no RoPE if element l of the list `key` in config.json is 0. */
int kvd_cfg_unrotated(const json_t *root, const char *key, kvd_config *c, kvd_err *err);
/* Records that every `interval`-th layer has no RoPE. */
int kvd_cfg_unrotated_every(int interval, kvd_config *c, kvd_err *err);
/* Records that the layers without a sliding window have no RoPE. */
int kvd_cfg_unrotated_full(kvd_config *c, kvd_err *err);

/* Sets the base of RoPE to `theta` if config.json does not state a base. */
void kvd_cfg_theta_or(const json_t *root, double theta, kvd_config *c);

#endif
