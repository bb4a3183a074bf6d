/*
 * Work lists of the paged cache: how the attention of decode steps is divided between CTAs. This
 * file also tells layers with a sliding window from those without. Only the GPU code of methods may
 * include it.
 */
#ifndef KVD_METHODS_CUDA_PAGED_WORKS_H
#define KVD_METHODS_CUDA_PAGED_WORKS_H

#include "kernels/cuda/decode.h"
#include "methods/cuda/paged_cache.h"

/*
 * Gives an index to each distinct layout of heads among the layers, and computes the bytes per page
 * number, summed over layers. The layers and the method must exist.
 */
int kvd_paged_works_number(kvd_paged_cache *c, kvd_err *err);
/* Allocates the workspaces of decode attention, each at a multiple of 256 bytes. */
int kvd_paged_works_make(kvd_paged_cache *c, size_t max_len, kvd_err *err);
void kvd_paged_works_release(kvd_paged_cache *c);
/* Returns the index of the layer's work list of decode steps. */
int kvd_paged_works_of(const kvd_paged_cache *c, int layer);
/*
 * Returns the arguments of the attention of n decode steps with work list `work`. The caller must
 * set `pool`, `o` and `sinks`. If all KV heads of a request have equal lengths, the returned
 * arguments may select the kernel that needs no work list. The choice depends on n and the capacity
 * of the page table, but not on the lengths, because a CUDA graph is replayed with other lengths.
 */
kvd_decode_args kvd_paged_works_args(const kvd_paged_cache *c, int work, size_t n);

/* Returns the method that acts on the layer, or NULL if there is none. */
kvd_gpu_method *kvd_paged_method_of(const kvd_paged_cache *c, int layer);
/* Returns the page tables of single KV heads, or NULL if all KV heads hold the same tokens. */
const kvd_gpu_heads *kvd_paged_heads_of(const kvd_paged_cache *c);
/*
 * Returns the pages of layers with a window if `map` has a window, otherwise the pages of layers
 * without one.
 */
const kvd_pages *kvd_paged_pages_of(const kvd_paged_cache *c, const kvd_attn_map *map);
/* Returns the array with the numbers of tokens of the requests, for layers of this layout. */
const int32_t *kvd_paged_lens_of(const kvd_attn_map *map, const kvd_batch_lists *lists);

#endif
