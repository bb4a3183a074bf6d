/*
 * The layers axis: methods that store K and V of several layers as one. A method acts on a prompt
 * when all its layers have been computed; later tokens are stored layer by layer. Each method has
 * its own functions; the registry is in method.c.
 */
#ifndef KVD_METHODS_LAYERS_LAYERS_H
#define KVD_METHODS_LAYERS_LAYERS_H

#include "methods/axis.h"

/* K or V of one prompt in a group of layers that are stored together. */
typedef struct {
    kvd_side side;
    int first_layer, n_layers;
    /* Number of prompt tokens (n), of KV heads (heads), and of dimensions of a head (d). */
    size_t n, heads, d;
    /*
     * Rows of each layer: n_layers pointers to [n][heads][d]. The method's `merge` overwrites these
     * rows by those that attention will read.
     */
    float *const *x;
} kvd_layers_block;

/* Stored size of a group of merged layers. */
typedef struct {
    /* Number of elements that are stored in the data type of the cache. */
    double numbers;
    double bits; /* bits of indices and flags */
} kvd_layers_count;

typedef struct kvd_layers_method kvd_layers_method;
struct kvd_layers_method {
    kvd_method_info info; /* must be the first member */
    /* True: the keys that `merge` receives are before RoPE; the caller applies RoPE afterwards. */
    bool keys_before_rope;
    /*
     * Fails if the groups do not fit the layers of the model. Called before `group`. NULL: they
     * always fit.
     */
    int (*check)(const kvd_parameter_values *v, const kvd_config *c, kvd_err *err);
    /*
     * Returns the number of layers in the group that begins at `layer`, at least 1. A group of 1
     * layer is not merged.
     */
    int (*group)(const kvd_parameter_values *v, const kvd_config *c, int layer);
    int (*merge)(const kvd_parameter_values *v, const kvd_layers_block *b, kvd_layers_count *count,
                 kvd_err *err);
};

extern const kvd_layers_method kvd_layers_minicache, kvd_layers_xkv;

#endif
