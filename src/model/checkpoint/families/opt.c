/* Configurations of OPT. Only OPT-350m has its norms after the blocks. */
#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

static int read_order(const json_t *root, kvd_config *c, kvd_err *err)
{
    bool before = true, affine = true, removed = false;
    if (kvd_cfg_bool(root, "do_layer_norm_before", &before, err) ||
        kvd_cfg_bool(root, "_remove_final_layer_norm", &removed, err) ||
        kvd_cfg_bool(root, "layer_norm_elementwise_affine", &affine, err))
        return -1;
    if (!affine)
        return kvd_fail(
            err, "'layer_norm_elementwise_affine' is false, only norms with weights are supported");
    c->order = before ? KVD_ORDER_BEFORE : KVD_ORDER_AFTER;
    c->no_final_norm = !before || removed;
    return 0;
}

static int read_config(const json_t *root, kvd_config *c, kvd_err *err)
{
    bool biases = true;
    c->positions = KVD_POSITIONS_LEARNED;
    c->norm = KVD_NORM_LAYER;
    c->norm_eps = 1e-5; /* not in OPT's config.json */
    if (kvd_cfg_activation(root, "activation_function", false, "relu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "ffn_dim", &c->d_ffn, err) ||
        read_order(root, c, err) || kvd_cfg_bool(root, "enable_bias", &biases, err) ||
        kvd_cfg_size_or(root, "word_embed_proj_dim", &c->d_embed, err))
        return -1;
    c->n_kv_heads = c->n_heads;
    c->bias_qkv = c->bias_o = c->bias_ffn = biases;
    return kvd_cfg_split_heads(root, c, err) || kvd_cfg_head_and_tokens(root, true, c, err) ? -1
                                                                                            : 0;
}

static const kvd_stored stored[] = {
    {KVD_PART_NORM_ATTENTION, "self_attn_layer_norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_O, "self_attn.out_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FFN, "final_layer_norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_UP, "fc1", KVD_ROWS_ALL, NULL},
    {KVD_PART_DOWN, "fc2", KVD_ROWS_ALL, NULL},
    {KVD_PART_EMBEDDING, "model.decoder.embed_tokens", KVD_ROWS_ALL, NULL},
    {KVD_PART_POSITIONS, "model.decoder.embed_positions", KVD_ROWS_ALL, NULL},
    {KVD_PART_PROJECT_IN, "model.decoder.project_in", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FINAL, "model.decoder.final_layer_norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_PROJECT_OUT, "model.decoder.project_out", KVD_ROWS_ALL, NULL},
    {.name = NULL},
};

const kvd_family kvd_opt_families[] = {
    {.name = "opt",
     .architecture = "OPTForCausalLM",
     .read = read_config,
     .base = "model.",
     .layers = "model.decoder.layers.",
     .stored = stored},
    {.name = NULL},
};
