/*
 * Declarations shared by the files of methods/cuda: the matrices of a layer, and the float32
 * products (the bf16 kernels are called through model/pass/cuda/paged.h).
 */
#ifndef KVD_METHODS_CUDA_CACHE_PARTS_H
#define KVD_METHODS_CUDA_CACHE_PARTS_H

#include "methods/cuda/cache.h"
#include "model/pass/cuda/blocks.h"
#include "model/pass/cuda/paged.h"

/*
 * One layer of a cache with its projection matrices on the device; NULL means the identity. For the
 * float32 products the matrices are [n_kv_heads][d_head][d_head]. For the bf16 kernels they are in
 * bf16, [d_head][d_qk], [d_head][d_v] and [d_v][d_head] of the KV heads one after another; d_qk and
 * d_v are the kept dimensions of a head, which `map` holds. Columns (rows of b_v) beyond a head's
 * kept dimensions are zero. a_k equals a_q if one matrix serves both.
 *
 * In a method with latents, `heads` neighbouring KV heads form a group and share one latent vector.
 * All matrices are then float32. a_k and a_v, [groups][heads d_head][heads d_head], compute the
 * latents from the keys and values of a group. b_k and b_v, [n_kv_heads][heads d_head][d_head],
 * compute the keys (before RoPE) and the values of each head from the latent. a_q is NULL.
 */
typedef struct {
    bool kernels;
    /* Kept dimensions of the heads as the kernels see them, rounded up to multiples of 16. */
    kvd_attn_map map;
    /*
     * Numbers stored per token for the heads of this GPU, without the rounding to multiples of 16.
     */
    size_t kept;
    const void *a_q, *a_k, *a_v, *b_v, *b_k;
    int heads; /* number of KV heads that share a latent; 0: no latents */
} kvd_cache_layer;

/* ---- matrices (cache_matrices.c) ---- */

/*
 * Chooses between kernels and float32 products for each layer, copies its matrices to the device,
 * and adds their memory to *memory. layer [c->n_layers] must be zeroed before. `type` is the data
 * type of the cache. `pass` is the data type of the forward pass, or KVD_F32 to keep all layers off
 * the kernels. Layers with a window shorter than max_len are kept off the kernels too; if the
 * caller's kernels compute windows, max_len is 0. If dims is NULL, no head is projected. Fails if
 * the division of heads between GPUs separates heads that share a latent.
 */
int kvd_cache_layers_make(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype pass,
                          size_t max_len, const kvd_dims *dims, kvd_dtype type,
                          kvd_cache_layer *layer, kvd_device_memory *memory, kvd_err *err);

/*
 * Computes the attention output out [n_tokens][n_heads * d_head], bf16: multiplies every head of o
 * [n_tokens][o_pitch], the P V' of the kernels, by b_v of its KV head. Defined in cache.c.
 */
int kvd_cache_project_back(const kvd_gpu_attention_in *in, const kvd_cache_layer *l,
                           const uint16_t *o, uint16_t *out, kvd_err *err);

/* ---- float32 products (cache_products.c) ---- */

/* Buffers for keys and values that are rebuilt from latents (cache_latents.c). */
typedef struct {
    /*
     * Rebuilt keys and values, d_head dimensions per head, [max_tokens][2 n_kv_heads * d_head].
     * NULL until allocated.
     */
    float *read;
    float *cosine, *sine; /* tables of kvd_batch_rope; NULL if the model has no RoPE */
    /* Row of the RoPE tables for each token of the batch, [max_tokens]. */
    uint32_t *rope_row;
    uint32_t *host_row; /* copy of rope_row on the host */
    size_t n_rows;      /* number of valid elements of rope_row */
    /*
     * Flag that kernels set for non-finite numbers. It is never read, because such numbers show in
     * the output.
     */
    kvd_gpu_bad *bad;
} kvd_cache_latents;

typedef struct {
    kvd_device_memory memory;
    /* Q in float32, [max_tokens][n_heads * d_head]; allocated only in a bf16 pass. */
    float *q_wide;
    float *k_wide, *v_wide;
    /* Projected Q, and attention output before it is projected back. */
    float *q_cut, *o_cut;
    /* Projected K and V, [max_tokens][n_kv_heads * d_head]. */
    float *k_cut, *v_cut;
    /*
     * Attention output of prompts over unchanged K and V, [max_tokens][n_heads * d_head]. NULL
     * until allocated.
     */
    float *exact;
    /* Scratch memory of kvd_gpu_attend; NULL until allocated. */
    void *scratch;
    size_t max_len;
    kvd_cache_latents latents;
} kvd_cache_products;

/* Allocates the buffers of the float32 products that are not allocated yet. */
int kvd_cache_products_init(kvd_cache_products *p, const kvd_config *c, const kvd_gpu_share *share,
                            kvd_dtype pass, size_t max_tokens, size_t max_len, bool latents,
                            bool prompts, kvd_err *err);
void kvd_cache_products_release(kvd_cache_products *p);
/*
 * Computes the attention of one layer with float32 products. In every sequence the tokens before
 * position `prompt`, except the last token of the sequence, attend to unchanged keys and values. If
 * `prompt` is 0, no token does.
 */
int kvd_cache_products_run(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, size_t prompt, void *out,
                           kvd_err *err);

/* Rows of all heads in float32. `ld` is the number of floats from one row to the next. */
typedef struct {
    const float *x;
    size_t ld;
} kvd_head_rows;

/*
 * Arguments of a product y = x matrix for n_tokens rows of each of `batch` heads. Rows of x have k
 * floats, rows of y have m floats, and matrix is [k][m]. ldx and ldy are the distances of rows;
 * each stride is the distance from one head to the next.
 */
typedef struct {
    const float *x, *matrix;
    float *y;
    size_t ldx, ldy, stride_x, stride_y, stride_matrix;
    int k, m, batch;
} kvd_heads_product;
int kvd_cache_product(const kvd_gpu_attention_in *in, const kvd_heads_product *a, kvd_err *err);

/* ---- latent vectors (cache_latents.c) ---- */

int kvd_cache_latents_init(kvd_cache_latents *l, kvd_device_memory *memory, const kvd_config *c,
                           const kvd_gpu_share *share, size_t max_tokens, size_t max_len,
                           kvd_err *err);
/*
 * Projects keys before RoPE and values to latents, and rounds the latents to the data type of the
 * cache. Then rebuilds keys after RoPE and values from them, with d_head dimensions per head, into
 * *k and *v. k_cut and v_cut hold the latents afterwards.
 */
int kvd_cache_latents_read(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, kvd_head_rows *k,
                           kvd_head_rows *v, kvd_err *err);

#endif
