#ifndef KVD_METHODS_DIMS_CUDA_STRAWMAN_PARTS_H
#define KVD_METHODS_DIMS_CUDA_STRAWMAN_PARTS_H

#include "methods/dims/cuda/latent_span.h"
#include "methods/dims/cuda/latents.h"
#include "methods/tokens/cuda/zdc_method.h"

/*
 * Data for less important tokens, which store only the columns of kvd_plan.widths_low. In device
 * memory.
 */
typedef struct {
    /*
     * [n_layers][n] Columns that less important tokens keep. NULL if all tokens are equally
     * important.
     */
    kvd_latent_basis *low;
    kvd_zdc_levels of;
    /* [n_layers] Bytes that each less important token saves, in host memory. */
    double *saved;
    /* Bytes that the less important tokens of all running requests (slots) save. */
    double less;
} kvd_strawman_levels;

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_latent_store store;
    kvd_gpu_worker *w;
    /*
     * Number of matrices per layer (KV heads times 2, for K and V), and largest rank, a multiple of
     * 16.
     */
    int n, wide;
    /* True if all running requests use the same projections (kvd_plan.widths). */
    bool shared;
    /* [n_layers][n] Projections of each layer, in device memory. */
    kvd_latent_basis *basis;
    /*
     * [n_layers] Position of each layer's matrices in a slot, and number of elements of a running
     * request (slot).
     */
    size_t *layer_at, each;
    /*
     * Number of elements without padding: of a running request's matrices, and of a token in all
     * layers.
     */
    size_t matrix_kept, token_kept;
    /* [slots][n_layers] Projections of all heads, K first, in device memory. */
    uint16_t *matrix;
    /*
     * [n][d_head][wide] Zero-padded projections of each prompt or, if shared, of each layer, in
     * device memory. NULL if all ranks are equal.
     */
    uint16_t *padded;
    /* [max_tokens][n][d_head] K and V of the prompts' tokens, in device memory. */
    uint16_t *rows;
    /*
     * [max_tokens][n_heads][d_head] Q of the prompts' tokens, in device memory; NULL unless Gram
     * matrices include Q^T Q (online=1).
     */
    uint16_t *queries;
    /* [max_tokens][n][wide] Projected K and V, in device memory. */
    uint16_t *cut;
    float *gram;
    /* [n_layers][n_kv_heads][d_head][d_head] W_O W_O^T in device memory, or NULL. */
    float *outputs;
    kvd_latent_solver solver;
    /* [max_slices][n_layers][n] Status of each decomposition, in pinned memory. */
    int *host_info;
    size_t prompts; /* number of prompts in the iteration */
    kvd_strawman_levels levels;
} kvd_strawman;

/* Returns how many dimensions of K (side 0) or V (side 1) KV head g of a layer keeps. */
int kvd_strawman_width(const kvd_strawman *s, const kvd_dims *widths, int layer, int side, int g);

/*
 * Allocates the arrays whose size does not depend on the number of slots, including s->method.lse.
 */
int kvd_strawman_levels_make(kvd_strawman *s, kvd_err *err);
int kvd_strawman_levels_make_slots(kvd_strawman *s, size_t slots, kvd_err *err);
/* Prepares the data for less important tokens. Must be called before each iteration. */
int kvd_strawman_levels_begin(kvd_strawman *s, const kvd_iteration *it, kvd_err *err);
/* Chooses the important tokens of prompts. Must be called after the attention of the prompts. */
int kvd_strawman_levels_choose(kvd_strawman *s, const kvd_paged_rows *r, kvd_err *err);
int kvd_strawman_levels_narrow(const kvd_strawman *s, const kvd_paged_rows *r, kvd_err *err);
/*
 * Updates the counts of bytes. Must be called after each iteration, before kvd_latent_store_note.
 */
void kvd_strawman_levels_ended(kvd_strawman *s, const kvd_iteration *it);
/*
 * Returns how many elements the less important tokens of a running request (slot) save, over all
 * layers.
 */
double kvd_strawman_levels_low(const kvd_strawman *s, size_t slot);
/*
 * Returns how many less important tokens a running request (slot) has, summed over KV heads and
 * layers.
 */
size_t kvd_strawman_levels_tokens(const kvd_strawman *s, size_t slot);

#endif
