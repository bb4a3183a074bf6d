/*
 * Plugins that merge the K and V of a prompt in consecutive layers into one set. Read
 * kvdim/plugin.h first.
 *
 * K and V of tokens after the prompt are not merged.
 */
#ifndef KVDIM_PLUGIN_LAYERS_H
#define KVDIM_PLUGIN_LAYERS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* K or V of one prompt in a group of consecutive layers. */
typedef struct kvdim_layers {
    uint32_t struct_size;
    /* KVDIM_SIDE_KEYS or KVDIM_SIDE_VALUES. Keys are after RoPE, unless keys_before_rope is 1. */
    int32_t side;
    int32_t first_layer, n_layers;
    size_t n, heads, d; /* number of tokens, of KV heads, and of dimensions of a head */
    float *const *x;    /* K or V: n_layers pointers to arrays [n][heads][d] */
} kvdim_layers;

typedef struct kvdim_layers_method {
    kvdim_method method;
    /*
     * If 1, `merge` receives keys before RoPE, and kvdim applies RoPE to the keys that `merge`
     * returns.
     */
    int32_t keys_before_rope;
    /*
     * Returns the number of layers in the group that begins at `layer`: 1 (not merged) up to all
     * layers from `layer` on. `value` [n_keys]: the parameter values.
     */
    int32_t (*group)(const double *value, const kvdim_model *model, int32_t layer);
    /*
     * Replaces the numbers in b->x by the finite numbers that later reads return. *numbers receives
     * how many numbers of the cache's type the group stores, *bits the bits of indices and flags.
     * Each may be 0.
     */
    int (*merge)(const double *value, const kvdim_layers *b, double *numbers, double *bits,
                 char *error);
} kvdim_layers_method;

#ifdef __cplusplus
}
#endif
#endif
