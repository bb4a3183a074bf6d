/* Work lists of the paged cache, which divide decode attention between CTAs. */
#ifndef KVD_METHODS_CUDA_PAGED_WORKS_H
#define KVD_METHODS_CUDA_PAGED_WORKS_H

#include "kernels/cuda/decode.h"
#include "methods/cuda/paged_cache.h"

/* Numbers the distinct head layouts, and sums the bytes of a page over the layers. */
int kvd_paged_works_number(kvd_paged_cache *c, kvd_err *err);
/* Allocates workspaces at multiples of 256 bytes. */
int kvd_paged_works_make(kvd_paged_cache *c, size_t max_len, kvd_err *err);
void kvd_paged_works_release(kvd_paged_cache *c);
int kvd_paged_works_of(const kvd_paged_cache *c, int layer);
/*
 * Returns the arguments of n decode steps, without `pool`, `o` and `sinks`. They must not depend on
 * lengths, as CUDA graphs run again with other lengths.
 */
kvd_decode_args kvd_paged_works_args(const kvd_paged_cache *c, int work, size_t n);

/* Returns the method that acts on the layer, or NULL. */
kvd_gpu_method *kvd_paged_method_of(const kvd_paged_cache *c, int layer);
/* Returns the page tables of single KV heads, or NULL if all KV heads hold the same tokens. */
const kvd_gpu_heads *kvd_paged_heads_of(const kvd_paged_cache *c);
/* Returns the pages of layers with a window if `map` has one, otherwise those of layers without. */
const kvd_pages *kvd_paged_pages_of(const kvd_paged_cache *c, const kvd_attn_map *map);
/* Returns the number of tokens of each request in the layers that `map` describes. */
const int32_t *kvd_paged_lens_of(const kvd_attn_map *map, const kvd_batch_lists *lists);

#endif
