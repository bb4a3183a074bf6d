/*
 * Latents (K or V times a projection) of all layers, for caches whose bf16 pages hold one layer
 * (kvd_gpu_method.one_layer). Adjacent KV heads may share latents.
 */
#ifndef KVD_METHODS_DIMS_CUDA_LATENT_STORE_H
#define KVD_METHODS_DIMS_CUDA_LATENT_STORE_H

#include "common/cuda/libraries.h"
#include "methods/cuda/paged_cache.h"
#include "methods/dims/cuda/latents.h"

/*
 * Latents of one layer. Index [2]: 0 is K, 1 is V. Set rank and matrix before
 * kvd_latent_store_init, up and applies_rope before the first launch.
 */
typedef struct {
    /* [n_groups] Elements of each group's latent, multiple of 16. */
    int *rank[2];
    /* [n_kv_heads] Element offset in `up` of B^T [d_head][rank]. -1: latents are used directly. */
    int *matrix[2];
    const void *up;
    bool applies_rope;
    /* Elements of a page of latents, and element offset of the layer's first page in the pool. */
    size_t page, at;
    int first_run, n_runs, max_rank;
    /* Elements per token: sum of all ranks, K and V. */
    size_t latent_pitch;
} kvd_latent_layer;

typedef struct {
    kvd_paged_cache *cache; /* borrowed */
    kvd_device_memory memory;
    int heads; /* adjacent KV heads that share a latent */
    kvd_latent_layer *layer;
    /* Device [n_layers][n_kv_heads]. */
    kvd_latent_head *head;
    /* Device [n_layers][n_runs] Page offset of each run of 8 latent elements. */
    int32_t *run;
    /*
     * Nonzero: new latents are padded to [2][n_groups][wide]. 0: no gaps. Set before
     * kvd_latent_store_init.
     */
    int wide;
    /*
     * True if K and V share latents, stored as K's, of equal ranks. Set before
     * kvd_latent_store_init.
     */
    bool joint;
    /* True if all layers use the same pages. Set before kvd_latent_store_init. */
    bool one_layer;
    /* [n_layers][n_runs] Offset of each run in a token's latents; NULL without `wide`. */
    int32_t *source;
    uint16_t *pool;
    /* Bytes of a page in all layers (one_layer: the largest). */
    size_t page_bytes;
    /* Bytes that a token takes in all layers: one of the first n_sink tokens, and a later one. */
    double sink_bytes, token_bytes;
    uint32_t n_sink;
    /* True if each slot has its own projections. */
    bool of_slots;
    size_t matrix_slot; /* elements of a slot's projection matrices */
    uint32_t *tokens;   /* [n_slots] */
    size_t n_slots, slot_bytes;
    /* Bytes of all slots, including those of requests that have just finished. */
    double held;
} kvd_latent_store;

/* Allocates the layers; the caller must then set rank, matrix, up and applies_rope of each. */
int kvd_latent_store_begin(kvd_latent_store *s, kvd_paged_cache *c, int heads, kvd_err *err);
/* Makes the device tables. Requires kvd_cache_layer.map of all layers. */
int kvd_latent_store_init(kvd_latent_store *s, cudaStream_t stream, kvd_err *err);
/* Allocates the pool and fills it with random numbers, for timing. */
int kvd_latent_store_make(kvd_latent_store *s, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err);
void kvd_latent_store_release(kvd_latent_store *s);

/* Returns the new tokens of the first n decode steps or, with `prompts`, of the first n prompts. */
kvd_latent_slices kvd_latent_store_slices(const kvd_latent_store *s, bool prompts, size_t n);
/* Sets the tables and pool of `*a`; the caller sets the queries. */
void kvd_latent_store_describe(const kvd_latent_store *s, int layer, kvd_latent_put_args *a);
/* Returns the arguments of kvd_latent_restore for n decode steps or prompts. */
kvd_latent_restore_args kvd_latent_store_restored(const kvd_latent_store *s, int layer,
                                                  bool prompts, size_t n);
void *kvd_latent_store_pool(const kvd_latent_store *s, int layer);

/* Updates s->tokens and s->held. Must be called after each iteration. */
void kvd_latent_store_note(kvd_latent_store *s, const kvd_iteration *it);

typedef struct {
    int32_t n, words;          /* coded numbers per token; 32-bit words of a token's code */
    size_t code, store, exact; /* offsets of the layer in three arrays of kvd_latent_codes */
} kvd_latent_codes_layer;

/*
 * Latents that method allot has coded, except a request's first tokens. Pages of `store` hold one
 * layer.
 */
typedef struct {
    kvd_latent_store *store; /* borrowed; one_layer is true */
    kvd_latent_codes_layer *layer;
    const kvd_latent_code *code; /* device */
    /*
     * Device [n_layers][2][KVD_LATENT_CODE_BITS + 1][2^KVD_LATENT_CODE_BITS] levels, by layer, K or
     * V, and bits.
     */
    const float *level;
    uint32_t *words;
    uint16_t *exact;
    size_t page_bytes, slot_bytes; /* in all layers together */
    /* Bits of a token in all layers, counted like on the CPU. */
    double sink_bits, token_bits;
} kvd_latent_codes;

/*
 * Makes the tables of method allot. `dims` has the projections of this GPU's KV heads. Call after
 * kvd_latent_store_init. The caller must free c->layer, also after a failure.
 */
int kvd_latent_codes_init(kvd_latent_codes *c, kvd_latent_store *store, const kvd_plan *plan,
                          const kvd_dims *dims, cudaStream_t stream, kvd_err *err);
/* Allocates the codes and fills them with random numbers, for timing. */
int kvd_latent_codes_make(kvd_latent_codes *c, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err);
/*
 * kvd_latent_codes_put codes new tokens from the pages of latents. kvd_latent_codes_restore decodes
 * the other tokens of decode steps into these pages.
 */
int kvd_latent_codes_put(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err);
int kvd_latent_codes_restore(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err);
double kvd_latent_codes_bits(const kvd_latent_codes *c, size_t slot);

/* Eigenvectors of `n` symmetric matrices [d][d] at once, by cuSOLVER. */
typedef struct {
    const kvd_cusolver *lib;
    cusolverDnHandle_t handle;
    cusolverDnParams_t params;
    int d, n;
    float *value;
    int *info; /* status of each matrix, device [n] */
    void *work, *host_work;
    size_t work_bytes, host_bytes;
} kvd_latent_solver;

/*
 * `*s` must be zeroed. `memory` owns device arrays. The caller must call kvd_latent_solver_close,
 * also after a failure.
 */
int kvd_latent_solver_open(kvd_latent_solver *s, int d, int n, kvd_device_memory *memory,
                           cudaStream_t stream, kvd_err *err);
void kvd_latent_solver_close(kvd_latent_solver *s);
/*
 * Queues the replacement of the matrices by their eigenvectors, column-major, in rising order of
 * eigenvalues. host_info [n]: 0 or cuSOLVER's error.
 */
int kvd_latent_solver_run(const kvd_latent_solver *s, float *matrix, int *host_info,
                          cudaStream_t stream, kvd_err *err);

#endif
