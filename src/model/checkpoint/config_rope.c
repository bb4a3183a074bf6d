/* Reads RoPE's parameters from config.json: bases, scaling and fraction of rotated dimensions.
 * Layers with a sliding window may have other parameters than layers without. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "model/checkpoint/config_json.h"

static const struct {
    const char *name;
    kvd_rope_scaling is;
} types_known[] = {{"default", KVD_ROPE_DEFAULT},
                   {"linear", KVD_ROPE_LINEAR},
                   {"llama3", KVD_ROPE_LLAMA3},
                   {"longrope", KVD_ROPE_LONGROPE},
                   {"yarn", KVD_ROPE_YARN},
                   /* no scaling, because dynamic scaling only acts beyond max_position_embeddings,
                    * which is the longest text that kvdim accepts */
                   {"dynamic", KVD_ROPE_DEFAULT},
                   {"su", KVD_ROPE_LONGROPE}}; /* name of LongRoPE in the first Phi-3 models */
enum { N_TYPES = KVD_ROPE_YARN + 1 };

static bool is_dynamic(const char *type)
{
    return strcmp(type, "dynamic") == 0;
}

/* Reads rope_theta from one object of config.json. If several objects state it, their values must
 * be equal. */
static int read_theta(const json_t *holder, const char *where, const char **first, kvd_config *c,
                      kvd_err *err)
{
    double theta = 0;
    if (!kvd_cfg_member(holder, "rope_theta"))
        return 0;
    if (kvd_cfg_positive(holder, "rope_theta", &theta, err))
        return kvd_in(err, "%s", where);
    if (*first && theta != c->rope_theta)
        return kvd_fail(err, "rope_theta is %g in %s and %g in %s", c->rope_theta, *first, theta,
                        where);
    *first = where;
    c->rope_theta = theta;
    return 0;
}

static int refuse_type(const char *name, unsigned types, kvd_err *err)
{
    char list[128] = "";
    int at = 0, left = 0;
    for (int i = 0; i < N_TYPES; i++)
        left += (int)(types >> i & 1u);
    for (int i = 0; i < N_TYPES; i++)
        if (types >> i & 1u) {
            left--;
            at += snprintf(list + at, sizeof list - (size_t)at, "%s%s", types_known[i].name,
                           left > 1    ? ", "
                           : left == 1 ? " and "
                                       : "");
        }
    return kvd_fail(err, "rope type '%s', only %s are supported", name, list);
}

static int read_type(const json_t *rope, unsigned types, const char **name, kvd_config *c,
                     kvd_err *err)
{
    const json_t *type = kvd_cfg_member(rope, "rope_type"), *old = kvd_cfg_member(rope, "type");
    if ((type && !json_is_string(type)) || (old && !json_is_string(old)))
        return kvd_fail(err, "the rope type is not a string");
    if (type && old && !json_equal(type, old))
        return kvd_fail(err, "'rope_type' is '%s' and 'type' is '%s'", json_string_value(type),
                        json_string_value(old));
    *name = type ? json_string_value(type) : old ? json_string_value(old) : "default";
    for (size_t i = 0; i < sizeof types_known / sizeof types_known[0]; i++)
        if (strcmp(*name, types_known[i].name) == 0 && types >> types_known[i].is & 1u) {
            c->rope_scaling = types_known[i].is;
            return 0;
        }
    return refuse_type(*name, types, err);
}

/* Reads the fraction of each head that RoPE rotates. The number of dimensions is rounded down as in
 * the Hugging Face library. */
static int read_partial(const json_t *holder, unsigned types, kvd_config *c, kvd_err *err)
{
    double factor = 1;
    if (!kvd_cfg_member(holder, "partial_rotary_factor"))
        return 0;
    if (kvd_cfg_positive(holder, "partial_rotary_factor", &factor, err))
        return -1;
    if (factor > 1)
        return kvd_fail(err, "'partial_rotary_factor' is %g, more than 1", factor);
    if (factor < 1 && !(types & KVD_CFG_ROPE_PARTIAL))
        return kvd_fail(err, "'partial_rotary_factor' is not 1, partial rotation is not supported");
    const int dims = (int)(c->d_head * factor);
    if (dims < 2 || dims % 2)
        return kvd_fail(err,
                        "'partial_rotary_factor' %g of a head of %d is %d dimensions, RoPE needs "
                        "an even number",
                        factor, c->d_head, dims);
    if (c->rope_dims && c->rope_dims != dims)
        return kvd_fail(err, "two places state 'partial_rotary_factor', with different values");
    c->rope_dims = dims;
    return 0;
}

/* Fails if `rope` has a parameter that RoPE scaling of this type does not use. */
static int check_keys(const json_t *rope, const char *type, unsigned types, kvd_config *c,
                      kvd_err *err)
{
    enum {
        ALL = KVD_CFG_ROPE_ALL,
        SCALED = KVD_CFG_ROPE_ALL & ~(1 << KVD_ROPE_DEFAULT),
        LLAMA3 = 1 << KVD_ROPE_LLAMA3,
        LONGROPE = 1 << KVD_ROPE_LONGROPE,
        YARN = 1 << KVD_ROPE_YARN
    };
    static const struct {
        const char *key;
        unsigned types;
    } known[] = {
        {"rope_type", ALL},
        {"type", ALL},
        {"rope_theta", ALL},
        {"partial_rotary_factor", ALL},
        {"original_max_position_embeddings", ALL},
        {"factor", SCALED},
        {"low_freq_factor", LLAMA3},
        {"high_freq_factor", LLAMA3},
        {"short_factor", LONGROPE},
        {"long_factor", LONGROPE},
        {"attention_factor", LONGROPE | YARN},
        {"beta_fast", YARN},
        {"beta_slow", YARN},
        {"mscale", YARN},
        {"mscale_all_dim", YARN},
        {"truncate", YARN},
        {"finetuned", YARN}, /* ignored, because it has no effect in published models */
    };
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)rope, key, value)
    {
        bool ok = json_is_null(value) || (is_dynamic(type) && strcmp(key, "factor") == 0);
        ok |= types & KVD_CFG_ROPE_QUERY_SCALE && c->rope_scaling == KVD_ROPE_YARN &&
              (strcmp(key, "llama_4_scaling_beta") == 0 ||
               strcmp(key, "max_position_embeddings") == 0);
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            ok |= strcmp(key, known[i].key) == 0 && known[i].types >> c->rope_scaling & 1u;
        if (!ok)
            return kvd_fail(err, "'%s' is not known for rope type '%s'", key, type);
    }
    return read_partial(rope, types, c, err);
}

static int read_original(const json_t *root, const json_t *rope, int absent, kvd_config *c,
                         kvd_err *err)
{
    static const char key[] = "original_max_position_embeddings";
    int top = absent, inside = 0;
    if (kvd_cfg_size_or(root, key, &top, err) || kvd_cfg_size_or(rope, key, &inside, err))
        return -1;
    if (!top && !inside)
        return kvd_fail(err, "'%s' is missing", key);
    if (top && inside && top != inside)
        return kvd_fail(err, "'%s' is %d, but %d %s", key, inside, top,
                        kvd_cfg_member(root, key) ? "in the top level"
                                                  : "by default in the top level");
    c->rope_original_positions = top ? top : inside;
    return 0;
}

static int read_divisors(const json_t *rope, const char *key, const kvd_config *c, double *out,
                         kvd_err *err)
{
    const json_t *list = kvd_cfg_member(rope, key);
    const size_t pairs = kvd_config_rope_dims(c) / 2;
    if (!list)
        return kvd_fail(err, "'%s' is missing", key);
    if (!json_is_array(list))
        return kvd_fail(err, "'%s' is not a list", key);
    if (json_array_size(list) != pairs)
        return kvd_fail(err, "'%s' has %zu factors, a head of %d has %zu %spairs", key,
                        json_array_size(list), c->d_head, pairs, c->rope_dims ? "rotated " : "");
    if (pairs > KVD_CONFIG_LONGROPE_PAIRS)
        return kvd_fail(err, "'%s' has %zu factors, at most %d are supported", key, pairs,
                        KVD_CONFIG_LONGROPE_PAIRS);
    for (size_t i = 0; i < pairs; i++) {
        const json_t *value = json_array_get(list, i);
        out[i] = json_number_value(value);
        if (!json_is_number(value) || !isfinite(out[i]) || out[i] <= 0)
            return kvd_fail(err, "%s[%zu] is not a positive number", key, i);
        if (out[i] < (double)FLT_MIN || out[i] > (double)FLT_MAX)
            return kvd_fail(err, "%s[%zu] is %g, outside the range of float32", key, i, out[i]);
    }
    return 0;
}

/* Reads parameters of LongRoPE (Ding et al. 2024): divisors of RoPE frequencies, factor on cosines
 * and sines. */
static int read_longrope(const json_t *root, const json_t *rope, int original, kvd_config *c,
                         kvd_err *err)
{
    if (read_original(root, rope, original, c, err) ||
        read_divisors(rope, "short_factor", c, c->rope_short, err) ||
        read_divisors(rope, "long_factor", c, c->rope_long, err))
        return -1;
    c->rope_factor = (double)c->max_positions / c->rope_original_positions;
    if (kvd_cfg_positive_or(rope, "factor", &c->rope_factor, err))
        return -1;
    if (kvd_cfg_member(rope, "attention_factor"))
        return kvd_cfg_positive(rope, "attention_factor", &c->rope_attention_factor, err);
    if (c->rope_factor > 1 && c->rope_original_positions == 1)
        return kvd_fail(
            err, "'original_max_position_embeddings' is 1, from which no attention factor follows");
    if (c->rope_factor > 1)
        c->rope_attention_factor = sqrt(1 + log(c->rope_factor) / log(c->rope_original_positions));
    return 0;
}

static double mscale_of(double scale, double mscale)
{
    return scale <= 1 ? 1 : 0.1 * mscale * log(scale) + 1;
}

/* Reads parameters of YaRN, a scaling of RoPE (Peng et al. 2023, arXiv:2309.00071). */
static int read_yarn(const json_t *root, const json_t *rope, int original, kvd_config *c,
                     kvd_err *err)
{
    double mscale = 0, mscale_all = 0;
    c->rope_beta_fast = 32;
    c->rope_beta_slow = 1;
    c->rope_truncate = true;
    if (!original && !kvd_cfg_member(rope, "original_max_position_embeddings"))
        original = c->max_positions;
    if (read_original(root, rope, original, c, err) ||
        kvd_cfg_bool(rope, "truncate", &c->rope_truncate, err))
        return -1;
    /* Limits the context to lengths at which llama_4_scaling_beta has no effect: beyond them, it
     * multiplies queries by a factor, which kvdim does not support. */
    if (kvd_cfg_member(rope, "llama_4_scaling_beta") &&
        c->max_positions > c->rope_original_positions)
        c->max_positions = c->rope_original_positions;
    const struct {
        const char *key;
        double *value;
    } known[] = {{"beta_fast", &c->rope_beta_fast},
                 {"beta_slow", &c->rope_beta_slow},
                 {"mscale", &mscale},
                 {"mscale_all_dim", &mscale_all}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (kvd_cfg_positive_or(rope, known[i].key, known[i].value, err))
            return -1;
    if (c->rope_beta_fast < c->rope_beta_slow)
        return kvd_fail(err, "'beta_fast' %g is below 'beta_slow' %g", c->rope_beta_fast,
                        c->rope_beta_slow);
    if (kvd_cfg_member(rope, "attention_factor"))
        return kvd_cfg_positive(rope, "attention_factor", &c->rope_attention_factor, err);
    c->rope_attention_factor =
        mscale > 0 && mscale_all > 0
            ? mscale_of(c->rope_factor, mscale) / mscale_of(c->rope_factor, mscale_all)
            : mscale_of(c->rope_factor, 1);
    return 0;
}

static int read_llama3(const json_t *root, const json_t *rope, int original, kvd_config *c,
                       kvd_err *err)
{
    if (kvd_cfg_positive(rope, "low_freq_factor", &c->rope_low_freq_factor, err) ||
        kvd_cfg_positive(rope, "high_freq_factor", &c->rope_high_freq_factor, err) ||
        read_original(root, rope, original, c, err))
        return -1;
    /* The factors must differ, because their difference is a divisor. */
    if (c->rope_high_freq_factor <= c->rope_low_freq_factor)
        return kvd_fail(err, "'high_freq_factor' %g is not above 'low_freq_factor' %g",
                        c->rope_high_freq_factor, c->rope_low_freq_factor);
    return 0;
}

static int read_object(const json_t *root, const json_t *rope, int original, unsigned types,
                       kvd_config *c, kvd_err *err)
{
    const char *type = NULL;
    if (!json_is_object(rope))
        return kvd_fail(err, "not an object");
    if (read_type(rope, types, &type, c, err) || check_keys(rope, type, types, c, err))
        return -1;
    if (c->rope_scaling == KVD_ROPE_DEFAULT && !is_dynamic(type))
        return 0;
    if (c->rope_scaling == KVD_ROPE_LONGROPE)
        return read_longrope(root, rope, original, c, err);
    if (kvd_cfg_positive(rope, "factor", &c->rope_factor, err))
        return -1;
    if (c->rope_factor < 1)
        return kvd_fail(err, "'factor' is %g, less than 1", c->rope_factor);
    if (c->rope_scaling == KVD_ROPE_YARN)
        return read_yarn(root, rope, original, c, err);
    return c->rope_scaling == KVD_ROPE_LLAMA3 ? read_llama3(root, rope, original, c, err) : 0;
}

/* Reads RoPE's base (default: `theta`) and parameters of its scaling. */
static int read_rope(const json_t *root, const json_t *parameters, double theta, int original,
                     unsigned types, kvd_config *c, kvd_err *err)
{
    const json_t *scaling = kvd_cfg_member(root, "rope_scaling");
    const char *first = NULL;
    c->positions = KVD_POSITIONS_ROPE;
    c->rope_layout = KVD_ROPE_HALF;
    c->rope_scaling = KVD_ROPE_DEFAULT;
    c->rope_theta = theta;
    c->rope_dims = 0;
    c->rope_factor = c->rope_low_freq_factor = c->rope_high_freq_factor = c->rope_attention_factor =
        1;
    if (read_partial(root, types, c, err))
        return -1;
    if (scaling && parameters && !json_equal(scaling, parameters))
        return kvd_fail(err, "'rope_scaling' and 'rope_parameters' are both there and differ");
    if (scaling && read_object(root, scaling, original, types, c, err))
        return kvd_in(err, "rope_scaling");
    if (parameters && read_object(root, parameters, original, types, c, err))
        return kvd_in(err, "rope_parameters");
    if (read_theta(root, "the top level", &first, c, err) ||
        read_theta(parameters, "rope_parameters", &first, c, err) ||
        read_theta(scaling, "rope_scaling", &first, c, err))
        return -1;
    return 0;
}

int kvd_cfg_rope(const json_t *root, int original, unsigned types, kvd_config *c, kvd_err *err)
{
    return read_rope(root, kvd_cfg_member(root, "rope_parameters"), 10000, original, types, c, err);
}

int kvd_cfg_need_rope(const json_t *root, kvd_err *err)
{
    return kvd_cfg_member(root, "rope_parameters") || kvd_cfg_member(root, "rope_scaling")
               ? 0
               : kvd_fail(err, "'rope_parameters' and 'rope_scaling' are missing, one of which a "
                               "model of this family needs");
}

int kvd_cfg_rope_part(const json_t *root, double absent, kvd_config *c, kvd_err *err)
{
    if (json_is_null(json_object_get(root, "partial_rotary_factor")))
        return kvd_fail(err, "'partial_rotary_factor' is null: give a number or leave it out");
    if (kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL | KVD_CFG_ROPE_PARTIAL, c, err))
        return -1;
    if (!c->rope_dims)
        c->rope_dims = (int)(c->d_head * absent);
    if (c->rope_dims < 2 || c->rope_dims % 2)
        return kvd_fail(err,
                        "%g of a head of %d is %d dimensions, RoPE needs an even number: give "
                        "'partial_rotary_factor'",
                        absent, c->d_head, c->rope_dims);
    return 0;
}

static int read_local(const json_t *root, const json_t *sliding, kvd_config *c, kvd_err *err)
{
    const char *type = "default", *first = sliding ? NULL : "";
    kvd_config local = {.d_head = c->d_head};
    if (kvd_cfg_positive_or(root, "rope_local_base_freq", &c->rope_local_theta, err))
        return -1;
    if (!sliding)
        return 0;
    local.rope_theta = c->rope_local_theta;
    if (!json_is_object(sliding))
        return kvd_fail(err, "not an object");
    if (read_type(sliding, 1u << KVD_ROPE_DEFAULT, &type, &local, err) ||
        check_keys(sliding, type, 0, &local, err) ||
        read_theta(sliding, "sliding_attention", &first, &local, err))
        return -1;
    c->rope_local_theta = local.rope_theta;
    return 0;
}

int kvd_cfg_rope_by_layer(const json_t *root, double theta, double local, kvd_config *c,
                          kvd_err *err)
{
    const json_t *parameters = kvd_cfg_member(root, "rope_parameters");
    const json_t *full = kvd_cfg_member(parameters, "full_attention"),
                 *sliding = kvd_cfg_member(parameters, "sliding_attention"),
                 *scaling = kvd_cfg_member(root, "rope_scaling");
    if (parameters && !full && !sliding)
        return kvd_fail(err, "'rope_parameters' has neither 'full_attention' nor "
                             "'sliding_attention', which this model needs");
    if (kvd_cfg_member(scaling, "type") && !kvd_cfg_member(scaling, "rope_type"))
        return kvd_fail(err, "rope_scaling: the Hugging Face library does not read 'type' in this "
                             "model: name it 'rope_type'");
    if (local <= 0 && kvd_cfg_refuse_set(root, "rope_local_base_freq", err))
        return -1;
    if (read_rope(root, full, theta, 0, KVD_CFG_ROPE_ALL, c, err))
        return -1;
    c->rope_local_theta = local > 0 ? local : c->rope_theta;
    /* If config.json has no RoPE base for sliding-window layers, new versions of the Hugging Face
     * library use `theta`, old versions c->rope_theta. */
    if (local <= 0 && !kvd_cfg_member(sliding, "rope_theta") && c->rope_theta != theta)
        return kvd_fail(err,
                        "'rope_theta' is %g, but the Hugging Face library takes %g in layers with "
                        "a window: give it in rope_parameters: sliding_attention",
                        c->rope_theta, theta);
    if (read_local(root, sliding, c, err))
        return sliding ? kvd_in(err, "rope_parameters: sliding_attention") : -1;
    return 0;
}
