/*
 * Folds the projections of V into the weights: W_V becomes A_v^T W_V and W_O becomes W_O B_v^T
 * (methods/folded.h has the algebra). The product of Q, K and V then computes only the kept columns
 * of V, and the cache stores them unchanged. The output projection reads the attention output at
 * that width.
 */
#ifndef KVD_METHODS_CUDA_FOLD_H
#define KVD_METHODS_CUDA_FOLD_H

#include "methods/cuda/cache_parts.h"
#include "model/pass/cuda/layer.h"

/*
 * Folds projections of V in place in every layer l whose layer[l] has matrices of V. n_qkv and n_o
 * of the weights become the remaining numbers of columns. `dims` must be those from which `layer`
 * was made. If the forward pass applies biases or norms of Q and K before the cache, the rows of
 * W_V of different heads stay d_head apart, with zeros after the kept ones. Weights must be bf16.
 */
int kvd_gpu_fold(kvd_gpu_worker *w, const kvd_dims *dims, const kvd_cache_layer *layer,
                 kvd_err *err);

/*
 * The next two functions are the steps of kvd_gpu_fold, for methods that fold differently. The work
 * is queued on the stream of w.
 */

/*
 * Computes to [r][columns] = A^T W, with A [rows][r] and W [rows][columns] row-major, which reduces
 * the rows of a weight matrix from `rows` to r.
 */
int kvd_gpu_fold_product(const kvd_gpu_worker *w, int rows, int r, int columns, const void *a,
                         const void *from, void *to, kvd_err *err);
/*
 * Replaces W_O of a layer by W_O B_v^T, with the matrix b_v and the kept dimensions of c. temp
 * [d_model][n_heads * d_head] is scratch.
 */
int kvd_gpu_fold_columns(const kvd_gpu_worker *w, kvd_gpu_layer *l, const kvd_cache_layer *c,
                         void *temp, kvd_err *err);

#endif
