/* Configurations of OLMo 2 (arXiv:2501.00656), OLMo 3, and EXAONE 4 (arXiv:2507.11407). */
#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

static int read_common(const json_t *root, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) ||
        kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_heads(root, 0, 0, c, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) ||
        kvd_cfg_head_and_tokens(root, false, c, err))
        return -1;
    c->bias_o = c->bias_qkv;
    c->order = KVD_ORDER_BRANCH;
    c->qk_norm = c->qk_norm_whole = true;
    return 0;
}

static int read_olmo2(const json_t *root, kvd_config *c, kvd_err *err)
{
    return read_common(root, c, err) || kvd_cfg_refuse_set(root, "sliding_window", err) ||
                   kvd_cfg_layer_types(root, 0, false, c, err) ||
                   kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err)
               ? -1
               : 0;
}

static int read_olmo3(const json_t *root, kvd_config *c, kvd_err *err)
{
    int window = 4096;
    if (read_common(root, c, err) || kvd_cfg_size_or(root, "sliding_window", &window, err) ||
        (kvd_cfg_member(root, "layer_types") ? kvd_cfg_layer_types(root, window, true, c, err)
                                             : kvd_cfg_window_pattern(c, window, 4, err)))
        return -1;
    return kvd_cfg_rope_by_layer(root, 500000, 0, c, err);
}

/*
 * Reads EXAONE 4. If some layers have a sliding window, the layers without a window have no RoPE.
 */
static int read_exaone4(const json_t *root, kvd_config *c, kvd_err *err)
{
    int window = json_object_get(root, "sliding_window") ? 0 : 4096, pattern = 4;
    const bool named = kvd_cfg_member(root, "layer_types") != NULL;
    if (kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_heads(root, 32, 0, c, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) ||
        kvd_cfg_head_and_tokens(root, false, c, err) ||
        kvd_cfg_size_or(root, "sliding_window", &window, err) ||
        (!named && kvd_cfg_size_or(root, "sliding_window_pattern", &pattern, err)) ||
        (named    ? kvd_cfg_layer_types(root, window, true, c, err)
         : window ? kvd_cfg_window_pattern(c, window, pattern, err)
                  : 0) ||
        kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err))
        return -1;
    c->order = KVD_ORDER_BRANCH;
    c->qk_norm = true;
    return window ? kvd_cfg_unrotated_full(c, err) : 0;
}

static const kvd_stored stored[] = {
    KVD_LLAMA_QKV,
    {KVD_PART_NORM_Q, "self_attn.q_norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_K, "self_attn.k_norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_O, "self_attn.o_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_O, "post_attention_layernorm", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_MLP,
    {KVD_PART_NORM_DOWN, "post_feedforward_layernorm", KVD_ROWS_ALL, NULL},
    KVD_LLAMA_ENDS,
};

const kvd_family kvd_family_olmo2 = {
    .name = "olmo2",
    .architecture = "Olmo2ForCausalLM",
    .read = read_olmo2,
    KVD_LLAMA_NAMES,
    .stored = stored,
    .n_stored = sizeof stored / sizeof stored[0],
};

const kvd_family kvd_family_olmo3 = {
    .name = "olmo3",
    .architecture = "Olmo3ForCausalLM",
    .read = read_olmo3,
    KVD_LLAMA_NAMES,
    .stored = stored,
    .n_stored = sizeof stored / sizeof stored[0],
};

const kvd_family kvd_family_exaone4 = {
    .name = "exaone4",
    .architecture = "Exaone4ForCausalLM",
    .read = read_exaone4,
    KVD_LLAMA_NAMES,
    .stored = stored,
    .n_stored = sizeof stored / sizeof stored[0],
};
