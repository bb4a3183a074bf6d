/*
 * Pool of latents for a cache whose bf16 pages hold one layer at a time (method.h, one_layer). It
 * stores K and V of all layers as latents, under the page numbers of the cache, and describes the
 * launches that restore pages from it. A group of adjacent KV heads shares one latent of K and one
 * of V.
 */
#ifndef KVD_METHODS_DIMS_CUDA_LATENT_STORE_H
#define KVD_METHODS_DIMS_CUDA_LATENT_STORE_H

#include "methods/cuda/paged_cache.h"
#include "methods/dims/cuda/latents.h"

/*
 * Layout of a layer's latents; index [2]: 0 is K, 1 is V. The caller sets `rank` and `matrix`
 * between kvd_latent_store_begin and kvd_latent_store_init, and `up` and `applies_rope` before the
 * first launch; the store sets the other members.
 */
typedef struct {
    int *rank[2]; /* [n_groups]: rank of each group's latent, a multiple of 16 */
    /*
     * First element of each head's B^T [d_head][rank] in `up`, [n_kv_heads]; -1: latents are read
     * without a product.
     */
    int *matrix[2];
    const void *up;    /* matrices B^T that rebuild rows from latents, on the device */
    bool applies_rope; /* true if RoPE is applied to restored keys */
    /*
     * `page` is the number of elements per page of latents. `at` is the element of the pool at
     * which the layer's first page starts.
     */
    size_t page, at;
    int first_run, n_runs, max_rank;
    size_t latent_pitch; /* elements per token: ranks of all groups, K and V */
} kvd_latent_layer;

/* Pool of latents of all layers, its tables, and the tokens that slots hold. */
typedef struct {
    kvd_paged_cache *cache; /* borrowed */
    kvd_device_memory memory;
    int heads; /* number of KV heads per group */
    kvd_latent_layer *layer;
    kvd_latent_head *head; /* device [n_layers][n_kv_heads] */
    int32_t *run;          /* device [n_layers][n_runs] */
    uint16_t *pool;
    size_t page_bytes; /* bytes per page number, all layers */
    /* True if each slot has its own matrices; false if all slots share them. */
    bool of_slots;
    size_t matrix_slot; /* number of elements of one slot's matrices */
    /* Counts of the memory that slots hold. */
    uint32_t *tokens; /* [n_slots] */
    size_t n_slots, slot_bytes;
    double held;
} kvd_latent_store;

/*
 * Creates the layers of the store, whose members the caller then sets. `heads` is the number of KV
 * heads per group.
 */
int kvd_latent_store_begin(kvd_latent_store *s, kvd_paged_cache *c, int heads, kvd_err *err);
/* Makes the device tables that describe the layers. The cache's maps must be those of its pages. */
int kvd_latent_store_init(kvd_latent_store *s, cudaStream_t stream, kvd_err *err);
/*
 * Allocates the pool of latents and fills it with random numbers, as the cache does with its pages.
 */
int kvd_latent_store_make(kvd_latent_store *s, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err);
/* Frees all memory of the store; the cache is not freed. */
void kvd_latent_store_release(kvd_latent_store *s);

/*
 * Returns a description of the slices of the running batch: its first n decode steps, or its n
 * prompts (or pieces of prompts) if `prompts` is true.
 */
kvd_latent_slices kvd_latent_store_slices(const kvd_latent_store *s, bool prompts, size_t n);
/*
 * Sets the members of *a that describe a layer's tables and pool. The caller sets the members for
 * queries.
 */
void kvd_latent_store_describe(const kvd_latent_store *s, int layer, kvd_latent_put_args *a);
/*
 * Returns the arguments of the kernel that restores the pages of a layer from latents, for the
 * slices of kvd_latent_store_slices.
 */
kvd_latent_restore_args kvd_latent_store_restored(const kvd_latent_store *s, int layer,
                                                  bool prompts, size_t n);
/* Returns the address of the first page of a layer in the pool of latents. */
void *kvd_latent_store_pool(const kvd_latent_store *s, int layer);

/* Updates the counts of tokens and bytes held, `tokens` and `held`, after an iteration. */
void kvd_latent_store_note(kvd_latent_store *s, const kvd_iteration *it);

#endif
