/*
 * Methods of the tokens axis that drop entries, in the CUDA engine: h2o, keyformer, snapkv,
 * streaming and tova, alone or combined with a method of the dims axis; and knorm, keydiff and
 * expectedattention, which rank tokens by whole keys and run alone. A prompt is processed in one
 * iteration and attends to all its tokens at the widths of the dims method. Scores by attention are
 * those of that attention. Pages that eviction empties are freed at the end of the iteration.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_EVICT_METHOD_H
#define KVD_METHODS_TOKENS_CUDA_EVICT_METHOD_H

#include "methods/cuda/paged_cache.h"

/*
 * For tests of methods that drop cached tokens after steps by score: copies the scores and
 * positions of the tokens of one slot, layer and KV head to host arrays and sets *n to their
 * number. The arrays must have room for the largest number of tokens that a request can hold.
 */
int kvd_gpu_evict_read(const kvd_gpu_method *m, size_t slot, int layer, int kv_head, float *score,
                       uint32_t *position, size_t *n, kvd_err *err);

#endif
