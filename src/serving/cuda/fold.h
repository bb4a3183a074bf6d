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

#endif
