/* Configurations of GLM-4-0414 (`glm4`), GLM-4-9B and GLM-Edge (`glm`). */
#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

static int read_config(const json_t *root, kvd_config *c, kvd_err *err)
{
    c->bias_qkv = true;
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) ||
        kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_heads(root, 2, 128, c, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) ||
        kvd_cfg_layer_types(root, 0, false, c, err) || kvd_cfg_rope_part(root, 0.5, c, err) ||
        kvd_cfg_head_and_tokens(root, false, c, err))
        return -1;
    c->rope_layout = KVD_ROPE_INTERLEAVED;
    return 0;
}

static int read_glm4(const json_t *root, kvd_config *c, kvd_err *err)
{
    c->order = KVD_ORDER_AROUND;
    return read_config(root, c, err);
}

/* The last two tensors, norms of block outputs, exist in GLM-4-0414 only. */
static const kvd_stored stored[] = {
    {KVD_PART_NORM_ATTENTION, "input_layernorm", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_QKV,
    {KVD_PART_O, "self_attn.o_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FFN, "post_attention_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_GATE, "mlp.gate_up_proj", KVD_ROWS_STACKED, NULL},
    {KVD_PART_UP, "mlp.gate_up_proj", KVD_ROWS_STACKED, NULL},
    {KVD_PART_DOWN, "mlp.down_proj", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_ENDS,
    {KVD_PART_NORM_O, "post_self_attn_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_DOWN, "post_mlp_layernorm", KVD_ROWS_ALL, NULL},
};

const kvd_family kvd_family_glm4 = {
    .name = "glm4",
    .architecture = "Glm4ForCausalLM",
    .read = read_glm4,
    KVD_LLAMA_NAMES,
    .stored = stored,
    .n_stored = sizeof stored / sizeof stored[0],
};

const kvd_family kvd_family_glm = {
    .name = "glm",
    .architecture = "GlmForCausalLM",
    .read = read_config,
    KVD_LLAMA_NAMES,
    .stored = stored,
    .n_stored = sizeof stored / sizeof stored[0] - 2,
};
