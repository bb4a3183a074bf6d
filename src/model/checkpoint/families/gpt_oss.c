/* Configuration of gpt-oss (arXiv:2508.10925), in which one tensor holds all experts. */
#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

/* Reads the configuration of gpt-oss, in which every second layer has a sliding window. */
static int read_config(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {
        "num_local_experts", "num_experts_per_tok", "intermediate_size", 128, 4, 0};
    int window = 0;
    c->bias_qkv = c->bias_experts = c->chosen_add_up = c->sinks = true;
    c->expert_alpha = 1.702;
    c->expert_limit = 7;
    return kvd_cfg_need_rope(root, err) || kvd_cfg_attention_bias(root, c, err) ||
                   kvd_cfg_positive_or(root, "swiglu_alpha", &c->expert_alpha, err) ||
                   kvd_cfg_positive_or(root, "swiglu_limit", &c->expert_limit, err) ||
                   kvd_cfg_usual_rope(
                       root, &(kvd_usual){.kv_heads = 8, .d_head = 64, .theta = 150000}, c, err) ||
                   kvd_cfg_routed(root, &keys, c, err) || kvd_cfg_window(root, 128, &window, err) ||
                   kvd_cfg_window_pattern(root, window, 2, c, err)
               ? -1
               : 0;
}

static bool together(const kvd_config *c)
{
    return !c->experts_apart;
}

static const kvd_stored stored[] = {
    {KVD_PART_ROUTER, "mlp.router", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_GATE, "mlp.experts.#.gate_up_proj", KVD_ROWS_INTERLEAVED, together},
    {KVD_PART_EXPERT_UP, "mlp.experts.#.gate_up_proj", KVD_ROWS_INTERLEAVED, together},
    {.name = NULL},
};

const kvd_family kvd_gpt_oss_families[] = {
    {KVD_LLAMA_FAMILY("gpt_oss", "GptOssForCausalLM", read_config, stored),
     .experts_together = true},
    {.name = NULL},
};
