/* Reads a model's configuration from the metadata of a GGUF file. */
#include "model/checkpoint/gguf.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY = 128, MAX_PAIRS = 4096 };

static const char freqs[] = "rope_freqs.weight", factors_long[] = "rope_factors_long.weight",
                  factors_short[] = "rope_factors_short.weight";

bool kvd_gguf_is_setting(const char *tensor)
{
    return !strcmp(tensor, freqs) || !strcmp(tensor, factors_long) ||
           !strcmp(tensor, factors_short);
}

typedef struct {
    const kvd_gguf *g;
    const char *arch; /* architecture, the prefix of the model's GGUF keys */
    json_t *root;
    bool experts;
} builder;

static bool has(const builder *b, const char *tensor)
{
    return kvd_gguf_find(b->g, tensor) < kvd_gguf_count(b->g);
}

static bool has_in_layers(const builder *b, const char *part)
{
    char name[KEY];
    (void)snprintf(name, sizeof name, "blk.0.%s", part);
    return has(b, name);
}

/* Adds `value` to a JSON object, which then owns it. Frees `value` on failure. */
static int put(json_t *object, const char *key, json_t *value, kvd_err *err)
{
    return value && json_object_set_new(object, key, value) == 0
               ? 0
               : kvd_no_memory(err, "a configuration", KEY);
}

/* Reads an integer whose GGUF key begins with the architecture, such as "llama.block_count". */
static int arch_whole(const builder *b, const char *key, int64_t *out, kvd_err *err)
{
    char full[KEY];
    (void)snprintf(full, sizeof full, "%s.%s", b->arch, key);
    return kvd_gguf_whole(b->g, full, out, err);
}

static int arch_real(const builder *b, const char *key, double *out, kvd_err *err)
{
    char full[KEY];
    (void)snprintf(full, sizeof full, "%s.%s", b->arch, key);
    const int status = kvd_gguf_real(b->g, full, out, err);
    return !status && !isfinite(*out) ? kvd_fail(err, "'%s' is not a finite number", full) : status;
}

/* Copies the integer of GGUF key `key`, if present, to key `to` of config.json. */
static int copy_whole(builder *b, const char *key, const char *to, kvd_err *err)
{
    int64_t v = 0;
    const int status = arch_whole(b, key, &v, err);
    return status < 0 ? -1 : status ? 0 : put(b->root, to, json_integer(v), err);
}

static int copy_real(builder *b, const char *key, const char *to, kvd_err *err)
{
    double v = 0;
    const int status = arch_real(b, key, &v, err);
    return status < 0 ? -1 : status ? 0 : put(b->root, to, json_real(v), err);
}

static int copy_token(builder *b, const char *key, const char *to, kvd_err *err)
{
    int64_t v = 0;
    const int status = kvd_gguf_whole(b->g, key, &v, err);
    return status < 0 ? -1 : status ? 0 : put(b->root, to, json_integer(v), err);
}

static int put_sizes(builder *b, kvd_err *err)
{
    kvd_tensor t;
    const size_t embedding = kvd_gguf_find(b->g, "token_embd.weight");
    int64_t stated = 0;
    if (embedding == kvd_gguf_count(b->g))
        return kvd_fail(err, "tensor 'token_embd.weight' is missing");
    if (kvd_gguf_tensor(b->g, embedding, &t, err))
        return -1;
    const int status = arch_whole(b, "vocab_size", &stated, err);
    if (status < 0)
        return -1;
    if (!status && (uint64_t)stated != t.dims[0])
        return kvd_fail(err, "'%s.vocab_size' is %" PRId64 ", 'token_embd.weight' has %zu rows",
                        b->arch, stated, t.dims[0]);
    if (t.dims[0] > KVD_CONFIG_MAX_SIZE)
        return kvd_fail(err, "'token_embd.weight' has %zu rows, more than %d", t.dims[0],
                        KVD_CONFIG_MAX_SIZE);
    return kvd_status(put(b->root, "vocab_size", json_integer((json_int_t)t.dims[0]), err) ||
                      copy_whole(b, "block_count", "num_hidden_layers", err) ||
                      copy_whole(b, "context_length", "max_position_embeddings", err) ||
                      copy_whole(b, "embedding_length", "hidden_size", err) ||
                      copy_whole(b, "attention.head_count", "num_attention_heads", err));
}

static bool is(const builder *b, const char *arch)
{
    return strcmp(b->arch, arch) == 0;
}

/* Fails if the GGUF file sets the flag named `key` to a value other than `only`. */
static int refuse_flag(const builder *b, const char *key, bool only, kvd_err *err)
{
    char full[KEY];
    bool on = only;
    (void)snprintf(full, sizeof full, "%s.%s", b->arch, key);
    if (kvd_gguf_bool(b->g, full, &on, err) < 0)
        return -1;
    return on == only
               ? 0
               : kvd_fail(err, "'%s' is %s, which is not supported", full, on ? "true" : "false");
}

/* Fails if a GGUF key states a kind of attention, routing or RoPE other than the usual one of the
 * architecture. */
static int refuse_variants(const builder *b, kvd_err *err)
{
    enum { SOFTMAX = 1, SOFTMAX_OF_CHOSEN = 3 };
    const int64_t gating = is(b, "gpt-oss") ? SOFTMAX_OF_CHOSEN : SOFTMAX;
    int64_t stated = gating;
    double theta = 0, swa = 0;
    if (refuse_flag(b, "attention.causal", true, err) ||
        refuse_flag(b, "use_parallel_residual", is(b, "falcon"), err) ||
        refuse_flag(b, "expert_weights_norm", !is(b, "qwen2moe"), err) ||
        arch_whole(b, "expert_gating_func", &stated, err) < 0)
        return -1;
    if (stated && stated != gating)
        return kvd_fail(err,
                        "'%s.expert_gating_func' is %" PRId64 ", only %" PRId64
                        " is supported in this architecture",
                        b->arch, stated, gating);
    const int base = arch_real(b, "rope.freq_base", &theta, err),
              local = arch_real(b, "rope.freq_base_swa", &swa, err);
    if (base < 0 || local < 0)
        return -1;
    if (!local && !is(b, "gemma3") && (base || swa != theta))
        return kvd_fail(err, "'%s.rope.freq_base_swa' is %g, which is not supported", b->arch, swa);
    return 0;
}

static int refuse(const builder *b, kvd_err *err)
{
    int64_t experts = 0;
    if (!b->experts && arch_whole(b, "expert_count", &experts, err) < 0)
        return -1;
    if (experts)
        return kvd_fail(err, "'%s.expert_count' is %" PRId64 ", which is not supported", b->arch,
                        experts);
    static const char *const wholes[] = {
        "rope.scaling.finetuned_layers", "expert_group_count",          "expert_group_used_count",
        "leading_dense_block_count",     "nextn_predict_layers",        "full_attention_interval",
        "attention.shared_kv_layers",    "attention.temperature_length"};
    /* The first N_ZERO GGUF keys in list `reals` must be 0 if present; the other keys may also be
     * 1. */
    enum { N_ZERO = 3 };
    static const char *const reals[] = {"router_logit_softcapping",
                                        "attention.temperature_scale",
                                        "rope.scaling.yarn_log_multiplier",
                                        "logit_scale",
                                        "embedding_scale",
                                        "residual_scale",
                                        "expert_weights_scale",
                                        "expert_group_scale",
                                        "attention.scale",
                                        "attention.output_scale",
                                        "attention.max_alibi_bias",
                                        "attention.clamp_kqv",
                                        "rope.scale_linear",
                                        "rope.scaling.alpha",
                                        "rope.scaling.yarn_attn_factor",
                                        "attn_logit_softcapping",
                                        "final_logit_softcapping"};
    int64_t whole = 0, files = 1, key = 0, value = 0;
    double real = 0;
    const int split = kvd_gguf_whole(b->g, "split.count", &files, err);
    if (split < 0)
        return -1;
    if (!split && files > 1)
        return kvd_fail(
            err, "'split.count' is %" PRId64 ", models in several GGUF files are not supported",
            files);
    for (size_t i = 0; i < sizeof wholes / sizeof wholes[0]; i++) {
        const int status = arch_whole(b, wholes[i], &whole, err);
        if (status < 0)
            return -1;
        if (!status && whole)
            return kvd_fail(err, "'%s.%s' is %" PRId64 ", which is not supported", b->arch,
                            wholes[i], whole);
    }
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        if (strstr(reals[i], "softcapping") && (is(b, "gemma2") || is(b, "gemma3")))
            continue;
        const int status = arch_real(b, reals[i], &real, err);
        if (status < 0)
            return -1;
        if (!status && real != 0 && (real != 1.0 || i < N_ZERO))
            return kvd_fail(err, "'%s.%s' is %g, which is not supported", b->arch, reals[i], real);
    }
    if (refuse_variants(b, err))
        return -1;
    const int k = arch_whole(b, "attention.key_length", &key, err),
              v = arch_whole(b, "attention.value_length", &value, err);
    if (k < 0 || v < 0)
        return -1;
    if (!k && !v && key != value)
        return kvd_fail(err, "'%s.attention.key_length' is %" PRId64 ", 'value_length' is %" PRId64,
                        b->arch, key, value);
    return 0;
}

static int put_divisors(const builder *b, json_t *rope, const char *key, const char *tensor,
                        kvd_err *err)
{
    kvd_tensor t;
    const size_t at = kvd_gguf_find(b->g, tensor);
    if (at == kvd_gguf_count(b->g))
        return kvd_fail(err, "tensor '%s' is missing", tensor);
    if (kvd_gguf_tensor(b->g, at, &t, err))
        return -1;
    if (t.n > MAX_PAIRS)
        return kvd_fail(err, "tensor '%s' has %zu elements, more than %d", tensor, t.n, MAX_PAIRS);
    json_t *list = json_array();
    for (size_t i = 0; list && i < t.n; i++) {
        float x = 0;
        kvd_tensor_read(&t, i, 1, &x);
        if (!(x > 0) || x > 1e30f) {
            json_decref(list);
            return kvd_fail(err, "tensor '%s' has %g at %zu, not a positive number", tensor,
                            (double)x, i);
        }
        if (json_array_append_new(list, json_real((double)x))) {
            json_decref(list);
            list = NULL;
        }
    }
    return put(rope, key, list, err);
}

/* Sets the RoPE type in `rope` to "longrope". The short and the long factors are the frequency
 * divisors that GGUF files of Llama 3.1 store as a tensor. */
static int put_fixed_divisors(const builder *b, json_t *rope, kvd_err *err)
{
    const json_t *positions = json_object_get(b->root, "max_position_embeddings");
    return put(rope, "rope_type", json_string("longrope"), err) ||
                   put(rope, "attention_factor", json_real(1), err) ||
                   put(rope, "original_max_position_embeddings",
                       json_integer(positions ? json_integer_value(positions) : 0), err) ||
                   put_divisors(b, rope, "short_factor", freqs, err) ||
                   put_divisors(b, rope, "long_factor", freqs, err)
               ? -1
               : 0;
}

static int put_longrope(const builder *b, json_t *rope, kvd_err *err)
{
    double attention = 1;
    int64_t original = 0;
    const int status = arch_whole(b, "rope.scaling.original_context_length", &original, err);
    if (status < 0 || arch_real(b, "rope.scaling.attn_factor", &attention, err) < 0)
        return -1;
    if (status)
        return kvd_fail(err, "'%s.rope.scaling.original_context_length' is missing", b->arch);
    return kvd_status(
        put(rope, "rope_type", json_string("longrope"), err) ||
        put(rope, "attention_factor", json_real(attention), err) ||
        put(b->root, "original_max_position_embeddings", json_integer(original), err) ||
        put_divisors(b, rope, "short_factor", factors_short, err) ||
        put_divisors(b, rope, "long_factor", factors_long, err));
}

/* Writes YaRN's parameters as in config.json. The factor on cosines and sines is computed as in
 * llama.cpp. */
static int put_yarn(const builder *b, json_t *rope, kvd_err *err)
{
    static const char *const betas[][2] = {{"rope.scaling.yarn_beta_fast", "beta_fast"},
                                           {"rope.scaling.yarn_beta_slow", "beta_slow"}};
    double factor = 0, changed = 1, mixed = 1;
    int64_t original = 0;
    const int there = arch_real(b, "rope.scaling.factor", &factor, err),
              length = arch_whole(b, "rope.scaling.original_context_length", &original, err);
    if (there < 0 || length < 0 || arch_real(b, "rope.scaling.attn_factor", &changed, err) < 0)
        return -1;
    if (there || length)
        return kvd_fail(err, "'%s.rope.scaling.%s' is missing", b->arch,
                        there ? "factor" : "original_context_length");
    if (changed < 1 || changed > 1)
        return kvd_fail(err, "'%s.rope.scaling.attn_factor' is %g, which is not supported", b->arch,
                        changed);
    /* A negative value, which is llama.cpp's default, means 1. */
    if (arch_real(b, "rope.scaling.yarn_ext_factor", &mixed, err) < 0)
        return -1;
    if (mixed >= 0 && mixed != 1)
        return kvd_fail(err, "'%s.rope.scaling.yarn_ext_factor' is %g, which is not supported",
                        b->arch, mixed);
    for (size_t i = 0; i < sizeof betas / sizeof betas[0]; i++) {
        double beta = 0;
        const int status = arch_real(b, betas[i][0], &beta, err);
        if (status < 0 || (!status && put(rope, betas[i][1], json_real(beta), err)))
            return -1;
    }
    return kvd_status(put(rope, "rope_type", json_string("yarn"), err) ||
                      put(rope, "factor", json_real(factor), err) ||
                      put(rope, "original_max_position_embeddings", json_integer(original), err) ||
                      put(rope, "truncate", json_boolean(strcmp(b->arch, "gpt-oss") != 0), err));
}

static int put_scaled(const builder *b, json_t *rope, kvd_err *err)
{
    char key[KEY], type[32] = "none";
    const char *s;
    size_t len;
    double factor = 1;
    (void)snprintf(key, sizeof key, "%s.rope.scaling.type", b->arch);
    const int status = kvd_gguf_text(b->g, key, &s, &len, err);
    if (status < 0)
        return -1;
    if (!status)
        (void)snprintf(type, sizeof type, "%.*s", len < 31 ? (int)len : 31, s);
    if (strcmp(type, "linear") == 0) {
        const int there = arch_real(b, "rope.scaling.factor", &factor, err);
        if (there)
            return there < 0 ? -1 : kvd_fail(err, "'%s.rope.scaling.factor' is missing", b->arch);
        return kvd_status(put(rope, "rope_type", json_string("linear"), err) ||
                          put(rope, "factor", json_real(factor), err));
    }
    if (strcmp(type, "yarn") == 0)
        return put_yarn(b, rope, err);
    if (strcmp(type, "none") && strcmp(type, "longrope"))
        return kvd_fail(err, "'%s' is '%s', only none, linear, yarn and longrope are supported",
                        key, type);
    return put(rope, "rope_type", json_string("default"), err);
}

static int put_rope(builder *b, kvd_err *err)
{
    const bool fixed = has(b, freqs), two = has(b, factors_long) || has(b, factors_short);
    json_t *rope = json_object();
    if (put(b->root, "rope_scaling", rope, err) ||
        copy_real(b, "rope.freq_base", "rope_theta", err))
        return -1;
    if (fixed && two)
        return kvd_fail(err, "'%s' and '%s' are both there", freqs, factors_long);
    return fixed ? put_fixed_divisors(b, rope, err)
           : two ? put_longrope(b, rope, err)
                 : put_scaled(b, rope, err);
}

static int put_llama_like(builder *b, const char *family, kvd_err *err)
{
    const bool biases = has_in_layers(b, "attn_q.bias") || has_in_layers(b, "attn_output.bias");
    int64_t window = 0;
    if (put(b->root, "model_type", json_string(family), err) ||
        copy_whole(b, "feed_forward_length", "intermediate_size", err) ||
        copy_whole(b, "attention.head_count_kv", "num_key_value_heads", err) ||
        copy_whole(b, "attention.key_length", "head_dim", err) ||
        copy_real(b, "attention.layer_norm_rms_epsilon", "rms_norm_eps", err) ||
        arch_whole(b, "attention.sliding_window", &window, err) < 0)
        return -1;
    if (window && strcmp(family, "phi3") && strncmp(family, "gemma", 5))
        return kvd_fail(err, "'%s.attention.sliding_window' is %" PRId64 ", which is not supported",
                        b->arch, window);
    if (window && put(b->root, "sliding_window", json_integer(window), err))
        return -1;
    static const char *const with_key[] = {"llama",       "qwen3", "gemma2",
                                           "gemma3_text", "olmo2", "glm4"};
    for (size_t i = 0; i < sizeof with_key / sizeof with_key[0]; i++)
        if (!strcmp(family, with_key[i]) &&
            put(b->root, "attention_bias", json_boolean(biases), err))
            return -1;
    if (!strcmp(family, "llama") &&
        put(b->root, "mlp_bias", json_boolean(has_in_layers(b, "ffn_up.bias")), err))
        return -1;
    return 0;
}

/* Translates GGUF keys of experts. As in llama.cpp, chosen experts' probabilities are divided by
 * their sum, except in qwen2moe. */
static int put_experts(builder *b, const char *family, kvd_err *err)
{
    const bool qwen = strncmp(family, "qwen", 4) == 0;
    b->experts = true;
    if (copy_whole(b, "expert_count", "num_local_experts", err) ||
        copy_whole(b, "expert_used_count", "num_experts_per_tok", err) ||
        copy_whole(b, "expert_feed_forward_length",
                   qwen ? "moe_intermediate_size" : "intermediate_size", err) ||
        copy_whole(b, "expert_shared_feed_forward_length", "shared_expert_intermediate_size", err))
        return -1;
    if (!qwen)
        return 0;
    return kvd_status(
        put(b->root, "norm_topk_prob", json_boolean(!strcmp(family, "qwen3_moe")), err) ||
        put(b->root, "attention_bias", json_boolean(has_in_layers(b, "attn_q.bias")), err));
}

/* Writes config.json of gpt-oss. The layers with a sliding window are fixed, because GGUF files do
 * not state them. */
static int put_gpt_oss(builder *b, kvd_err *err)
{
    return kvd_status(
        put(b->root, "model_type", json_string("gpt_oss"), err) ||
        copy_whole(b, "attention.head_count_kv", "num_key_value_heads", err) ||
        copy_whole(b, "attention.key_length", "head_dim", err) ||
        copy_real(b, "attention.layer_norm_rms_epsilon", "rms_norm_eps", err) ||
        copy_whole(b, "attention.sliding_window", "sliding_window", err) ||
        put(b->root, "attention_bias", json_boolean(has_in_layers(b, "attn_q.bias")), err) ||
        put_experts(b, "gpt_oss", err));
}

/* Writes config.json of Gemma. As in llama.cpp, the number of layers decides the factor on
 * attention scores. */
static int put_gemma(builder *b, const char *family, int largest, kvd_err *err)
{
    int64_t layers = 0, wide = 0, heads = 0, d_head = 256, window = 0;
    if (put_llama_like(b, family, err) || arch_whole(b, "block_count", &layers, err) < 0 ||
        arch_whole(b, "embedding_length", &wide, err) < 0 ||
        arch_whole(b, "attention.head_count", &heads, err) < 0 ||
        arch_whole(b, "attention.key_length", &d_head, err) < 0 ||
        copy_real(b, "attn_logit_softcapping", "attn_logit_softcapping", err) ||
        copy_real(b, "final_logit_softcapping", "final_logit_softcapping", err) ||
        copy_whole(b, "attention.sliding_window_pattern", "sliding_window_pattern", err) ||
        copy_real(b, "rope.freq_base_swa", "rope_local_base_freq", err))
        return -1;
    const int status = arch_whole(b, "attention.sliding_window", &window, err);
    if (status)
        return status < 0 ? -1 : kvd_fail(err, "'%s.attention.sliding_window' is missing", b->arch);
    const double scalar =
        layers == largest && heads > 0 ? (double)wide / (double)heads : (double)d_head;
    return put(b->root, "query_pre_attn_scalar", json_real(scalar), err);
}

static int put_partial(builder *b, kvd_err *err)
{
    int64_t rotated = 0, d_head = 0, wide = 0, heads = 1;
    const int status = arch_whole(b, "rope.dimension_count", &rotated, err);
    if (status)
        return status < 0 ? -1 : 0;
    const int stated = arch_whole(b, "attention.key_length", &d_head, err);
    if (stated < 0 || arch_whole(b, "embedding_length", &wide, err) < 0 ||
        arch_whole(b, "attention.head_count", &heads, err) < 0)
        return -1;
    if (stated)
        d_head = heads > 0 ? wide / heads : 0;
    if (rotated < 1 || rotated > d_head)
        return kvd_fail(err, "'%s.rope.dimension_count' is %" PRId64 ", a head has %" PRId64,
                        b->arch, rotated, d_head);
    /* Adds 0.5 to the number of rotated dimensions, because the reader of config.json rounds down.
     * Not needed if a whole head is rotated. */
    const double dims = (double)rotated + (rotated < d_head ? 0.5 : 0);
    return put(b->root, "partial_rotary_factor", json_real(dims / (double)d_head), err);
}

static int put_starcoder2(builder *b, kvd_err *err)
{
    return kvd_status(put(b->root, "model_type", json_string("starcoder2"), err) ||
                      copy_whole(b, "feed_forward_length", "intermediate_size", err) ||
                      copy_whole(b, "attention.head_count_kv", "num_key_value_heads", err) ||
                      copy_real(b, "attention.layer_norm_epsilon", "norm_epsilon", err) ||
                      put(b->root, "use_bias", json_boolean(has_in_layers(b, "attn_q.bias")), err));
}

/* Writes config.json of Falcon. The tensors in the file tell which variant of Falcon it is. */
static int put_falcon(builder *b, kvd_err *err)
{
    int64_t kv_heads = 1;
    const bool two_norms = has_in_layers(b, "attn_norm_2.weight");
    if (arch_whole(b, "attention.head_count_kv", &kv_heads, err) < 0)
        return -1;
    const bool grouped = two_norms || kv_heads != 1;
    return put(b->root, "model_type", json_string("falcon"), err) ||
                   copy_whole(b, "feed_forward_length", "ffn_hidden_size", err) ||
                   copy_real(b, "attention.layer_norm_epsilon", "layer_norm_epsilon", err) ||
                   put(b->root, "num_kv_heads", json_integer(kv_heads), err) ||
                   put(b->root, "multi_query", json_boolean(!grouped), err) ||
                   put(b->root, "new_decoder_architecture", json_boolean(grouped), err) ||
                   put(b->root, "num_ln_in_parallel_attn", json_integer(two_norms ? 2 : 1), err)
               ? -1
               : 0;
}

static int put_family(builder *b, kvd_err *err)
{
    static const char *const alike[] = {"llama", "qwen2", "qwen3", "phi3", "olmo2", "glm4"};
    static const struct {
        const char *arch, *family;
    } routed[] = {{"llama", "mixtral"}, {"qwen2moe", "qwen2_moe"}, {"qwen3moe", "qwen3_moe"}};
    int64_t experts = 0;
    if (arch_whole(b, "expert_count", &experts, err) < 0)
        return -1;
    for (size_t i = 0; experts > 0 && i < sizeof routed / sizeof routed[0]; i++)
        if (strcmp(b->arch, routed[i].arch) == 0)
            return kvd_status(put_llama_like(b, routed[i].family, err) ||
                              put_experts(b, routed[i].family, err));
    if (strcmp(b->arch, "gpt-oss") == 0)
        return put_gpt_oss(b, err);
    for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++)
        if (is(b, alike[i]))
            return kvd_status(put_llama_like(b, alike[i], err) ||
                              ((is(b, "phi3") || is(b, "glm4")) && put_partial(b, err)));
    if (is(b, "gemma2"))
        return put_gemma(b, "gemma2", 46, err);
    if (is(b, "gemma3"))
        return put_gemma(b, "gemma3_text", 62, err);
    if (is(b, "starcoder2"))
        return put_starcoder2(b, err);
    if (is(b, "falcon"))
        return put_falcon(b, err);
    return kvd_fail(err,
                    "general.architecture is '%s', supported are llama, qwen2, qwen2moe, qwen3, "
                    "qwen3moe, gpt-oss, phi3, falcon, gemma2, gemma3, olmo2, glm4, starcoder2",
                    b->arch);
}

static int build(builder *b, kvd_err *err)
{
    if (put_family(b, err) || refuse(b, err) || put_sizes(b, err) || put_rope(b, err) ||
        copy_token(b, "tokenizer.ggml.bos_token_id", "bos_token_id", err) ||
        copy_token(b, "tokenizer.ggml.eos_token_id", "eos_token_id", err))
        return -1;
    return put(b->root, "tie_word_embeddings", json_boolean(!has(b, "output.weight")), err);
}

static int check_rotated(const builder *b, const kvd_config *c, kvd_err *err)
{
    int64_t rotated = 0;
    const int status = arch_whole(b, "rope.dimension_count", &rotated, err);
    if (status < 0)
        return -1;
    if (!status && rotated != (int64_t)kvd_config_rope_dims(c))
        return kvd_fail(err,
                        "'%s.rope.dimension_count' is %" PRId64
                        ", a head has %d: partial rotation is not supported",
                        b->arch, rotated, c->d_head);
    return 0;
}

int kvd_gguf_config(const kvd_gguf *g, kvd_config *c, kvd_err *err)
{
    int status = -1;
    char arch[32], *text = NULL;
    const char *s;
    size_t len;
    builder b = {.g = g, .arch = arch, .root = json_object()};
    if (!b.root)
        return kvd_no_memory(err, "a configuration", KEY);
    const int found = kvd_gguf_text(g, "general.architecture", &s, &len, err);
    if (found) {
        if (found > 0)
            kvd_fail(err, "'general.architecture' is missing");
        kvd_in(err, "'%s'", kvd_gguf_path(g));
        goto done;
    }
    (void)snprintf(arch, sizeof arch, "%.*s", len < 31 ? (int)len : 31, s);
    if (build(&b, err)) {
        kvd_in(err, "'%s'", kvd_gguf_path(g));
        goto done;
    }
    text = json_dumps(b.root, JSON_COMPACT);
    if (!text) {
        kvd_no_memory(err, "a configuration", KEY);
        goto done;
    }
    if (kvd_config_parse(kvd_gguf_path(g), text, strlen(text), c, err) == 0) {
        c->experts_apart = true;
        status = check_rotated(&b, c, err) ? kvd_in(err, "'%s'", kvd_gguf_path(g)) : 0;
        /* The gains of norms in GGUF files already include the 1 that Gemma adds. */
        c->norm_plus_one = false;
    }
done:
    free(text);
    json_decref(b.root);
    return status;
}
