/*
 * Caches that store K and V of prompts for adjacent layers together (methods/layers), in the CUDA
 * engine. All numbers are bf16. Pages have the layout of kernels/layout.h. Tokens after the prompt
 * are stored layer by layer.
 *
 * minicache   The vectors of a token in two layers, K or V of one KV head, share one direction and
 *             keep their lengths. Pairs of vectors that are not merged are stored layer by layer.
 * xkv         Latents (dims/cuda/latents.h) that all layers of a group share.
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

/* Requests of a batch, and the stored pages of one or two layers. Arrays are device memory. */
typedef struct {
    int32_t n, max_pages, n_sms;
    int32_t n_kv_heads, d_head; /* every KV head has d_head numbers of K and of V */
    /*
     * [n] kv_len: number of cached tokens of each request, new ones included. slot: slot of each
     * request.
     */
    const int32_t *kv_len, *slot;
    const int32_t *page_table; /* [n][max_pages] */
    /* bf16 pages from which attention reads the layer that is being computed. */
    uint16_t *rows;
    /*
     * Pages of a pair of layers. `first` holds the common directions of merged vectors, and those
     * vectors of the first layer that are not merged. `second` holds the vectors of the second
     * layer. Both have the page numbers and the layout of `rows`.
     */
    uint16_t *first, *second;
    /*
     * [pages][2 n_kv_heads][KVD_PAGE_TOKENS][2] Lengths of a token's vectors in the two layers, K
     * then V of each KV head. Negative: the vectors are not merged.
     */
    uint16_t *length;
} kvd_merged_args;

/* Copies K and V of prompts from `rows` to the pages `first`. */
cudaError_t kvd_pair_keep(const kvd_merged_args *a, cudaStream_t stream);
/*
 * Computes the range of the angles between the vectors of prompts in the pages `first` and `rows`.
 * range [n][2][2] is in device memory, for K and for V. The first of two numbers holds the inverted
 * bits of the smallest angle (float32, radians), so that atomic maxima find it. The second number
 * holds the bits of the largest angle.
 */
cudaError_t kvd_pair_measure(const kvd_merged_args *a, uint32_t *range, cudaStream_t stream);
/*
 * Merges the vectors of prompts in the pages `first` and `rows` by spherical interpolation: t = 0
 * gives the first vector's direction, t = 1 the second one's. Pairs whose angle is in the upper
 * fraction `gamma` of the range of angles stay unmerged. Adds the number of unmerged pairs to apart
 * [slots], in device memory.
 */
cudaError_t kvd_pair_merge(const kvd_merged_args *a, const uint32_t *range, double t, double gamma,
                           uint32_t *apart, cudaStream_t stream);
/*
 * Restores K and V of all tokens of the requests in decode steps to `rows`, for the second layer of
 * the pair if `second` is true, otherwise for the first. The newest token of each request is in
 * `first` or `second`. Its vectors are marked as not merged.
 */
cudaError_t kvd_pair_restore(const kvd_merged_args *a, bool second, cudaStream_t stream);

/*
 * Copies tokens of each request from the pages `first` to `rows`: those from index prompt[b] on,
 * with prompt [n] in device memory. Sets the rows after the last token to 0 up to a multiple of 8.
 */
cudaError_t kvd_merged_copy_later(const kvd_merged_args *a, const int32_t *prompt,
                                  cudaStream_t stream);
/*
 * Copies a number of each request's slot: sets to[b] = of_slot[slot[b]] for n requests b. All
 * arrays are device memory.
 */
cudaError_t kvd_merged_of_slots(const int32_t *of_slot, const int32_t *slot, int32_t n, int32_t *to,
                                cudaStream_t stream);
/*
 * Writes the last `width` eigenvectors to the columns of `to`, the last eigenvector first. `to` has
 * m rows of `rank` elements, which are ld elements apart. Columns from `width` on become 0.
 * `vectors` [m][m] is column-major.
 */
cudaError_t kvd_merged_leading(const float *vectors, int32_t m, int32_t width, int32_t rank,
                               uint16_t *to, int32_t ld, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifndef __cplusplus
#include "methods/cuda/paged_cache.h"

/* The request in each slot, for methods that merge the layers of prompts. */
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
 * Sets the lengths of the prompts of the iteration's requests. In timing runs, tokens before the
 * iteration that were never processed count as tokens of the prompt. Returns true if the prompt of
 * a slot has changed.
 */
bool kvd_merged_slots_begin(kvd_merged_slots *s, const kvd_iteration *it);
/*
 * After an iteration, updates the numbers of tokens of the slots and, by calling m->bits for each
 * slot, s->held.
 */
void kvd_merged_slots_end(kvd_merged_slots *s, const kvd_gpu_method *m, const kvd_iteration *it);
/*
 * Returns device memory filled with random numbers, so that runs can time caches that were never
 * written. Returns NULL on failure.
 */
uint16_t *kvd_merged_pool(kvd_device_memory *memory, size_t elements, float deviation,
                          cudaStream_t stream, kvd_err *err);
#endif
#endif
