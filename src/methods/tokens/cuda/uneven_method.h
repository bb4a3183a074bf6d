/*
 * Methods of the tokens axis whose layers or KV heads keep different numbers of the prompt's tokens
 * (pyramidkv, adakv, prefixkv, cake, windowkv), in the CUDA engine. They are not combined with
 * other methods. The bf16 pages hold a prompt while a layer attends to it, one layer at a time. The
 * tokens that stay are copied to pages of one KV head each, which are assigned, counted and freed
 * per KV head.
 *
 * The budgets of prefixkv and cake depend on all layers. Every layer copies all tokens of a prompt
 * to the pages of its KV heads and stores their scores. After the last layer, a host function in
 * the CUDA stream computes the budgets with the code of the CPU method. Every layer then moves the
 * tokens that stay to the front of its pages.
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
