#ifndef KVD_METHODS_DIMS_CUDA_STRAWMAN_PARTS_H
#define KVD_METHODS_DIMS_CUDA_STRAWMAN_PARTS_H

#include "methods/dims/cuda/latent_span.h"
#include "methods/dims/cuda/latents.h"
#include "methods/tokens/cuda/zdc_method.h"

/* Data on less important tokens, which keep fewer dimensions of K and V: how many dimensions they
 * keep, and how many bytes this saves. */
typedef struct {
    /* [n_layers][n] in device memory. Member `width`: number of dimensions of K or V that less
     * important tokens keep; 0 in layers with a sliding window. NULL: all tokens keep equally
     * many. */
    kvd_latent_basis *low;
    kvd_zdc_levels of;
    /* [layers without a sliding window] Bytes by which a less important token is smaller than an
     * important one. */
    double *saved;
    /* Bytes saved in the caches of all running requests because less important tokens keep fewer
     * dimensions. */
    double less;
} kvd_strawman_levels;

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_latent_store store;
    kvd_gpu_worker *w;
    /* n: number of projections per layer, one for K and one for V of each KV head. wide: largest
     * rank of a projection, a multiple of 16. */
    int n, wide;
    /* True if all requests use the same projection matrices. */
    bool shared;
    /* [n_layers][n] in device memory: width, rank and offset of the projection of each head's K or
     * V. */
    kvd_latent_basis *basis;
    /* A request has one array with the projection matrices of all layers. layer_at [n_layers]:
     * offset of each layer's matrices in it. `each`: number of elements of the array. */
    size_t *layer_at, each;
    /* matrix_kept: number of elements of a request's projections, without padding. token_kept:
     * number of stored elements per token, over all layers without a sliding window. */
    size_t matrix_kept, token_kept;
    /* [slots][n_layers] in device memory: projections of all KV heads, first for K, then for V. */
    uint16_t *matrix;
    /* [n][d_head][wide] in device memory: projections padded with zeros to equal ranks. NULL if all
     * ranks are equal without padding. */
    uint16_t *padded;
    /* [max_tokens][n][d_head] in device memory: K, then V, of the prompts' tokens before
     * projection. n is twice the number of KV heads. */
    uint16_t *rows;
    /* [max_tokens][n_heads][d_head] in device memory: Q of the prompts' tokens. NULL if the
     * projections do not depend on Q. */
    uint16_t *queries;
    /* [max_tokens][n][wide] in device memory: K and V multiplied by the projection matrices. */
    uint16_t *cut;
    float *gram;
    /* [n_layers][n_kv_heads][d_head][d_head] in device memory: W_O W_O^T of each KV head. NULL if
     * the projections do not depend on W_O. */
    float *outputs;
    kvd_latent_solver solver;
    /* [max_slices][n_layers][n] in pinned memory: cuSOLVER's status of each eigendecomposition, 0
     * after success. */
    int *host_info;
    size_t prompts; /* number of prompts in the iteration */
    kvd_strawman_levels levels;
} kvd_strawman;

/* Returns how many dimensions of K (side 0) or V (side 1) KV head g of a layer keeps according to
 * `widths`. If `widths` is NULL, the method's parameters decide. */
int kvd_strawman_width(const kvd_strawman *s, const kvd_dims *widths, int layer, int side, int g);

/* Allocates those arrays of s->levels whose size does not depend on the number of requests. */
int kvd_strawman_levels_make(kvd_strawman *s, kvd_err *err);
int kvd_strawman_levels_make_slots(kvd_strawman *s, size_t slots, kvd_err *err);
/* Must be called before each iteration. For prompts that a timing run skipped, sets an assumed
 * number of less important tokens. */
int kvd_strawman_levels_begin(kvd_strawman *s, const kvd_iteration *it, kvd_err *err);
/* Chooses the important tokens of prompts. Must be called after the attention of the prompts, and
 * only in layers without a sliding window. */
int kvd_strawman_levels_choose(kvd_strawman *s, const kvd_paged_rows *r, kvd_err *err);
/* Sets the last dimensions of projected K and V to 0 for less important prompt tokens. Must be
 * called only in layers without a sliding window. */
int kvd_strawman_levels_narrow(const kvd_strawman *s, const kvd_paged_rows *r, kvd_err *err);
/* After an iteration, updates each request's number of tokens, and the bytes saved by storing fewer
 * dimensions of less important tokens. Must be called before kvd_latent_store_note. */
void kvd_strawman_levels_ended(kvd_strawman *s, const kvd_iteration *it);
/* Returns by how many elements a request's cache is smaller, over all layers, because less
 * important tokens keep fewer dimensions. */
double kvd_strawman_levels_low(const kvd_strawman *s, size_t slot);
/* Returns how many less important tokens a request has, summed over KV heads and layers. */
size_t kvd_strawman_levels_tokens(const kvd_strawman *s, size_t slot);

#endif
