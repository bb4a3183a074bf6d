/* Configurations of Gemma (arXiv:2403.08295), Gemma 2 (arXiv:2408.00118) and Gemma 3
 * (arXiv:2503.19786). */
#include <math.h>
#include <string.h>

#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

/* Reads the softcap c of c * tanh(x / c). A null means no softcap; `absent` is the default. */
static int read_softcap(const json_t *root, const char *key, double absent, double *out,
                        kvd_err *err)
{
    *out = json_object_get(root, key) ? 0 : absent;
    return kvd_cfg_positive_or(root, key, out, err);
}

/* Reads config.json fields that Gemma 2 and 3 share. softcap has the defaults for attention scores
 * and logits. */
static int read_common(const json_t *root, const double softcap[2], kvd_config *c, kvd_err *err)
{
    double scalar = 256;
    if (kvd_cfg_refuse_true(root, "use_bidirectional_attention",
                            "only causal attention is supported", err) ||
        kvd_cfg_attention_bias(root, c, err) || kvd_cfg_geglu(root, "hidden_activation", c, err) ||
        kvd_cfg_heads(root, 4, 256, c, err) ||
        kvd_cfg_positive_or(root, "query_pre_attn_scalar", &scalar, err) ||
        read_softcap(root, "attn_logit_softcapping", softcap[0], &c->score_softcap, err) ||
        read_softcap(root, "final_logit_softcapping", softcap[1], &c->logit_softcap, err) ||
        kvd_cfg_head_and_tokens(root, true, c, err))
        return -1;
    c->score_scale = 1 / sqrt(scalar);
    c->embed_scale = sqrt(c->d_model);
    c->norm_plus_one = true;
    c->order = KVD_ORDER_AROUND;
    return 0;
}

/* Reads the activation function. In Gemma's first config.json files, "gelu" means
 * gelu_pytorch_tanh. */
static int read_gemma_activation(const json_t *root, kvd_config *c, kvd_err *err)
{
    const json_t *const old = kvd_cfg_member(root, "hidden_act");
    const char *const name = json_string_value(old);
    if (old && (!name || strcmp(name, "gelu") != 0) && kvd_cfg_geglu(root, "hidden_act", c, err))
        return -1;
    return kvd_cfg_geglu(root, "hidden_activation", c, err);
}

static int read_gemma(const json_t *root, kvd_config *c, kvd_err *err)
{
    if (kvd_cfg_refuse_true(root, "use_bidirectional_attention",
                            "only causal attention is supported", err) ||
        kvd_cfg_attention_bias(root, c, err) || read_gemma_activation(root, c, err) ||
        kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) ||
        kvd_cfg_heads(root, 16, 256, c, err) || kvd_cfg_layer_types(root, 0, false, c, err) ||
        kvd_cfg_head_and_tokens(root, true, c, err))
        return -1;
    c->embed_scale = sqrt(c->d_model);
    c->norm_plus_one = true;
    return kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err);
}

static int read_gemma2(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const double softcap[2] = {50, 30};
    int window = 4096;
    if (kvd_cfg_sizes(root, c, err) || kvd_cfg_size(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_positive(root, "rms_norm_eps", &c->norm_eps, err) ||
        read_common(root, softcap, c, err) ||
        kvd_cfg_size_or(root, "sliding_window", &window, err) ||
        kvd_cfg_window_pattern(root, window, 2, c, err))
        return -1;
    return kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err);
}

/* Reads model sizes, which a multimodal config.json omits if they equal Hugging Face's defaults. */
static int read_gemma3_sizes(const json_t *root, kvd_config *c, kvd_err *err)
{
    c->n_layers = 26;
    c->n_heads = 8;
    c->d_model = 2304;
    c->d_ffn = 9216;
    c->vocab_size = 262208;
    c->max_positions = 131072;
    c->norm_eps = 1e-6;
    if (kvd_cfg_size_or(root, "num_hidden_layers", &c->n_layers, err) ||
        kvd_cfg_size_or(root, "num_attention_heads", &c->n_heads, err) ||
        kvd_cfg_size_or(root, "hidden_size", &c->d_model, err) ||
        kvd_cfg_size_or(root, "intermediate_size", &c->d_ffn, err) ||
        kvd_cfg_size_or(root, "vocab_size", &c->vocab_size, err) ||
        kvd_cfg_size_or(root, "max_position_embeddings", &c->max_positions, err) ||
        kvd_cfg_positive_or(root, "rms_norm_eps", &c->norm_eps, err))
        return -1;
    return 0;
}

static int read_gemma3_text(const json_t *root, kvd_config *c, kvd_err *err)
{
    static const double softcap[2] = {0, 0};
    int window = 4096, pattern = 6;
    c->qk_norm = true;
    if (read_gemma3_sizes(root, c, err) || read_common(root, softcap, c, err) ||
        kvd_cfg_size_or(root, "sliding_window_pattern", &pattern, err) ||
        kvd_cfg_size_or(root, "sliding_window", &window, err) ||
        kvd_cfg_window_pattern(root, window, pattern, c, err))
        return -1;
    if (c->score_softcap > 0)
        return kvd_fail(err,
                        "'attn_logit_softcapping' is %g, which the Hugging Face library does "
                        "not apply to this model",
                        c->score_softcap);
    return kvd_cfg_rope_by_layer(root, 1e6, 1e4, c, err);
}

static int read_gemma3(const json_t *root, kvd_config *c, kvd_err *err)
{
    const json_t *const text = kvd_cfg_text_config(root, err);
    if (!text)
        return -1;
    if (read_gemma3_text(text, c, err))
        return kvd_in(err, "text_config");
    if (c->logit_softcap > 0)
        return kvd_fail(err,
                        "text_config: 'final_logit_softcapping' is %g, which the Hugging Face "
                        "library does not apply to this model",
                        c->logit_softcap);
    /* Reads tie_word_embeddings and special token ids from config.json's top level, not from
     * text_config. */
    return kvd_cfg_head_and_tokens(root, c->tied_head, c, err);
}

static const kvd_stored gemma2_stored[] = {
    {KVD_PART_NORM_FFN, "pre_feedforward_layernorm", KVD_ROWS_ALL, NULL},
    {.name = NULL},
};

const char *const kvd_multimodal_bases[] = {"language_model.model.", "model.language_model.", NULL};
const char *const kvd_multimodal_models[] = {"vision_tower.", "multi_modal_projector.",
                                             "model.vision_tower.", "model.multi_modal_projector.",
                                             NULL};

const kvd_family kvd_gemma_families[] = {
    {KVD_LLAMA_FAMILY("gemma", "GemmaForCausalLM", read_gemma, NULL)},
    {KVD_LLAMA_FAMILY("gemma2", "Gemma2ForCausalLM", read_gemma2, gemma2_stored)},
    {KVD_LLAMA_FAMILY("gemma3_text", "Gemma3ForCausalLM", read_gemma3_text, gemma2_stored)},
    {KVD_LLAMA_FAMILY("gemma3", "Gemma3ForConditionalGeneration", read_gemma3, gemma2_stored),
     KVD_MULTIMODAL_NAMES},
    {.name = NULL},
};
