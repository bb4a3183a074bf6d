/* Declarations for the files of methods/cuda. */
#ifndef KVD_METHODS_CUDA_CACHE_PARTS_H
#define KVD_METHODS_CUDA_CACHE_PARTS_H

#include "methods/cuda/cache.h"
#include "model/pass/cuda/blocks.h"
#include "model/pass/cuda/paged.h"

/*
 * One layer with its projection matrices on the device: a_q, a_k and a_v project Q, K and V, and
 * b_k and b_v rebuild keys and values or outputs. NULL means the identity. The matrices have these
 * shapes:
 *
 * float32 products [n_kv_heads][d_head][d_head] bf16 kernels bf16, KV head after KV head:
 * [d_head][d_qk], [d_head][d_v], [d_v][d_head] latents float32; a_q is NULL. a_k and a_v,
 * [groups][heads d_head][heads d_head], compute latents. b_k and b_v, [n_kv_heads][heads
 * d_head][d_head], rebuild keys (before RoPE) and values. A group has `heads` neighbouring KV
 * heads.
 *
 * Columns (rows of b_v) beyond a head's kept dimensions are zero. a_k equals a_q if one matrix
 * serves both.
 */
typedef struct {
    bool kernels;
    /* Dimensions of the heads, rounded up to multiples of 16. */
    kvd_attn_map map;
    /*
     * Numbers (elements) stored per token for the heads of this GPU, before dimensions are rounded
     * up to multiples of 16.
     */
    size_t kept;
    const void *a_q, *a_k, *a_v, *b_v, *b_k;
    int heads; /* number of KV heads that share a latent; 0: no latents */
} kvd_cache_layer;

/*
 * Selects bf16 kernels or float32 products for each layer and copies its matrices to the device.
 * The caller must zero `layer` [c->n_layers] first. `type` is the data type of the cache, `pass`
 * that of the forward pass. The bf16 kernels are not used if one of these types is KVD_F32 or if
 * the layer's window is shorter than max_len. A caller whose own kernels support sliding windows
 * must therefore pass 0 as max_len. If `dims` is NULL, no head is projected. Fails if heads that
 * share a latent are on different GPUs.
 */
int kvd_cache_layers_make(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype pass,
                          size_t max_len, const kvd_dims *dims, kvd_dtype type,
                          kvd_cache_layer *layer, kvd_device_memory *memory, kvd_err *err);

/*
 * Computes out [n_tokens][n_heads * d_head], bf16: multiplies every head of o [n_tokens][o_pitch]
 * by b_v of its KV head, which gives d_head dimensions again.
 */
int kvd_cache_project_back(const kvd_gpu_attention_in *in, const kvd_cache_layer *l,
                           const uint16_t *o, uint16_t *out, kvd_err *err);

typedef struct {
    /* [max_tokens][2 n_kv_heads * d_head] Rebuilt keys and values; NULL until allocated. */
    float *read;
    float *cosine, *sine; /* NULL if the model has no RoPE */
    /* [max_tokens] RoPE table index of each token. */
    uint32_t *rope_row;
    uint32_t *host_row; /* host copy of rope_row */
    /* Number of elements of rope_row that are valid for the current batch. */
    size_t n_rows;
    /*
     * Kernels set this flag for non-finite numbers. This code does not read the flag, because
     * non-finite numbers remain visible in the output of the forward pass.
     */
    kvd_gpu_bad *bad;
} kvd_cache_latents;

typedef struct {
    kvd_device_memory memory;
    /* [max_tokens][n_heads * d_head] Q in float32; allocated only in a bf16 pass. */
    float *q_wide;
    float *k_wide, *v_wide;
    float *q_cut, *o_cut;
    /* [max_tokens][n_kv_heads * d_head] Projected K and V. */
    float *k_cut, *v_cut;
    /*
     * [max_tokens][n_heads * d_head] Attention output of prompt tokens, computed from K and V that
     * are not compressed; NULL until allocated.
     */
    float *exact;
    void *scratch;
    size_t max_len;
    kvd_cache_latents latents;
} kvd_cache_products;

/*
 * Allocates the buffers that are not allocated yet. May be called again with other values of
 * `latents` and `prompts`.
 */
int kvd_cache_products_init(kvd_cache_products *p, const kvd_config *c, const kvd_gpu_share *share,
                            kvd_dtype pass, size_t max_tokens, size_t max_len, bool latents,
                            bool prompts, kvd_err *err);
void kvd_cache_products_release(kvd_cache_products *p);
/*
 * Computes the attention of one layer. In every sequence, the tokens before position `prompt`,
 * except the last token, attend to K and V that are not compressed.
 */
int kvd_cache_products_run(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, size_t prompt, void *out,
                           kvd_err *err);

/*
 * Float32 vectors of all heads for all tokens of a batch. `ld` is the number of floats from one
 * token to the next.
 */
typedef struct {
    const float *x;
    size_t ld;
} kvd_head_rows;

/*
 * Arguments of the product y = x * `matrix`, for n_tokens vectors x of each of `batch` heads. x has
 * k floats per vector, y has m, and `matrix` is [k][m]. ldx and ldy are the floats from one token
 * to the next; each stride is the floats from one head to the next.
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
 * Projects keys before RoPE and values to latents, rounded to the data type of the cache. Then
 * rebuilds the keys (after RoPE) and the values, and sets `*k` and `*v` to them. Afterwards
 * p->k_cut and p->v_cut hold the latents.
 */
int kvd_cache_latents_read(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, kvd_head_rows *k,
                           kvd_head_rows *v, kvd_err *err);

/*
 * Pads projections with zero columns to the widest head of each layer, for kernels that require one
 * width for all heads. The padded projections in `*to` give the same attention scores and outputs
 * as `from`. The caller must release `*to` with kvd_dims_release, also after a failure.
 */
int kvd_dims_widest(const kvd_dims *from, kvd_dims *to, kvd_err *err);

#endif
