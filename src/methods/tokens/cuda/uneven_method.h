/*
 * Methods of the tokens axis whose layers or KV heads keep different numbers of the prompt's
 * tokens, in the CUDA engine.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_UNEVEN_METHOD_H
#define KVD_METHODS_TOKENS_CUDA_UNEVEN_METHOD_H

#include "methods/cuda/paged_cache.h"

/* For tests: return the number of cached tokens, or of pages, of a KV head of a slot. */
size_t kvd_gpu_uneven_entries(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);
size_t kvd_gpu_uneven_pages(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);

#endif
