/* Interface of compression methods that store a prompt's K and V of several layers together. */
#ifndef KVD_METHODS_LAYERS_LAYERS_H
#define KVD_METHODS_LAYERS_LAYERS_H

#include "methods/axis.h"

/* K or V of one prompt in a group of layers that are stored together. */
typedef struct {
    kvd_side side;
    int first_layer, n_layers;
    /* Number of prompt tokens, of KV heads and of dimensions per head. */
    size_t n, heads, d;
    /* [n_layers] K or V [n][heads][d] of each layer. `merge` overwrites them with the numbers that
     * attention reads. */
    float *const *x;
} kvd_layers_block;

typedef struct {
    /* Number of stored floating-point numbers, which have the data type of the cache. */
    double numbers;
    double bits; /* bits of stored indices and flags */
} kvd_layers_count;

typedef struct kvd_layers_method kvd_layers_method;
struct kvd_layers_method {
    kvd_method_info info; /* must be the first member */
    /* True if keys are merged across layers before RoPE is applied, false if after it. */
    bool keys_before_rope;
    /* Fails if the method's parameters do not suit the model. NULL if all parameters suit all
     * models. */
    int (*check)(const kvd_parameter_values *v, const kvd_config *c, kvd_err *err);
    /* Returns how many layers, from `layer` on, are merged together; 1 if `layer` is not merged.
     * Called only after `check` has succeeded. */
    int (*group)(const kvd_parameter_values *v, const kvd_config *c, int layer);
    int (*merge)(const kvd_parameter_values *v, const kvd_layers_block *b, kvd_layers_count *count,
                 kvd_err *err);
};

extern const kvd_layers_method kvd_layers_minicache, kvd_layers_xkv;

/* Computes the rank of the approximation of K or V, for a prompt of n tokens with `wide` elements
 * each. Fails if the rank is not valid. */
int kvd_xkv_rank(const kvd_parameter_values *v, kvd_side side, size_t n, size_t wide, size_t *rank,
                 kvd_err *err);

/* GPU code of methods minicache and xkv; NULL in a build without CUDA. */
extern const struct kvd_gpu_kind kvd_gpu_minicache KVD_IF_LINKED, kvd_gpu_xkv KVD_IF_LINKED;

#endif
