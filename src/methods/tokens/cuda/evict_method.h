/*
 * Methods of the tokens axis that drop entries, as hooks of the paged cache: h2o, keyformer,
 * snapkv, streaming and tova, alone or with a method of the dims axis, and knorm and keydiff, which
 * rank tokens by whole keys, alone. A prompt is processed in one piece: it attends to all its
 * tokens at the widths of the dims method, and scores of attention come from that attention. Pages
 * that eviction empties are freed at the end of the iteration.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_EVICT_METHOD_H
#define KVD_METHODS_TOKENS_CUDA_EVICT_METHOD_H

#include "methods/cuda/paged_cache.h"

/*
 * For tests of methods that choose by scores after steps: copies the scores and positions of the
 * entries of a slot, a layer and a KV head to host arrays and sets *n to their number. The arrays
 * must have room for the largest number of entries that a request can hold.
 */
int kvd_gpu_evict_read(const kvd_gpu_method *m, size_t slot, int layer, int kv_head, float *score,
                       uint32_t *position, size_t *n, kvd_err *err);

#endif
