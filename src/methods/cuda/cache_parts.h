/* What the files of methods/cuda share: the matrices of a layer, and the engine of products (the other is model/cuda/paged.h). */
#ifndef KVD_METHODS_CUDA_CACHE_PARTS_H
#define KVD_METHODS_CUDA_CACHE_PARTS_H

#include "methods/cuda/cache.h"
#include "model/cuda/blocks.h"
#include "model/cuda/paged.h"

/*
 * One layer of a cache, its matrices on the device; NULL: the identity. In the form of its engine: for products float32
 * [n_kv_heads][d_head][d_head]; for the kernels bf16, [d_head][d_qk], [d_head][d_v] and [d_v][d_head] of the KV heads one after another at
 * the widths of the map. Columns (rows of b_v) beyond a head's width are zero. a_k is a_q when one matrix serves both.
 *
 * Latents, of groups of `heads` KV heads side by side: a_k and a_v float32 [groups][heads d_head][heads d_head], of which each head's part of
 * b_k and b_v [n_kv_heads][heads d_head][d_head] makes its keys before RoPE and its values; a_q NULL.
 */
typedef struct {
    bool kernels;
    kvd_attn_map map; /* of the kernels: widths rounded up to multiples of 16 */
    size_t kept;      /* numbers per token of the share, at the true widths   */
    const void *a_q, *a_k, *a_v, *b_v, *b_k;
    int heads; /* that share a latent; 0: no latents */
} kvd_cache_layer;

/* ---- matrices (cache_matrices.c) ---- */

/*
 * Which engine takes each layer, and its matrices, copied to the device and added to *memory: layer [c->n_layers], zeroed before. type: of
 * the cache, pass: of the pass, KVD_F32 where no layer may go to the kernels. dims NULL: the identity everywhere. Refuses a share that
 * parts heads of one latent.
 */
int kvd_cache_layers_make(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype pass, size_t max_len,
                          const kvd_dims *dims, kvd_dtype type, kvd_cache_layer *layer,
                          kvd_device_memory *memory, kvd_err *err);

/* ---- products (cache_products.c) ---- */

/* What latents are read with (cache_latents.c). */
typedef struct {
    float *read; /* [max_tokens][2 n_kv_heads * d_head] keys and values of full width; NULL: not made yet */
    float *cosine,
        *sine; /* kvd_batch_rope's; NULL without RoPE                                                   */
    uint32_t
        *rope_row; /* [max_tokens]                                                                          */
    uint32_t
        *host_row; /* the same on the host                                                                  */
    size_t n_rows; /* of them that are right                                                                */
    kvd_gpu_bad
        *bad; /* written, never read: what is not finite shows in the output                           */
} kvd_cache_latents;

typedef struct {
    kvd_device_memory memory;
    float *q_wide; /* [max_tokens][n_heads * d_head]; only in a bf16 pass   */
    float *k_wide, *v_wide;
    float *q_cut, *o_cut; /* Q', P V'                                              */
    float *k_cut, *v_cut; /* [max_tokens][n_kv_heads * d_head]                     */
    float *exact;         /* attention of prompts [max_tokens][n_heads * d_head]; NULL: not made yet */
    void *scratch;        /* of kvd_gpu_attend; NULL: not made yet                 */
    size_t max_len;
    kvd_cache_latents latents;
} kvd_cache_products;

/* Makes what is not there yet. */
int kvd_cache_products_init(kvd_cache_products *p, const kvd_config *c, const kvd_gpu_share *share,
                            kvd_dtype pass, size_t max_tokens, size_t max_len, bool latents, bool prompts,
                            kvd_err *err);
void kvd_cache_products_release(kvd_cache_products *p);
/* prompt: rows of every sequence before this one, but for its last, see keys and values as they are; 0: none do. */
int kvd_cache_products_run(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, size_t prompt, void *out,
                           kvd_err *err);

/* Rows of heads, float32. */
typedef struct {
    const float *x;
    size_t ld;
} kvd_head_rows;

/* y, m wide, = x, k wide, times a matrix [k][m], for n_tokens rows of `batch` heads; the strides are from head to head. */
typedef struct {
    const float *x, *matrix;
    float *y;
    size_t ldx, ldy, stride_x, stride_y, stride_matrix;
    int k, m, batch;
} kvd_heads_product;
int kvd_cache_product(const kvd_gpu_attention_in *in, const kvd_heads_product *a, kvd_err *err);

/* ---- latents (cache_latents.c) ---- */

int kvd_cache_latents_init(kvd_cache_latents *l, kvd_device_memory *memory, const kvd_config *c,
                           const kvd_gpu_share *share, size_t max_tokens, size_t max_len, kvd_err *err);
/*
 * Keys before RoPE and values become latents, are rounded to the type of the cache and read back: keys behind RoPE and values, both of
 * full width. k_cut and v_cut hold the latents.
 */
int kvd_cache_latents_read(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, kvd_head_rows *k, kvd_head_rows *v,
                           kvd_err *err);

#endif
