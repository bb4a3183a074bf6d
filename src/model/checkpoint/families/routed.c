#include "model/checkpoint/families/families.h"

#include <string.h>

static int read_size(const json_t *root, const char *key, int absent, int *out, kvd_err *err)
{
    *out = absent;
    return absent ? kvd_cfg_size_or(root, key, out, err) : kvd_cfg_size(root, key, out, err);
}

/* Versions of the Hugging Face library write the number of experts under two names. */
static int read_count(const json_t *root, const char *key, int absent, int *out, kvd_err *err)
{
    const char *const other = strcmp(key, "num_experts") ? "num_experts" : "num_local_experts";
    if (!kvd_cfg_member(root, key) && kvd_cfg_member(root, other))
        return kvd_cfg_size(root, other, out, err);
    int again = 0;
    if (read_size(root, key, absent, out, err) || kvd_cfg_size_or(root, other, &again, err))
        return -1;
    return again && again != *out
               ? kvd_fail(err, "'%s' is %d and '%s' is %d", key, *out, other, again)
               : 0;
}

int kvd_cfg_routed(const json_t *root, const kvd_routed_keys *keys, kvd_config *c, kvd_err *err)
{
    if (read_count(root, keys->experts, keys->n_experts, &c->n_experts, err) ||
        read_size(root, keys->chosen, keys->n_chosen, &c->n_chosen, err) ||
        read_size(root, keys->width, keys->d_expert, &c->d_expert, err))
        return -1;
    if (c->n_experts > KVD_CONFIG_EXPERTS)
        return kvd_fail(err, "'%s' is %d, at most %d are supported", keys->experts, c->n_experts,
                        KVD_CONFIG_EXPERTS);
    if (c->n_chosen > c->n_experts)
        return kvd_fail(err, "'%s' is %d, but the model has %d experts", keys->chosen, c->n_chosen,
                        c->n_experts);
    if (c->n_layers > KVD_CONFIG_EXPERT_LAYERS)
        return kvd_fail(err, "%d layers, at most %d in a model with experts", c->n_layers,
                        KVD_CONFIG_EXPERT_LAYERS);
    return 0;
}

static void mark_dense(kvd_config *c, int layer)
{
    c->dense_layers[layer / 64] |= (uint64_t)1 << (layer % 64);
}

int kvd_cfg_dense_layers(const json_t *root, kvd_config *c, kvd_err *err)
{
    const json_t *only = kvd_cfg_member(root, "mlp_only_layers");
    int step = 1;
    if (kvd_cfg_size_or(root, "decoder_sparse_step", &step, err))
        return -1;
    for (int l = 0; l < c->n_layers; l++)
        if ((l + 1) % step)
            mark_dense(c, l);
    if (only && !json_is_array(only))
        return kvd_fail(err, "'mlp_only_layers' is not a list");
    for (size_t i = 0; i < json_array_size(only); i++) {
        const json_t *layer = json_array_get(only, i);
        if (!json_is_integer(layer) || json_integer_value(layer) < 0 ||
            json_integer_value(layer) >= c->n_layers)
            return kvd_fail(err, "mlp_only_layers[%zu] is not one of the layers 0 to %d", i,
                            c->n_layers - 1);
        mark_dense(c, (int)json_integer_value(layer));
    }
    return 0;
}

void kvd_cfg_theta_or(const json_t *root, double theta, kvd_config *c)
{
    const json_t *const places[] = {root, kvd_cfg_member(root, "rope_parameters"),
                                    kvd_cfg_member(root, "rope_scaling")};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (places[i] && kvd_cfg_member(places[i], "rope_theta"))
            return;
    c->rope_theta = theta;
}
