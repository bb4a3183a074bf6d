/*
 * Layouts of Palu (Chang et al., ICLR 2025), with which kvdim is compared: the KV heads of a group
 * share one low-rank latent of K and one of V, and the cache holds the latents. Every decode step
 * rebuilds K from its latent, applies RoPE and computes the scores. V's latents are used directly,
 * because the up-projection of V is folded into W_O.
 *
 * - K_h[t] = L_g[t] U_h, with L_g [tokens][rank_k], U_h [rank_k][128], and KV head h in group g = h
 *   / 4.
 * - s[t] = q . RoPE_t(K_h[t]) / sqrt(128).
 * - o = softmax(s) V_g, with V_g [tokens][rank_v]: the output of a query head has rank_v elements.
 *
 * PLAIN (reference): row-major float32, group after group (head after head for U). n_kv is the sum
 * of kv_len.
 *
 * - K latents [n_kv][rank_k], V latents [n_kv][rank_v], U [n_kv_heads][rank_k][128].
 * - Q [batch][n_heads * 128] after RoPE, O [batch][n_heads * rank_v].
 *
 * PAGED (kernel): 16-bit elements in blocks of 8 x 8. Each block is 128 contiguous bytes, which
 * wgmma and ldmatrix read without swizzle. A page holds 64 tokens of all groups. Page p of the pool
 * starts at element p * kvd_palu_page_elements(). It contains, group after group, the K latents and
 * then the V latents of the group. In the K latents and in the V latents of a group, element (t, r)
 * is at
 *
 *   (r/8) * 512 + (t/8) * 64 + (t%8) * 8 + r%8
 *
 * Therefore the elements of ranks 8 i .. 8 j - 1 of a page are contiguous and can be copied at
 * once. page_table is [batch][max_pages]. V rows of a request's last page at and after kv_len must
 * be finite. K rows there may hold anything.
 *
 * U is packed per pair of KV heads, pair after pair: element (r, n), n = 128 * (head % 2) + dim, is
 * at
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
    /* Ranks are multiples of this number. */
    KVD_PALU_RANK_STEP = 16,
    /*
     * Smallest rank of K. With smaller ranks, rebuilding K would not be the larger part of the
     * work.
     */
    KVD_PALU_RANK_K_MIN = 80,
    KVD_PALU_RANK_MAX = 256,
    KVD_PALU_QUERIES_MAX = 4 /* largest number of query heads per KV head */
};

typedef struct {
    int n_heads, n_kv_heads; /* n_kv_heads: a multiple of 4; n_heads / n_kv_heads: 1 .. 4 */
    int rank_k, rank_v;      /* ranks of the latents of K and V */
} kvd_palu_shape;

/* Returns 0 if kvd_palu_decode supports the shape, else -1. */
int kvd_palu_shape_check(const kvd_palu_shape *shape);

/*
 * Each returns a number of 16-bit elements: of one page of the pool, and of the matrices U of one
 * layer.
 */
size_t kvd_palu_page_elements(const kvd_palu_shape *shape);
size_t kvd_palu_up_elements(const kvd_palu_shape *shape);

/*
 * Convert PLAIN float32 to PAGED 16-bit data on the host. `dtype` is KVD_F16 or KVD_BF16. Only
 * existing tokens are written, and zeros in the rows of V after the last token of a request's last
 * page.
 */
void kvd_palu_pack_latents(const kvd_palu_shape *shape, int batch, const int32_t *kv_len, int dtype,
                           const float *k_latent, const float *v_latent, const int32_t *page_table,
                           int max_pages, uint16_t *pool);
void kvd_palu_pack_up(const kvd_palu_shape *shape, int dtype, const float *up, uint16_t *up_packed);

/*
 * Reference implementation of Palu's decode attention: float64 sums, layout PLAIN, any rank of at
 * least 1. n_kv is the sum of kv_len. Returns 0, or -1 with *err filled.
 *
 * - `q`: input, [batch][n_heads * 128], after RoPE.
 * - `k_latent`: input, [n_groups][n_kv][rank_k].
 * - `v_latent`: input, [n_groups][n_kv][rank_v].
 * - `up`: input, [n_kv_heads][rank_k][128].
 * - `cos`, `sin`: inputs, [at least the largest kv_len][64], for pairs of dims (i, i + 64).
 * - `out`: output, [batch][n_heads * rank_v], float64.
 */
int kvd_palu_ref(const kvd_palu_shape *shape, int batch, const int32_t *kv_len, const float *q,
                 const float *k_latent, const float *v_latent, const float *up, const float *cos,
                 const float *sin, double *out, kvd_err *err);

#ifdef __cplusplus
}
#endif

#endif
