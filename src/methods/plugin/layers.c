/* Adapts plugins of the layers axis (include/kvdim/plugin_layers.h) to kvd_layers_method. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/plugin/plugin_method.h"

/* Asks the plugin for a group, and returns true if *n is a number of layers that there are. */
static bool ask_group(const kvd_parameter_values *v, const kvd_config *c, int layer, int *n)
{
    const kvdim_model model = kvd_plugin_model(c, 0);
    *n = kvd_plugin_of(v)->api.layers.group(v->value, &model, layer);
    return *n >= 1 && *n <= c->n_layers - layer && *n <= KVD_CONFIG_WINDOW_LAYERS;
}

static int wrong_group(const kvd_plugin_method *m, kvd_err *err)
{
    return kvd_plugin_wrong(m, "group", err, "gave another answer for the same layer");
}

/* A group that is right at `check` and not later is reported by the next `merge`. */
static int group(const kvd_parameter_values *v, const kvd_config *c, int layer)
{
    int n;
    if (ask_group(v, c, layer, &n))
        return n;
    atomic_store(&kvd_plugin_flags(kvd_plugin_of(v))->bad_group, true);
    return 1;
}

static int check(const kvd_parameter_values *v, const kvd_config *c, kvd_err *err)
{
    for (int layer = 0, n; layer < c->n_layers; layer += n)
        if (!ask_group(v, c, layer, &n))
            return kvd_plugin_wrong(kvd_plugin_of(v), "group", err,
                                    "returned %d layers from layer %d on, of %d layers", n, layer,
                                    c->n_layers);
    return 0;
}

static int check_merged(const kvd_plugin_method *m, const kvd_layers_block *b, float *const *x,
                        const kvd_layers_count *count, kvd_err *err)
{
    const size_t n = b->n * b->heads * b->d;
    if (!isfinite(count->numbers) || !isfinite(count->bits) || count->numbers < 0 ||
        count->bits < 0)
        return kvd_plugin_wrong(m, "merge", err,
                                "counted %g numbers and %g bits: each must be finite and at least "
                                "0",
                                count->numbers, count->bits);
    for (int l = 0; l < b->n_layers; l++) {
        if (!kvd_guard_holds(x[l], n * sizeof(float)))
            return kvd_plugin_wrong(m, "merge", err, "wrote beyond the rows of layer %d",
                                    b->first_layer + l);
        for (size_t i = 0; i < n; i++)
            if (!isfinite(x[l][i]))
                return kvd_plugin_wrong(m, "merge", err, "set number %zu of layer %d to %g", i,
                                        b->first_layer + l, (double)x[l][i]);
    }
    return 0;
}

static int merge(const kvd_parameter_values *v, const kvd_layers_block *b, kvd_layers_count *count,
                 kvd_err *err)
{
    const kvd_plugin_method *const m = kvd_plugin_of(v);
    const size_t bytes = b->n * b->heads * b->d * sizeof(float);
    float *x[KVD_CONFIG_WINDOW_LAYERS] = {NULL};
    char error[KVDIM_ERROR_BYTES] = "";
    int status = atomic_load(&m->bad_group) ? wrong_group(m, err) : 0;
    for (int l = 0; !status && l < b->n_layers; l++) {
        if (!(x[l] = malloc(bytes + KVD_GUARD))) {
            status = kvd_no_memory(err, "rows of a group of layers", bytes);
            break;
        }
        memcpy(x[l], b->x[l], bytes);
        kvd_guard_set(x[l], bytes);
    }
    const kvdim_layers in = {.struct_size = sizeof in,
                             .side = b->side == KVD_KEYS ? KVDIM_SIDE_KEYS : KVDIM_SIDE_VALUES,
                             .first_layer = b->first_layer,
                             .n_layers = b->n_layers,
                             .n = b->n,
                             .heads = b->heads,
                             .d = b->d,
                             .x = x};
    *count = (kvd_layers_count){NAN, 0};
    if (!status && m->api.layers.merge(v->value, &in, &count->numbers, &count->bits, error))
        status = kvd_plugin_failed(m, "merge", error, err);
    status = status || check_merged(m, b, x, count, err);
    for (int l = 0; l < b->n_layers; l++) {
        if (!status)
            memcpy(b->x[l], x[l], bytes);
        free(x[l]);
    }
    return status ? -1 : 0;
}

int kvd_plugin_layers(kvd_plugin_method *m, kvd_err *err)
{
    const kvdim_layers_method *const a = &m->api.layers;
    if (!a->group || !a->merge)
        return kvd_fail(err, "it has no function '%s'", a->group ? "merge" : "group");
    if (a->method.needs)
        return kvd_fail(err, "needs is not 0: a method of the layers axis needs only a prompt");
    m->kind = KVD_PLUGIN_LAYERS;
    m->as.layers =
        (kvd_layers_method){.info.needs = (unsigned)KVD_NEEDS_PROMPT |
                                          (a->keys_before_rope ? (unsigned)KVD_NEEDS_PRE_ROPE : 0),
                            .keys_before_rope = a->keys_before_rope != 0,
                            .check = check,
                            .group = group,
                            .merge = merge};
    return 0;
}
