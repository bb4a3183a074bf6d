/*
 * CUDA engine of methods that store K and V of prompts for adjacent layers together (bf16,
 * kernels/layout.h); later tokens stay separate.
 *
 * minicache: K or V of two layers share a direction and keep their lengths. xkv: latent vectors
 * (dims/cuda/latents.h) shared by a group of layers.
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

/*
 * Requests of a batch, and their stored pages of one or two layers. Pointers are to device memory.
 */
typedef struct {
    int32_t n, max_pages, n_sms;
    int32_t n_kv_heads, d_head; /* d_head is the number of elements of K (and of V) per KV head */
    /*
     * [n] Number of each request's cached tokens including new ones, and index of its cache memory
     * (slot).
     */
    const int32_t *kv_len, *slot;
    const int32_t *page_table; /* [n][max_pages] */
    /* Pages in bf16 that attention reads. */
    uint16_t *rows;
    /*
     * Pages like `rows`. `first` holds common directions and unmerged vectors of the first layer,
     * `second` vectors of the second layer.
     */
    uint16_t *first, *second;
    /*
     * [pages][2 n_kv_heads][KVD_PAGE_TOKENS][2] Vector lengths in the two layers, K then V of each
     * KV head. Negative: unmerged.
     */
    uint16_t *length;
} kvd_merged_args;

cudaError_t kvd_pair_keep(const kvd_merged_args *a, cudaStream_t stream);
/*
 * Measures angles between prompt vectors in `first` and `rows`. range [n][2][2], in device memory,
 * receives for K and V: inverted bits of the smallest angle (float32 radians, for atomic maxima),
 * and bits of the largest.
 */
cudaError_t kvd_pair_measure(const kvd_merged_args *a, uint32_t *range, cudaStream_t stream);
/*
 * Merges prompts by spherical interpolation from `first` (t = 0) to `rows` (t = 1), except vectors
 * whose angles are in the upper fraction `gamma` of the range. Adds the number of unmerged vectors
 * of a request in slot s to apart[s], in device memory.
 */
cudaError_t kvd_pair_merge(const kvd_merged_args *a, const uint32_t *range, double t, double gamma,
                           uint32_t *apart, cudaStream_t stream);
/*
 * Writes to `rows` the keys and values that decode steps read in one of two layers whose prompts
 * are merged: in the second layer if `second`, otherwise in the first. The newest tokens must be in
 * `first` or `second`, marked unmerged.
 */
cudaError_t kvd_pair_restore(const kvd_merged_args *a, bool second, cudaStream_t stream);

/*
 * Copies each request's tokens from index prompt[b] on to `rows`. prompt [n] is in device memory.
 * Rows after the last token become 0 up to a multiple of 8.
 */
cudaError_t kvd_merged_copy_later(const kvd_merged_args *a, const int32_t *prompt,
                                  cudaStream_t stream);
/* Sets to[b] = of_slot[slot[b]] for n requests b. All arrays are in device memory. */
cudaError_t kvd_merged_of_slots(const int32_t *of_slot, const int32_t *slot, int32_t n, int32_t *to,
                                cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifndef __cplusplus
#include "methods/cuda/paged_cache.h"

/* Request in each cache slot, kept for methods that merge layers when a prompt ends. */
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
/*
 * Sets the lengths of prompts. In timing runs, cached tokens that no request processed count as
 * prompt tokens. Returns true if a running request's prompt changed.
 */
bool kvd_merged_slots_begin(kvd_merged_slots *s, const kvd_iteration *it);
/*
 * After an iteration, updates how many tokens each running request (slot) has and how many bytes
 * are stored (s->held). m->bits is called for the stored bits of a running request (slot).
 */
void kvd_merged_slots_end(kvd_merged_slots *s, const kvd_gpu_method *m, const kvd_iteration *it);
/* Returns device memory filled with random numbers, for timing, or NULL on failure. */
uint16_t *kvd_merged_pool(kvd_device_memory *memory, size_t elements, float deviation,
                          cudaStream_t stream, kvd_err *err);
#endif
#endif
