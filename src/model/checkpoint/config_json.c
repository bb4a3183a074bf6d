#include "model/checkpoint/config_json.h"

#include <float.h>
#include <math.h>
#include <string.h>

void kvd_cfg_mark(uint64_t *layers, int layer)
{
    layers[layer / 64] |= (uint64_t)1 << (layer % 64);
}

const json_t *kvd_cfg_member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

int kvd_cfg_size(const json_t *root, const char *key, int *out, kvd_err *err)
{
    if (!kvd_cfg_member(root, key))
        return kvd_fail(err, "'%s' is missing", key);
    return kvd_cfg_size_or(root, key, out, err);
}

int kvd_cfg_size_or(const json_t *root, const char *key, int *out, kvd_err *err)
{
    const json_t *value = kvd_cfg_member(root, key);
    if (!value)
        return 0;
    if (!json_is_integer(value))
        return kvd_fail(err, "'%s' is not an integer", key);
    const json_int_t n = json_integer_value(value);
    if (n < 1 || n > KVD_CONFIG_MAX_SIZE)
        return kvd_fail(err, "'%s' is %lld, not within 1 to %d", key, (long long)n,
                        KVD_CONFIG_MAX_SIZE);
    *out = (int)n;
    return 0;
}

int kvd_cfg_positive(const json_t *root, const char *key, double *out, kvd_err *err)
{
    const json_t *value = kvd_cfg_member(root, key);
    if (!value)
        return kvd_fail(err, "'%s' is missing", key);
    if (!json_is_number(value))
        return kvd_fail(err, "'%s' is not a number", key);
    *out = json_number_value(value);
    if (!isfinite(*out) || *out <= 0)
        return kvd_fail(err, "'%s' is %g, not positive and finite", key, *out);
    if (*out < (double)FLT_MIN || *out > (double)FLT_MAX)
        return kvd_fail(err, "'%s' is %g, outside the range of float32", key, *out);
    return 0;
}

int kvd_cfg_positive_or(const json_t *root, const char *key, double *out, kvd_err *err)
{
    return kvd_cfg_member(root, key) ? kvd_cfg_positive(root, key, out, err) : 0;
}

int kvd_cfg_bool(const json_t *root, const char *key, bool *out, kvd_err *err)
{
    const json_t *value = kvd_cfg_member(root, key);
    if (value && !json_is_boolean(value))
        return kvd_fail(err, "'%s' is not true or false", key);
    /* The Hugging Face library reads null as false. */
    if (*out && json_is_null(json_object_get(root, key)))
        return kvd_fail(err, "'%s' is null: give true or false, or leave it out", key);
    if (value)
        *out = json_is_true(value);
    return 0;
}

int kvd_cfg_refuse_true(const json_t *root, const char *key, const char *what, kvd_err *err)
{
    bool on = false;
    if (kvd_cfg_bool(root, key, &on, err))
        return -1;
    return on ? kvd_fail(err, "'%s' is true, %s", key, what) : 0;
}

int kvd_cfg_refuse_set(const json_t *root, const char *key, kvd_err *err)
{
    if (kvd_cfg_member(root, key))
        return kvd_fail(err, "'%s' is set, which is not supported", key);
    return 0;
}

const json_t *kvd_cfg_text_config(const json_t *root, kvd_err *err)
{
    const json_t *const text = kvd_cfg_member(root, "text_config");
    if (!json_is_object(text)) {
        kvd_fail(err, "'text_config' is missing or not an object");
        return NULL;
    }
    if (!kvd_cfg_refuse_set(text, "quantization_config", err))
        return text;
    (void)kvd_in(err, "text_config");
    return NULL;
}

int kvd_cfg_sizes(const json_t *root, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_size(root, "num_hidden_layers", &c->n_layers, err) ||
        kvd_cfg_size(root, "num_attention_heads", &c->n_heads, err) ||
        kvd_cfg_size(root, "hidden_size", &c->d_model, err) ||
        kvd_cfg_size(root, "vocab_size", &c->vocab_size, err) ||
        kvd_cfg_size(root, "max_position_embeddings", &c->max_positions, err))
        return -1;
    return 0;
}

static int check_heads(const kvd_config *c, kvd_err *err)
{
    if (c->n_heads % c->n_kv_heads)
        return kvd_fail(err, "num_attention_heads %d is not a multiple of num_key_value_heads %d",
                        c->n_heads, c->n_kv_heads);
    if (c->d_head % 2 && c->positions == KVD_POSITIONS_ROPE)
        return kvd_fail(err, "the head size is %d, RoPE needs an even one", c->d_head);
    if (c->d_head > KVD_CONFIG_MAX_SIZE / c->n_heads)
        return kvd_fail(err, "num_attention_heads %d times head size %d is more than %d",
                        c->n_heads, c->d_head, KVD_CONFIG_MAX_SIZE);
    return 0;
}

int kvd_cfg_split_heads(const json_t *root, kvd_config *c, kvd_err *err)
{
    int stated = 0;
    if (c->d_model % c->n_heads)
        return kvd_fail(err, "hidden_size %d is not a multiple of num_attention_heads %d",
                        c->d_model, c->n_heads);
    c->d_head = c->d_model / c->n_heads;
    if (kvd_cfg_size_or(root, "head_dim", &stated, err))
        return -1;
    if (stated && stated != c->d_head)
        return kvd_fail(
            err,
            "'head_dim' is %d, only hidden_size / num_attention_heads, %d, is supported "
            "in a model of this family",
            stated, c->d_head);
    return check_heads(c, err);
}

int kvd_cfg_heads(const json_t *root, int kv_heads, int d_head, kvd_config *c, kvd_err *err)
{
    const bool kv_null = json_is_null(json_object_get(root, "num_key_value_heads"));
    const bool d_null = json_is_null(json_object_get(root, "head_dim"));
    c->n_kv_heads = kv_heads && !kv_null ? kv_heads : c->n_heads;
    c->d_head = d_head && !d_null ? d_head : 0;
    if (kvd_cfg_size_or(root, "num_key_value_heads", &c->n_kv_heads, err) ||
        kvd_cfg_size_or(root, "head_dim", &c->d_head, err))
        return -1;
    if (!c->d_head && c->d_model % c->n_heads)
        return kvd_fail(
            err,
            "hidden_size %d is not a multiple of num_attention_heads %d, and 'head_dim' is missing",
            c->d_model, c->n_heads);
    if (!c->d_head)
        c->d_head = c->d_model / c->n_heads;
    return check_heads(c, err);
}

static int read_id(const json_t *value, const char *key, int vocab_size, int *out, kvd_err *err)
{
    if (!json_is_integer(value))
        return kvd_fail(err, "'%s' is neither an integer nor a list of integers", key);
    const json_int_t id = json_integer_value(value);
    if (id < 0 || id >= vocab_size)
        return kvd_fail(err, "'%s' is %lld, not an id of the vocabulary of %d", key, (long long)id,
                        vocab_size);
    *out = (int)id;
    return 0;
}

/* Reads a token id, or a list of token ids. *out receives the first id; `more`, unless it is NULL,
 * receives the others. */
static int read_token(const json_t *root, const char *key, int vocab_size, int *out, int *more,
                      int *n_more, kvd_err *err)
{
    const json_t *value = kvd_cfg_member(root, key);
    const size_t n = json_array_size(value);
    *out = -1;
    if (more)
        *n_more = 0;
    if (!value)
        return 0;
    if (n > 1 + KVD_CONFIG_EOS_MORE)
        return kvd_fail(err, "'%s' lists %zu tokens, at most %d are supported", key, n,
                        1 + KVD_CONFIG_EOS_MORE);
    for (size_t i = 1; more && i < n; i++)
        if (read_id(json_array_get(value, i), key, vocab_size, &more[(*n_more)++], err))
            return -1;
    return read_id(n ? json_array_get(value, 0) : value, key, vocab_size, out, err);
}

int kvd_cfg_head_and_tokens(const json_t *root, bool tied, kvd_config *c, kvd_err *err)
{
    c->tied_head = tied;
    if (kvd_cfg_bool(root, "tie_word_embeddings", &c->tied_head, err) ||
        read_token(root, "bos_token_id", c->vocab_size, &c->bos_id, NULL, NULL, err) ||
        read_token(root, "eos_token_id", c->vocab_size, &c->eos_id, c->eos_more, &c->n_eos_more,
                   err))
        return -1;
    return 0;
}

int kvd_cfg_activation(const json_t *root, const char *key, bool gated, const char *absent,
                       kvd_config *c, kvd_err *err)
{
    static const struct {
        const char *name;
        kvd_activation is;
    } known[] = {{"silu", KVD_SWIGLU},        {"gelu", KVD_GELU},
                 {"gelu_new", KVD_GELU_TANH}, {"gelu_pytorch_tanh", KVD_GELU_TANH},
                 {"relu", KVD_RELU},          {"relu2", KVD_RELU2}};
    const json_t *value = kvd_cfg_member(root, key);
    const char *name = value ? json_string_value(value) : absent;
    for (size_t i = 0; name && i < sizeof known / sizeof known[0]; i++)
        if (strcmp(name, known[i].name) == 0 && (known[i].is == KVD_SWIGLU) == gated) {
            c->activation = known[i].is;
            return 0;
        }
    return kvd_fail(err, "'%s' is '%s', only %s", key, name ? name : "not a string",
                    gated ? "'silu' is supported"
                          : "'gelu', 'gelu_new', 'gelu_pytorch_tanh', 'relu' and 'relu2' are "
                            "supported");
}

int kvd_cfg_usual(const json_t *root, const kvd_usual *u, kvd_config *c, kvd_err *err)
{
    const bool gated = !u->activation;
    if (kvd_cfg_activation(root, "hidden_act", gated, gated ? "silu" : u->activation, c, err) ||
        kvd_cfg_sizes(root, c, err) ||
        (!u->no_ffn && kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err)) ||
        kvd_cfg_heads(root, u->kv_heads, u->d_head, c, err) ||
        kvd_cfg_positive(root, u->eps ? u->eps : "rms_norm_eps", &c->norm_eps, err) ||
        kvd_cfg_head_and_tokens(root, u->tied, c, err))
        return -1;
    return 0;
}

int kvd_cfg_usual_rope(const json_t *root, const kvd_usual *u, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_usual(root, u, c, err) ||
        (u->rotated > 0 ? kvd_cfg_rope_part(root, u->rotated, c, err)
                        : kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err)))
        return -1;
    if (u->theta > 0)
        kvd_cfg_theta_or(root, u->theta, c);
    return 0;
}

int kvd_cfg_attention_bias(const json_t *root, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err))
        return -1;
    c->bias_o = c->bias_qkv;
    return 0;
}

int kvd_cfg_geglu(const json_t *root, const char *key, kvd_config *c, kvd_err *err)
{
    static const char only[] = "gelu_pytorch_tanh";
    const json_t *value = kvd_cfg_member(root, key);
    const char *name = value ? json_string_value(value) : only;
    if (!name || strcmp(name, only) != 0)
        return kvd_fail(err, "'%s' is '%s', only '%s' is supported", key,
                        name ? name : "not a string", only);
    c->activation = KVD_GEGLU_TANH;
    return 0;
}

static int check_window_layers(const kvd_config *c, kvd_err *err)
{
    if (c->n_layers > KVD_CONFIG_WINDOW_LAYERS)
        return kvd_fail(err, "%d layers, at most %d when some of them have a window", c->n_layers,
                        KVD_CONFIG_WINDOW_LAYERS);
    return 0;
}

int kvd_cfg_set_window(kvd_config *c, int window, int first, kvd_err *err)
{
    if (check_window_layers(c, err))
        return -1;
    c->window = window;
    for (int l = first; l < c->n_layers; l++)
        kvd_cfg_mark(c->window_layers, l);
    return 0;
}

int kvd_cfg_window(const json_t *root, int absent, int *window, kvd_err *err)
{
    *window = json_object_get(root, "sliding_window") ? 0 : absent;
    return kvd_cfg_size_or(root, "sliding_window", window, err);
}

int kvd_cfg_window_from(const json_t *root, int window, int first, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_member(root, "layer_types"))
        return kvd_cfg_layer_types(root, window, true, c, err);
    return window && first < c->n_layers ? kvd_cfg_set_window(c, window, first, err) : 0;
}

int kvd_cfg_window_pattern(const json_t *root, int window, int pattern, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_member(root, "layer_types"))
        return kvd_cfg_layer_types(root, window, true, c, err);
    if (!window)
        return 0;
    if (check_window_layers(c, err))
        return -1;
    c->window = window;
    for (int l = 0; l < c->n_layers; l++)
        if ((l + 1) % pattern)
            kvd_cfg_mark(c->window_layers, l);
    return 0;
}

/* Returns 1 if layer i is of type "sliding_attention", 0 if of "full_attention", else -1 with
 * *err. */
static int layer_type(const json_t *layers, size_t i, kvd_err *err)
{
    const char *type = json_string_value(json_array_get(layers, i));
    if (type && strcmp(type, "full_attention") == 0)
        return 0;
    if (type && strcmp(type, "sliding_attention") == 0)
        return 1;
    return kvd_fail(
        err,
        "layer_types[%zu] is '%s', only 'full_attention' and 'sliding_attention' are supported", i,
        type ? type : "not a string");
}

int kvd_cfg_layer_types(const json_t *root, int window, bool decides, kvd_config *c, kvd_err *err)
{
    const json_t *layers = kvd_cfg_member(root, "layer_types");
    const size_t n = json_array_size(layers);
    if (!layers)
        return 0;
    if (!json_is_array(layers))
        return kvd_fail(err, "'layer_types' is not a list");
    if (n > (size_t)c->n_layers || (decides && n < (size_t)c->n_layers))
        return kvd_fail(err, "'layer_types' names %zu layers, the model has %d", n, c->n_layers);
    if (decides) {
        memset(c->window_layers, 0, sizeof c->window_layers);
        c->window = 0;
    }
    for (size_t i = 0; i < n; i++) {
        const int sliding = layer_type(layers, i, err);
        if (sliding < 0)
            return -1;
        if (decides && sliding) {
            if (!window)
                return kvd_fail(err,
                                "layer_types[%zu] is 'sliding_attention', but no window is set", i);
            if (check_window_layers(c, err))
                return -1;
            c->window = window;
            kvd_cfg_mark(c->window_layers, (int)i);
        } else if (!decides && sliding != (kvd_config_window(c, (int)i) > 0)) {
            return kvd_fail(err, "layer_types[%zu] is '%s', but 'sliding_window' is %s", i,
                            sliding ? "sliding_attention" : "full_attention",
                            sliding ? "not set" : "set");
        }
    }
    return 0;
}

static void mark_unrotated(kvd_config *c, int layer)
{
    kvd_cfg_mark(c->unrotated_layers, layer);
    c->rope_local_theta = INFINITY;
}

int kvd_cfg_unrotated(const json_t *root, const char *key, kvd_config *c, kvd_err *err)
{
    const json_t *const list = kvd_cfg_member(root, key);
    if (check_window_layers(c, err))
        return -1;
    if (!json_is_array(list) || json_array_size(list) < (size_t)c->n_layers)
        return kvd_fail(err, "'%s' is no list of %d layers", key, c->n_layers);
    for (int l = 0; l < c->n_layers; l++) {
        const json_t *const on = json_array_get(list, (size_t)l);
        if (!json_is_integer(on) || json_integer_value(on) < 0 || json_integer_value(on) > 1)
            return kvd_fail(err, "%s[%d] is neither 0 nor 1", key, l);
        if (!json_integer_value(on))
            mark_unrotated(c, l);
    }
    return 0;
}

int kvd_cfg_unrotated_every(int interval, kvd_config *c, kvd_err *err)
{
    if (check_window_layers(c, err))
        return -1;
    for (int l = interval - 1; l < c->n_layers; l += interval)
        mark_unrotated(c, l);
    return 0;
}

int kvd_cfg_unrotated_full(kvd_config *c, kvd_err *err)
{
    if (check_window_layers(c, err))
        return -1;
    for (int l = 0; l < c->n_layers; l++)
        if (!kvd_config_window(c, l))
            mark_unrotated(c, l);
    return 0;
}

static int read_size(const json_t *root, const char *key, int absent, int *out, kvd_err *err)
{
    *out = absent;
    return absent ? kvd_cfg_size_or(root, key, out, err) : kvd_cfg_size(root, key, out, err);
}

/* Reads the number of routed experts. If config.json has num_experts and num_local_experts, they
 * must be equal. */
static int read_count(const json_t *root, const char *key, int absent, int *out, kvd_err *err)
{
    const char *const other = strcmp(key, "num_experts") ? "num_experts" : "num_local_experts";
    if (!kvd_cfg_member(root, key) && kvd_cfg_member(root, other))
        return kvd_cfg_size(root, other, out, err);
    int again = 0;
    if (read_size(root, key, absent, out, err) || kvd_cfg_size_or(root, other, &again, err))
        return -1;
    return again && again != *out
               ? kvd_fail(err, "'%s' is %d and '%s' is %d", key, *out, other, again)
               : 0;
}

int kvd_cfg_routed(const json_t *root, const kvd_routed_keys *keys, kvd_config *c, kvd_err *err)
{
    if (read_count(root, keys->experts, keys->n_experts, &c->n_experts, err) ||
        read_size(root, keys->chosen, keys->n_chosen, &c->n_chosen, err) ||
        read_size(root, keys->width, keys->d_expert, &c->d_expert, err))
        return -1;
    if (c->n_experts > KVD_CONFIG_EXPERTS)
        return kvd_fail(err, "'%s' is %d, at most %d are supported", keys->experts, c->n_experts,
                        KVD_CONFIG_EXPERTS);
    if (c->n_chosen > c->n_experts)
        return kvd_fail(err, "'%s' is %d, but the model has %d experts", keys->chosen, c->n_chosen,
                        c->n_experts);
    if (c->n_layers > KVD_CONFIG_EXPERT_LAYERS)
        return kvd_fail(err, "%d layers, at most %d in a model with experts", c->n_layers,
                        KVD_CONFIG_EXPERT_LAYERS);
    return 0;
}

int kvd_cfg_dense_layers(const json_t *root, kvd_config *c, kvd_err *err)
{
    const json_t *only = kvd_cfg_member(root, "mlp_only_layers");
    int step = 1;
    if (kvd_cfg_size_or(root, "decoder_sparse_step", &step, err))
        return -1;
    for (int l = 0; l < c->n_layers; l++)
        if ((l + 1) % step)
            kvd_cfg_mark(c->dense_layers, l);
    if (only && !json_is_array(only))
        return kvd_fail(err, "'mlp_only_layers' is not a list");
    for (size_t i = 0; i < json_array_size(only); i++) {
        const json_t *layer = json_array_get(only, i);
        if (!json_is_integer(layer) || json_integer_value(layer) < 0 ||
            json_integer_value(layer) >= c->n_layers)
            return kvd_fail(err, "mlp_only_layers[%zu] is not one of the layers 0 to %d", i,
                            c->n_layers - 1);
        kvd_cfg_mark(c->dense_layers, (int)json_integer_value(layer));
    }
    return 0;
}

void kvd_cfg_theta_or(const json_t *root, double theta, kvd_config *c)
{
    const json_t *const places[] = {root, kvd_cfg_member(root, "rope_parameters"),
                                    kvd_cfg_member(root, "rope_scaling")};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (places[i] && kvd_cfg_member(places[i], "rope_theta"))
            return;
    c->rope_theta = theta;
}
