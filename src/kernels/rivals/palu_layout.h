/* Layouts of Palu (Chang et al., ICLR 2025): 4 KV heads share low-rank latent vectors of K and V.
 *
 * Head h of group g has K_h = L_g U_h, with L_g [tokens][rank_k] and U_h [rank_k][128]. The output
 * is softmax(q . RoPE(K_h) / sqrt(128)) V_g, with V_g [tokens][rank_v].
 *
 * PLAIN, for the reference: row-major float32, one group after another. n_kv is the sum of kv_len.
 * - K [n_kv][rank_k] and V [n_kv][rank_v] of each group, U [n_kv_heads][rank_k][128].
 * - Q [batch][n_heads * 128] after RoPE, O [batch][n_heads * rank_v].
 *
 * PAGED, for the kernel: 16-bit. Page p of 64 tokens starts at element p *
 * kvd_palu_page_elements(), with K, then V of each group. Element (token t, rank r) has the index
 *   (r/8) * 512 + (t/8) * 64 + (t%8) * 8 + r%8
 * page_table is [batch][max_pages]. V of the last page must be finite from kv_len on; K may hold
 * anything.
 *
 * U of two KV heads is one matrix. Element (r, i) of KV head h has, with n = 128 * (h % 2) + i, the
 * index
 *   (r/8) * 2048 + (n/8) * 64 + (n%8) * 8 + r%8 */
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
    /* Smallest supported rank of the latent vectors of K. The kernel is made for ranks at which
     * rebuilding K takes most of the time. */
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

/* kvd_palu_page_elements returns the number of 16-bit elements of a page of latent vectors,
 * kvd_palu_up_elements that of the projection matrices of a layer. */
size_t kvd_palu_page_elements(const kvd_palu_shape *shape);
size_t kvd_palu_up_elements(const kvd_palu_shape *shape);

/* kvd_palu_pack_latents and kvd_palu_pack_up convert float32 latent vectors and projection matrices
 * to the 16-bit layout of the kernel. */
void kvd_palu_pack_latents(const kvd_palu_shape *shape, int batch, const int32_t *kv_len, int dtype,
                           const float *k_latent, const float *v_latent, const int32_t *page_table,
                           int max_pages, uint16_t *pool);
void kvd_palu_pack_up(const kvd_palu_shape *shape, int dtype, const float *up, uint16_t *up_packed);

/* Computes Palu's decode attention on host arrays with float64 sums. n_kv is the sum of kv_len.
 *
 * `q` [batch][n_heads * 128] is after RoPE. `k_latent` and `v_latent` are [n_groups][n_kv][rank].
 * `up` is [n_kv_heads][rank_k][128]. `cos` and `sin` are [position][64]. `out` [batch][n_heads *
 * rank_v] is float64. */
int kvd_palu_ref(const kvd_palu_shape *shape, int batch, const int32_t *kv_len, const float *q,
                 const float *k_latent, const float *v_latent, const float *up, const float *cos,
                 const float *sin, double *out, kvd_err *err);

#ifdef __cplusplus
}
#endif

#endif
