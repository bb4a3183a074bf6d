/*
 * Palu (Chang et al., ICLR 2025), the rival: heads of a group share one low-rank latent of K and one of V. What is cached
 * is the latents. Every decode step rebuilds K from its latent, turns it (RoPE) and scores it; V's latents are read as they
 * are, because V's up-projection is folded into W_O.
 *
 *   K_h[t] = L_g[t] U_h            L_g [tokens][rank_k], U_h [rank_k][128], KV head h of group g = h / 4
 *   s[t]   = q . RoPE_t(K_h[t]) / sqrt(128)
 *   o      = softmax(s) V_g        V_g [tokens][rank_v]: the output of a query head has rank_v numbers
 *
 * PLAIN (reference): row-major float32, group after group (head after head for U):
 *   K latents [n_kv][rank_k], V latents [n_kv][rank_v], n_kv = sum of kv_len; U [n_kv_heads][rank_k][128];
 *   Q [batch][n_heads * 128] after RoPE; O [batch][n_heads * rank_v]
 *
 * PAGED (kernel), 16-bit elements, blocks of 8 x 8 elements of 128 contiguous bytes, which wgmma and ldmatrix read without
 * swizzle. A page holds 64 tokens of all groups: page p of the pool starts at element p * kvd_palu_page_elements; in it,
 * group after group, the K latents and then the V latents of the group, each as
 *   element (t, r) at (r/8) * 512 + (t/8) * 64 + (t%8) * 8 + r%8
 * so that any run of 8-rank columns of the page is one contiguous copy. page_table [batch][max_pages].
 * V rows of a request's last page that lie beyond kv_len must be finite (zero the page when it is taken into use); K rows there
 * may hold anything.
 *
 * U is packed per pair of KV heads, pair after pair: element (r, n), n = 128 * (head % 2) + dim, at
 *   (r/8) * 2048 + (n/8) * 64 + (n%8) * 8 + r%8
 */
#ifndef KVD_KERNELS_RIVALS_PALU_LAYOUT_H
#define KVD_KERNELS_RIVALS_PALU_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KVD_PALU_D_HEAD = 128,
    KVD_PALU_GROUP = 4, /* KV heads that share a latent                              */
    KVD_PALU_PAGE_TOKENS = 64,
    KVD_PALU_RANK_STEP = 16,  /* ranks that the kernel takes are multiples of it, up to 256: p >= 0.5 */
    KVD_PALU_RANK_K_MIN = 80, /* and of K at least this, where the rebuild still is the larger part */
    KVD_PALU_RANK_MAX = 256,
    KVD_PALU_QUERIES_MAX = 4 /* query heads per KV head                                  */
};

typedef struct {
    int n_heads, n_kv_heads; /* n_kv_heads a multiple of 4; n_heads / n_kv_heads in 1 .. 4 */
    int rank_k, rank_v;      /* of a group of 4 KV heads                                   */
} kvd_palu_shape;

/* 0 when the kernel takes the shape, else -1. */
int kvd_palu_shape_check(const kvd_palu_shape *shape);

/* Elements of one page, of U of one layer. */
size_t kvd_palu_page_elements(const kvd_palu_shape *shape);
size_t kvd_palu_up_elements(const kvd_palu_shape *shape);

/*
 * PLAIN float32 to PAGED 16 bit on the host; dtype is KVD_F16 or KVD_BF16. The pool is written where tokens lie and, with
 * zeros, in the V rows of last pages beyond kv_len; nowhere else.
 */
void kvd_palu_pack_latents(const kvd_palu_shape *shape, int batch, const int32_t *kv_len, int dtype,
                           const float *k_latent, const float *v_latent, const int32_t *page_table,
                           int max_pages, uint16_t *pool);
void kvd_palu_pack_up(const kvd_palu_shape *shape, int dtype, const float *up, uint16_t *up_packed);

#ifdef __cplusplus
}
#endif
#endif
