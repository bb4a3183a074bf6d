/*
 * Folds the projections of V into the weights: W_V becomes A_v^T W_V and W_O becomes W_O B_v^T
 * (methods/folded.h has the algebra). The QKV product then computes only the kept columns of V.
 */
#ifndef KVD_METHODS_CUDA_FOLD_H
#define KVD_METHODS_CUDA_FOLD_H

#include "methods/cuda/cache_parts.h"
#include "model/pass/cuda/layer.h"

/*
 * Folds the projections of V into the weights, in every layer l where layer[l] has such
 * projections. Sets n_qkv and n_o of the weights to the remaining numbers of columns. `dims` must
 * be those from which `layer` was made. Weights must be bf16. If kvd_gpu_fold_packs returns false,
 * the output columns of V of two adjacent heads stay d_head apart, with zeros after the kept
 * columns.
 */
int kvd_gpu_fold(kvd_gpu_worker *w, const kvd_dims *dims, const kvd_cache_layer *layer,
                 kvd_err *err);

/*
 * Returns true if kvd_append reads the output of the QKV product and applies RoPE. The heads of V
 * may then be next to each other. If the function returns false, the forward pass applies RoPE, to
 * heads that are d_head apart. It returns false for models with biases or norms of Q and K, which
 * are applied before RoPE, and for models whose RoPE rotates only some dimensions and pairs them in
 * halves, because kvd_append's tables are for whole heads.
 */
bool kvd_gpu_fold_packs(const kvd_config *c);

/*
 * The next two functions are the two steps of kvd_gpu_fold. Both queue work on the stream of `w`.
 */

/*
 * Computes the matrix `to` [r][columns] = A^T W, where A [rows][r] and W [rows][columns] are
 * row-major.
 */
int kvd_gpu_fold_product(const kvd_gpu_worker *w, int rows, int r, int columns, const void *a,
                         const void *from, void *to, kvd_err *err);
/*
 * Replaces W_O of a layer by W_O B_v^T, with b_v of `c`. temp [d_model][n_heads * d_head] is
 * scratch.
 */
int kvd_gpu_fold_columns(const kvd_gpu_worker *w, kvd_gpu_layer *l, const kvd_cache_layer *c,
                         void *temp, kvd_err *err);

#endif
