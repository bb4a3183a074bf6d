/*
 * The layers axis: entries of several layers stored as one. A method acts on a prompt when all its
 * layers have been computed; later entries are stored layer by layer. One file per method; the
 * registry is in method.c.
 */
#ifndef KVD_METHODS_LAYERS_LAYERS_H
#define KVD_METHODS_LAYERS_LAYERS_H

#include "methods/axis.h"

/* K or V of one sequence's prompt in a group of layers that are stored together. */
typedef struct {
    kvd_side side;
    int first_layer, n_layers;
    size_t n, heads, d; /* number of tokens, KV heads, dimensions of a head */
    /*
     * [n_layers] pointers to rows [n][heads][d], which `merge` replaces by the rows that attention
     * will read
     */
    float *const *x;
} kvd_layers_block;

/* Stored size of a group of layers. */
typedef struct {
    double numbers; /* number of elements in the data type of the cache */
    double bits;    /* bits of indices and flags */
} kvd_layers_count;

typedef struct kvd_layers_method kvd_layers_method;
struct kvd_layers_method {
    kvd_method_info info;  /* must be the first member */
    bool keys_before_rope; /* keys in x are before RoPE, which is applied when they are read */
    /*
     * Checks that the groups fit the layers of the model, before `group` is called; NULL: they
     * always fit.
     */
    int (*check)(const kvd_parameter_values *v, const kvd_config *c, kvd_err *err);
    /*
     * Returns the number of layers of the group that begins at `layer`, at least 1. A group of 1
     * layer is not merged.
     */
    int (*group)(const kvd_parameter_values *v, const kvd_config *c, int layer);
    int (*merge)(const kvd_parameter_values *v, const kvd_layers_block *b, kvd_layers_count *count,
                 kvd_err *err);
};

extern const kvd_layers_method kvd_layers_minicache, kvd_layers_xkv;

#endif
