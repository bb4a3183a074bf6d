/* Configurations of Llama and of similar models, such as Mistral, Phi-3 and Granite. */
#include <math.h>
#include <string.h>

#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

static int read_llama(const json_t *root, kvd_config *c, kvd_err *err)
{
    const json_t *tp = kvd_cfg_member(root, "pretraining_tp");
    if (tp && (!json_is_integer(tp) || json_integer_value(tp) != 1))
        return kvd_fail(err, "'pretraining_tp' is not 1, sliced matrix products are not supported");
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) ||
        kvd_cfg_bool(root, "mlp_bias", &c->bias_ffn, err) ||
        kvd_cfg_refuse_set(root, "sliding_window", err) ||
        kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_heads(root, 0, 0, c, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) ||
        kvd_cfg_layer_types(root, 0, false, c, err) ||
        kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err) ||
        kvd_cfg_head_and_tokens(root, false, c, err))
        return -1;
    c->bias_o = c->bias_qkv;
    return 0;
}

const kvd_stored kvd_llama_stored[KVD_QWEN3_STORED] = {
    {KVD_PART_NORM_ATTENTION, "input_layernorm", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_QKV,
    {KVD_PART_O, "self_attn.o_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FFN, "post_attention_layernorm", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_MLP,
    KVD_LLAMA_ENDS,
    {KVD_PART_NORM_Q, "self_attn.q_norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_K, "self_attn.k_norm", KVD_ROWS_ALL, NULL},
};

const kvd_family kvd_family_llama = {
    .name = "llama",
    .architecture = "LlamaForCausalLM",
    .read = read_llama,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_LLAMA_STORED,
};

/* Reads the sliding window, by default `absent`; 0 or null means none. */
static int read_window(const json_t *root, int absent, kvd_config *c, kvd_err *err)
{
    int window = json_object_get(root, "sliding_window") ? 0 : absent;
    if (kvd_cfg_size_or(root, "sliding_window", &window, err) ||
        (window && kvd_cfg_set_window(c, window, 0, err)))
        return -1;
    return kvd_cfg_layer_types(root, window, false, c, err);
}

/* Mistral, whose default window is that of Mistral 7B v0.1. */

static int read_mistral(const json_t *root, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_refuse_true(root, "attention_bias", "which no Mistral model has", err) ||
        kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_heads(root, 8, 0, c, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) ||
        read_window(root, 4096, c, err) || kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err) ||
        kvd_cfg_head_and_tokens(root, false, c, err))
        return -1;
    return 0;
}

const kvd_family kvd_family_mistral = {
    .name = "mistral",
    .architecture = "MistralForCausalLM",
    .read = read_mistral,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_LLAMA_STORED,
};

/* Ministral 8B, in which layer_types selects the layers with a window. */

static int read_ministral(const json_t *root, kvd_config *c, kvd_err *err)
{
    int window = json_object_get(root, "sliding_window") ? 0 : 4096;
    if (kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_heads(root, 8, 0, c, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) ||
        kvd_cfg_size_or(root, "sliding_window", &window, err) ||
        (window && kvd_cfg_set_window(c, window, 0, err)) ||
        kvd_cfg_layer_types(root, window, true, c, err) ||
        kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err) ||
        kvd_cfg_head_and_tokens(root, false, c, err))
        return -1;
    return 0;
}

const kvd_family kvd_family_ministral = {
    .name = "ministral",
    .architecture = "MinistralForCausalLM",
    .read = read_ministral,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_LLAMA_STORED,
};

/* Ministral 3, which multiplies queries beyond the original context by a factor. */

static int read_ministral3(const json_t *root, kvd_config *c, kvd_err *err)
{
    int window = 0;
    if (kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_heads(root, 8, 128, c, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) ||
        kvd_cfg_size_or(root, "sliding_window", &window, err) ||
        (window && kvd_cfg_set_window(c, window, 0, err)) ||
        kvd_cfg_layer_types(root, window, false, c, err) ||
        kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL | KVD_CFG_ROPE_QUERY_SCALE, c, err) ||
        kvd_cfg_head_and_tokens(root, false, c, err))
        return -1;
    return 0;
}

const kvd_family kvd_family_ministral3 = {
    .name = "ministral3",
    .architecture = "Ministral3ForCausalLM",
    .read = read_ministral3,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_LLAMA_STORED,
};

/* Multimodal models around Mistral (Small 3.1 and 3.2) and Ministral 3. */

static int read_mistral3(const json_t *root, kvd_config *c, kvd_err *err)
{
    const json_t *const text = kvd_cfg_text_config(root, err);
    const json_t *const type = kvd_cfg_member(text, "model_type");
    const char *const name = type ? json_string_value(type) : "mistral";
    if (!text)
        return -1;
    const bool third = name && strcmp(name, "ministral3") == 0;
    if (!third && (!name || strcmp(name, "mistral") != 0))
        return kvd_fail(err,
                        "text_config: model_type is '%s', only 'mistral' and 'ministral3' are "
                        "supported in this model",
                        name ? name : "not a string");
    if (third ? read_ministral3(text, c, err) : read_mistral(text, c, err))
        return kvd_in(err, "text_config");
    const int bos = c->bos_id, eos = c->eos_id;
    if (kvd_cfg_head_and_tokens(root, c->tied_head, c, err))
        return -1;
    c->bos_id = c->bos_id < 0 ? bos : c->bos_id;
    c->eos_id = c->eos_id < 0 ? eos : c->eos_id;
    return 0;
}

const kvd_family kvd_family_mistral3 = {
    .name = "mistral3",
    .architecture = "Mistral3ForConditionalGeneration",
    .read = read_mistral3,
    .other_bases = kvd_multimodal_bases,
    .other_models = kvd_multimodal_models,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_LLAMA_STORED,
};

/* Phi-3 and Phi-4. In Phi-4-mini, RoPE rotates only a part of each head. */

static int read_phi3(const json_t *root, kvd_config *c, kvd_err *err)
{
    /* Default of original_max_position_embeddings, and the RoPE scalings that Phi-3 supports. */
    enum {
        ORIGINAL = 4096,
        ROPE = 1 << KVD_ROPE_DEFAULT | 1 << KVD_ROPE_LONGROPE | KVD_CFG_ROPE_PARTIAL
    };
    if (kvd_cfg_refuse_true(root, "attention_bias", "which no Phi-3 model has", err) ||
        kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_heads(root, 0, 0, c, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) || read_window(root, 0, c, err) ||
        kvd_cfg_rope(root, ORIGINAL, ROPE, c, err) || kvd_cfg_head_and_tokens(root, false, c, err))
        return -1;
    return 0;
}

static const kvd_stored phi3_stored[] = {
    {KVD_PART_NORM_ATTENTION, "input_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_Q, "self_attn.qkv_proj", KVD_ROWS_STACKED, NULL},
    {KVD_PART_K, "self_attn.qkv_proj", KVD_ROWS_STACKED, NULL},
    {KVD_PART_V, "self_attn.qkv_proj", KVD_ROWS_STACKED, NULL},
    {KVD_PART_O, "self_attn.o_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FFN, "post_attention_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_GATE, "mlp.gate_up_proj", KVD_ROWS_STACKED, NULL},
    {KVD_PART_UP, "mlp.gate_up_proj", KVD_ROWS_STACKED, NULL},
    {KVD_PART_DOWN, "mlp.down_proj", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_ENDS,
};

const kvd_family kvd_family_phi3 = {
    .name = "phi3",
    .architecture = "Phi3ForCausalLM",
    .read = read_phi3,
    KVD_LLAMA_NAMES,
    .stored = phi3_stored,
    .n_stored = sizeof phi3_stored / sizeof phi3_stored[0],
};

/* StarCoder2 (Lozhkov et al. 2024, arXiv:2402.19173), with a sliding window in every layer. */

static int read_starcoder2(const json_t *root, kvd_config *c, kvd_err *err)
{
    bool biases = true;
    c->norm = KVD_NORM_LAYER;
    if (kvd_cfg_bool(root, "use_bias", &biases, err) ||
        kvd_cfg_activation(root, "hidden_act", false, "gelu_pytorch_tanh", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_heads(root, 2, 0, c, err) ||
        kvd_cfg_positive(root, "norm_epsilon", &c->norm_eps, err) || read_window(root, 0, c, err) ||
        kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err) ||
        kvd_cfg_head_and_tokens(root, true, c, err))
        return -1;
    c->bias_qkv = c->bias_o = c->bias_ffn = biases;
    return 0;
}

static const kvd_stored starcoder2_stored[] = {
    {KVD_PART_NORM_ATTENTION, "input_layernorm", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_QKV,
    {KVD_PART_O, "self_attn.o_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FFN, "post_attention_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_UP, "mlp.c_fc", KVD_ROWS_ALL, NULL},
    {KVD_PART_DOWN, "mlp.c_proj", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_ENDS,
};

const kvd_family kvd_family_starcoder2 = {
    .name = "starcoder2",
    .architecture = "Starcoder2ForCausalLM",
    .read = read_starcoder2,
    KVD_LLAMA_NAMES,
    .stored = starcoder2_stored,
    .n_stored = sizeof starcoder2_stored / sizeof starcoder2_stored[0],
};

static int read_mixtral(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {
        "num_local_experts", "num_experts_per_tok", "intermediate_size", 8, 2, 0};
    c->chosen_add_up = true;
    if (kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_routed(root, &keys, c, err) || kvd_cfg_heads(root, 8, 0, c, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) || read_window(root, 0, c, err) ||
        kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err) ||
        kvd_cfg_head_and_tokens(root, false, c, err))
        return -1;
    kvd_cfg_theta_or(root, 1e6, c);
    return 0;
}

static const kvd_stored mixtral_stored[] = {
    {KVD_PART_NORM_ATTENTION, "input_layernorm", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_QKV,
    {KVD_PART_O, "self_attn.o_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FFN, "post_attention_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_ROUTER, "block_sparse_moe.gate", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_GATE, "block_sparse_moe.experts.#.w1", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_UP, "block_sparse_moe.experts.#.w3", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_DOWN, "block_sparse_moe.experts.#.w2", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_ENDS,
};

const kvd_family kvd_family_mixtral = {
    .name = "mixtral",
    .architecture = "MixtralForCausalLM",
    .read = read_mixtral,
    KVD_LLAMA_NAMES,
    .stored = mixtral_stored,
    .n_stored = sizeof mixtral_stored / sizeof mixtral_stored[0],
};

/* Reads a model like Llama, except for its activation; kv_heads, d_head and theta are defaults. */
static int read_ungated(const json_t *root, int kv_heads, int d_head, double theta, bool tied,
                        kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_heads(root, kv_heads, d_head, c, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) ||
        kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err) ||
        kvd_cfg_head_and_tokens(root, tied, c, err))
        return -1;
    kvd_cfg_theta_or(root, theta, c);
    return 0;
}

static int read_plain(const json_t *root, int kv_heads, int d_head, double theta, bool tied,
                      kvd_config *c, kvd_err *err)
{
    return kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
                   read_ungated(root, kv_heads, d_head, theta, tied, c, err)
               ? -1
               : 0;
}

/* Reads Arcee's AFM: Llama with squared ReLU in place of the gated feed-forward block. */
static int read_arcee(const json_t *root, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) ||
        kvd_cfg_bool(root, "mlp_bias", &c->bias_ffn, err) ||
        kvd_cfg_activation(root, "hidden_act", false, "relu2", c, err) ||
        read_ungated(root, 0, 0, 10000, false, c, err))
        return -1;
    c->bias_o = c->bias_qkv;
    return 0;
}

const kvd_family kvd_family_arcee = {
    .name = "arcee",
    .architecture = "ArceeForCausalLM",
    .read = read_arcee,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_LLAMA_STORED,
};

/*
 * Reads InternLM 2 and 2.5 (Cai et al. 2024, arXiv:2403.17297). Rows of the tensor wqkv are ordered
 * by KV head.
 */
static int read_internlm2(const json_t *root, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_bool(root, "bias", &c->bias_qkv, err) ||
        read_plain(root, 0, 0, 10000, false, c, err))
        return -1;
    c->bias_o = c->bias_qkv;
    return 0;
}

static const kvd_stored internlm2_stored[] = {
    {KVD_PART_NORM_ATTENTION, "attention_norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_Q, "attention.wqkv", KVD_ROWS_GROUPED, NULL},
    {KVD_PART_K, "attention.wqkv", KVD_ROWS_GROUPED, NULL},
    {KVD_PART_V, "attention.wqkv", KVD_ROWS_GROUPED, NULL},
    {KVD_PART_O, "attention.wo", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FFN, "ffn_norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_GATE, "feed_forward.w1", KVD_ROWS_ALL, NULL},
    {KVD_PART_UP, "feed_forward.w3", KVD_ROWS_ALL, NULL},
    {KVD_PART_DOWN, "feed_forward.w2", KVD_ROWS_ALL, NULL},
    {KVD_PART_EMBEDDING, "model.tok_embeddings", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FINAL, "model.norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_HEAD, "output", KVD_ROWS_ALL, NULL},
};

const kvd_family kvd_family_internlm2 = {
    .name = "internlm2",
    .architecture = "InternLM2ForCausalLM",
    .read = read_internlm2,
    .base = "model.",
    .layers = "model.layers.",
    .ignored_layer = "attention.rotary_emb.inv_freq",
    .stored = internlm2_stored,
    .n_stored = sizeof internlm2_stored / sizeof internlm2_stored[0],
};

static int read_seed_oss(const json_t *root, kvd_config *c, kvd_err *err)
{
    c->bias_qkv = true;
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) ||
        kvd_cfg_bool(root, "attention_out_bias", &c->bias_o, err) ||
        kvd_cfg_bool(root, "mlp_bias", &c->bias_ffn, err) ||
        read_plain(root, 8, 128, 10000, false, c, err))
        return -1;
    return kvd_cfg_layer_types(root, 0, false, c, err);
}

const kvd_family kvd_family_seed_oss = {
    .name = "seed_oss",
    .architecture = "SeedOssForCausalLM",
    .read = read_seed_oss,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_LLAMA_STORED,
};

/* Reads dense ERNIE 4.5, whose RoPE rotates dimension 2i with 2i + 1. */
static int read_ernie(const json_t *root, kvd_config *c, kvd_err *err)
{
    bool biases = false;
    if (kvd_cfg_bool(root, "use_bias", &biases, err) ||
        read_plain(root, 2, 128, 500000, true, c, err))
        return -1;
    c->bias_qkv = c->bias_o = c->bias_ffn = biases;
    c->rope_layout = KVD_ROPE_INTERLEAVED;
    return kvd_cfg_layer_types(root, 0, false, c, err);
}

const kvd_family kvd_family_ernie4_5 = {
    .name = "ernie4_5",
    .architecture = "Ernie4_5ForCausalLM",
    .other_architecture = "Ernie4_5_ForCausalLM", /* in the first published files */
    .read = read_ernie,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_LLAMA_STORED,
};

/* Reads a bool that is called `key` or, by Transformers 5, `other`. */
static int read_renamed(const json_t *root, const char *key, const char *other, bool *out,
                        kvd_err *err)
{
    if (kvd_cfg_member(root, key) && kvd_cfg_member(root, other) &&
        !json_equal(kvd_cfg_member(root, key), kvd_cfg_member(root, other)))
        return kvd_fail(err, "'%s' and '%s' are both there and differ", key, other);
    return kvd_cfg_bool(root, key, out, err) || kvd_cfg_bool(root, other, out, err) ? -1 : 0;
}

static int read_internlm3(const json_t *root, kvd_config *c, kvd_err *err)
{
    bool others = false;
    if (read_renamed(root, "qkv_bias", "attention_bias", &c->bias_qkv, err) ||
        read_renamed(root, "bias", "mlp_bias", &others, err) ||
        read_plain(root, 2, 128, 10000, false, c, err))
        return -1;
    c->bias_o = c->bias_ffn = others;
    return 0;
}

const kvd_family kvd_family_internlm3 = {
    .name = "internlm3",
    .architecture = "InternLM3ForCausalLM",
    .other_architecture = "LlamaForCausalLM", /* in files that Transformers 5 wrote */
    .read = read_internlm3,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_LLAMA_STORED,
};

/* Reads SmolLM3, in which some layers have no RoPE (no_rope_layers). */
static int read_smollm3(const json_t *root, kvd_config *c, kvd_err *err)
{
    bool windows = false;
    int interval = 4, window = 0;
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) ||
        kvd_cfg_bool(root, "mlp_bias", &c->bias_ffn, err) ||
        read_plain(root, 4, 0, 2e6, true, c, err) ||
        kvd_cfg_bool(root, "use_sliding_window", &windows, err) ||
        kvd_cfg_size_or(root, "sliding_window", &window, err) ||
        kvd_cfg_size_or(root, "no_rope_layer_interval", &interval, err))
        return -1;
    c->bias_o = c->bias_qkv;
    if (windows && window && !kvd_cfg_member(root, "layer_types"))
        return kvd_fail(err, "'use_sliding_window' is true, but 'layer_types' is missing");
    if (kvd_cfg_layer_types(root, windows ? window : 0, true, c, err))
        return -1;
    return kvd_cfg_member(root, "no_rope_layers")
               ? kvd_cfg_unrotated(root, "no_rope_layers", c, err)
               : kvd_cfg_unrotated_every(interval, c, err);
}

const kvd_family kvd_family_smollm3 = {
    .name = "smollm3",
    .architecture = "SmolLM3ForCausalLM",
    .read = read_smollm3,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_LLAMA_STORED,
};

/* Reads Granite 3, which scales the embedding, attention scores, block outputs and logits. */
static int read_granite(const json_t *root, kvd_config *c, kvd_err *err)
{
    double divisor = 1;
    c->embed_scale = c->score_scale = c->residual_scale = 1;
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) ||
        kvd_cfg_bool(root, "mlp_bias", &c->bias_ffn, err) ||
        kvd_cfg_positive_or(root, "embedding_multiplier", &c->embed_scale, err) ||
        kvd_cfg_positive_or(root, "attention_multiplier", &c->score_scale, err) ||
        kvd_cfg_positive_or(root, "residual_multiplier", &c->residual_scale, err) ||
        kvd_cfg_positive_or(root, "logits_scaling", &divisor, err) ||
        read_plain(root, 0, 0, 10000, false, c, err))
        return -1;
    c->bias_o = c->bias_qkv;
    c->logit_scale = 1 / divisor;
    return kvd_cfg_layer_types(root, 0, false, c, err);
}

const kvd_family kvd_family_granite = {
    .name = "granite",
    .architecture = "GraniteForCausalLM",
    .read = read_granite,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_LLAMA_STORED,
};

/* Reads MiniCPM (Hu et al. 2024, arXiv:2404.06395), which scales block outputs and logits. */
static int read_minicpm(const json_t *root, kvd_config *c, kvd_err *err)
{
    double depth = 1;
    int base = 1, layers = 0;
    c->embed_scale = 1;
    if (kvd_cfg_refuse_set(root, "sparse_config", err) ||
        kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) ||
        kvd_cfg_positive_or(root, "scale_emb", &c->embed_scale, err) ||
        kvd_cfg_positive_or(root, "scale_depth", &depth, err) ||
        kvd_cfg_size_or(root, "dim_model_base", &base, err) ||
        read_plain(root, 0, 0, 10000, true, c, err) ||
        kvd_cfg_size_or(root, "mup_denominator", &layers, err))
        return -1;
    if (layers && layers != c->n_layers)
        return kvd_fail(err, "'mup_denominator' is %d, only %d, the number of layers, is supported",
                        layers, c->n_layers);
    c->bias_o = c->bias_qkv;
    c->residual_scale = depth / sqrt(c->n_layers);
    c->logit_scale = (double)base / c->d_model;
    return 0;
}

const kvd_family kvd_family_minicpm = {
    .name = "minicpm",
    .architecture = "MiniCPMForCausalLM",
    .read = read_minicpm,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_LLAMA_STORED,
};

/* Reads Cohere's models: one layer norm without bias, interleaved RoPE. */
static int read_cohere_common(const json_t *root, double theta, kvd_config *c, kvd_err *err)
{
    c->logit_scale = 0.0625;
    if (kvd_cfg_refuse_true(root, "use_qk_norm", "which is not supported", err) ||
        kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) ||
        kvd_cfg_positive_or(root, "logit_scale", &c->logit_scale, err) ||
        kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_heads(root, 0, 0, c, err) ||
        kvd_cfg_positive(root, "layer_norm_eps", &c->norm_eps, err) ||
        kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err) ||
        kvd_cfg_head_and_tokens(root, true, c, err))
        return -1;
    kvd_cfg_theta_or(root, theta, c);
    c->bias_o = c->bias_qkv;
    c->norm = KVD_NORM_LAYER;
    c->norm_no_bias = c->shared_norm = true;
    c->order = KVD_ORDER_PARALLEL;
    c->rope_layout = KVD_ROPE_INTERLEAVED;
    return 0;
}

static int read_cohere(const json_t *root, kvd_config *c, kvd_err *err)
{
    return read_cohere_common(root, 500000, c, err) || kvd_cfg_layer_types(root, 0, false, c, err)
               ? -1
               : 0;
}

/* Reads Command R7B, in which layers without a window have no RoPE. */
static int read_cohere2(const json_t *root, kvd_config *c, kvd_err *err)
{
    int window = json_object_get(root, "sliding_window") ? 0 : 4096, pattern = 4;
    if (read_cohere_common(root, 10000, c, err) ||
        kvd_cfg_size_or(root, "sliding_window", &window, err) ||
        kvd_cfg_size_or(root, "sliding_window_pattern", &pattern, err))
        return -1;
    if (!window)
        return kvd_fail(err, "'sliding_window' is null, a cohere2 model needs one");
    if (kvd_cfg_member(root, "layer_types") ? kvd_cfg_layer_types(root, window, true, c, err)
                                            : kvd_cfg_window_pattern(c, window, pattern, err))
        return -1;
    return kvd_cfg_unrotated_full(c, err);
}

static const kvd_stored cohere_stored[] = {
    {KVD_PART_NORM_ATTENTION, "input_layernorm", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_QKV,
    {KVD_PART_O, "self_attn.o_proj", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_MLP,
    KVD_LLAMA_ENDS,
};

const kvd_family kvd_family_cohere = {
    .name = "cohere",
    .architecture = "CohereForCausalLM",
    .read = read_cohere,
    KVD_LLAMA_NAMES,
    .stored = cohere_stored,
    .n_stored = sizeof cohere_stored / sizeof cohere_stored[0],
};

const kvd_family kvd_family_cohere2 = {
    .name = "cohere2",
    .architecture = "Cohere2ForCausalLM",
    .read = read_cohere2,
    KVD_LLAMA_NAMES,
    .stored = cohere_stored,
    .n_stored = sizeof cohere_stored / sizeof cohere_stored[0],
};
