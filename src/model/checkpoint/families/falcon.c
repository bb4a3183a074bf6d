/*
 * Reads configurations of Falcon. In the 7B, with one KV head, and in the 11B, attention and
 * feed-forward block read the output of one norm. In the 40B and 180B each block has its own norm.
 * One tensor holds Q, K and V, ordered by KV head.
 */
#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

static int read_kv_heads(const json_t *root, bool grouped, kvd_config *c, kvd_err *err)
{
    bool single = true;
    if (kvd_cfg_bool(root, "multi_query", &single, err))
        return -1;
    c->n_kv_heads = c->n_heads;
    if (!grouped && single)
        /*
         * In the config.json of Falcon 7B, num_kv_heads is the number of query heads and not that
         * of KV heads, which is 1.
         */
        c->n_kv_heads = 1;
    else if (grouped && kvd_cfg_size_or(root, "num_kv_heads", &c->n_kv_heads, err))
        return -1;
    return 0;
}

static int read_order(const json_t *root, bool grouped, kvd_config *c, kvd_err *err)
{
    bool parallel = true;
    int norms = grouped ? 2 : 1;
    if (kvd_cfg_bool(root, "parallel_attn", &parallel, err) ||
        kvd_cfg_size_or(root, "num_ln_in_parallel_attn", &norms, err))
        return -1;
    if (grouped && !parallel)
        return kvd_fail(err, "'parallel_attn' is false, but 'new_decoder_architecture' is true");
    if (norms > 2 || (norms == 2 && !grouped))
        return kvd_fail(err,
                        "'num_ln_in_parallel_attn' is %d, with this architecture it can be 1%s",
                        norms, grouped ? " or 2" : "");
    c->order = parallel ? KVD_ORDER_PARALLEL : KVD_ORDER_BEFORE;
    c->shared_norm = parallel && norms == 1;
    return 0;
}

static int read_config(const json_t *root, kvd_config *c, kvd_err *err)
{
    bool grouped = false, biases = false;
    c->norm = KVD_NORM_LAYER;
    c->max_positions = 2048;
    if (kvd_cfg_refuse_true(root, "alibi", "only RoPE is supported", err) ||
        kvd_cfg_refuse_true(root, "apply_residual_connection_post_layernorm",
                            "which is not supported", err) ||
        kvd_cfg_activation(root, "activation", false, "gelu", c, err) ||
        kvd_cfg_bool(root, "new_decoder_architecture", &grouped, err) ||
        kvd_cfg_bool(root, "bias", &biases, err) ||
        kvd_cfg_size(root, "num_hidden_layers", &c->n_layers, err) ||
        kvd_cfg_size(root, "num_attention_heads", &c->n_heads, err) ||
        kvd_cfg_size(root, "hidden_size", &c->d_model, err) ||
        kvd_cfg_size(root, "vocab_size", &c->vocab_size, err) ||
        kvd_cfg_size_or(root, "max_position_embeddings", &c->max_positions, err))
        return -1;
    if (c->d_model > KVD_CONFIG_MAX_SIZE / 4)
        return kvd_fail(err, "'hidden_size' is %d, four times that is more than %d", c->d_model,
                        KVD_CONFIG_MAX_SIZE);
    c->d_ffn = 4 * c->d_model;
    c->bias_qkv = c->bias_o = c->bias_ffn = biases;
    if (kvd_cfg_size_or(root, "ffn_hidden_size", &c->d_ffn, err) ||
        read_kv_heads(root, grouped, c, err) || read_order(root, grouped, c, err) ||
        kvd_cfg_split_heads(c, err) ||
        kvd_cfg_positive(root, "layer_norm_epsilon", &c->norm_eps, err) ||
        kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err) ||
        kvd_cfg_head_and_tokens(root, true, c, err))
        return -1;
    return 0;
}

static bool two_norms(const kvd_config *c)
{
    return c->order == KVD_ORDER_PARALLEL && !c->shared_norm;
}

static bool no_two_norms(const kvd_config *c)
{
    return !two_norms(c);
}

static const kvd_stored stored[] = {
    {KVD_PART_NORM_ATTENTION, "ln_attn", KVD_ROWS_ALL, two_norms},
    {KVD_PART_NORM_ATTENTION, "input_layernorm", KVD_ROWS_ALL, no_two_norms},
    {KVD_PART_Q, "self_attention.query_key_value", KVD_ROWS_GROUPED, NULL},
    {KVD_PART_K, "self_attention.query_key_value", KVD_ROWS_GROUPED, NULL},
    {KVD_PART_V, "self_attention.query_key_value", KVD_ROWS_GROUPED, NULL},
    {KVD_PART_O, "self_attention.dense", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FFN, "ln_mlp", KVD_ROWS_ALL, two_norms},
    {KVD_PART_NORM_FFN, "post_attention_layernorm", KVD_ROWS_ALL, no_two_norms},
    {KVD_PART_UP, "mlp.dense_h_to_4h", KVD_ROWS_ALL, NULL},
    {KVD_PART_DOWN, "mlp.dense_4h_to_h", KVD_ROWS_ALL, NULL},
    {KVD_PART_EMBEDDING, "transformer.word_embeddings", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FINAL, "transformer.ln_f", KVD_ROWS_ALL, NULL},
    {KVD_PART_HEAD, "lm_head", KVD_ROWS_ALL, NULL},
};

const kvd_family kvd_family_falcon = {
    .name = "falcon",
    .architecture = "FalconForCausalLM",
    .read = read_config,
    .base = "transformer.",
    .layers = "transformer.h.",
    .stored = stored,
    .n_stored = sizeof stored / sizeof stored[0],
    .ignored_layer = "self_attention.rotary_emb.inv_freq",
    .ignored = "transformer.rotary_emb.inv_freq",
};
