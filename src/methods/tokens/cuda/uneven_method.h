/*
 * Methods of the tokens axis whose layers or KV heads keep different numbers of the prompt's tokens
 * (pyramidkv, adakv), in the CUDA engine. They are not combined with other methods. The bf16 pages
 * hold a prompt while a layer attends to it, one layer at a time. The tokens that stay are copied
 * to pages of one KV head each, which are assigned, counted and freed per KV head.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_UNEVEN_METHOD_H
#define KVD_METHODS_TOKENS_CUDA_UNEVEN_METHOD_H

#include "methods/cuda/paged_cache.h"

/*
 * Return the number of cached tokens, and of pages, that a KV head of a slot holds in a layer. For
 * tests.
 */
size_t kvd_gpu_uneven_entries(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);
size_t kvd_gpu_uneven_pages(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);

#endif
