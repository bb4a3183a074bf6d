/* Configurations of GLM-4-0414 (`glm4`), GLM-4-9B and GLM-Edge (`glm`). */
#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

static int read_glm(const json_t *root, kvd_config *c, kvd_err *err)
{
    c->bias_qkv = true;
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) ||
        kvd_cfg_usual_rope(root, &(kvd_usual){.kv_heads = 2, .d_head = 128, .rotated = 0.5}, c,
                           err))
        return -1;
    c->rope_layout = KVD_ROPE_INTERLEAVED;
    return kvd_cfg_layer_types(root, 0, false, c, err);
}

static int read_glm4(const json_t *root, kvd_config *c, kvd_err *err)
{
    c->order = KVD_ORDER_AROUND;
    return read_glm(root, c, err);
}

static const kvd_stored stored[] = {
    {KVD_PART_GATE, "mlp.gate_up_proj", KVD_ROWS_STACKED, NULL},
    {KVD_PART_UP, "mlp.gate_up_proj", KVD_ROWS_STACKED, NULL},
    {KVD_PART_NORM_O, "post_self_attn_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_DOWN, "post_mlp_layernorm", KVD_ROWS_ALL, NULL},
    {.name = NULL},
};

const kvd_family kvd_glm_families[] = {
    {KVD_LLAMA_FAMILY("glm4", "Glm4ForCausalLM", read_glm4, stored)},
    {KVD_LLAMA_FAMILY("glm", "GlmForCausalLM", read_glm, stored)},
    {.name = NULL},
};
