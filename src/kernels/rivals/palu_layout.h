/*
 * Layouts of Palu (Chang et al., ICLR 2025): groups of KV heads share low-rank latents of K and V,
 * which the cache holds.
 *
 * Decode rebuilds K from latents; V's up-projection is folded into W_O.
 *
 * - K_h[t] = L_g[t] U_h, L_g [tokens][rank_k], U_h [rank_k][128], KV head h in group g = h / 4.
 * - s[t] = q . RoPE_t(K_h[t]) / sqrt(128).
 * - o = softmax(s) V_g, V_g [tokens][rank_v].
 *
 * PLAIN (reference): row-major float32, group after group (head after head for U); n_kv: sum of
 * kv_len.
 *
 * - K latents [n_kv][rank_k], V latents [n_kv][rank_v], U [n_kv_heads][rank_k][128].
 * - Q [batch][n_heads * 128] after RoPE, O [batch][n_heads * rank_v].
 *
 * PAGED (kernel): 16-bit, blocks of 8 x 8, 128 contiguous bytes. Page p has 64 tokens and starts at
 * element p * kvd_palu_page_elements(): per group, K latents, then V latents, element (t, r) at
 *
 *   (r/8) * 512 + (t/8) * 64 + (t%8) * 8 + r%8
 *
 * so ranks 8 i .. 8 j - 1 of a page are contiguous. page_table is [batch][max_pages]. V rows of a
 * last page at and after kv_len must be finite; K rows may hold anything.
 *
 * U is packed per pair of KV heads: element (r, n), n = 128 * (head % 2) + dim, is at
 *
 *   (r/8) * 2048 + (n/8) * 64 + (n%8) * 8 + r%8
 */
#ifndef KVD_KERNELS_RIVALS_PALU_LAYOUT_H
#define KVD_KERNELS_RIVALS_PALU_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KVD_PALU_D_HEAD = 128,
    KVD_PALU_GROUP = 4, /* number of KV heads that share one latent of K and one of V */
    KVD_PALU_PAGE_TOKENS = 64,
    KVD_PALU_RANK_STEP = 16, /* Ranks are multiples of this number. */
    /* Smallest rank of the K latents for which rebuilding K dominates the work. */
    KVD_PALU_RANK_K_MIN = 80,
    KVD_PALU_RANK_MAX = 256,
    KVD_PALU_QUERIES_MAX = 4 /* largest number of query heads per KV head */
};

typedef struct {
    int n_heads, n_kv_heads; /* n_kv_heads is a multiple of 4; n_heads / n_kv_heads is 1 .. 4 */
    int rank_k, rank_v;      /* ranks of the latents of K and V */
} kvd_palu_shape;

/* Returns 0 if kvd_palu_decode supports the shape, else -1. */
int kvd_palu_shape_check(const kvd_palu_shape *shape);

/* Return the number of 16-bit elements of a page of latents, and of a layer's up-projections U. */
size_t kvd_palu_page_elements(const kvd_palu_shape *shape);
size_t kvd_palu_up_elements(const kvd_palu_shape *shape);

/* Convert row-major float32 to 16-bit pages of latents, with zeros in V after the last token. */
void kvd_palu_pack_latents(const kvd_palu_shape *shape, int batch, const int32_t *kv_len, int dtype,
                           const float *k_latent, const float *v_latent, const int32_t *page_table,
                           int max_pages, uint16_t *pool);
void kvd_palu_pack_up(const kvd_palu_shape *shape, int dtype, const float *up, uint16_t *up_packed);

/*
 * Computes Palu's decode attention on host arrays with float64 sums. n_kv is the sum of kv_len.
 *
 * - `q` [batch][n_heads * 128]: input, after RoPE.
 * - `k_latent` [n_groups][n_kv][rank_k], `v_latent` [n_groups][n_kv][rank_v]: inputs.
 * - `up` [n_kv_heads][rank_k][128]: input.
 * - `cos`, `sin` [at least the largest kv_len][64]: inputs, for dims (i, i + 64).
 * - `out` [batch][n_heads * rank_v]: output, float64.
 */
int kvd_palu_ref(const kvd_palu_shape *shape, int batch, const int32_t *kv_len, const float *q,
                 const float *k_latent, const float *v_latent, const float *up, const float *cos,
                 const float *sin, double *out, kvd_err *err);

#ifdef __cplusplus
}
#endif

#endif
