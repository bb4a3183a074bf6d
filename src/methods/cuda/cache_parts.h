/*
 * Declarations shared by the files of methods/cuda: the matrices of a layer, and the engine of
 * products (the other engine is model/pass/cuda/paged.h).
 */
#ifndef KVD_METHODS_CUDA_CACHE_PARTS_H
#define KVD_METHODS_CUDA_CACHE_PARTS_H

#include "methods/cuda/cache.h"
#include "model/pass/cuda/blocks.h"
#include "model/pass/cuda/paged.h"

/*
 * One layer of a cache with its matrices on the device; NULL means the identity. For the engine of
 * products the matrices are float32 [n_kv_heads][d_head][d_head]. For the kernels they are bf16,
 * [d_head][d_qk], [d_head][d_v] and [d_v][d_head] of the KV heads one after another at the widths
 * of the map. Columns (rows of b_v) beyond a head's width are zero. a_k equals a_q if one matrix
 * serves both.
 *
 * With latents, each shared by a group of `heads` neighbouring KV heads, a_k and a_v are float32
 * [groups][heads d_head][heads d_head] and map to the latents. Each head's part of b_k and b_v
 * [n_kv_heads][heads d_head][d_head] maps a latent to its keys before RoPE and to its values; a_q
 * is NULL.
 */
typedef struct {
    bool kernels;
    /* shape of the layer for the kernels: widths rounded up to multiples of 16 */
    kvd_attn_map map;
    size_t kept; /* numbers stored per token of this GPU's share, at the true widths */
    const void *a_q, *a_k, *a_v, *b_v, *b_k;
    int heads; /* number of KV heads that share a latent; 0: no latents */
} kvd_cache_layer;

/* ---- matrices (cache_matrices.c) ---- */

/*
 * Chooses the engine of each layer and copies its matrices to the device; their memory is added to
 * *memory. layer [c->n_layers] must be zeroed before. `type` is the type of the cache; `pass` is
 * the type of the pass, or KVD_F32 to keep all layers off the kernels. dims NULL means the identity
 * everywhere. Fails if the share separates heads that share a latent.
 */
int kvd_cache_layers_make(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype pass,
                          size_t max_len, const kvd_dims *dims, kvd_dtype type,
                          kvd_cache_layer *layer, kvd_device_memory *memory, kvd_err *err);

/*
 * Computes out [n_tokens][n_heads * d_head], bf16: multiplies every head of o [n_tokens][o_pitch],
 * the P V' of the kernels, by b_v of its KV head (cache.c).
 */
int kvd_cache_project_back(const kvd_gpu_attention_in *in, const kvd_cache_layer *l,
                           const uint16_t *o, uint16_t *out, kvd_err *err);

/* ---- products (cache_products.c) ---- */

/* Buffers for reading latents (cache_latents.c). */
typedef struct {
    /* Keys and values of full width, [max_tokens][2 n_kv_heads * d_head]; NULL until allocated. */
    float *read;
    float *cosine, *sine; /* tables of kvd_batch_rope; NULL without RoPE */
    uint32_t *rope_row;   /* [max_tokens] row of the RoPE tables for each row of the batch */
    uint32_t *host_row;   /* copy of rope_row on the host */
    size_t n_rows;        /* number of valid rows in rope_row */
    /*
     * Flag for non-finite numbers. Written but never read, because such numbers show in the output.
     */
    kvd_gpu_bad *bad;
} kvd_cache_latents;

typedef struct {
    kvd_device_memory memory;
    float *q_wide; /* [max_tokens][n_heads * d_head]; only in a bf16 pass */
    float *k_wide, *v_wide;
    float *q_cut, *o_cut; /* projected Q, and P V' of attention */
    float *k_cut, *v_cut; /* projected K and V, [max_tokens][n_kv_heads * d_head] */
    /* Attention output of prompts, [max_tokens][n_heads * d_head]; NULL until allocated. */
    float *exact;
    void *scratch; /* scratch of kvd_gpu_attend; NULL until allocated */
    size_t max_len;
    kvd_cache_latents latents;
} kvd_cache_products;

/* Allocates the buffers of the engine of products that are not allocated yet. */
int kvd_cache_products_init(kvd_cache_products *p, const kvd_config *c, const kvd_gpu_share *share,
                            kvd_dtype pass, size_t max_tokens, size_t max_len, bool latents,
                            bool prompts, kvd_err *err);
void kvd_cache_products_release(kvd_cache_products *p);
/*
 * Computes a layer's attention with float32 products. In every sequence the rows before row
 * `prompt`, except the sequence's last row, attend to unchanged keys and values; with 0, none do.
 */
int kvd_cache_products_run(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, size_t prompt, void *out,
                           kvd_err *err);

/* Rows of all heads in float32, ld elements apart. */
typedef struct {
    const float *x;
    size_t ld;
} kvd_head_rows;

/*
 * Arguments of a product y = x matrix with y of width m, x of width k and matrix [k][m], for
 * n_tokens rows of `batch` heads. Each stride is the distance from one head to the next.
 */
typedef struct {
    const float *x, *matrix;
    float *y;
    size_t ldx, ldy, stride_x, stride_y, stride_matrix;
    int k, m, batch;
} kvd_heads_product;
int kvd_cache_product(const kvd_gpu_attention_in *in, const kvd_heads_product *a, kvd_err *err);

/* ---- latents (cache_latents.c) ---- */

int kvd_cache_latents_init(kvd_cache_latents *l, kvd_device_memory *memory, const kvd_config *c,
                           const kvd_gpu_share *share, size_t max_tokens, size_t max_len,
                           kvd_err *err);
/*
 * Projects keys before RoPE and values to latents, and rounds these to the data type of the cache.
 * Rebuilds keys after RoPE and values, both of full width. k_cut and v_cut then hold the latents.
 */
int kvd_cache_latents_read(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, kvd_head_rows *k,
                           kvd_head_rows *v, kvd_err *err);

#endif
