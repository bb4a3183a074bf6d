/* Multiplies the projections of V into the weights W_V and W_O. */
#ifndef KVD_METHODS_CUDA_FOLD_H
#define KVD_METHODS_CUDA_FOLD_H

#include "methods/cuda/cache_parts.h"
#include "model/pass/cuda/layer.h"

/* Multiplies the projections of V into the bf16 weights W_V and W_O of all layers, and updates
 * n_qkv and n_o of each layer. `layer` must be made from `dims`. Unless kvd_gpu_fold_packs returns
 * true, V of neighbouring heads stay d_head columns apart. */
int kvd_gpu_fold(kvd_gpu_worker *w, const kvd_dims *dims, const kvd_cache_layer *layer,
                 kvd_err *err);

/* Returns true if V of neighbouring heads may be adjacent in the output of the QKV product. This
 * requires that Q and K have no biases or norms, and that RoPE, if partial, is interleaved. */
bool kvd_gpu_fold_packs(const kvd_config *c);

/* Writes A^T W [r][columns] to `to`, with A [rows][r] and W [rows][columns], row-major. */
int kvd_gpu_fold_product(const kvd_gpu_worker *w, int rows, int r, int columns, const void *a,
                         const void *from, void *to, kvd_err *err);
/* Replaces the output weights W_O by W_O B^T, where B [d_v][d_head] (c->b_v) rebuilds V from its
 * projection. `temp` [d_model][n_heads * d_head] is scratch memory. */
int kvd_gpu_fold_columns(const kvd_gpu_worker *w, kvd_gpu_layer *l, const kvd_cache_layer *c,
                         void *temp, kvd_err *err);

#endif
