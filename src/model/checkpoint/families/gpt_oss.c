/* Configuration of gpt-oss (arXiv:2508.10925), in which one tensor holds all experts. */
#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

/* Reads the sliding window; without layer_types, every second layer has one. */
static int read_window(const json_t *root, kvd_config *c, kvd_err *err)
{
    int window = json_object_get(root, "sliding_window") ? 0 : 128;
    if (kvd_cfg_size_or(root, "sliding_window", &window, err))
        return -1;
    if (kvd_cfg_member(root, "layer_types"))
        return kvd_cfg_layer_types(root, window, true, c, err);
    c->window = window;
    for (int l = 0; window && l < c->n_layers; l += 2)
        c->window_layers[l / 64] |= (uint64_t)1 << (l % 64);
    return 0;
}

static int read_activation(const json_t *root, kvd_config *c, kvd_err *err)
{
    c->expert_alpha = 1.702;
    c->expert_limit = 7;
    if (kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        (kvd_cfg_member(root, "swiglu_alpha") &&
         kvd_cfg_positive(root, "swiglu_alpha", &c->expert_alpha, err)) ||
        (kvd_cfg_member(root, "swiglu_limit") &&
         kvd_cfg_positive(root, "swiglu_limit", &c->expert_limit, err)))
        return -1;
    return 0;
}

static int read_config(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {
        "num_local_experts", "num_experts_per_tok", "intermediate_size", 128, 4, 0};
    c->bias_qkv = c->bias_experts = c->chosen_add_up = c->sinks = true;
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) || read_activation(root, c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_routed(root, &keys, c, err) || kvd_cfg_heads(root, 8, 64, c, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) || read_window(root, c, err) ||
        kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err) ||
        kvd_cfg_head_and_tokens(root, false, c, err))
        return -1;
    kvd_cfg_theta_or(root, 150000, c);
    c->bias_o = c->bias_qkv;
    return 0;
}

static bool together(const kvd_config *c)
{
    return !c->experts_apart;
}

static bool apart(const kvd_config *c)
{
    return c->experts_apart;
}

static const kvd_stored stored[] = {
    {KVD_PART_NORM_ATTENTION, "input_layernorm", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_QKV,
    {KVD_PART_SINKS, "self_attn.sinks", KVD_ROWS_ALL, NULL},
    {KVD_PART_O, "self_attn.o_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FFN, "post_attention_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_ROUTER, "mlp.router", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_GATE, "mlp.experts.#.gate_up_proj", KVD_ROWS_INTERLEAVED, together},
    {KVD_PART_EXPERT_UP, "mlp.experts.#.gate_up_proj", KVD_ROWS_INTERLEAVED, together},
    {KVD_PART_EXPERT_GATE, "mlp.experts.#.gate_proj", KVD_ROWS_ALL, apart},
    {KVD_PART_EXPERT_UP, "mlp.experts.#.up_proj", KVD_ROWS_ALL, apart},
    {KVD_PART_EXPERT_DOWN, "mlp.experts.#.down_proj", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_ENDS,
};

const kvd_family kvd_family_gpt_oss = {
    .name = "gpt_oss",
    .architecture = "GptOssForCausalLM",
    .read = read_config,
    KVD_LLAMA_NAMES,
    .stored = stored,
    .n_stored = sizeof stored / sizeof stored[0],
    .experts_together = true,
};
