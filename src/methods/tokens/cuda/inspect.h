/* For tests: functions that read the state of methods of the tokens axis in the CUDA engine. */
#ifndef KVD_METHODS_TOKENS_CUDA_INSPECT_H
#define KVD_METHODS_TOKENS_CUDA_INSPECT_H

#include "methods/cuda/paged_cache.h"

/*
 * Copies the scores and positions of the cached tokens of one slot, layer and KV head to host
 * arrays, and sets `*n` to the number of these tokens. Only for methods that drop tokens after
 * steps by score. The arrays must have room for the largest number of tokens that a request can
 * have.
 */
int kvd_gpu_evict_read(const kvd_gpu_method *m, size_t slot, int layer, int kv_head, float *score,
                       uint32_t *position, size_t *n, kvd_err *err);

/*
 * Return the number of cached tokens, or of pages, of a KV head of a slot, if KV heads may hold
 * different numbers of tokens.
 */
size_t kvd_gpu_uneven_entries(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);
size_t kvd_gpu_uneven_pages(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);

/*
 * Copies the pages that the last layer read in the latest iteration to host array `page`, in rising
 * order, and sets `*n` to their number and `*tokens` to that of their tokens: of the KV head in the
 * iteration's decode step `step`. Only for methods that choose pages at every step. `page` must
 * have room for all pages of a request.
 */
int kvd_gpu_selection_read(const kvd_gpu_method *m, size_t step, int kv_head, int32_t *page,
                           size_t *n, size_t *tokens, kvd_err *err);

#endif
