#include "model/config.h"

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "model/filemap.h"

/* The member `key`, or NULL when it is absent or null: the two mean the same in these files. */
static const json_t *member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static int read_size(const json_t *root, const char *key, int *out, kvd_err *err)
{
    const json_t *value = member(root, key);
    if (!value)
        return kvd_fail(err, "'%s' is missing", key);
    if (!json_is_integer(value))
        return kvd_fail(err, "'%s' is not an integer", key);
    const json_int_t n = json_integer_value(value);
    if (n < 1 || n > KVD_CONFIG_MAX_SIZE)
        return kvd_fail(err, "'%s' is %lld, not within 1 to %d", key, (long long)n, KVD_CONFIG_MAX_SIZE);
    *out = (int)n;
    return 0;
}

static int read_positive(const json_t *root, const char *key, double *out, kvd_err *err)
{
    const json_t *value = member(root, key);
    if (!value)
        return kvd_fail(err, "'%s' is missing", key);
    if (!json_is_number(value))
        return kvd_fail(err, "'%s' is not a number", key);
    *out = json_number_value(value);
    if (!isfinite(*out) || *out <= 0)
        return kvd_fail(err, "'%s' is %g, not positive and finite", key, *out);
    return 0;
}

static int read_bool(const json_t *root, const char *key, bool *out, kvd_err *err)
{
    const json_t *value = member(root, key);
    *out = false;
    if (value && !json_is_boolean(value))
        return kvd_fail(err, "'%s' is not true or false", key);
    *out = json_is_true(value);
    return 0;
}

/* A token id: absent, an integer, or a list of alternatives, of which the first is taken. */
static int read_token(const json_t *root, const char *key, int vocab_size, int *out, kvd_err *err)
{
    const json_t *value = member(root, key);
    *out = -1;
    if (!value)
        return 0;
    if (json_is_array(value) && json_array_size(value) > 0)
        value = json_array_get(value, 0);
    if (!json_is_integer(value))
        return kvd_fail(err, "'%s' is neither an integer nor a list of integers", key);
    const json_int_t id = json_integer_value(value);
    if (id < 0 || id >= vocab_size)
        return kvd_fail(err, "'%s' is %lld, not an id of the vocabulary of %d", key, (long long)id,
                        vocab_size);
    *out = (int)id;
    return 0;
}

static int check_family(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const char supported[] = "LlamaForCausalLM (model_type 'llama') is supported";
    const json_t *names = member(root, "architectures"), *type = member(root, "model_type");
    if (type && !json_is_string(type))
        return kvd_fail(err, "'model_type' is not a string");
    if (names && !json_is_array(names))
        return kvd_fail(err, "'architectures' is not a list");
    if (type && strcmp(json_string_value(type), "llama") != 0)
        return kvd_fail(err, "model_type is '%s', only %s", json_string_value(type), supported);
    if (!names && !type)
        return kvd_fail(err, "neither 'architectures' nor 'model_type' says what model this is, only %s",
                        supported);
    const char *found = "";
    for (size_t i = 0; names && i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (!name)
            return kvd_fail(err, "architectures[%zu] is not a string", i);
        if (strcmp(name, "LlamaForCausalLM") == 0) {
            names = NULL;
            break;
        }
        if (i == 0)
            found = name;
    }
    if (names)
        return kvd_fail(err, "architectures is '%s', only %s", found, supported);
    (void)snprintf(c->family, sizeof c->family, "llama");
    return 0;
}

/* What would change the arithmetic and is not in the forward pass. */
static int check_unsupported(const json_t *root, kvd_err *err)
{
    static const char *const must_be_false[] = {"attention_bias", "mlp_bias"};
    static const char *const must_be_absent[] = {"quantization_config", "sliding_window"};
    for (size_t i = 0; i < sizeof must_be_false / sizeof must_be_false[0]; i++) {
        bool on;
        if (read_bool(root, must_be_false[i], &on, err))
            return -1;
        if (on)
            return kvd_fail(err, "'%s' is true, biases are not supported", must_be_false[i]);
    }
    for (size_t i = 0; i < sizeof must_be_absent / sizeof must_be_absent[0]; i++)
        if (member(root, must_be_absent[i]))
            return kvd_fail(err, "'%s' is set, which is not supported", must_be_absent[i]);

    const json_t *act = member(root, "hidden_act");
    if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
        return kvd_fail(err, "'hidden_act' is '%s', only 'silu' is supported",
                        json_is_string(act) ? json_string_value(act) : "not a string");
    const json_t *tp = member(root, "pretraining_tp");
    if (tp && (!json_is_integer(tp) || json_integer_value(tp) != 1))
        return kvd_fail(err, "'pretraining_tp' is not 1, sliced matrix products are not supported");
    const json_t *rotary = member(root, "partial_rotary_factor");
    if (rotary && json_number_value(rotary) != 1)
        return kvd_fail(err, "'partial_rotary_factor' is not 1, partial rotation is not supported");
    const json_t *layers = member(root, "layer_types");
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const char *type = json_string_value(json_array_get(layers, i));
        if (!type || strcmp(type, "full_attention") != 0)
            return kvd_fail(err, "layer_types[%zu] is '%s', only 'full_attention' is supported", i,
                            type ? type : "not a string");
    }
    return 0;
}

static int read_sizes(const json_t *root, kvd_config *c, kvd_err *err)
{
    if (read_size(root, "num_hidden_layers", &c->n_layers, err) ||
        read_size(root, "num_attention_heads", &c->n_heads, err) ||
        read_size(root, "hidden_size", &c->d_model, err) ||
        read_size(root, "intermediate_size", &c->d_ffn, err) ||
        read_size(root, "vocab_size", &c->vocab_size, err) ||
        read_size(root, "max_position_embeddings", &c->max_positions, err))
        return -1;
    c->n_kv_heads = c->n_heads;
    if (member(root, "num_key_value_heads") && read_size(root, "num_key_value_heads", &c->n_kv_heads, err))
        return -1;
    if (c->n_heads % c->n_kv_heads)
        return kvd_fail(err, "num_attention_heads %d is not a multiple of num_key_value_heads %d", c->n_heads,
                        c->n_kv_heads);
    if (member(root, "head_dim")) {
        if (read_size(root, "head_dim", &c->d_head, err))
            return -1;
    } else if (c->d_model % c->n_heads) {
        return kvd_fail(
            err, "hidden_size %d is not a multiple of num_attention_heads %d, and 'head_dim' is missing",
            c->d_model, c->n_heads);
    } else {
        c->d_head = c->d_model / c->n_heads;
    }
    if (c->d_head % 2)
        return kvd_fail(err, "the head size is %d, RoPE needs an even one", c->d_head);
    if (c->d_head > KVD_CONFIG_MAX_SIZE / c->n_heads)
        return kvd_fail(err, "num_attention_heads %d times head size %d is more than %d", c->n_heads,
                        c->d_head, KVD_CONFIG_MAX_SIZE);
    return 0;
}

/* theta may stand in three places; where it stands twice, the values must agree. */
static int read_theta(const json_t *holder, const char *where, const char **first, kvd_config *c,
                      kvd_err *err)
{
    double theta = 0;
    if (!member(holder, "rope_theta"))
        return 0;
    if (read_positive(holder, "rope_theta", &theta, err))
        return kvd_in(err, "%s", where);
    if (*first && theta != c->rope_theta)
        return kvd_fail(err, "rope_theta is %g in %s and %g in %s", c->rope_theta, *first, theta, where);
    *first = where;
    c->rope_theta = theta;
    return 0;
}

static int read_rope_type(const json_t *rope, const char **name, kvd_config *c, kvd_err *err)
{
    const json_t *type = member(rope, "rope_type"), *old = member(rope, "type");
    if ((type && !json_is_string(type)) || (old && !json_is_string(old)))
        return kvd_fail(err, "the rope type is not a string");
    if (type && old && !json_equal(type, old))
        return kvd_fail(err, "'rope_type' is '%s' and 'type' is '%s'", json_string_value(type),
                        json_string_value(old));
    *name = type ? json_string_value(type) : old ? json_string_value(old) : "default";
    if (strcmp(*name, "default") == 0)
        c->rope_scaling = KVD_ROPE_DEFAULT;
    else if (strcmp(*name, "linear") == 0)
        c->rope_scaling = KVD_ROPE_LINEAR;
    else if (strcmp(*name, "llama3") == 0)
        c->rope_scaling = KVD_ROPE_LLAMA3;
    else
        return kvd_fail(err, "rope type '%s', only default, linear and llama3 are supported", *name);
    return 0;
}

/* A factor that the rope type does not know would be silently without effect. */
static int check_rope_keys(const json_t *rope, const char *type, const kvd_config *c, kvd_err *err)
{
    static const struct {
        const char *key;
        kvd_rope_scaling from; /* the first type that reads it */
    } known[] = {
        {"rope_type", KVD_ROPE_DEFAULT},
        {"type", KVD_ROPE_DEFAULT},
        {"rope_theta", KVD_ROPE_DEFAULT},
        {"partial_rotary_factor", KVD_ROPE_DEFAULT},
        {"original_max_position_embeddings", KVD_ROPE_DEFAULT},
        {"factor", KVD_ROPE_LINEAR},
        {"low_freq_factor", KVD_ROPE_LLAMA3},
        {"high_freq_factor", KVD_ROPE_LLAMA3},
    };
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)rope, key, value)
    {
        bool ok = json_is_null(value);
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            ok |= strcmp(key, known[i].key) == 0 && c->rope_scaling >= known[i].from;
        if (!ok)
            return kvd_fail(err, "'%s' is not known for rope type '%s'", key, type);
    }
    const json_t *rotary = member(rope, "partial_rotary_factor");
    if (rotary && json_number_value(rotary) != 1)
        return kvd_fail(err, "'partial_rotary_factor' is not 1, partial rotation is not supported");
    return 0;
}

static int read_rope_object(const json_t *rope, kvd_config *c, kvd_err *err)
{
    const char *type = NULL;
    if (!json_is_object(rope))
        return kvd_fail(err, "not an object");
    if (read_rope_type(rope, &type, c, err) || check_rope_keys(rope, type, c, err))
        return -1;
    if (c->rope_scaling == KVD_ROPE_DEFAULT)
        return 0;
    if (read_positive(rope, "factor", &c->rope_factor, err))
        return -1;
    if (c->rope_factor < 1)
        return kvd_fail(err, "'factor' is %g, less than 1", c->rope_factor);
    if (c->rope_scaling == KVD_ROPE_LINEAR)
        return 0;
    if (read_positive(rope, "low_freq_factor", &c->rope_low_freq_factor, err) ||
        read_positive(rope, "high_freq_factor", &c->rope_high_freq_factor, err) ||
        read_size(rope, "original_max_position_embeddings", &c->rope_original_positions, err))
        return -1;
    /* The blend divides by their difference. */
    if (c->rope_high_freq_factor <= c->rope_low_freq_factor)
        return kvd_fail(err, "'high_freq_factor' %g is not above 'low_freq_factor' %g",
                        c->rope_high_freq_factor, c->rope_low_freq_factor);
    return 0;
}

static int read_rope(const json_t *root, kvd_config *c, kvd_err *err)
{
    const json_t *scaling = member(root, "rope_scaling"), *parameters = member(root, "rope_parameters");
    const char *first = NULL;
    c->rope_layout = KVD_ROPE_HALF;
    c->rope_scaling = KVD_ROPE_DEFAULT;
    c->rope_theta = 10000;
    c->rope_factor = c->rope_low_freq_factor = c->rope_high_freq_factor = 1;
    if (scaling && parameters && !json_equal(scaling, parameters))
        return kvd_fail(err, "'rope_scaling' and 'rope_parameters' are both there and differ");
    if (scaling && read_rope_object(scaling, c, err))
        return kvd_in(err, "rope_scaling");
    if (parameters && read_rope_object(parameters, c, err))
        return kvd_in(err, "rope_parameters");
    if (read_theta(root, "the top level", &first, c, err) ||
        read_theta(parameters, "rope_parameters", &first, c, err) ||
        read_theta(scaling, "rope_scaling", &first, c, err))
        return -1;
    return 0;
}

static int read_root(const json_t *root, kvd_config *c, kvd_err *err)
{
    if (!json_is_object(root))
        return kvd_fail(err, "not a JSON object");
    if (check_family(root, c, err) || check_unsupported(root, err) || read_sizes(root, c, err) ||
        read_positive(root, "rms_norm_eps", &c->norm_eps, err) || read_rope(root, c, err) ||
        read_bool(root, "tie_word_embeddings", &c->tied_head, err) ||
        read_token(root, "bos_token_id", c->vocab_size, &c->bos_id, err) ||
        read_token(root, "eos_token_id", c->vocab_size, &c->eos_id, err))
        return -1;
    return 0;
}

int kvd_config_parse(const char *name, const char *json, size_t len, kvd_config *c, kvd_err *err)
{
    json_error_t where;
    memset(c, 0, sizeof *c);
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return kvd_fail(err, "'%s', line %d: %s", name, where.line, where.text);
    const int status = read_root(root, c, err);
    json_decref(root);
    return status ? kvd_in(err, "'%s'", name) : 0;
}

int kvd_config_read(const char *path, kvd_config *c, kvd_err *err)
{
    kvd_filemap map;
    if (kvd_filemap_load(&map, path, err))
        return -1;
    const int status = kvd_config_parse(path, map.bytes, map.len, c, err);
    kvd_filemap_release(&map);
    return status;
}

int kvd_config_group(const kvd_config *c)
{
    return c->n_heads / c->n_kv_heads;
}
