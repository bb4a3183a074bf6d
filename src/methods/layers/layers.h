/*
 * Interface of methods that store K and V of several layers as one, once a prompt has passed the
 * last of them. Later tokens stay separate.
 */
#ifndef KVD_METHODS_LAYERS_LAYERS_H
#define KVD_METHODS_LAYERS_LAYERS_H

#include "methods/axis.h"

/* K or V of one prompt in a group of layers that are stored together. */
typedef struct {
    kvd_side side;
    int first_layer, n_layers;
    /* Number of prompt tokens, of KV heads and of dimensions per head. */
    size_t n, heads, d;
    /* n_layers pointers to [n][heads][d], overwritten by `merge`. */
    float *const *x;
} kvd_layers_block;

typedef struct {
    /* stored elements in the data type of the cache */
    double numbers;
    double bits; /* bits of stored indices and flags */
} kvd_layers_count;

typedef struct kvd_layers_method kvd_layers_method;
struct kvd_layers_method {
    kvd_method_info info; /* must be the first member */
    /* True if `merge` expects keys before RoPE. The caller then applies RoPE to merged keys. */
    bool keys_before_rope;
    /* Fails for invalid parameters or layers. Called before `group`. May be NULL. */
    int (*check)(const kvd_parameter_values *v, const kvd_config *c, kvd_err *err);
    /* Returns the layers of the group that begins at `layer`. 1: this layer is not merged. */
    int (*group)(const kvd_parameter_values *v, const kvd_config *c, int layer);
    int (*merge)(const kvd_parameter_values *v, const kvd_layers_block *b, kvd_layers_count *count,
                 kvd_err *err);
};

extern const kvd_layers_method kvd_layers_minicache, kvd_layers_xkv;

/* Sets K's or V's *rank for n prompt tokens of `wide` elements. Fails if invalid. */
int kvd_xkv_rank(const kvd_parameter_values *v, kvd_side side, size_t n, size_t wide, size_t *rank,
                 kvd_err *err);

/* GPU code of minicache and xkv; NULL in a build without CUDA. */
extern const struct kvd_gpu_kind kvd_gpu_minicache KVD_IF_LINKED, kvd_gpu_xkv KVD_IF_LINKED;

#endif
