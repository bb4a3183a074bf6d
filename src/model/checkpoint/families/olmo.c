/* Configurations of OLMo 2 (arXiv:2501.00656), OLMo 3, and EXAONE 4 (arXiv:2507.11407). */
#include "model/checkpoint/config_json.h"
#include "model/checkpoint/families/families.h"

static int read_common(const json_t *root, kvd_config *c, kvd_err *err)
{
    c->order = KVD_ORDER_BRANCH;
    c->qk_norm = c->qk_norm_whole = true;
    return kvd_cfg_attention_bias(root, c, err) || kvd_cfg_usual(root, &(kvd_usual){0}, c, err) ? -1
                                                                                                : 0;
}

static int read_olmo2(const json_t *root, kvd_config *c, kvd_err *err)
{
    return kvd_status(read_common(root, c, err) ||
                      kvd_cfg_refuse_set(root, "sliding_window", err) ||
                      kvd_cfg_layer_types(root, 0, false, c, err) ||
                      kvd_cfg_rope(root, 0, KVD_CFG_ROPE_ALL, c, err));
}

static int read_olmo3(const json_t *root, kvd_config *c, kvd_err *err)
{
    int window = 4096;
    if (read_common(root, c, err) || kvd_cfg_size_or(root, "sliding_window", &window, err) ||
        kvd_cfg_window_pattern(root, window, 4, c, err))
        return -1;
    return kvd_cfg_rope_by_layer(root, 500000, 0, c, err);
}

/* Reads the configuration of EXAONE 4. If some layers have a sliding window, the layers without one
 * have no RoPE. */
static int read_exaone4(const json_t *root, kvd_config *c, kvd_err *err)
{
    int window = 0, pattern = 4;
    if (kvd_cfg_usual_rope(root, &(kvd_usual){.kv_heads = 32}, c, err) ||
        kvd_cfg_window(root, 4096, &window, err) ||
        (!kvd_cfg_member(root, "layer_types") &&
         kvd_cfg_size_or(root, "sliding_window_pattern", &pattern, err)) ||
        kvd_cfg_window_pattern(root, window, pattern, c, err))
        return -1;
    c->order = KVD_ORDER_BRANCH;
    c->qk_norm = true;
    return window ? kvd_cfg_unrotated_full(c, err) : 0;
}

const kvd_family kvd_olmo_families[] = {
    {KVD_LLAMA_FAMILY("olmo2", "Olmo2ForCausalLM", read_olmo2, NULL)},
    {KVD_LLAMA_FAMILY("olmo3", "Olmo3ForCausalLM", read_olmo3, NULL)},
    {KVD_LLAMA_FAMILY("exaone4", "Exaone4ForCausalLM", read_exaone4, NULL)},
    {.name = NULL},
};
