/* GPU code of methods that store the K and V of a prompt together for several adjacent layers. K
 * and V of later tokens are stored for each layer.
 *
 * In method minicache, two layers share directions of K and V vectors. In method xkv, a group of
 * layers shares latent vectors. */
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

/* Arguments of the functions below: the requests of a batch, and the pages that hold their K and V,
 * in device memory. */
typedef struct {
    int32_t n, max_pages, n_sms;
    int32_t n_kv_heads, d_head; /* d_head is the number of elements of K (and of V) per KV head */
    /* [n] kv_len: number of cached tokens of each request, including new tokens. slot: cache slot
     * of each request. */
    const int32_t *kv_len, *slot;
    const int32_t *page_table; /* [n][max_pages] Pages of `first`, `second` and `length`. */
    /* The layer's pages in bf16 that attention reads, and their page table [n][max_pages]. */
    uint16_t *rows;
    const int32_t *rows_table;
    /* True if the requests are prompts, false if they are decode steps, each with one new token. */
    bool prompts;
    /* Pages of two merged layers, in the layout of `rows`:
     *
     * - first: for merged tokens, the directions of K and V, which both layers use; for other
     *   tokens, K and V of the first layer
     * - second: K and V of the second layer's unmerged tokens */
    uint16_t *first, *second;
    /* [pages][2 n_kv_heads][KVD_PAGE_TOKENS][2] bf16 norms of each token's K or V vector in the
     * first and in the second merged layer. Negative if the token's vectors are not merged. */
    uint16_t *length;
} kvd_merged_args;

cudaError_t kvd_pair_keep(const kvd_merged_args *a, cudaStream_t stream);
/* Measures the angle between the vectors that each prompt token has in two layers, a->first and
 * a->rows. Writes the smallest and the largest angle of each prompt's K and V to range [n][2][2] in
 * device memory. Angles are stored as the bits of a float32; the bits of smallest angles are
 * inverted. */
cudaError_t kvd_pair_measure(const kvd_merged_args *a, uint32_t *range, cudaStream_t stream);
/* Merges K and V of prompts in two adjacent layers by spherical interpolation.
 *
 * - a: K and V of the first layer in a->first, K and V of the second layer in a->rows
 * - range: smallest and largest angle between a token's two vectors, from kvd_pair_measure
 * - t: weight of the second layer
 * - gamma: 0.05, for example, leaves vectors unmerged if their angle is in the upper 5 % of `range`
 * - apart: [slots] increased by the number of unmerged vectors */
cudaError_t kvd_pair_merge(const kvd_merged_args *a, const uint32_t *range, double t, double gamma,
                           uint32_t *apart, cudaStream_t stream);
/* Writes K and V of one of two merged layers to a->rows, for attention. second: true for the second
 * layer, false for the first.
 *
 * In decode steps, the caller must have stored each request's newest token in a->first or, for the
 * second layer, in a->second. The function marks this token as unmerged. */
cudaError_t kvd_pair_restore(const kvd_merged_args *a, bool second, cudaStream_t stream);

/* Copies K and V of the tokens that follow the prompts. Adds zeros up to a multiple of 8 tokens.
 *
 * - a: a->first is the source, a->rows the destination
 * - prompt: [n] number of prompt tokens of each request, in device memory */
cudaError_t kvd_merged_copy_later(const kvd_merged_args *a, const int32_t *prompt,
                                  cudaStream_t stream);
/* Sets to[b] = of_slot[slot[b]] for n requests b, in device memory. */
cudaError_t kvd_merged_of_slots(const int32_t *of_slot, const int32_t *slot, int32_t n, int32_t *to,
                                cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifndef __cplusplus
#include "methods/cuda/paged_cache.h"

/* Prompt length and number of tokens of the request in each cache slot. */
typedef struct {
    struct kvd_merged_slot {
        size_t tokens; /* 0 if the slot has no request */
        size_t prompt;
    } * slot;
    size_t n;
    double held; /* bytes of all slots */
} kvd_merged_slots;

int kvd_merged_slots_make(kvd_merged_slots *s, size_t n, kvd_err *err);
void kvd_merged_slots_release(kvd_merged_slots *s);
/* Called at the start of an iteration. Records the prompt lengths of new requests, and returns true
 * if a request is new. */
bool kvd_merged_slots_begin(kvd_merged_slots *s, const kvd_iteration *it);
/* After an iteration, updates the number of tokens of each running request, and s->held, the bytes
 * of all requests. bits_of returns the number of stored bits of the request in a slot. */
void kvd_merged_slots_end(kvd_merged_slots *s, const kvd_gpu_method *m,
                          double (*bits_of)(const kvd_gpu_method *m, size_t slot),
                          const kvd_iteration *it);
/* Returns the fraction of a request's prompt that is in the sliding window when the request has n
 * tokens. Returns 0 if `window` is 0. */
static inline double kvd_merged_near(const kvd_merged_slots *s, size_t slot, size_t window,
                                     size_t n)
{
    const size_t prompt = s->slot[slot].prompt, gone = n > window ? n - window : 0;
    return window && prompt > gone ? (double)(prompt - gone) / (double)prompt : 0;
}
/* Returns device memory filled with normal random numbers of this standard deviation, for timing.
 * Returns NULL on failure. */
uint16_t *kvd_merged_pool(kvd_device_memory *memory, size_t elements, float deviation,
                          cudaStream_t stream, kvd_err *err);
#endif
#endif
