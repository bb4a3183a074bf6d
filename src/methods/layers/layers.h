/*
 * The layers axis: methods that store K and V of several layers as one. K and V of a prompt are
 * merged when all layers have processed it; K and V of later tokens are stored layer by layer.
 */
#ifndef KVD_METHODS_LAYERS_LAYERS_H
#define KVD_METHODS_LAYERS_LAYERS_H

#include "methods/axis.h"

/* K or V of one prompt in a group of layers that are stored together. */
typedef struct {
    kvd_side side;
    int first_layer, n_layers;
    /* Number of prompt tokens, of KV heads, and of dimensions of a head. */
    size_t n, heads, d;
    /*
     * K or V of each layer: n_layers pointers to [n][heads][d]. `merge` replaces these numbers by
     * the ones that attention will read.
     */
    float *const *x;
} kvd_layers_block;

typedef struct {
    /* number of stored elements in the data type of the cache */
    double numbers;
    double bits; /* bits of stored indices and flags */
} kvd_layers_count;

typedef struct kvd_layers_method kvd_layers_method;
struct kvd_layers_method {
    kvd_method_info info; /* must be the first member */
    /*
     * True if the function `merge` expects keys before RoPE. The caller then applies RoPE to the
     * merged keys.
     */
    bool keys_before_rope;
    /*
     * Fails if a parameter is not valid or the model's layers cannot be divided into groups. Called
     * before `group`. May be NULL.
     */
    int (*check)(const kvd_parameter_values *v, const kvd_config *c, kvd_err *err);
    /*
     * Returns the number of layers in the group that begins at `layer`, or 1 if the layer is not
     * merged.
     */
    int (*group)(const kvd_parameter_values *v, const kvd_config *c, int layer);
    int (*merge)(const kvd_parameter_values *v, const kvd_layers_block *b, kvd_layers_count *count,
                 kvd_err *err);
};

extern const kvd_layers_method kvd_layers_minicache, kvd_layers_xkv;

/*
 * Sets `*rank` to xkv's rank of K or V for a prompt of n tokens that have `wide` numbers in all
 * layers of the group. Fails if the parameter is not valid.
 */
int kvd_xkv_rank(const kvd_parameter_values *v, kvd_side side, size_t n, size_t wide, size_t *rank,
                 kvd_err *err);

/* GPU code of minicache and xkv. The addresses are NULL in a build without CUDA. */
extern const struct kvd_gpu_kind kvd_gpu_minicache KVD_IF_LINKED, kvd_gpu_xkv KVD_IF_LINKED;

#endif
