/*
 * CUDA engine of methods that store K and V of prompts for adjacent layers together, bf16, in pages
 * of kernels/layout.h. Later tokens are stored layer by layer.
 *
 * minicache: K or V of a token and KV head in two layers share one direction and keep their
 * lengths; unmerged pairs are stored layer by layer.
 * xkv: latents (dims/cuda/latents.h) that all layers of a group share.
 *
 * Launchers return cudaError_t and never synchronise, allocate or print.
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

/* Requests of a batch and the stored pages of one or two layers, in device memory. */
typedef struct {
    int32_t n, max_pages, n_sms;
    int32_t n_kv_heads, d_head; /* d_head numbers of K and of V per KV head */
    /* [n] Cached tokens, including new ones, and slot of each request. */
    const int32_t *kv_len, *slot;
    const int32_t *page_table; /* [n][max_pages] */
    /* bf16 pages from which attention reads the current layer. */
    uint16_t *rows;
    /*
     * Pages of a pair of layers, numbered and laid out as `rows`: `first` holds common directions
     * and the first layer's unmerged vectors, `second` the second layer's vectors.
     */
    uint16_t *first, *second;
    /*
     * [pages][2 n_kv_heads][KVD_PAGE_TOKENS][2] Lengths of a token's vectors in the two layers, K
     * then V of each KV head. Negative: unmerged.
     */
    uint16_t *length;
} kvd_merged_args;

/* Copies K and V of prompts from `rows` to the pages `first`. */
cudaError_t kvd_pair_keep(const kvd_merged_args *a, cudaStream_t stream);
/*
 * Computes the angles between prompt vectors in `first` and `rows`, for K and V.
 * range [n][2][2], device: inverted bits of the smallest angle (float32, radians; for atomic
 * maxima), bits of the largest.
 */
cudaError_t kvd_pair_measure(const kvd_merged_args *a, uint32_t *range, cudaStream_t stream);
/*
 * Merges prompt vectors of `first` (t = 0) and `rows` (t = 1) by spherical interpolation. Angles in
 * the upper fraction `gamma` of the range stay unmerged; device apart [slots] counts these pairs.
 */
cudaError_t kvd_pair_merge(const kvd_merged_args *a, const uint32_t *range, double t, double gamma,
                           uint32_t *apart, cudaStream_t stream);
/*
 * Restores K and V of decode steps to `rows`, for the second or first layer of the pair. Each
 * request's newest token must be in `first` or `second`, marked as unmerged.
 */
cudaError_t kvd_pair_restore(const kvd_merged_args *a, bool second, cudaStream_t stream);

/*
 * Copies each request's tokens from index prompt[b] on (device [n]) from `first` to `rows`. Sets
 * later rows to 0 up to a multiple of 8.
 */
cudaError_t kvd_merged_copy_later(const kvd_merged_args *a, const int32_t *prompt,
                                  cudaStream_t stream);
/* Sets to[b] = of_slot[slot[b]] for n requests b, in device memory. */
cudaError_t kvd_merged_of_slots(const int32_t *of_slot, const int32_t *slot, int32_t n, int32_t *to,
                                cudaStream_t stream);
/*
 * Writes the last `width` columns of column-major vectors [m][m], last first, to `to` [m][rank], ld
 * elements per row. Columns from `width` on become 0.
 */
cudaError_t kvd_merged_leading(const float *vectors, int32_t m, int32_t width, int32_t rank,
                               uint16_t *to, int32_t ld, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifndef __cplusplus
#include "methods/cuda/paged_cache.h"

/* Request in each slot, for methods that merge the layers of prompts. */
typedef struct {
    struct kvd_merged_slot {
        size_t tokens; /* 0: no request */
        size_t prompt;
    } * slot;
    size_t n;
    double held; /* bytes that all slots hold */
} kvd_merged_slots;

int kvd_merged_slots_make(kvd_merged_slots *s, size_t n, kvd_err *err);
void kvd_merged_slots_release(kvd_merged_slots *s);
/*
 * Sets the prompt lengths of the iteration's requests; in timing runs, earlier unprocessed tokens
 * count as prompt. Returns true if a slot's prompt has changed.
 */
bool kvd_merged_slots_begin(kvd_merged_slots *s, const kvd_iteration *it);
/* After an iteration, updates the slots' numbers of tokens and s->held (by m->bits). */
void kvd_merged_slots_end(kvd_merged_slots *s, const kvd_gpu_method *m, const kvd_iteration *it);
/* Returns device memory filled with random numbers, for timing. Returns NULL on failure. */
uint16_t *kvd_merged_pool(kvd_device_memory *memory, size_t elements, float deviation,
                          cudaStream_t stream, kvd_err *err);
#endif
#endif
