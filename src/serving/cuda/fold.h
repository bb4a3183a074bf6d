/*
 * V's projections in the weights: W_V becomes A_v^T W_V and W_O becomes W_O B_v^T (export/fold.h has the algebra), so that the product of Q, K
 * and V makes only the kept columns of V, the cache stores them as they come, and the output projection reads P V' at its width.
 */
#ifndef KVD_SERVING_CUDA_FOLD_H
#define KVD_SERVING_CUDA_FOLD_H

#include "methods/cuda/cache_parts.h"
#include "model/cuda/layer.h"

/*
 * Folds every layer whose layer[l] has matrices of V, in place; n_qkv and n_o of the weights say what is left. dims are those that `layer`
 * was made of. Where the pass has something to do between product and cache (biases, norms of Q and K), its rows stay d_head apart, with zeros below the kept ones. bf16.
 */
int kvd_serving_fold(kvd_gpu_worker *w, const kvd_dims *dims, const kvd_cache_layer *layer, kvd_err *err);

/* What it is made of, for methods that fold otherwise; queued on the stream of w. */

/* to [r][columns] = A^T W, A [rows][r] and W [rows][columns] row-major: rows of a matrix of weights, cut. */
int kvd_serving_fold_product(const kvd_gpu_worker *w, int rows, int r, int columns, const void *a,
                             const void *from, void *to, kvd_err *err);
/* W_O of a layer becomes W_O B_v^T, by b_v and the widths of c. temp [d_model][n_heads * d_head]. */
int kvd_serving_fold_columns(const kvd_gpu_worker *w, kvd_gpu_layer *l, const kvd_cache_layer *c, void *temp,
                             kvd_err *err);

/* What it is made of, for methods that fold otherwise; queued on the stream of w. */

/* to [r][columns] = A^T W, A [rows][r] and W [rows][columns] row-major: rows of a matrix of weights, cut. */
int kvd_serving_fold_product(const kvd_gpu_worker *w, int rows, int r, int columns, const void *a,
                             const void *from, void *to, kvd_err *err);
/* W_O of a layer becomes W_O B_v^T, by b_v and the widths of c. temp [d_model][n_heads * d_head]. */
int kvd_serving_fold_columns(const kvd_gpu_worker *w, kvd_gpu_layer *l, const kvd_cache_layer *c, void *temp,
                             kvd_err *err);

#endif
