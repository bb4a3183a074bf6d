/*
 * Pool of latent vectors (products of K or V with a projection matrix) in GPU memory, for caches
 * whose bf16 pages hold only one layer at a time (kvd_gpu_method.one_layer). The pool stores the
 * latents of all layers, under the page numbers of the cache. A group of adjacent KV heads shares
 * one latent of K and one of V.
 */
#ifndef KVD_METHODS_DIMS_CUDA_LATENT_STORE_H
#define KVD_METHODS_DIMS_CUDA_LATENT_STORE_H

#include "common/cuda/libraries.h"
#include "methods/cuda/paged_cache.h"
#include "methods/dims/cuda/latents.h"

/*
 * Layout of the latents of one layer; index [2]: 0 is K, 1 is V. The caller must set `rank` and
 * `matrix` before kvd_latent_store_init, and `up` and `applies_rope` before the first kernel
 * launch.
 */
typedef struct {
    /* Number of elements of each group's latent vector, [n_groups]; a multiple of 16. */
    int *rank[2];
    /*
     * Offset in `up`, in elements, of each KV head's matrix B^T [d_head][rank], with which K or V
     * is rebuilt, [n_kv_heads]. -1: latents are used as they are.
     */
    int *matrix[2];
    const void *up;
    bool applies_rope;
    /*
     * `page` is the number of elements of a page of latents. `at` is the offset of the layer's
     * first page in the pool, in elements.
     */
    size_t page, at;
    int first_run, n_runs, max_rank;
    /* Number of elements per token: the sum of the ranks of all groups, of K and of V. */
    size_t latent_pitch;
} kvd_latent_layer;

typedef struct {
    kvd_paged_cache *cache; /* borrowed */
    kvd_device_memory memory;
    int heads; /* number of adjacent KV heads that share a latent */
    kvd_latent_layer *layer;
    /* Device [n_layers][n_kv_heads]. */
    kvd_latent_head *head;
    /*
     * Device memory, [n_layers][n_runs]: offset in a page of every run. A run is 8 consecutive
     * elements of a token's latents.
     */
    int32_t *run;
    /*
     * If not 0: the latents of a new token are [2][n_groups][wide], with unused elements after
     * latents of smaller rank. Must be set before kvd_latent_store_init.
     */
    int wide;
    /*
     * True if K and V are rebuilt from the same latents, which are stored once, in the place of the
     * latents of K. The ranks of K and V must be equal. Must be set before kvd_latent_store_init.
     */
    bool joint;
    /*
     * True if all layers use the same pages, one layer after another. Must be set before
     * kvd_latent_store_init.
     */
    bool one_layer;
    /*
     * Offset of each run in a token's latents in memory: [n_layers][n_runs]. NULL if the member
     * `wide` is 0.
     */
    int32_t *source;
    uint16_t *pool;
    /* Bytes that one page takes in all layers together, or in the largest one if one_layer. */
    size_t page_bytes;
    /*
     * Bytes that a token holds in all layers together: one of the first n_sink tokens of a request,
     * and a later one.
     */
    double sink_bytes, token_bytes;
    uint32_t n_sink;
    /*
     * True if each slot (request) has projection matrices of its own, false if all slots share
     * them.
     */
    bool of_slots;
    size_t matrix_slot; /* number of elements of the projection matrices of one slot */
    uint32_t *tokens;   /* number of tokens in each slot, [n_slots] */
    size_t n_slots, slot_bytes;
    /*
     * Bytes that all slots hold, including the slots of requests that end in the latest iteration.
     */
    double held;
} kvd_latent_store;

/*
 * Allocates the array of layers. The caller must then set `rank`, `matrix`, `up` and `applies_rope`
 * of each layer.
 */
int kvd_latent_store_begin(kvd_latent_store *s, kvd_paged_cache *c, int heads, kvd_err *err);
/*
 * Makes the device tables of the store. The caller must have set the layouts of K and V
 * (kvd_cache_layer.map) of all layers before.
 */
int kvd_latent_store_init(kvd_latent_store *s, cudaStream_t stream, kvd_err *err);
/*
 * Allocates the pool and fills it with random numbers, so that decode steps can be timed without
 * computing prompts.
 */
int kvd_latent_store_make(kvd_latent_store *s, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err);
void kvd_latent_store_release(kvd_latent_store *s);

/*
 * Returns the new tokens of n requests of the running batch: of the first n decode steps or, if
 * `prompts` is true, of the first n prompts (or parts of prompts).
 */
kvd_latent_slices kvd_latent_store_slices(const kvd_latent_store *s, bool prompts, size_t n);
/*
 * Sets the members of `*a` that describe the layer's tables and pool. The caller must set the
 * members that describe queries.
 */
void kvd_latent_store_describe(const kvd_latent_store *s, int layer, kvd_latent_put_args *a);
/*
 * Returns the arguments with which kvd_latent_restore computes the pages of a layer. `prompts`
 * selects prompts or decode steps, and `n` is their number, as in kvd_latent_store_slices.
 */
kvd_latent_restore_args kvd_latent_store_restored(const kvd_latent_store *s, int layer,
                                                  bool prompts, size_t n);
void *kvd_latent_store_pool(const kvd_latent_store *s, int layer);

/* Updates s->tokens and s->held. Must be called after each iteration. */
void kvd_latent_store_note(kvd_latent_store *s, const kvd_iteration *it);

/* Codes of one layer. */
typedef struct {
    int32_t n, words;          /* numbers of a token, and 32-bit words of its code */
    size_t code, store, exact; /* offsets of the layer in the arrays of kvd_latent_codes */
} kvd_latent_codes_layer;

/*
 * Latents that are stored as codes of method allot, while the pages of `store` hold one layer at a
 * time. The first tokens of a request are stored as they are.
 */
typedef struct {
    kvd_latent_store *store; /* borrowed; one_layer is true */
    kvd_latent_codes_layer *layer;
    const kvd_latent_code *code; /* device */
    /* Device [n_layers][2][KVD_LATENT_CODE_BITS + 1][2^KVD_LATENT_CODE_BITS]. */
    const float *level;
    uint32_t *words;
    uint16_t *exact;
    size_t page_bytes, slot_bytes; /* in all layers together */
    /* Bits of a token in all layers together, as the CPU counts them. */
    double sink_bits, token_bits;
} kvd_latent_codes;

/*
 * Makes the tables of an open method allot. dims: the projections of this GPU's KV heads. Must be
 * called after kvd_latent_store_init; the memory is that of the store. The caller must free
 * c->layer, also after a failure.
 */
int kvd_latent_codes_init(kvd_latent_codes *c, kvd_latent_store *store, const kvd_plan *plan,
                          const kvd_dims *dims, cudaStream_t stream, kvd_err *err);
/* Allocates the codes, and fills them with random numbers for timing. */
int kvd_latent_codes_make(kvd_latent_codes *c, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err);
/*
 * kvd_latent_codes_put codes the new tokens of decode steps and prompts from the pages of latents.
 * kvd_latent_codes_restore writes all tokens of decode steps but the new ones into these pages.
 */
int kvd_latent_codes_put(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err);
int kvd_latent_codes_restore(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err);
/* Returns the bits of a slot after the latest iteration. */
double kvd_latent_codes_bits(const kvd_latent_codes *c, size_t slot);

/* Computes eigenvectors of `n` symmetric matrices [d][d] at once, by cuSOLVER. */
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
 * Opens a solver. `*s` must be zeroed before. Device arrays belong to `memory`. The caller must
 * call kvd_latent_solver_close, also after a failure.
 */
int kvd_latent_solver_open(kvd_latent_solver *s, int d, int n, kvd_device_memory *memory,
                           cudaStream_t stream, kvd_err *err);
void kvd_latent_solver_close(kvd_latent_solver *s);
/*
 * Replaces the matrices by their eigenvectors, column-major and in rising order of their
 * eigenvalues. Copies the status of each matrix to host_info [n]: 0, or an error of cuSOLVER. Only
 * queues the work on the stream.
 */
int kvd_latent_solver_run(const kvd_latent_solver *s, float *matrix, int *host_info,
                          cudaStream_t stream, kvd_err *err);

#endif
