/*
 * Kernels of caches that store a pair of adjacent layers together (minicache, methods/layers). The
 * vectors of a token in the two layers, K or V of one KV head, share one direction and keep their
 * lengths. Directions and lengths are bf16.
 *
 * Pages have the layout of kernels/layout.h. A vector pair that is not merged, and every token
 * after the prompt, is stored layer by layer.
 *
 * Launchers return cudaError_t, launch on the stream, and never synchronise, allocate or print.
 */
#ifndef KVD_METHODS_LAYERS_CUDA_MERGED_H
#define KVD_METHODS_LAYERS_CUDA_MERGED_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Requests of a batch, and the stored pages of one pair of layers. Arrays are device memory. */
typedef struct {
    int32_t n, max_pages, n_sms;
    int32_t n_kv_heads, d_head; /* every KV head has d_head numbers of K and of V */
    /* [n] Number of cached tokens, new ones included, and slot of each request. */
    const int32_t *kv_len, *slot;
    const int32_t *page_table; /* [n][max_pages] */
    /* bf16 pages that attention reads, of the layer that is computed. */
    uint16_t *rows;
    /*
     * Pages of the pair: directions of merged vectors, or vectors of the first layer; and vectors
     * of the second layer. Both have page numbers and layout of `rows`.
     */
    uint16_t *first, *second;
    /*
     * [pages][2 n_kv_heads][KVD_PAGE_TOKENS][2] Lengths of a token's vectors in the two layers, K
     * then V of each KV head. Negative: the vectors are not merged.
     */
    uint16_t *length;
} kvd_pair_args;

/* Copies the rows of prompts to the pages `first`. */
cudaError_t kvd_pair_keep(const kvd_pair_args *a, cudaStream_t stream);
/*
 * Computes the range of the angles between the vectors of prompts in the pages `first` and `rows`.
 * range [n][2][2] is in device memory, of K and of V: the complement of the bits of the smallest
 * angle, then the bits of the largest one, each a float32 in radians.
 */
cudaError_t kvd_pair_measure(const kvd_pair_args *a, uint32_t *range, cudaStream_t stream);
/*
 * Merges the vectors of prompts in the pages `first` and `rows` by spherical interpolation at t,
 * unless their angle is in the upper fraction `gamma` of its range. Adds the number of pairs that
 * are not merged to apart [slots], in device memory.
 */
cudaError_t kvd_pair_merge(const kvd_pair_args *a, const uint32_t *range, double t, double gamma,
                           uint32_t *apart, cudaStream_t stream);
/*
 * Restores all tokens of decode steps to `rows`, in the first layer of the pair or in the second.
 * The newest token of each request, which `first` or `second` holds, becomes one that is not
 * merged.
 */
cudaError_t kvd_pair_restore(const kvd_pair_args *a, bool second, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
