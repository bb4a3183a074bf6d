/*
 * The pool of latents behind a cache whose bf16 pages hold one layer at a time (method.h, one_layer): what lasts of K and V, under the same page
 * numbers, and who restores the pages from it. Groups of adjacent KV heads share a latent of each side.
 */
#ifndef KVD_SERVING_CUDA_LATENT_STORE_H
#define KVD_SERVING_CUDA_LATENT_STORE_H

#include "serving/cuda/cache.h"
#include "serving/cuda/methods/latents.h"

/* [2]: K, V. Set before kvd_latent_store_init. */
typedef struct {
    int *rank[2];    /* [n_groups], multiples of 16                                             */
    int *matrix[2];  /* [n_kv_heads] element of B^T [d_head][rank]; -1: latents are read as they are */
    const void *up;  /* device, of these matrices                                              */
    bool turns;      /* keys are turned when they are restored                                 */
    size_t page, at; /* elements of a page; element of the layer's first page in the pool      */
    int first_run, n_runs, max_rank;
    size_t latent_pitch; /* ranks of all groups and both sides: a token's numbers              */
} kvd_latent_layer;

typedef struct {
    kvd_serving_cache *cache; /* borrowed */
    kvd_device_memory memory;
    int heads; /* KV heads of a group */
    kvd_latent_layer *layer;
    kvd_latent_head *head; /* device [n_layers][n_kv_heads] */
    int32_t *run;          /* device [n_layers][n_runs]     */
    uint16_t *pool;
    size_t page_bytes; /* of a page number, all layers */
    /* of matrices of each slot (NULL slots: shared) */
    bool of_slots;
    size_t matrix_slot; /* elements */
    /* what slots hold */
    uint32_t *tokens; /* [n_slots] */
    size_t n_slots, slot_bytes;
    double held;
} kvd_latent_store;

/* Layers whose members the caller sets. */
int kvd_latent_store_begin(kvd_latent_store *s, kvd_serving_cache *c, int heads, kvd_err *err);
/* Their tables; the cache's maps are what the pages will have. */
int kvd_latent_store_init(kvd_latent_store *s, cudaStream_t stream, kvd_err *err);
/* The pool, full of random numbers as the cache's own. */
int kvd_latent_store_make(kvd_latent_store *s, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);
void kvd_latent_store_release(kvd_latent_store *s);

/* Steps (prompts false) or pieces of prompts of the running batch. */
kvd_latent_slices kvd_latent_store_slices(const kvd_latent_store *s, bool prompts, size_t n);
/* A layer's tables and pool for kvd_latent_put; queries are the caller's. */
void kvd_latent_store_describe(const kvd_latent_store *s, int layer, kvd_latent_put_args *a);
kvd_latent_restore_args kvd_latent_store_restored(const kvd_latent_store *s, int layer, bool prompts,
                                                  size_t n);
void *kvd_latent_store_pool(const kvd_latent_store *s, int layer);

/* After an iteration: what is held then. */
void kvd_latent_store_note(kvd_latent_store *s, const kvd_iteration *it);

#endif
