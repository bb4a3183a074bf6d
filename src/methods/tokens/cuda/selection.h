/*
 * Selection at read time: all tokens stay in the pages of the cache, and every decode step reads
 * some of them. Tokens are chosen by selection pages of `page` consecutive tokens each. The
 * smallest and the largest number of every channel of a selection page's keys bound the product of
 * a query with any of these keys (quest.c). A step scores all selection pages of a KV head by these
 * bounds. It reads the selection pages with the largest scores, and the one of the newest token.
 *
 * The number of tokens that a step reads follows from the number of cached tokens alone, so the
 * attention of all layers has one plan. Attention treats each KV head as a request, whose
 * page_table lists the chosen pages. A page of the cache (64 tokens) that has KV heads of one width
 * is a sequence of pages of one KV head. If `page` is 64, attention therefore reads the chosen
 * pages in place. Otherwise their rows are copied to `rows` first.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_SELECTION_H
#define KVD_METHODS_TOKENS_CUDA_SELECTION_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    /* Layout of the layer. All KV heads must have one d_qk and one d_v. */
    kvd_attn_map map;
    /* Number of tokens of a selection page, a divisor of KVD_PAGE_TOKENS. */
    int32_t page;
    /*
     * Number of tokens that a step reads, rounded up to whole selection pages. Below 1 it is a
     * fraction of the cached tokens.
     */
    double budget;
    int32_t batch, max_pages;
    /*
     * Device [batch]: number of cached tokens, the newest included, and slot of each request. A row
     * whose slot is n_slots or more has no request and is skipped.
     */
    const int32_t *kv_len, *slot;
    int32_t n_slots;
    const int32_t *page_table; /* device [batch][max_pages] */
    const void *pool;          /* pages of the layer, device */
    /*
     * Bounds of the layer, bf16, device [page of the pool][n_kv_heads][64 / page][2][d_qk]. The
     * smallest numbers of a selection page precede the largest.
     */
    void *bounds;
} kvd_selection;

/*
 * Computes the bounds of every selection page that has one of the last q_len[b] tokens. q_len is on
 * the device, and `longest` is its largest number.
 */
cudaError_t kvd_selection_bounds(const kvd_selection *s, const int32_t *q_len, int32_t longest,
                                 cudaStream_t stream);

/*
 * Writes the number of tokens that each KV head reads to len [batch * n_kv_heads], and the number
 * of KV heads of all `live[0]` requests to heads[0]. All arrays are on the device. Does not use
 * pool, bounds and page_table.
 */
cudaError_t kvd_selection_lengths(const kvd_selection *s, const int32_t *live, int32_t *len,
                                  int32_t *heads, cudaStream_t stream);

/* Outputs of kvd_selection_choose, device. Row b * n_kv_heads + g is KV head g of request b. */
typedef struct {
    const void *q; /* device [batch][q_pitch]: queries of the step */
    /* Scratch [batch * n_kv_heads][max_pages * 64 / page]: scores of the selection pages. */
    float *score;
    /* [batch * n_kv_heads][max_pages * 64 / page]: chosen selection pages, in rising order. */
    int32_t *chosen;
    /*
     * [batch * n_kv_heads][max_pages]: pages that attention reads. Written only if `page` is 64:
     * the pages are those of the pool, counted by KV head.
     */
    int32_t *table;
    /*
     * Pages of one KV head, bf16, to which the rows of the chosen selection pages are copied if
     * `page` is below 64. Row i has the row_pages pages from page i * row_pages on.
     */
    void *rows;
    int32_t row_pages;
} kvd_selected;

/* Chooses what a decode step of every request reads. */
cudaError_t kvd_selection_choose(const kvd_selection *s, const kvd_selected *to,
                                 cudaStream_t stream);

/* Returns the number of tokens that a step reads of n cached ones. */
static inline size_t kvd_selection_tokens(double budget, size_t page, size_t n)
{
    const size_t most = budget < 1 ? (size_t)(budget * (double)n) : (size_t)budget,
                 pages = (n + page - 1) / page, wanted = (most + page - 1) / page,
                 whole = wanted > 1 ? wanted - 1 : 0;
    return whole + 1 >= pages ? n : whole * page + n - (pages - 1) * page;
}

#ifdef __cplusplus
}
#endif
#endif
