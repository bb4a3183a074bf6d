#ifndef KVD_METHODS_CUDA_CACHE_PARTS_H
#define KVD_METHODS_CUDA_CACHE_PARTS_H

#include "methods/cuda/cache.h"
#include "model/pass/cuda/blocks.h"
#include "model/pass/cuda/paged.h"

/* Projection matrices of one layer in device memory; NULL is the identity. a_q, a_k and a_v project
 * Q, K and V. b_k maps projected K back; b_v maps projected V or attention outputs back.
 *
 * Float32 matrices are padded with zeros to [n_kv_heads][d_head][d_head]. bf16 matrices have no
 * padding. */
typedef struct {
    bool kernels;
    /* Kept dimensions of the layer's heads, rounded up to multiples of 16. */
    kvd_attn_map map;
    /* Elements stored per token for this GPU's heads, without padding. */
    size_t kept;
    const void *a_q, *a_k, *a_v, *b_v, *b_k;
    int heads; /* neighbouring KV heads that share a latent; 0: no latents */
} kvd_cache_layer;

/* For each layer, chooses whether attention uses bf16 kernels or float32 matrix products, and
 * copies projection matrices to the device. layer [n_layers] must be zeroed. NULL `dims` means no
 * projection. Fails if heads that share a latent vector are on different GPUs. */
int kvd_cache_layers_make(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype pass,
                          size_t max_len, const kvd_dims *dims, kvd_dtype type,
                          kvd_cache_layer *layer, kvd_device_memory *memory, kvd_err *err);

/* Multiplies attention outputs `o` by l->b_v, which restores d_head dimensions of each head. out:
 * bf16 [n_tokens][n_heads * d_head]. */
int kvd_cache_project_back(const kvd_gpu_attention_in *in, const kvd_cache_layer *l,
                           const uint16_t *o, uint16_t *out, kvd_err *err);

typedef struct {
    /* [max_tokens][2 n_kv_heads * d_head] Keys and values rebuilt from latent vectors, or NULL. */
    float *read;
    float *cosine, *sine;
    uint32_t *rope_row;
    uint32_t *host_row;
    size_t n_rows;
    /* Flag for numbers that are not finite. It is only an argument that kvd_gpu_qkv_finish
     * requires, and is never read. */
    kvd_gpu_bad *bad;
} kvd_cache_latents;

typedef struct {
    kvd_device_memory memory;
    /* [max_tokens][n_heads * d_head] Queries as float32, only for a bf16 model. */
    float *q_wide;
    float *k_wide, *v_wide;
    float *q_cut, *o_cut;
    /* [max_tokens][n_kv_heads * d_head] Projected keys and values. */
    float *k_cut, *v_cut;
    /* [max_tokens][n_heads * d_head] Attention outputs of prompts, with uncompressed K and V. */
    float *exact;
    void *scratch;
    size_t max_len;
    kvd_cache_latents latents;
} kvd_cache_products;

/* Allocates those buffers of *p that are needed and still NULL. May be called again with other
 * arguments. */
int kvd_cache_products_init(kvd_cache_products *p, const kvd_config *c, const kvd_gpu_share *share,
                            kvd_dtype pass, size_t max_tokens, size_t max_len, bool latents,
                            bool prompts, kvd_err *err);
void kvd_cache_products_release(kvd_cache_products *p);
/* Computes a layer's attention in float32. The first `prompt` - 1 tokens of a sequence attend to
 * uncompressed K and V. */
int kvd_cache_products_run(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, size_t prompt, void *out,
                           kvd_err *err);

/* Float32 vectors of all heads, per token. Consecutive tokens are `ld` floats apart. */
typedef struct {
    const float *x;
    size_t ld;
} kvd_head_rows;

/* Arguments of kvd_cache_product, which computes y [m] = x [k] * matrix [k][m] for each token and
 * each of `batch` heads. ldx, ldy: floats between tokens. Strides: floats between heads. */
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
/* Projects K (before RoPE) and V to latent vectors, rounds these to `type`, and rebuilds keys *k
 * (after RoPE) and values *v from them. */
int kvd_cache_latents_read(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, kvd_head_rows *k,
                           kvd_head_rows *v, kvd_err *err);

/* Copies *from to *to, and pads each projection to the dimensions of its layer's widest head.
 * Release *to, even after a failure. */
int kvd_dims_widest(const kvd_dims *from, kvd_dims *to, kvd_err *err);

#endif
