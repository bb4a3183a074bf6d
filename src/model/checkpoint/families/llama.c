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
    if (kvd_cfg_attention_bias(root, c, err) || kvd_cfg_bool(root, "mlp_bias", &c->bias_ffn, err) ||
        kvd_cfg_refuse_set(root, "sliding_window", err) ||
        kvd_cfg_usual_rope(root, &(kvd_usual){0}, c, err))
        return -1;
    return kvd_cfg_layer_types(root, 0, false, c, err);
}

/* Reads the sliding window of all layers, in tokens, from JSON key sliding_window. 0 or null means
 * no window. */
static int read_window(const json_t *root, int absent, kvd_config *c, kvd_err *err)
{
    int window = 0;
    if (kvd_cfg_window(root, absent, &window, err) ||
        (window && kvd_cfg_set_window(c, window, 0, err)))
        return -1;
    return kvd_cfg_layer_types(root, window, false, c, err);
}

/* Reads the configuration of a Mistral model. The default window is that of Mistral 7B v0.1. */
static int read_mistral(const json_t *root, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_refuse_true(root, "attention_bias", "which no Mistral model has", err) ||
        kvd_cfg_usual_rope(root, &(kvd_usual){.kv_heads = 8}, c, err))
        return -1;
    return read_window(root, 4096, c, err);
}

/* Reads the configuration of Ministral 8B, in which layer_types says which layers have a sliding
 * window. */
static int read_ministral(const json_t *root, kvd_config *c, kvd_err *err)
{
    int window = 0;
    if (kvd_cfg_usual_rope(root, &(kvd_usual){.kv_heads = 8}, c, err) ||
        kvd_cfg_window(root, 4096, &window, err))
        return -1;
    return kvd_cfg_window_from(root, window, 0, c, err);
}

/* Reads the configuration of Ministral 3, which multiplies queries at positions beyond the original
 * context by a factor. */
static int read_ministral3(const json_t *root, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_need_rope(root, err) ||
        kvd_cfg_usual(root, &(kvd_usual){.kv_heads = 8, .d_head = 128}, c, err) ||
        kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL | KVD_CFG_ROPE_QUERY_SCALE, c, err))
        return -1;
    return read_window(root, 0, c, err);
}

/* Reads the configuration of multimodal models that contain a Mistral model (Small 3.1, 3.2) or
 * Ministral 3. */
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
    const kvd_config inner = *c;
    if (kvd_cfg_head_and_tokens(root, c->tied_head, c, err))
        return -1;
    c->bos_id = c->bos_id < 0 ? inner.bos_id : c->bos_id;
    if (c->eos_id < 0) {
        c->eos_id = inner.eos_id;
        c->n_eos_more = inner.n_eos_more;
        memcpy(c->eos_more, inner.eos_more, sizeof c->eos_more);
    }
    return 0;
}

/* Reads the configuration of Phi-3 and Phi-4. In Phi-4-mini, RoPE rotates only part of each
 * head. */
static int read_phi3(const json_t *root, kvd_config *c, kvd_err *err)
{
    /* default of original_max_position_embeddings, and types of RoPE scaling in Phi-3 */
    enum {
        ORIGINAL = 4096,
        ROPE = 1 << KVD_ROPE_DEFAULT | 1 << KVD_ROPE_LONGROPE | KVD_CFG_ROPE_PARTIAL
    };
    if (kvd_cfg_refuse_true(root, "attention_bias", "which no Phi-3 model has", err) ||
        kvd_cfg_usual(root, &(kvd_usual){0}, c, err) || kvd_cfg_rope(root, ORIGINAL, ROPE, c, err))
        return -1;
    return read_window(root, 0, c, err);
}

static const kvd_stored phi3_stored[] = {
    {KVD_PART_Q, "self_attn.qkv_proj", KVD_ROWS_STACKED, NULL},
    {KVD_PART_K, "self_attn.qkv_proj", KVD_ROWS_STACKED, NULL},
    {KVD_PART_V, "self_attn.qkv_proj", KVD_ROWS_STACKED, NULL},
    {KVD_PART_GATE, "mlp.gate_up_proj", KVD_ROWS_STACKED, NULL},
    {KVD_PART_UP, "mlp.gate_up_proj", KVD_ROWS_STACKED, NULL},
    {.name = NULL},
};

/* Reads the configuration of StarCoder2 (arXiv:2402.19173). */
static int read_starcoder2(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_usual usual = {
        .activation = "gelu_pytorch_tanh", .eps = "norm_epsilon", .kv_heads = 2, .tied = true};
    bool biases = true;
    c->norm = KVD_NORM_LAYER;
    if (kvd_cfg_bool(root, "use_bias", &biases, err) || kvd_cfg_usual_rope(root, &usual, c, err))
        return -1;
    c->bias_qkv = c->bias_o = c->bias_ffn = biases;
    return read_window(root, 0, c, err);
}

static const kvd_stored starcoder2_stored[] = {
    {KVD_PART_UP, "mlp.c_fc", KVD_ROWS_ALL, NULL},
    {KVD_PART_DOWN, "mlp.c_proj", KVD_ROWS_ALL, NULL},
    {.name = NULL},
};

static int read_mixtral(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {
        "num_local_experts", "num_experts_per_tok", "intermediate_size", 8, 2, 0};
    c->chosen_add_up = true;
    return kvd_cfg_usual_rope(root, &(kvd_usual){.kv_heads = 8, .theta = 1e6}, c, err) ||
                   kvd_cfg_routed(root, &keys, c, err) || read_window(root, 0, c, err)
               ? -1
               : 0;
}

static const kvd_stored mixtral_stored[] = {
    {KVD_PART_ROUTER, "block_sparse_moe.gate", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_GATE, "block_sparse_moe.experts.#.w1", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_UP, "block_sparse_moe.experts.#.w3", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_DOWN, "block_sparse_moe.experts.#.w2", KVD_ROWS_ALL, NULL},
    {.name = NULL},
};

/* Reads the configuration of Arcee's AFM: Llama with squared ReLU in place of the gated
 * feed-forward block. */
static int read_arcee(const json_t *root, kvd_config *c, kvd_err *err)
{
    return kvd_cfg_attention_bias(root, c, err) ||
                   kvd_cfg_bool(root, "mlp_bias", &c->bias_ffn, err) ||
                   kvd_cfg_usual_rope(root, &(kvd_usual){.activation = "relu2"}, c, err)
               ? -1
               : 0;
}

/* Reads the configuration of InternLM 2 and 2.5 (arXiv:2403.17297), whose tensor wqkv has its rows
 * ordered by KV head. */
static int read_internlm2(const json_t *root, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_bool(root, "bias", &c->bias_qkv, err) ||
        kvd_cfg_usual_rope(root, &(kvd_usual){0}, c, err))
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
    {.name = NULL},
};

static int read_seed_oss(const json_t *root, kvd_config *c, kvd_err *err)
{
    c->bias_qkv = true;
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) ||
        kvd_cfg_bool(root, "attention_out_bias", &c->bias_o, err) ||
        kvd_cfg_bool(root, "mlp_bias", &c->bias_ffn, err) ||
        kvd_cfg_usual_rope(root, &(kvd_usual){.kv_heads = 8, .d_head = 128}, c, err))
        return -1;
    return kvd_cfg_layer_types(root, 0, false, c, err);
}

/* Reads the configuration of dense ERNIE 4.5, whose RoPE rotates dimension 2i with 2i + 1. */
static int read_ernie(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_usual usual = {.kv_heads = 2, .d_head = 128, .theta = 500000, .tied = true};
    bool biases = false;
    if (kvd_cfg_bool(root, "use_bias", &biases, err) || kvd_cfg_usual_rope(root, &usual, c, err))
        return -1;
    c->bias_qkv = c->bias_o = c->bias_ffn = biases;
    c->rope_layout = KVD_ROPE_INTERLEAVED;
    return kvd_cfg_layer_types(root, 0, false, c, err);
}

/* Reads true or false from `key`, which version 5 of the Hugging Face library calls `other`. Fails
 * if config.json has two different values for these keys. */
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
        kvd_cfg_usual_rope(root, &(kvd_usual){.kv_heads = 2, .d_head = 128}, c, err))
        return -1;
    c->bias_o = c->bias_ffn = others;
    return 0;
}

/* Reads the configuration of SmolLM3, in which some layers have no RoPE (no_rope_layers). */
static int read_smollm3(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_usual usual = {.kv_heads = 4, .theta = 2e6, .tied = true};
    bool windows = false;
    int interval = 4, window = 0;
    if (kvd_cfg_attention_bias(root, c, err) || kvd_cfg_bool(root, "mlp_bias", &c->bias_ffn, err) ||
        kvd_cfg_usual_rope(root, &usual, c, err) ||
        kvd_cfg_bool(root, "use_sliding_window", &windows, err) ||
        kvd_cfg_size_or(root, "sliding_window", &window, err) ||
        kvd_cfg_size_or(root, "no_rope_layer_interval", &interval, err))
        return -1;
    if (windows && window && !kvd_cfg_member(root, "layer_types"))
        return kvd_fail(err, "'use_sliding_window' is true, but 'layer_types' is missing");
    if (kvd_cfg_layer_types(root, windows ? window : 0, true, c, err))
        return -1;
    return kvd_cfg_member(root, "no_rope_layers")
               ? kvd_cfg_unrotated(root, "no_rope_layers", c, err)
               : kvd_cfg_unrotated_every(interval, c, err);
}

/* Reads the configuration of Granite 3, which has factors on embedding, attention scores, block
 * outputs and logits. */
static int read_granite(const json_t *root, kvd_config *c, kvd_err *err)
{
    double divisor = 1;
    c->embed_scale = c->score_scale = c->residual_scale = 1;
    if (kvd_cfg_attention_bias(root, c, err) || kvd_cfg_bool(root, "mlp_bias", &c->bias_ffn, err) ||
        kvd_cfg_positive_or(root, "embedding_multiplier", &c->embed_scale, err) ||
        kvd_cfg_positive_or(root, "attention_multiplier", &c->score_scale, err) ||
        kvd_cfg_positive_or(root, "residual_multiplier", &c->residual_scale, err) ||
        kvd_cfg_positive_or(root, "logits_scaling", &divisor, err) ||
        kvd_cfg_usual_rope(root, &(kvd_usual){0}, c, err))
        return -1;
    c->logit_scale = 1 / divisor;
    return kvd_cfg_layer_types(root, 0, false, c, err);
}

/* Reads the configuration of MiniCPM (arXiv:2404.06395), which has factors on block outputs and
 * logits. */
static int read_minicpm(const json_t *root, kvd_config *c, kvd_err *err)
{
    double depth = 1;
    int base = 1, layers = 0;
    c->embed_scale = 1;
    if (kvd_cfg_refuse_set(root, "sparse_config", err) || kvd_cfg_attention_bias(root, c, err) ||
        kvd_cfg_positive_or(root, "scale_emb", &c->embed_scale, err) ||
        kvd_cfg_positive_or(root, "scale_depth", &depth, err) ||
        kvd_cfg_size_or(root, "dim_model_base", &base, err) ||
        kvd_cfg_usual_rope(root, &(kvd_usual){.tied = true}, c, err) ||
        kvd_cfg_size_or(root, "mup_denominator", &layers, err))
        return -1;
    if (layers && layers != c->n_layers)
        return kvd_fail(err, "'mup_denominator' is %d, only %d, the number of layers, is supported",
                        layers, c->n_layers);
    c->residual_scale = depth / sqrt(c->n_layers);
    c->logit_scale = (double)base / c->d_model;
    return 0;
}

/* Reads the configuration of Cohere models: one norm without bias per layer, RoPE on adjacent
 * dimensions. */
static int read_cohere_common(const json_t *root, double theta, kvd_config *c, kvd_err *err)
{
    const kvd_usual usual = {.eps = "layer_norm_eps", .theta = theta, .tied = true};
    c->logit_scale = 0.0625;
    if (kvd_cfg_refuse_true(root, "use_qk_norm", "which is not supported", err) ||
        kvd_cfg_attention_bias(root, c, err) ||
        kvd_cfg_positive_or(root, "logit_scale", &c->logit_scale, err) ||
        kvd_cfg_usual_rope(root, &usual, c, err))
        return -1;
    c->norm = KVD_NORM_LAYER;
    c->norm_no_bias = c->shared_norm = true;
    c->order = KVD_ORDER_PARALLEL;
    c->rope_layout = KVD_ROPE_INTERLEAVED;
    return 0;
}

static int read_cohere(const json_t *root, kvd_config *c, kvd_err *err)
{
    return kvd_status(read_cohere_common(root, 500000, c, err) ||
                      kvd_cfg_layer_types(root, 0, false, c, err));
}

/* Reads the configuration of Command R7B, in which layers without a sliding window have no RoPE. */
static int read_cohere2(const json_t *root, kvd_config *c, kvd_err *err)
{
    int window = 0, pattern = 4;
    if (read_cohere_common(root, 10000, c, err) || kvd_cfg_window(root, 4096, &window, err) ||
        kvd_cfg_size_or(root, "sliding_window_pattern", &pattern, err))
        return -1;
    if (!window)
        return kvd_fail(err, "'sliding_window' is null, a cohere2 model needs one");
    return kvd_status(kvd_cfg_window_pattern(root, window, pattern, c, err) ||
                      kvd_cfg_unrotated_full(c, err));
}

const kvd_family kvd_llama_families[] = {
    {KVD_LLAMA_FAMILY("llama", "LlamaForCausalLM", read_llama, NULL)},
    {KVD_LLAMA_FAMILY("mistral", "MistralForCausalLM", read_mistral, NULL)},
    {KVD_LLAMA_FAMILY("ministral", "MinistralForCausalLM", read_ministral, NULL)},
    {KVD_LLAMA_FAMILY("ministral3", "Ministral3ForCausalLM", read_ministral3, NULL)},
    {KVD_LLAMA_FAMILY("mistral3", "Mistral3ForConditionalGeneration", read_mistral3, NULL),
     KVD_MULTIMODAL_NAMES},
    {KVD_LLAMA_FAMILY("phi3", "Phi3ForCausalLM", read_phi3, phi3_stored)},
    {KVD_LLAMA_FAMILY("mixtral", "MixtralForCausalLM", read_mixtral, mixtral_stored)},
    {KVD_LLAMA_FAMILY("starcoder2", "Starcoder2ForCausalLM", read_starcoder2, starcoder2_stored)},
    {KVD_LLAMA_FAMILY("arcee", "ArceeForCausalLM", read_arcee, NULL)},
    {.name = "internlm2",
     .architecture = "InternLM2ForCausalLM",
     .read = read_internlm2,
     .base = "model.",
     .layers = "model.layers.",
     .ignored_layer = "attention.rotary_emb.inv_freq",
     .stored = internlm2_stored},
    {KVD_LLAMA_FAMILY("seed_oss", "SeedOssForCausalLM", read_seed_oss, NULL)},
    {KVD_LLAMA_FAMILY("ernie4_5", "Ernie4_5ForCausalLM", read_ernie, NULL),
     .other_architecture = "Ernie4_5_ForCausalLM"}, /* in the first published files */
    {KVD_LLAMA_FAMILY("internlm3", "InternLM3ForCausalLM", read_internlm3, NULL),
     .other_architecture = "LlamaForCausalLM"}, /* in files that Transformers 5 wrote */
    {KVD_LLAMA_FAMILY("smollm3", "SmolLM3ForCausalLM", read_smollm3, NULL)},
    {KVD_LLAMA_FAMILY("granite", "GraniteForCausalLM", read_granite, NULL)},
    {KVD_LLAMA_FAMILY("minicpm", "MiniCPMForCausalLM", read_minicpm, NULL)},
    {KVD_LLAMA_FAMILY("cohere", "CohereForCausalLM", read_cohere, NULL)},
    {KVD_LLAMA_FAMILY("cohere2", "Cohere2ForCausalLM", read_cohere2, NULL)},
    {.name = NULL},
};
