/*
 * The layers axis: methods that store K and V of several layers as one. A method merges a prompt
 * when all layers have processed it; later tokens are stored layer by layer.
 */
#ifndef KVD_METHODS_LAYERS_LAYERS_H
#define KVD_METHODS_LAYERS_LAYERS_H

#include "methods/axis.h"

/* K or V of one prompt in a group of layers that are stored together. */
typedef struct {
    kvd_side side;
    int first_layer, n_layers;
    /* Prompt tokens, KV heads, and dimensions of a head. */
    size_t n, heads, d;
    /*
     * Rows of each layer: n_layers pointers to [n][heads][d]. `merge` replaces them by the rows
     * that attention reads.
     */
    float *const *x;
} kvd_layers_block;

typedef struct {
    /* elements in the data type of the cache */
    double numbers;
    double bits; /* bits of indices and flags */
} kvd_layers_count;

typedef struct kvd_layers_method kvd_layers_method;
struct kvd_layers_method {
    kvd_method_info info; /* must be the first member */
    /* True if `merge` receives keys before RoPE. The caller applies RoPE to the result. */
    bool keys_before_rope;
    /*
     * Fails if the groups do not fit the layers of the model. Called before `group`. May be NULL.
     */
    int (*check)(const kvd_parameter_values *v, const kvd_config *c, kvd_err *err);
    /*
     * Returns the number of layers in the group that begins at `layer`. 1: the layer is not merged.
     */
    int (*group)(const kvd_parameter_values *v, const kvd_config *c, int layer);
    int (*merge)(const kvd_parameter_values *v, const kvd_layers_block *b, kvd_layers_count *count,
                 kvd_err *err);
};

extern const kvd_layers_method kvd_layers_minicache, kvd_layers_xkv;

#endif
