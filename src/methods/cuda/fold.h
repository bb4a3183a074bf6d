/* Multiplies the weights W_V and W_O by the low-rank projections that compress V. */
#ifndef KVD_METHODS_CUDA_FOLD_H
#define KVD_METHODS_CUDA_FOLD_H

#include "methods/cuda/cache_parts.h"
#include "model/pass/cuda/layer.h"

/* Multiplies the bf16 weights W_V and W_O of all layers by the low-rank projections of V in `dims`.
 * Updates n_qkv and n_o of each layer; `layer` must be made from `dims`. */
int kvd_gpu_fold(kvd_gpu_worker *w, const kvd_dims *dims, const kvd_cache_layer *layer,
                 kvd_err *err);

/* Returns true if kvd_gpu_fold removes rows of W_V, so that the QKV product has only the kept
 * dimensions of V. Returns false if it sets these rows to 0 instead. */
bool kvd_gpu_fold_packs(const kvd_config *c);

/* Writes A^T W [r][columns] to `to`, with A [rows][r] and W [rows][columns], row-major. */
int kvd_gpu_fold_product(const kvd_gpu_worker *w, int rows, int r, int columns, const void *a,
                         const void *from, void *to, kvd_err *err);
/* Replaces the output weights W_O by W_O B^T, where B [d_v][d_head] (c->b_v) rebuilds V from its
 * projection. `temp` [d_model][n_heads * d_head] is scratch memory. */
int kvd_gpu_fold_columns(const kvd_gpu_worker *w, kvd_gpu_layer *l, const kvd_cache_layer *c,
                         void *temp, kvd_err *err);

#endif
