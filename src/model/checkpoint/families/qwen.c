/* Configurations of Qwen2 and 2.5, Qwen3, and OLMoE (arXiv:2409.02060). */
#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

/* Gives a sliding window to layer max_window_layers and later ones. */
static int read_window(const json_t *root, kvd_config *c, kvd_err *err)
{
    bool used = false;
    int window = 0, first = 28;
    if (kvd_cfg_bool(root, "use_sliding_window", &used, err) ||
        kvd_cfg_window(root, 4096, &window, err))
        return -1;
    /* max_window_layers, read here because it may be 0, which kvd_cfg_size refuses */
    const json_t *stated = kvd_cfg_member(root, "max_window_layers");
    if (stated && (!json_is_integer(stated) || json_integer_value(stated) < 0))
        return kvd_fail(err, "'max_window_layers' is not an integer from 0 on");
    if (stated)
        first = json_integer_value(stated) < c->n_layers ? (int)json_integer_value(stated)
                                                         : c->n_layers;
    return kvd_cfg_window_from(root, used ? window : 0, first, c, err);
}

static int read_qwen2(const json_t *root, kvd_config *c, kvd_err *err)
{
    c->bias_qkv = true;
    return kvd_cfg_usual_rope(root, &(kvd_usual){.kv_heads = 32}, c, err) ||
                   read_window(root, c, err)
               ? -1
               : 0;
}

static int read_qwen3(const json_t *root, kvd_config *c, kvd_err *err)
{
    c->qk_norm = true;
    return kvd_cfg_attention_bias(root, c, err) ||
                   kvd_cfg_usual_rope(root, &(kvd_usual){.kv_heads = 32, .d_head = 128}, c, err) ||
                   read_window(root, c, err)
               ? -1
               : 0;
}

static int read_moe(const json_t *root, int kv_heads, const kvd_routed_keys *keys, kvd_config *c,
                    kvd_err *err)
{
    if (kvd_cfg_refuse_true(root, "use_sliding_window",
                            "which is not supported in a Qwen model with experts", err) ||
        kvd_cfg_usual_rope(root, &(kvd_usual){.kv_heads = kv_heads}, c, err) ||
        kvd_cfg_routed(root, keys, c, err) || kvd_cfg_dense_layers(root, c, err) ||
        kvd_cfg_bool(root, "norm_topk_prob", &c->chosen_add_up, err))
        return -1;
    return kvd_cfg_layer_types(root, 0, false, c, err);
}

/* Reads the configuration of Qwen2-MoE, whose shared expert's output is multiplied by a gate. */
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
    c->qk_norm = true;
    return kvd_cfg_attention_bias(root, c, err) || read_moe(root, 4, &keys, c, err) ? -1 : 0;
}

static int read_olmoe(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {
        "num_experts", "num_experts_per_tok", "intermediate_size", 64, 8, 2048};
    if (kvd_cfg_refuse_set(root, "clip_qkv", err) || kvd_cfg_attention_bias(root, c, err))
        return -1;
    c->qk_norm = c->qk_norm_whole = true;
    return read_moe(root, 0, &keys, c, err);
}

static const kvd_stored qwen2_moe_stored[] = {
    {KVD_PART_SHARED_GATE, "mlp.shared_expert.gate_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_SHARED_UP, "mlp.shared_expert.up_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_SHARED_DOWN, "mlp.shared_expert.down_proj", KVD_ROWS_ALL, NULL},
    {.name = NULL},
};

const kvd_family kvd_qwen_families[] = {
    {KVD_LLAMA_FAMILY("qwen2", "Qwen2ForCausalLM", read_qwen2, NULL)},
    {KVD_LLAMA_FAMILY("qwen3", "Qwen3ForCausalLM", read_qwen3, NULL)},
    {KVD_LLAMA_FAMILY("qwen2_moe", "Qwen2MoeForCausalLM", read_qwen2_moe, qwen2_moe_stored)},
    {KVD_LLAMA_FAMILY("qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3_moe, NULL)},
    {KVD_LLAMA_FAMILY("olmoe", "OlmoeForCausalLM", read_olmoe, NULL)},
    {.name = NULL},
};
