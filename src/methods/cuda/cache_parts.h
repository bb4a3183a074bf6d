#ifndef KVD_METHODS_CUDA_CACHE_PARTS_H
#define KVD_METHODS_CUDA_CACHE_PARTS_H

#include "methods/cuda/cache.h"
#include "model/pass/cuda/blocks.h"
#include "model/pass/cuda/paged.h"

/*
 * Projection matrices of one layer on the device. NULL means the identity. a_q, a_k and a_v project
 * Q, K and V. b_k rebuilds keys, b_v rebuilds values or outputs.
 *
 * float32 products: [n_kv_heads][d_head][d_head].
 *
 * bf16 kernels: bf16, per KV head, a_q and a_k [d_head][d_qk], a_v [d_head][d_v], b_v
 * [d_v][d_head].
 *
 * latent vectors: float32, a_q NULL, a_k and a_v [groups][heads d_head][heads d_head], b_k (before
 * RoPE) and b_v [n_kv_heads][heads d_head][d_head].
 *
 * Columns (rows of b_v) beyond a head's kept dimensions are zero. a_k may equal a_q.
 */
typedef struct {
    bool kernels;
    /* Kept dimensions of the layer's heads, rounded up to multiples of 16. */
    kvd_attn_map map;
    /* Elements stored per token for this GPU's heads, without padding. */
    size_t kept;
    const void *a_q, *a_k, *a_v, *b_v, *b_k;
    int heads; /* neighbouring KV heads that share a latent; 0: no latents */
} kvd_cache_layer;

/*
 * Chooses bf16 kernels or float32 products for each layer and copies matrices to the device. layer
 * [n_layers] must be zeroed. NULL `dims`: no projection. max_len is 0 if kernels support sliding
 * windows. Fails if heads that share a latent are on different GPUs.
 */
int kvd_cache_layers_make(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype pass,
                          size_t max_len, const kvd_dims *dims, kvd_dtype type,
                          kvd_cache_layer *layer, kvd_device_memory *memory, kvd_err *err);

/*
 * Multiplies attention outputs o [n_tokens][o_pitch] by b_v, which rebuilds d_head dimensions per
 * head; `out` is bf16 [n_tokens][n_heads * d_head].
 */
int kvd_cache_project_back(const kvd_gpu_attention_in *in, const kvd_cache_layer *l,
                           const uint16_t *o, uint16_t *out, kvd_err *err);

typedef struct {
    /* Keys and values rebuilt from latent vectors, [max_tokens][2 n_kv_heads * d_head], or NULL. */
    float *read;
    float *cosine, *sine;
    uint32_t *rope_row;
    uint32_t *host_row;
    size_t n_rows;
    /* Flag for non-finite numbers. Nothing reads it, because the output would be non-finite too. */
    kvd_gpu_bad *bad;
} kvd_cache_latents;

typedef struct {
    kvd_device_memory memory;
    /* Queries as float32, [max_tokens][n_heads * d_head]; allocated only in a bf16 pass. */
    float *q_wide;
    float *k_wide, *v_wide;
    float *q_cut, *o_cut;
    /* Projected keys and values, [max_tokens][n_kv_heads * d_head]. */
    float *k_cut, *v_cut;
    /* Prompt tokens' attention output over uncompressed K and V, [max_tokens][n_heads * d_head]. */
    float *exact;
    void *scratch;
    size_t max_len;
    kvd_cache_latents latents;
} kvd_cache_products;

/* Allocates the missing buffers of *p. May be called again with other `latents` and `prompts`. */
int kvd_cache_products_init(kvd_cache_products *p, const kvd_config *c, const kvd_gpu_share *share,
                            kvd_dtype pass, size_t max_tokens, size_t max_len, bool latents,
                            bool prompts, kvd_err *err);
void kvd_cache_products_release(kvd_cache_products *p);
/*
 * Computes a layer's attention in float32. The first `prompt` tokens of a sequence, except its last
 * token, attend to uncompressed K and V.
 */
int kvd_cache_products_run(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, size_t prompt, void *out,
                           kvd_err *err);

/* Float32 vectors of all heads, `ld` floats from token to token. */
typedef struct {
    const float *x;
    size_t ld;
} kvd_head_rows;

/*
 * Computes y [m] = x [k] * matrix [k][m] for n_tokens vectors of each of `batch` heads. ldx and ldy
 * are numbers of floats between tokens; strides are numbers of floats between heads.
 */
typedef struct {
    const float *x, *matrix;
    float *y;
    size_t ldx, ldy, stride_x, stride_y, stride_matrix;
    int k, m, batch;
} kvd_heads_product;
int kvd_cache_product(const kvd_gpu_attention_in *in, const kvd_heads_product *a, kvd_err *err);

int kvd_cache_latents_init(kvd_cache_latents *l, kvd_device_memory *memory, const kvd_config *c,
                           const kvd_gpu_share *share, size_t max_tokens, size_t max_len,
                           kvd_err *err);
/*
 * Projects keys (before RoPE) and values to p->k_cut and p->v_cut, rounded to `type`. Sets *k
 * (after RoPE) and *v to the rebuilt vectors.
 */
int kvd_cache_latents_read(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, kvd_head_rows *k,
                           kvd_head_rows *v, kvd_err *err);

/*
 * Pads projections with zero columns to each layer's widest head. The caller must release `*to`
 * with kvd_dims_release, also after a failure.
 */
int kvd_dims_widest(const kvd_dims *from, kvd_dims *to, kvd_err *err);

#endif
