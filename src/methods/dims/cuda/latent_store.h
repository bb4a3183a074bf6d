/*
 * Pool of latent vectors (products of K or V with a projection matrix) in GPU memory, for a cache
 * whose bf16 pages hold one layer at a time (kvd_gpu_method.one_layer). The pool stores K and V of
 * all layers as latents, under the page numbers of the cache, and describes the launches that
 * restore pages from them. A group of adjacent KV heads shares one latent of K and one of V.
 */
#ifndef KVD_METHODS_DIMS_CUDA_LATENT_STORE_H
#define KVD_METHODS_DIMS_CUDA_LATENT_STORE_H

#include "methods/cuda/paged_cache.h"
#include "methods/dims/cuda/latents.h"

/*
 * Layout of the latents of one layer; index [2]: 0 is K, 1 is V. The caller sets `rank` and
 * `matrix` between kvd_latent_store_begin and kvd_latent_store_init, and `up` and `applies_rope`
 * before the first launch. The store sets the other members.
 */
typedef struct {
    /* Number of elements of each group's latent vector, a multiple of 16, [n_groups]. */
    int *rank[2];
    /*
     * Offset in `up`, in elements, of the matrix B^T [d_head][rank] of each KV head, [n_kv_heads].
     * -1: latents are read as they are, without a product.
     */
    int *matrix[2];
    /* Matrices B^T that rebuild rows of K and V from latents, in device memory. */
    const void *up;
    bool applies_rope; /* true if RoPE is applied to restored keys */
    /*
     * Number of elements per page of latents (page), and offset in the pool, in elements, of the
     * layer's first page (at).
     */
    size_t page, at;
    int first_run, n_runs, max_rank;
    /* Elements per token: the ranks of all groups, of K and of V, summed. */
    size_t latent_pitch;
} kvd_latent_layer;

/*
 * Pool of latents of all layers, its device tables, and the number of tokens that each slot holds.
 */
typedef struct {
    kvd_paged_cache *cache; /* borrowed */
    kvd_device_memory memory;
    int heads; /* number of adjacent KV heads that share a latent */
    kvd_latent_layer *layer;
    /* Layout of the latents of each head, in device memory, [n_layers][n_kv_heads]. */
    kvd_latent_head *head;
    /* Offset in a page of each run of 8 elements, in device memory, [n_layers][n_runs]. */
    int32_t *run;
    uint16_t *pool;
    /* Bytes per page of tokens, summed over all layers. */
    size_t page_bytes;
    /*
     * True if each slot (request) has its own projection matrices; false if all slots share them.
     */
    bool of_slots;
    size_t matrix_slot; /* number of elements of the matrices of one slot */
    /* Counts of the memory that the requests in the slots hold. */
    uint32_t *tokens; /* number of tokens in each slot, [n_slots] */
    size_t n_slots, slot_bytes;
    double held;
} kvd_latent_store;

/*
 * Creates the layers of the store, some members of which the caller then sets. `heads` is the
 * number of adjacent KV heads that share a latent.
 */
int kvd_latent_store_begin(kvd_latent_store *s, kvd_paged_cache *c, int heads, kvd_err *err);
/*
 * Makes the device tables that describe the layers. The caller must have set the kept dimensions of
 * all heads in the cache's layers (kvd_cache_layer.map) to their final values.
 */
int kvd_latent_store_init(kvd_latent_store *s, cudaStream_t stream, kvd_err *err);
/*
 * Allocates the pool of latents and fills it with random numbers, as the cache does with its pages,
 * so that steps can be timed without computed prompts.
 */
int kvd_latent_store_make(kvd_latent_store *s, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err);
/* Frees all memory of the store; the cache is not freed. */
void kvd_latent_store_release(kvd_latent_store *s);

/*
 * Describes the new rows of the running batch: those of its first n decode steps or, if `prompts`
 * is true, of its n prompts (or parts of prompts).
 */
kvd_latent_slices kvd_latent_store_slices(const kvd_latent_store *s, bool prompts, size_t n);
/*
 * Sets the members of *a that describe a layer's tables and pool. The caller sets the members for
 * queries.
 */
void kvd_latent_store_describe(const kvd_latent_store *s, int layer, kvd_latent_put_args *a);
/*
 * Returns the arguments of the kernel that restores the pages of a layer from latents, for the same
 * requests as kvd_latent_store_slices.
 */
kvd_latent_restore_args kvd_latent_store_restored(const kvd_latent_store *s, int layer,
                                                  bool prompts, size_t n);
/* Returns the device address of the first page of a layer in the pool of latents. */
void *kvd_latent_store_pool(const kvd_latent_store *s, int layer);

/* Updates the counts `tokens` and `held` after an iteration. */
void kvd_latent_store_note(kvd_latent_store *s, const kvd_iteration *it);

#endif
