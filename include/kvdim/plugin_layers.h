/*
 * Plugins that merge the K and V of a prompt in several consecutive layers into one set.
 * kvdim/plugin.h has what all plugins share. K and V of tokens after the prompt are stored layer by
 * layer.
 */
#ifndef KVDIM_PLUGIN_LAYERS_H
#define KVDIM_PLUGIN_LAYERS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* K or V of one sequence's prompt in a group of consecutive layers. */
typedef struct kvdim_layers {
    uint32_t struct_size;
    /* KVDIM_SIDE_KEYS (keys after RoPE, unless keys_before_rope) or KVDIM_SIDE_VALUES. */
    int32_t side;
    int32_t first_layer, n_layers;
    size_t n, heads, d; /* number of tokens, of KV heads, and of dimensions of a head */
    float *const *x;    /* K or V of each layer: n_layers pointers to arrays [n][heads][d] */
} kvdim_layers;

typedef struct kvdim_layers_method {
    kvdim_method method;
    /* 1: `merge` receives keys before RoPE; kvdim applies RoPE to its result. */
    int32_t keys_before_rope;
    /*
     * Returns the number of layers in the group that begins at `layer`: at least 1, at most the
     * number of layers left. A group of 1 layer is not merged. `value` holds the values of the
     * method's n_keys parameters.
     */
    int32_t (*group)(const double *value, const kvdim_model *model, int32_t layer);
    /*
     * Merges K or V of a group of layers. Replaces the numbers in b->x by those that a later read
     * of the cache returns; they must be finite. Writes the stored size of the whole group in two
     * parts: *numbers is how many numbers of the cache's type are stored, *bits is how many further
     * bits the indices and flags take. Each is 0 or more.
     */
    int (*merge)(const double *value, const kvdim_layers *b, double *numbers, double *bits,
                 char *error);
} kvdim_layers_method;

#ifdef __cplusplus
}
#endif
#endif
