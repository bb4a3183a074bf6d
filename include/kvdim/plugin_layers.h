/* Plugins that merge the K and V of a prompt in consecutive layers. Read kvdim/plugin.h first.
 *
 * K and V of later tokens are not merged. */
#ifndef KVDIM_PLUGIN_LAYERS_H
#define KVDIM_PLUGIN_LAYERS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* K or V of a prompt in a group of consecutive layers. */
typedef struct kvdim_layers {
    uint32_t struct_size;
    /* KVDIM_SIDE_KEYS or KVDIM_SIDE_VALUES */
    int32_t side;
    int32_t first_layer, n_layers;
    size_t n, heads, d; /* number of tokens, of KV heads, and of dimensions of a head */
    float *const *x;    /* K or V: n_layers pointers to arrays [n][heads][d] */
} kvdim_layers;

typedef struct kvdim_layers_method {
    kvdim_method method;
    /* If 1, `merge` receives keys before RoPE, and kvdim applies it to the result. */
    int32_t keys_before_rope;
    /* Returns the number of layers in the group that begins at `layer`; 1: not merged. `value`
     * [n_keys]: parameters. */
    int32_t (*group)(const double *value, const kvdim_model *model, int32_t layer);
    /* Replaces K or V of the layers in b->x by their merged, finite values. *numbers: stored
     * numbers of the cache's type, *bits: bits of indices and flags. */
    int (*merge)(const double *value, const kvdim_layers *b, double *numbers, double *bits,
                 char *error);
} kvdim_layers_method;

#ifdef __cplusplus
}
#endif
#endif
