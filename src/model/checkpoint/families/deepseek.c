/* Configurations of DeepSeek-V2 (arXiv:2405.04434), V3, R1 (arXiv:2412.19437) and GLM-4.5. */
#include <math.h>
#include <string.h>

#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

/* Fails if config.json states a text other than `only` for the key. */
static int check_text(const json_t *root, const char *key, const char *only, kvd_err *err)
{
    const json_t *const value = kvd_cfg_member(root, key);
    const char *const text = value ? json_string_value(value) : only;
    if (text && strcmp(text, only) == 0)
        return 0;
    return kvd_fail(err, "'%s' is '%s', only '%s' is supported in a model of this family", key,
                    text ? text : "not a string", only);
}

/* Reads sizes of latent attention, and sets the number of KV heads to 1. */
static int read_latent(const json_t *root, kvd_config *c, kvd_err *err)
{
    int kv_heads = c->n_heads, rope = 64, stated = 0;
    c->latent = 512;
    c->d_nope = c->d_nope ? c->d_nope : 128;
    c->d_value = c->d_value ? c->d_value : 128;
    c->q_rank = json_object_get(root, "q_lora_rank") ? 0 : c->q_rank ? c->q_rank : 1536;
    if (kvd_cfg_size_or(root, "kv_lora_rank", &c->latent, err) ||
        kvd_cfg_size_or(root, "qk_nope_head_dim", &c->d_nope, err) ||
        kvd_cfg_size_or(root, "qk_rope_head_dim", &rope, err) ||
        kvd_cfg_size_or(root, "v_head_dim", &c->d_value, err) ||
        kvd_cfg_size_or(root, "q_lora_rank", &c->q_rank, err) ||
        kvd_cfg_size_or(root, "num_key_value_heads", &kv_heads, err) ||
        kvd_cfg_size_or(root, "head_dim", &stated, err))
        return -1;
    if (stated && stated != rope) /* Transformers computes RoPE from head_dim. */
        return kvd_fail(err, "'head_dim' is %d, latent attention needs 'qk_rope_head_dim', %d",
                        stated, rope);
    if (kv_heads != c->n_heads)
        return kvd_fail(err,
                        "'num_key_value_heads' is %d, latent attention expands to all %d query "
                        "heads",
                        kv_heads, c->n_heads);
    if (rope % 2)
        return kvd_fail(err, "'qk_rope_head_dim' is %d, RoPE needs an even number", rope);
    c->n_kv_heads = 1;
    c->d_head = c->latent + rope;
    const double widest =
        fmax(c->d_head, fmax((double)c->d_nope + rope, (double)c->d_nope + c->d_value));
    if (c->n_heads * widest > KVD_CONFIG_MAX_SIZE)
        return kvd_fail(err, "%d heads of %g dimensions are more than %d", c->n_heads, widest,
                        KVD_CONFIG_MAX_SIZE);
    if (kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL & ~(1u << KVD_ROPE_LONGROPE), c, err))
        return -1;
    c->rope_dims = rope;
    c->rope_layout = KVD_ROPE_INTERLEAVED;
    return 0;
}

/* Computes the factor on attention scores: 1 / sqrt(dimensions of a query head), times YaRN's
 * factor squared. */
static int read_scale(const json_t *root, kvd_config *c, kvd_err *err)
{
    const json_t *rope = kvd_cfg_member(root, "rope_parameters");
    double all = 0;
    rope = rope ? rope : kvd_cfg_member(root, "rope_scaling");
    if (rope && kvd_cfg_positive_or(rope, "mscale_all_dim", &all, err))
        return -1;
    const double mscale = c->rope_factor > 1 ? 0.1 * all * log(c->rope_factor) + 1 : 1;
    c->score_scale = mscale * mscale / sqrt((double)c->d_nope + c->rope_dims);
    return 0;
}

#define ROUTED_KEYS "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"

/* Reads n_group and topk_group, the groups of experts. Fails if a group has fewer than `least`
 * experts. */
static int read_groups(const json_t *root, int groups, int chosen, int least, kvd_config *c,
                       kvd_err *err)
{
    c->expert_groups = groups;
    c->groups_chosen = chosen;
    if (kvd_cfg_size_or(root, "n_group", &c->expert_groups, err) ||
        kvd_cfg_size_or(root, "topk_group", &c->groups_chosen, err))
        return -1;
    const int each = c->n_experts / c->expert_groups;
    if (c->n_experts % c->expert_groups || each < least)
        return kvd_fail(err, "%d experts do not form 'n_group' %d groups of at least %d",
                        c->n_experts, c->expert_groups, least);
    if (c->groups_chosen > c->expert_groups || c->n_chosen > c->groups_chosen * each)
        return kvd_fail(err,
                        "'topk_group' is %d of %d groups with %d experts each, from which %d "
                        "experts are chosen",
                        c->groups_chosen, c->expert_groups, each, c->n_chosen);
    return 0;
}

/* Reads numbers and sizes of routed and shared experts. `shared`: default number of shared experts.
 * `dense`: default number of first layers without experts. `scale`: default factor of the routed
 * experts' output. */
static int read_experts(const json_t *root, const kvd_routed_keys *keys, int shared, int dense,
                        double scale, kvd_config *c, kvd_err *err)
{
    const json_t *const first = kvd_cfg_member(root, "first_k_dense_replace");
    int step = 1;
    c->expert_scale = scale;
    if (kvd_cfg_routed(root, keys, c, err) ||
        kvd_cfg_size_or(root, "n_shared_experts", &shared, err) ||
        kvd_cfg_size_or(root, "moe_layer_freq", &step, err) ||
        kvd_cfg_positive_or(root, "routed_scaling_factor", &c->expert_scale, err))
        return -1;
    if (step != 1)
        return kvd_fail(err, "'moe_layer_freq' is %d, only 1 is supported", step);
    if (first && (!json_is_integer(first) || json_integer_value(first) < 0))
        return kvd_fail(err, "'first_k_dense_replace' is not a number of layers");
    const json_int_t n_dense = first ? json_integer_value(first) : dense;
    for (int l = 0; l < c->n_layers && l < n_dense; l++)
        kvd_cfg_mark(c->dense_layers, l);
    if ((double)shared * c->d_expert > KVD_CONFIG_MAX_SIZE)
        return kvd_fail(err, "%d shared experts of width %d are too wide", shared, c->d_expert);
    c->d_shared = shared * c->d_expert;
    return 0;
}

/* Reads the configuration of a model with latent attention, except for experts, output head and
 * special tokens. */
static int read_latent_model(const json_t *root, kvd_config *c, kvd_err *err)
{
    c->norm_eps = c->norm_eps > 0 ? c->norm_eps : 1e-6;
    if (kvd_cfg_refuse_true(root, "attention_bias", "biases of latent attention are not supported",
                            err) ||
        kvd_cfg_refuse_true(root, "mlp_bias", "biases of the feed-forward block are not supported",
                            err) ||
        kvd_cfg_activation(root, "hidden_act", true, "silu", c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_positive_or(root, "rms_norm_eps", &c->norm_eps, err) || read_latent(root, c, err) ||
        read_scale(root, c, err))
        return -1;
    return 0;
}

/* Reads the fields of config.json that DeepSeek-V2 and V3 share. `shared` (number of shared
 * experts), `dense` (number of first layers without experts) and `scale` (factor on expert outputs)
 * are defaults. */
static int read_common(const json_t *root, const kvd_routed_keys *keys, int shared, int dense,
                       double scale, kvd_config *c, kvd_err *err)
{
    return kvd_status(read_latent_model(root, c, err) ||
                      read_experts(root, keys, shared, dense, scale, c, err) ||
                      kvd_cfg_head_and_tokens(root, false, c, err));
}

static int read_v2(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {ROUTED_KEYS, 64, 0, 1407};
    const json_t *const method = kvd_cfg_member(root, "topk_method");
    const char *const how = method ? json_string_value(method) : "greedy";
    if (kvd_cfg_refuse_true(root, "norm_topk_prob",
                            "which the library ignores and the authors' code does not", err) ||
        check_text(root, "scoring_func", "softmax", err) ||
        read_common(root, &keys, 2, 0, 1, c, err))
        return -1;
    if (how && strcmp(how, "greedy") == 0) {
        c->expert_groups = c->groups_chosen = 1;
        return 0;
    }
    if (!how || strcmp(how, "group_limited_greedy") != 0)
        return kvd_fail(err,
                        "'topk_method' is '%s', only 'greedy' and 'group_limited_greedy' are "
                        "supported",
                        how ? how : "not a string");
    return read_groups(root, 1, 1, 1, c, err);
}

/* Makes the expert router use sigmoids instead of softmax. Reads how many stored layers serve only
 * multi-token prediction. */
static int read_sigmoids(const json_t *root, kvd_config *c, kvd_err *err)
{
    const json_t *const next = kvd_cfg_member(root, "num_nextn_predict_layers");
    const bool none = json_is_integer(next) && json_integer_value(next) == 0;
    c->route_sigmoid = c->chosen_add_up = true;
    c->extra_layers = none ? 0 : 1;
    if (check_text(root, "scoring_func", "sigmoid", err) ||
        check_text(root, "topk_method", "noaux_tc", err) ||
        kvd_cfg_bool(root, "norm_topk_prob", &c->chosen_add_up, err) ||
        (!none && kvd_cfg_size_or(root, "num_nextn_predict_layers", &c->extra_layers, err)))
        return -1;
    return 0;
}

/* Reads whether RoPE rotates dimension 2i of a key with 2i + 1, its neighbour. */
static int read_interleaved(const json_t *root, kvd_config *c, kvd_err *err)
{
    bool interleaved = true;
    if (kvd_cfg_bool(root, "rope_interleave", &interleaved, err))
        return -1;
    c->rope_layout = interleaved ? KVD_ROPE_INTERLEAVED : KVD_ROPE_HALF;
    return 0;
}

static int read_v3(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {ROUTED_KEYS, 256, 8, 2048};
    return kvd_status(read_sigmoids(root, c, err) || read_common(root, &keys, 1, 3, 2.5, c, err) ||
                      read_interleaved(root, c, err) || read_groups(root, 8, 4, 2, c, err));
}

/* Reads from mlp_layer_types, if present, which layers have no experts. */
static int read_mlp_types(const json_t *root, kvd_config *c, kvd_err *err)
{
    const json_t *const list = kvd_cfg_member(root, "mlp_layer_types");
    if (!list)
        return 0;
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->n_layers)
        return kvd_fail(err, "'mlp_layer_types' is no list of %d layers", c->n_layers);
    memset(c->dense_layers, 0, sizeof c->dense_layers);
    for (int l = 0; l < c->n_layers; l++) {
        const char *const type = json_string_value(json_array_get(list, (size_t)l));
        if (!type || (strcmp(type, "dense") != 0 && strcmp(type, "sparse") != 0))
            return kvd_fail(err, "mlp_layer_types[%d] is '%s', expected 'dense' or 'sparse'", l,
                            type ? type : "not a string");
        if (strcmp(type, "dense") == 0)
            kvd_cfg_mark(c->dense_layers, l);
    }
    return 0;
}

/* Reads the configuration of GLM-4.7-Flash: latent attention of DeepSeek-V3, experts of GLM-4.5. */
static int read_glm4_moe_lite(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {ROUTED_KEYS, 64, 4, 1536};
    c->norm_eps = 1e-5;
    c->d_nope = 192;
    c->d_value = 256;
    c->q_rank = 768;
    return kvd_status(read_sigmoids(root, c, err) || read_common(root, &keys, 1, 1, 1.8, c, err) ||
                      read_interleaved(root, c, err) || read_mlp_types(root, c, err) ||
                      read_groups(root, 1, 1, 2, c, err));
}

/* Reads the configuration of Youtu-LLM: latent attention of DeepSeek-V3, no experts. */
static int read_youtu(const json_t *root, kvd_config *c, kvd_err *err)
{
    return kvd_status(read_latent_model(root, c, err) || read_interleaved(root, c, err) ||
                      kvd_cfg_head_and_tokens(root, true, c, err));
}

/* Reads the configuration of a model with DeepSeek-V3's routing but without latent attention. */
static int read_routed(const json_t *root, const kvd_usual *usual, const kvd_routed_keys *keys,
                       int shared, int dense, kvd_config *c, kvd_err *err)
{
    return kvd_status(read_sigmoids(root, c, err) || kvd_cfg_usual_rope(root, usual, c, err) ||
                      read_experts(root, keys, shared, dense, 1, c, err) ||
                      read_groups(root, 1, 1, 2, c, err));
}

/* Reads the configuration of GLM-4.5: DeepSeek-V3's routing, ordinary keys and values, RoPE on half
 * of each head. */
static int read_glm4_moe(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {ROUTED_KEYS, 128, 8, 1408};
    static const kvd_usual usual = {.kv_heads = 8, .rotated = 0.5};
    return kvd_status(kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) ||
                      kvd_cfg_bool(root, "use_qk_norm", &c->qk_norm, err) ||
                      read_routed(root, &usual, &keys, 1, 1, c, err));
}

/* Reads the sliding window, which only layer max_window_layers and later ones have. */
static int read_dots1_window(const json_t *root, kvd_config *c, kvd_err *err)
{
    int window = 0, first = 62;
    return kvd_status(kvd_cfg_window(root, 4096, &window, err) ||
                      kvd_cfg_size_or(root, "max_window_layers", &first, err) ||
                      kvd_cfg_window_from(root, window, first, c, err));
}

/* Reads the configuration of dots.llm1 (arXiv:2506.05767): attention of Qwen3, routing of
 * DeepSeek-V3. */
static int read_dots1(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {ROUTED_KEYS, 0, 0, 1408};
    c->qk_norm = true;
    if (kvd_cfg_attention_bias(root, c, err) ||
        read_routed(root, &(kvd_usual){.kv_heads = 32}, &keys, 0, 0, c, err) ||
        read_dots1_window(root, c, err))
        return -1;
    c->chosen_add_up = c->chosen_add_up && kvd_cfg_member(root, "norm_topk_prob");
    return 0;
}

/* Reads the configuration of Solar Open: attention of Llama, routing of GLM-4.5, experts in every
 * layer. */
static int read_solar_open(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {ROUTED_KEYS, 128, 8, 1280};
    static const kvd_usual usual = {
        .kv_heads = 8, .d_head = 128, .no_ffn = true, .theta = 1e6, .rotated = 1};
    if (kvd_cfg_bool(root, "attention_bias", &c->bias_qkv, err) ||
        read_routed(root, &usual, &keys, 1, 0, c, err))
        return -1;
    c->d_ffn = c->d_expert;
    memset(c->dense_layers, 0, sizeof c->dense_layers);
    return 0;
}

/* Reads the configuration of MiniMax-M2: one norm over all heads of Q and one of K, RoPE on
 * rotary_dim dimensions. */
static int read_minimax_m2(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const kvd_routed_keys keys = {
        "num_local_experts", "num_experts_per_tok", "intermediate_size", 256, 8, 1536};
    bool norms = true;
    int rotated = 0;
    c->route_sigmoid = c->chosen_add_up = true;
    if (check_text(root, "scoring_func", "sigmoid", err) ||
        check_text(root, "qk_norm_type", "per_layer", err) ||
        kvd_cfg_bool(root, "use_qk_norm", &norms, err) ||
        kvd_cfg_usual(root, &(kvd_usual){.kv_heads = 8, .d_head = 128}, c, err) ||
        kvd_cfg_size_or(root, "rotary_dim", &rotated, err) ||
        kvd_cfg_rope_part(root, rotated ? (double)rotated / c->d_head : 1, c, err) ||
        kvd_cfg_routed(root, &keys, c, err))
        return -1;
    if (!norms)
        return kvd_fail(err, "'use_qk_norm' is false, only true is supported");
    c->qk_norm = c->qk_norm_whole = true;
    c->expert_groups = c->groups_chosen = 1;
    c->expert_scale = 1;
    kvd_cfg_theta_or(root, 5e6, c);
    return 0;
}

static bool factored(const kvd_config *c)
{
    return c->q_rank > 0;
}

static const kvd_stored latent_stored[] = {
    {KVD_PART_Q_DOWN, "self_attn.q_a_proj", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_Q_DOWN, "self_attn.q_a_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_Q, "self_attn.q_b_proj", KVD_ROWS_ALL, factored},
    {KVD_PART_LATENT, "self_attn.kv_a_proj_with_mqa", KVD_ROWS_ALL, NULL},
    {KVD_PART_NORM_LATENT, "self_attn.kv_a_layernorm", KVD_ROWS_ALL, NULL},
    {KVD_PART_LATENT_UP, "self_attn.kv_b_proj", KVD_ROWS_ALL, NULL},
    {.name = NULL},
};

static const kvd_stored minimax_m2_stored[] = {
    {KVD_PART_ROUTER, "block_sparse_moe.gate", KVD_ROWS_ALL, NULL},
    {KVD_PART_ROUTER_BIAS, "block_sparse_moe.e_score_correction_bias", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_GATE, "block_sparse_moe.experts.#.w1", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_UP, "block_sparse_moe.experts.#.w3", KVD_ROWS_ALL, NULL},
    {KVD_PART_EXPERT_DOWN, "block_sparse_moe.experts.#.w2", KVD_ROWS_ALL, NULL},
    {.name = NULL},
};

const kvd_family kvd_deepseek_families[] = {
    {KVD_LLAMA_FAMILY("deepseek_v2", "DeepseekV2ForCausalLM", read_v2, latent_stored)},
    {KVD_LLAMA_FAMILY("deepseek_v3", "DeepseekV3ForCausalLM", read_v3, latent_stored),
     .other_name = "kimi_k2"},
    {KVD_LLAMA_FAMILY("glm4_moe", "Glm4MoeForCausalLM", read_glm4_moe, NULL)},
    {KVD_LLAMA_FAMILY("dots1", "Dots1ForCausalLM", read_dots1, NULL)},
    {KVD_LLAMA_FAMILY("solar_open", "SolarOpenForCausalLM", read_solar_open, NULL)},
    {KVD_LLAMA_FAMILY("minimax_m2", "MiniMaxM2ForCausalLM", read_minimax_m2, minimax_m2_stored)},
    {KVD_LLAMA_FAMILY("glm4_moe_lite", "Glm4MoeLiteForCausalLM", read_glm4_moe_lite,
                      latent_stored)},
    {KVD_LLAMA_FAMILY("youtu", "YoutuForCausalLM", read_youtu, latent_stored)},
    {.name = NULL},
};
