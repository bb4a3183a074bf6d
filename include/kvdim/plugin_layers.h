/* Interface of plugins that merge K and V of a prompt across consecutive layers. Read
 * kvdim/plugin.h first.
 *
 * K and V of later tokens are not merged. */
#ifndef KVDIM_PLUGIN_LAYERS_H
#define KVDIM_PLUGIN_LAYERS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* K or V of one prompt in several consecutive layers, to be stored together. */
typedef struct kvdim_layers {
    uint32_t struct_size;
    /* KVDIM_SIDE_KEYS if x holds keys, KVDIM_SIDE_VALUES if it holds values */
    int32_t side;
    int32_t first_layer, n_layers;
    size_t n, heads, d; /* number of tokens, of KV heads, and of dimensions of a head */
    float *const *x;    /* K or V: n_layers pointers to arrays [n][heads][d] */
} kvdim_layers;

typedef struct kvdim_layers_method {
    kvdim_method method;
    /* If 1, the keys of several layers are merged before RoPE, and kvdim applies RoPE to the merged
     * keys. */
    int32_t keys_before_rope;
    /* Returns how many layers are merged together, from `layer` on. 1 means that `layer` is not
     * merged. `value` [n_keys]: parameter values. */
    int32_t (*group)(const double *value, const kvdim_model *model, int32_t layer);
    /* Merges K or V of several layers: overwrites b->x with the K or V that attention reads, which
     * must be finite. *numbers receives how many numbers are stored in the data type of the cache.
     * *bits receives the size in bits of all other stored data, such as indices and flags. */
    int (*merge)(const double *value, const kvdim_layers *b, double *numbers, double *bits,
                 char *error);
} kvdim_layers_method;

#ifdef __cplusplus
}
#endif
#endif
