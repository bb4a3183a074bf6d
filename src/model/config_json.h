/*
 * What the families share in reading config.json. A key that is null counts as absent. Messages name
 * the key and the value.
 */
#ifndef KVD_MODEL_CONFIG_JSON_H
#define KVD_MODEL_CONFIG_JSON_H

#include <jansson.h>
#include <stdbool.h>

#include "model/config.h"

/* The member `key`, or NULL when it is absent or null. */
const json_t *kvd_cfg_member(const json_t *object, const char *key);

/* An integer within 1 to KVD_CONFIG_MAX_SIZE. The second: absent leaves *out as it is. */
int kvd_cfg_size(const json_t *root, const char *key, int *out, kvd_err *err);
int kvd_cfg_size_or(const json_t *root, const char *key, int *out, kvd_err *err);

/* A positive finite number. */
int kvd_cfg_positive(const json_t *root, const char *key, double *out, kvd_err *err);

/* true or false; absent leaves *out as it is. */
int kvd_cfg_bool(const json_t *root, const char *key, bool *out, kvd_err *err);

/* The keys that have the same names in most families: num_hidden_layers, num_attention_heads,
 * hidden_size, vocab_size, max_position_embeddings, all required. */
int kvd_cfg_sizes(const json_t *root, kvd_config *c, kvd_err *err);

/*
 * num_key_value_heads and head_dim, after the sizes. Left out: kv_heads and d_head, where 0 stands for as
 * many as query heads and for hidden_size / num_attention_heads; null: those two. Checks that heads
 * divide and that their product is not too large.
 */
int kvd_cfg_heads(const json_t *root, int kv_heads, int d_head, kvd_config *c, kvd_err *err);
/* The same checks on heads that were read in another way; d_head from d_model. */
int kvd_cfg_split_heads(kvd_config *c, kvd_err *err);

/* tie_word_embeddings (absent: tied), bos_token_id and eos_token_id, after vocab_size. */
int kvd_cfg_head_and_tokens(const json_t *root, bool tied, kvd_config *c, kvd_err *err);

/* The activation under `key`; gated: silu, the gate of SwiGLU; else gelu in its two forms and relu. Absent: `absent`. */
int kvd_cfg_activation(const json_t *root, const char *key, bool gated, const char *absent, kvd_config *c,
                       kvd_err *err);

/* Fails when `key` is true, naming what that would be. */
int kvd_cfg_refuse_true(const json_t *root, const char *key, const char *what, kvd_err *err);
/* Fails when `key` is there at all. */
int kvd_cfg_refuse_set(const json_t *root, const char *key, kvd_err *err);

/* ---- windows ------------------------------------------------------------------------------ */

/* Puts the window on layers first .. n_layers-1; refuses more layers than a configuration can mark. */
int kvd_cfg_set_window(kvd_config *c, int window, int first, kvd_err *err);

/*
 * layer_types: with `decides` its sliding_attention layers have the window and its full_attention layers
 * none (it must name every layer); without it the list must say what *c says already.
 */
int kvd_cfg_layer_types(const json_t *root, int window, bool decides, kvd_config *c, kvd_err *err);

#endif
