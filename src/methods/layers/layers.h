/*
 * The layers axis: entries of several layers stored as one. Acts on the prompt, when all its layers have been computed; steps
 * after it are stored layer by layer. One file per method; the registry is in presets.c.
 */
#ifndef KVD_METHODS_LAYERS_H
#define KVD_METHODS_LAYERS_H

#include "methods/axis.h"

/* Keys or values of the prompt of one sequence in a group of layers. */
typedef struct {
    kvd_side side;
    int first_layer, n_layers;
    size_t n, heads, d; /* tokens, KV heads, dimensions of a head                                       */
    float *const *x;    /* [n_layers] pointers to [n][heads][d]: in, and out what a read finds          */
} kvd_layers_block;

/* What is stored for all layers of the group together. */
typedef struct {
    double numbers; /* of the cache's type  */
    double bits;    /* indices and the like */
} kvd_layers_count;

typedef struct kvd_layers_method kvd_layers_method;
struct kvd_layers_method {
    const char *name, *summary;
    const kvd_parameter *parameter;
    const kvd_rate *rate; /* NULL: none of its keys trades bytes for quality */
    unsigned needs;
    bool keys_before_rope; /* x of keys is before RoPE; they are turned when they are read */
    /* Layers of the group that begins at `layer`, at least 1; 1: it stands alone and merge is not called. */
    int (*group)(const kvd_values *v, const kvd_config *c, int layer);
    int (*merge)(const kvd_values *v, const kvd_layers_block *b, kvd_layers_count *count, kvd_err *err);
};

extern const kvd_layers_method kvd_layers_minicache, kvd_layers_xkv;

#endif
