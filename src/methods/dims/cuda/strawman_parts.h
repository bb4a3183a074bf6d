/* Types and functions shared by the files of method strawman in the CUDA engine. */
#ifndef KVD_METHODS_DIMS_CUDA_STRAWMAN_PARTS_H
#define KVD_METHODS_DIMS_CUDA_STRAWMAN_PARTS_H

#include "methods/dims/cuda/latent_store.h"

/*
 * Importance levels of the prompt tokens of a batch (method importance). Tokens that are not
 * important are called "other tokens". They store only the leading columns given by
 * kvd_plan.widths_low; the remaining columns are zero. Arrays are on the device unless another
 * place is named.
 */
typedef struct {
    /*
     * Columns that other (less important) tokens keep, [n_layers][n]; the member `at` is not used.
     * NULL: all tokens keep the same columns.
     */
    kvd_latent_basis *low;
    /*
     * Number of other (less important) tokens, [slots][n_layers], on the device and in pinned
     * memory.
     */
    int32_t *n_low, *host_low;
    size_t n_slots;
    /* Outputs and scratch memory of the kernels that kvd_zdc_choose launches. */
    float *lse, *value;
    float *sum; /* as in kvd_zdc_choose_by_all */
    uint8_t *level;
    int32_t *place;
    /*
     * Bytes that one other (less important) token saves compared with an important one, host
     * [n_layers].
     */
    double *saved;
    /*
     * Bytes that the less important tokens of all slots save after the latest iteration, because
     * they store fewer columns.
     */
    double less;
} kvd_strawman_levels;

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_latent_store store;
    kvd_gpu_worker *w;
    /*
     * `n`: number of KV heads times 2 (K and V). The rank of a head is its number of kept
     * dimensions, rounded up to a multiple of 16; `wide` is the largest rank of all heads and
     * layers.
     */
    int n, wide;
    /* True if all requests use the matrices of kvd_plan.widths. A slot then has no matrices. */
    bool shared;
    /* Projection matrices of a layer, device [n_layers][n]. */
    kvd_latent_basis *basis;
    /*
     * [n_layers] Offset of a layer's matrices among the matrices of a slot; `each` is the number of
     * elements of all matrices of a slot.
     */
    size_t *layer_at, each;
    /*
     * Numbers of elements from which stored bytes are computed, without padding: matrix_kept for
     * the matrices of a slot, token_kept for a token in all layers.
     */
    size_t matrix_kept, token_kept;
    /* Device [slots][n_layers]: projection matrices of all heads, with those of K first. */
    uint16_t *matrix;
    /*
     * Matrices with zero columns up to `wide`, device [n][d_head][wide] for each prompt of an
     * iteration or, if all requests share the matrices, for each layer. NULL if all ranks are
     * equal.
     */
    uint16_t *padded;
    /* Device array [max_tokens][n][d_head] of K and V of the prompts. */
    uint16_t *rows;
    /*
     * Device array [max_tokens][n_heads][d_head] of Q of the prompts. NULL unless Gram matrices
     * include Q^T Q (online=1).
     */
    uint16_t *queries;
    /* Device array [max_tokens][n][wide] of K and V of the prompts after projection. */
    uint16_t *cut;
    float *gram;
    /* W_O W_O^T of every KV head, device [n_layers][n_kv_heads][d_head][d_head], or NULL. */
    float *outputs;
    kvd_latent_solver solver;
    /* Status of all eigenvalue decompositions, in pinned host memory, [max_slices][n_layers][n]. */
    int *host_info;
    size_t prompts; /* number of prompts in the running iteration */
    kvd_strawman_levels levels;
} kvd_strawman;

/* Returns the number of kept dimensions of K (side 0) or V (side 1) of this GPU's KV head g. */
int kvd_strawman_width(const kvd_strawman *s, const kvd_dims *widths, int layer, int side, int g);

/*
 * Allocates the arrays of s->levels (data of tokens with different widths) that do not depend on
 * the number of slots, and sets s->method.lse.
 */
int kvd_strawman_levels_make(kvd_strawman *s, kvd_err *err);
/* Allocates the arrays of s->levels that have an element per slot. */
int kvd_strawman_levels_make_slots(kvd_strawman *s, size_t slots, kvd_err *err);
/* Prepares s->levels for an iteration. Must be called before each iteration. */
int kvd_strawman_levels_begin(kvd_strawman *s, const kvd_iteration *it, kvd_err *err);
/* Finds the important tokens of prompts. Must be called after the attention of the prompts. */
int kvd_strawman_levels_choose(kvd_strawman *s, const kvd_paged_rows *r, kvd_err *err);
/* Sets to 0 those columns of s->cut that less important tokens do not store. */
int kvd_strawman_levels_narrow(const kvd_strawman *s, const kvd_paged_rows *r, kvd_err *err);
/* Updates s->levels.less. Must be called after each iteration, before kvd_latent_store_note. */
void kvd_strawman_levels_ended(kvd_strawman *s, const kvd_iteration *it);
/* Returns the number of elements that less important tokens of a slot save, over all layers. */
double kvd_strawman_levels_low(const kvd_strawman *s, size_t slot);
/* Returns the number of less important tokens of a slot, summed over KV heads and layers. */
size_t kvd_strawman_levels_tokens(const kvd_strawman *s, size_t slot);
void kvd_strawman_levels_release(kvd_strawman *s);

#endif
