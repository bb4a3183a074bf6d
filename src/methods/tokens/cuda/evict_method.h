/* Methods of the tokens axis that drop cached tokens, in the CUDA engine. */
#ifndef KVD_METHODS_TOKENS_CUDA_EVICT_METHOD_H
#define KVD_METHODS_TOKENS_CUDA_EVICT_METHOD_H

#include "methods/cuda/paged_cache.h"

/*
 * For tests: copies the scores and positions of the cached tokens of one slot, layer and KV head to
 * host arrays, and sets `*n` to the number of these tokens. Only for methods that drop tokens after
 * steps by score. The arrays must have room for the largest number of tokens that a request can
 * have.
 */
int kvd_gpu_evict_read(const kvd_gpu_method *m, size_t slot, int layer, int kv_head, float *score,
                       uint32_t *position, size_t *n, kvd_err *err);

#endif
