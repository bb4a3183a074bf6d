#include "model/checkpoint/config.h"

#include <assert.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/checkpoint/config_json.h"
#include "model/checkpoint/family.h"
#include "model/checkpoint/filemap.h"

static void list_families(bool architectures, char *list, size_t size)
{
    size_t at = 0;
    list[0] = '\0';
    for (size_t i = 0; kvd_family_at(i) && at < size; i++) {
        const kvd_family *const f = kvd_family_at(i);
        const char *const name = architectures ? f->architecture : f->name;
        const bool fits = at + strlen(name) + sizeof ", , ..." < size;
        at += (size_t)snprintf(list + at, size - at, "%s%s", i ? ", " : "", fits ? name : "...");
        if (!fits)
            return;
    }
}

static int refuse_family(const char *key, const char *found, kvd_err *err)
{
    char list[350];
    list_families(strcmp(key, "architectures") == 0, list, sizeof list);
    return kvd_fail(err, "%s is '%s', supported are %s", key, found, list);
}

/* Finds a model family by the model_type in config.json or, if this is absent, by
 * `architectures`. */
static int find_family(const json_t *root, const kvd_family **family, kvd_err *err)
{
    const json_t *names = kvd_cfg_member(root, "architectures"),
                 *type = kvd_cfg_member(root, "model_type");
    if (type && !json_is_string(type))
        return kvd_fail(err, "'model_type' is not a string");
    if (names && !json_is_array(names))
        return kvd_fail(err, "'architectures' is not a list");
    if (!names && !type)
        return kvd_fail(err, "neither 'architectures' nor 'model_type' says what model this is");
    const kvd_family *const by_type = type ? kvd_family_find(json_string_value(type), NULL) : NULL;
    if (type && !by_type)
        return refuse_family("model_type", json_string_value(type), err);
    *family = by_type;
    if (!names)
        return 0;
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (!name)
            return kvd_fail(err, "architectures[%zu] is not a string", i);
        if (by_type &&
            (strcmp(name, by_type->architecture) == 0 ||
             (by_type->other_architecture && strcmp(name, by_type->other_architecture) == 0)))
            return 0;
        *family = by_type ? by_type : kvd_family_find(NULL, name);
        if (*family && !by_type)
            return 0;
    }
    const char *found = json_array_size(names) ? json_string_value(json_array_get(names, 0)) : "";
    if (by_type)
        return kvd_fail(err, "architectures is '%s', model_type '%s' requires %s", found,
                        by_type->name, by_type->architecture);
    return refuse_family("architectures", found, err);
}

/* Fails if the checkpoint is quantised, except for experts in MXFP4. */
static int check_quantised(const json_t *root, const kvd_family *family, kvd_err *err)
{
    const json_t *const how = kvd_cfg_member(root, "quantization_config");
    const char *const name = json_string_value(kvd_cfg_member(how, "quant_method"));
    if (!how || (family->experts_together && name && strcmp(name, "mxfp4") == 0))
        return 0;
    if (family->experts_together)
        return kvd_fail(err, "quantization_config: quant_method is '%s', only 'mxfp4' is supported",
                        name ? name : "not a string");
    return kvd_fail(err,
                    "'quantization_config' is set, which is not supported (quant_method '%s'): "
                    "give a checkpoint with float weights",
                    name ? name : "not stated");
}

static int read_root(const json_t *root, kvd_config *c, kvd_err *err)
{
    const kvd_family *family = NULL;
    if (!json_is_object(root))
        return kvd_fail(err, "not a JSON object");
    bool causal = true;
    if (find_family(root, &family, err) || check_quantised(root, family, err) ||
        kvd_cfg_bool(root, "is_causal", &causal, err))
        return -1;
    if (!causal)
        return kvd_fail(err, "'is_causal' is false, only causal attention is supported");
    if (family->read(root, c, err))
        return -1;
    /* Refuses an epsilon of 1 or more, which would outweigh x^2 in a norm of x. */
    if (c->norm_eps >= 1)
        return kvd_fail(err, "the epsilon of the norms is %g, not below 1", c->norm_eps);
    (void)snprintf(c->family, sizeof c->family, "%s", family->name);
    return 0;
}

int kvd_config_parse(const char *name, const char *json, size_t len, kvd_config *c, kvd_err *err)
{
    json_error_t where;
    memset(c, 0, sizeof *c);
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return kvd_fail(err, "'%s', line %d: %s", name, where.line, where.text);
    const int status = read_root(root, c, err);
    json_decref(root);
    return status ? kvd_in(err, "'%s'", name) : 0;
}

int kvd_config_read(const char *path, kvd_config *c, kvd_err *err)
{
    kvd_filemap map;
    if (kvd_filemap_load(&map, path, err))
        return -1;
    const int status = kvd_config_parse(path, map.bytes, map.len, c, err);
    kvd_filemap_release(&map);
    return status;
}

kvd_scores kvd_config_scores(const kvd_config *c)
{
    return (kvd_scores){.scale = c->score_scale > 0 ? (float)c->score_scale
                                                    : 1.0f / sqrtf((float)c->d_head),
                        .softcap = (float)c->score_softcap};
}

bool kvd_config_gated(const kvd_config *c)
{
    return c->activation == KVD_SWIGLU || c->activation == KVD_GEGLU_TANH;
}

bool kvd_config_norms_branches(const kvd_config *c)
{
    return c->order == KVD_ORDER_AROUND || c->order == KVD_ORDER_BRANCH;
}

bool kvd_config_norms_inputs(const kvd_config *c)
{
    return c->order != KVD_ORDER_AFTER && c->order != KVD_ORDER_BRANCH;
}

size_t kvd_config_rope_dims(const kvd_config *c)
{
    return (size_t)(c->rope_dims ? c->rope_dims : c->d_head);
}

size_t kvd_config_cached(const kvd_config *c)
{
    return (c->latent ? 1 : 2) * (size_t)c->n_kv_heads * (size_t)c->d_head;
}

bool kvd_config_is_eos(const kvd_config *c, uint32_t token)
{
    bool is = c->eos_id >= 0 && token == (uint32_t)c->eos_id;
    for (int i = 0; i < c->n_eos_more; i++)
        is = is || token == (uint32_t)c->eos_more[i];
    return is;
}

int kvd_config_group(const kvd_config *c)
{
    return c->n_heads / c->n_kv_heads;
}

int kvd_config_d_embed(const kvd_config *c)
{
    return c->d_embed ? c->d_embed : c->d_model;
}

size_t kvd_config_window(const kvd_config *c, int layer)
{
    assert(layer >= 0 && layer < c->n_layers);
    if (!c->window || layer >= KVD_CONFIG_WINDOW_LAYERS ||
        !(c->window_layers[layer / 64] >> (layer % 64) & 1))
        return 0;
    return (size_t)c->window;
}

bool kvd_config_unrotated(const kvd_config *c, int layer)
{
    return layer < KVD_CONFIG_WINDOW_LAYERS &&
           (c->unrotated_layers[layer / 64] >> (layer % 64) & 1) != 0;
}

bool kvd_config_routed(const kvd_config *c, int layer)
{
    if (c->n_experts == 0)
        return false;
    assert(layer >= 0 && layer < c->n_layers && layer < KVD_CONFIG_EXPERT_LAYERS);
    return !(c->dense_layers[layer / 64] >> (layer % 64) & 1);
}
