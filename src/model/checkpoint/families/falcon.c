/* Configurations of Falcon, GPT-NeoX (arXiv:2204.06745), Pythia, StableLM and Nemotron. */
#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

static int read_kv_heads(const json_t *root, bool grouped, kvd_config *c, kvd_err *err)
{
    bool single = true;
    if (kvd_cfg_bool(root, "multi_query", &single, err))
        return -1;
    c->n_kv_heads = c->n_heads;
    if (!grouped && single)
        /* Ignores num_kv_heads, which in Falcon 7B is the number of query heads. */
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
        kvd_cfg_split_heads(root, c, err) ||
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

static const kvd_stored stored[] = {
    {KVD_PART_NORM_ATTENTION, "ln_attn", KVD_ROWS_ALL, two_norms},
    {KVD_PART_Q, "self_attention.query_key_value", KVD_ROWS_GROUPED, NULL},
    {KVD_PART_K, "self_attention.query_key_value", KVD_ROWS_GROUPED, NULL},
    {KVD_PART_V, "self_attention.query_key_value", KVD_ROWS_GROUPED, NULL},
    {KVD_PART_O, "self_attention.dense", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FFN, "ln_mlp", KVD_ROWS_ALL, two_norms},
    {KVD_PART_UP, "mlp.dense_h_to_4h", KVD_ROWS_ALL, NULL},
    {KVD_PART_DOWN, "mlp.dense_4h_to_h", KVD_ROWS_ALL, NULL},
    {KVD_PART_EMBEDDING, "transformer.word_embeddings", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FINAL, "transformer.ln_f", KVD_ROWS_ALL, NULL},
    {.name = NULL},
};

/* Fails if config.json sets `key`, which GPT-NeoX models ignore, to another number than `value`.
 * These models use `value`, the number of the key that `instead` names. */
static int check_ignored(const json_t *root, const char *key, const char *instead, double value,
                         kvd_err *err)
{
    double stated = value;
    if (kvd_cfg_positive_or(root, key, &stated, err))
        return -1;
    if (stated != value)
        return kvd_fail(err, "'%s' is %g, but '%s', which a gpt_neox model uses, is %g%s", key,
                        stated, instead, value, kvd_cfg_member(root, instead) ? "" : " by default");
    return 0;
}

static int read_gpt_neox(const json_t *root, kvd_config *c, kvd_err *err)
{
    bool parallel = true, biases = true;
    double fraction = 0.25, theta = 10000;
    c->norm = KVD_NORM_LAYER;
    if (kvd_cfg_activation(root, "hidden_act", false, "gelu", c, err) ||
        kvd_cfg_bool(root, "use_parallel_residual", &parallel, err) ||
        kvd_cfg_bool(root, "attention_bias", &biases, err) || kvd_cfg_sizes(root, c, err) ||
        kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err))
        return -1;
    c->n_kv_heads = c->n_heads;
    if (kvd_cfg_split_heads(root, c, err) ||
        kvd_cfg_positive(root, "layer_norm_eps", &c->norm_eps, err) ||
        kvd_cfg_positive_or(root, "rotary_pct", &fraction, err) ||
        kvd_cfg_positive_or(root, "rotary_emb_base", &theta, err))
        return -1;
    if (fraction > 1)
        return kvd_fail(err, "'rotary_pct' is %g, more than 1", fraction);
    if (check_ignored(root, "partial_rotary_factor", "rotary_pct", fraction, err) ||
        check_ignored(root, "rope_theta", "rotary_emb_base", theta, err))
        return -1;
    if (kvd_cfg_rope_part(root, fraction, c, err) || kvd_cfg_head_and_tokens(root, false, c, err))
        return -1;
    kvd_cfg_theta_or(root, theta, c);
    c->order = parallel ? KVD_ORDER_PARALLEL : KVD_ORDER_BEFORE;
    c->bias_qkv = c->bias_o = biases;
    c->bias_ffn = true;
    return 0;
}

static const kvd_stored neox_stored[] = {
    {KVD_PART_Q, "attention.query_key_value", KVD_ROWS_GROUPED, NULL},
    {KVD_PART_K, "attention.query_key_value", KVD_ROWS_GROUPED, NULL},
    {KVD_PART_V, "attention.query_key_value", KVD_ROWS_GROUPED, NULL},
    {KVD_PART_O, "attention.dense", KVD_ROWS_ALL, NULL},
    {KVD_PART_UP, "mlp.dense_h_to_4h", KVD_ROWS_ALL, NULL},
    {KVD_PART_DOWN, "mlp.dense_4h_to_h", KVD_ROWS_ALL, NULL},
    {KVD_PART_EMBEDDING, "gpt_neox.embed_in", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_FINAL, "gpt_neox.final_layer_norm", KVD_ROWS_ALL, NULL},
    {KVD_PART_HEAD, "embed_out", KVD_ROWS_ALL, NULL},
    {.name = NULL},
};

/* Reads the configuration of StableLM (arXiv:2402.17834). In StableLM 12B, attention and
 * feed-forward block are parallel. */
static int read_stablelm(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_usual usual = {.eps = "layer_norm_eps", .kv_heads = 32, .rotated = 0.25};
    bool parallel = false;
    c->norm = KVD_NORM_LAYER;
    if (kvd_cfg_refuse_true(root, "qk_layernorm", "layer norms of Q and K are not supported",
                            err) ||
        kvd_cfg_bool(root, "use_parallel_residual", &parallel, err) ||
        kvd_cfg_bool(root, "use_qkv_bias", &c->bias_qkv, err) ||
        kvd_cfg_usual_rope(root, &usual, c, err))
        return -1;
    c->order = parallel ? KVD_ORDER_PARALLEL : KVD_ORDER_BEFORE;
    c->shared_norm = parallel;
    return 0;
}

/* Reads the configuration of Nemotron (arXiv:2402.16819), whose activation function is squared
 * ReLU. */
static int read_nemotron(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_usual usual = {.activation = "relu2", .eps = "norm_eps", .rotated = 0.5};
    c->norm = KVD_NORM_LAYER;
    c->norm_plus_one = true;
    return kvd_status(kvd_cfg_attention_bias(root, c, err) ||
                      kvd_cfg_bool(root, "mlp_bias", &c->bias_ffn, err) ||
                      kvd_cfg_usual_rope(root, &usual, c, err));
}

const kvd_family kvd_falcon_families[] = {
    {.name = "falcon",
     .architecture = "FalconForCausalLM",
     .read = read_config,
     .base = "transformer.",
     .layers = "transformer.h.",
     .stored = stored,
     .ignored_layer = "self_attention.rotary_emb.inv_freq",
     .ignored = "transformer.rotary_emb.inv_freq"},
    {.name = "gpt_neox",
     .architecture = "GPTNeoXForCausalLM",
     .read = read_gpt_neox,
     .base = "gpt_neox.",
     .layers = "gpt_neox.layers.",
     .stored = neox_stored,
     .ignored_layer = "attention.rotary_emb.inv_freq attention.bias attention.masked_bias"},
    {KVD_LLAMA_FAMILY("stablelm", "StableLmForCausalLM", read_stablelm, NULL)},
    {KVD_LLAMA_FAMILY("nemotron", "NemotronForCausalLM", read_nemotron, NULL)},
    {.name = NULL},
};
