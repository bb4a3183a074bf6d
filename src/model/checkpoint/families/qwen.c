/* Configurations of Qwen2 and 2.5, Qwen3, and OLMoE. */
#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

/* Reads the sliding window of layers from max_window_layers on. */
static int read_window(const json_t *root, kvd_config *c, kvd_err *err)
{
    bool used = false;
    int window = json_object_get(root, "sliding_window") ? 0 : 4096, first = 28;
    if (kvd_cfg_bool(root, "use_sliding_window", &used, err) ||
        kvd_cfg_size_or(root, "sliding_window", &window, err))
        return -1;
    /* max_window_layers may be 0, but kvd_cfg_size refuses 0. */
    const json_t *stated = kvd_cfg_member(root, "max_window_layers");
    if (stated && (!json_is_integer(stated) || json_integer_value(stated) < 0))
        return kvd_fail(err, "'max_window_layers' is not an integer from 0 on");
    if (stated)
        first = json_integer_value(stated) < c->n_layers ? (int)json_integer_value(stated)
                                                         : c->n_layers;
    if (!used)
        window = 0;
    if (kvd_cfg_member(root, "layer_types"))
        return kvd_cfg_layer_types(root, window, true, c, err);
    return window && first < c->n_layers ? kvd_cfg_set_window(c, window, first, err) : 0;
}

/* Reads keys of Qwen2 and Qwen3. d_head is the default of head_dim; 0 means d_model / n_heads. */
static int read_common(const json_t *root, int d_head, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_heads(root, 32, d_head, c, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) || read_window(root, c, err) ||
        kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err) ||
        kvd_cfg_head_and_tokens(root, false, c, err))
        return -1;
    return 0;
}

static int read_qwen2(const json_t *root, kvd_config *c, kvd_err *err)
{
    c->bias_qkv = true;
    return read_common(root, 0, c, err);
}

static int read_qwen3(const json_t *root, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err))
        return -1;
    c->bias_o = c->bias_qkv;
    c->qk_norm = true;
    return read_common(root, 128, c, err);
}

const kvd_family kvd_family_qwen2 = {
    .name = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .read = read_qwen2,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_LLAMA_STORED,
};

const kvd_family kvd_family_qwen3 = {
    .name = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .read = read_qwen3,
    KVD_LLAMA_NAMES,
    .stored = kvd_llama_stored,
    .n_stored = KVD_QWEN3_STORED,
};

/* Mixture-of-experts models; Qwen2-MoE has a gated shared expert. */

static int read_moe(const json_t *root, int kv_heads, const kvd_routed_keys *keys, kvd_config *c,
                    kvd_err *err)
{
    if (kvd_cfg_refuse_true(root, "use_sliding_window",
                            "which is not supported in a Qwen model with experts", err) ||
        kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_routed(root, keys, c, err) || kvd_cfg_dense_layers(root, c, err) ||
        kvd_cfg_bool(root, "norm_topk_prob", &c->chosen_add_up, err) ||
        kvd_cfg_heads(root, kv_heads, 0, c, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) ||
        kvd_cfg_layer_types(root, 0, false, c, err) ||
        kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err) ||
        kvd_cfg_head_and_tokens(root, false, c, err))
        return -1;
    return 0;
}

static int read_qwen2_moe(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {
        "num_experts", "num_experts_per_tok", "moe_intermediate_size", 60, 4, 1408};
    c->bias_qkv = true;
    c->shared_gate = true;
    c->d_shared = 5632;
    if (kvd_cfg_bool(root, "qkv_bias", &c->bias_qkv, err) ||
        kvd_cfg_size_or(root, "shared_expert_intermediate_size", &c->d_shared, err))
        return -1;
    return read_moe(root, 16, &keys, c, err);
}

static int read_qwen3_moe(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {
        "num_experts", "num_experts_per_tok", "moe_intermediate_size", 128, 8, 768};
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err))
        return -1;
    c->bias_o = c->bias_qkv;
    c->qk_norm = true;
    return read_moe(root, 4, &keys, c, err);
}

/* Reads OLMoE (Muennighoff et al. 2024, arXiv:2409.02060). */
static int read_olmoe(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {
        "num_experts", "num_experts_per_tok", "intermediate_size", 64, 8, 2048};
    if (kvd_cfg_refuse_set(root, "clip_qkv", err) ||
        kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err))
        return -1;
    c->bias_o = c->bias_qkv;
    c->qk_norm = c->qk_norm_whole = true;
    return read_moe(root, 0, &keys, c, err);
}

static const kvd_stored stored[] = {
    {KVD_PART_NORM_ATTENTION, "input_layernorm", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_QKV,
    {KVD_PART_NORM_Q, "self_attn.q_norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_K, "self_attn.k_norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_O, "self_attn.o_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FFN, "post_attention_layernorm", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_MLP,
    {KVD_PART_ROUTER, "mlp.gate", KVD_ROWS_ALL, NULL},
    {KVD_PART_SHARED_GATE, "mlp.shared_expert.gate_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_SHARED_UP, "mlp.shared_expert.up_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_SHARED_DOWN, "mlp.shared_expert.down_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_SHARED_SCALE, "mlp.shared_expert_gate", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_GATE, "mlp.experts.#.gate_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_UP, "mlp.experts.#.up_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_DOWN, "mlp.experts.#.down_proj", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_ENDS,
};

const kvd_family kvd_family_qwen2_moe = {
    .name = "qwen2_moe",
    .architecture = "Qwen2MoeForCausalLM",
    .read = read_qwen2_moe,
    KVD_LLAMA_NAMES,
    .stored = stored,
    .n_stored = sizeof stored / sizeof stored[0],
};

const kvd_family kvd_family_qwen3_moe = {
    .name = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .read = read_qwen3_moe,
    KVD_LLAMA_NAMES,
    .stored = stored,
    .n_stored = sizeof stored / sizeof stored[0],
};

const kvd_family kvd_family_olmoe = {
    .name = "olmoe",
    .architecture = "OlmoeForCausalLM",
    .read = read_olmoe,
    KVD_LLAMA_NAMES,
    .stored = stored,
    .n_stored = sizeof stored / sizeof stored[0],
};
