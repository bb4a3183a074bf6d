/*
 * Kernels of caches whose numbers are codes (packed_layout.h): rows become codes, and codes rows. Lengths, slots and pages are read on the
 * device; launches depend on the number of requests and on what their hosts know of the longest.
 *
 * Of m tokens of a request the first m / k_block * k_block keys are coded, and the values of all but the newest v_newest (kvd_bits_method.window). The newest rows lie
 * in the ring of its slot as they are: bf16 pages of kernels/layout.h, page p of the request at place p % ring_pages.
 */
#ifndef KVD_SERVING_CUDA_PACKED_CODES_H
#define KVD_SERVING_CUDA_PACKED_CODES_H

#include <cuda_runtime_api.h>

#include "serving/packed_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    kvd_attn_map map; /* of the layer */
    kvd_packed_form form;
    int32_t head_at[KVD_HEADS_MAX]; /* byte of a KV head in a page         */
    size_t page_bytes;
    char *codes;    /* device [pages][page_bytes] of this layer                    */
    uint16_t *ring; /* device [slots][ring_pages][map.page_elements] of this layer */
    uint16_t *rows; /* device, working pages [pages][map.page_elements]            */
    int32_t ring_pages, k_block, v_newest;
    /* requests */
    int32_t n, max_pages;
    const int32_t *kv_len, *slot; /* device [n] */
    const int32_t *q_len;         /* device [n] of prompts, whole ones; NULL: steps */
    const int32_t *page_table;    /* device [n][max_pages] */
    int32_t pages_side_by_side;   /* CTAs that share the pages of a head */
    /*
     * Levels in place of scales (kvquant); NULL: even steps. level [2][2][2^bits] of keys, of values: rising, what a number is compared with; what is read.
     */
    const float *level;
    const float *range; /* device [n_kv_heads][range_width][2] of keys: middle, half width */
    int32_t range_width;
    int32_t n_sink; /* first tokens that are float16 */
    uint16_t
        *sink; /* device [slots][n_sink][map.page_elements / 64]: keys and values, KV head after KV head */
    uint32_t *apart; /* device [slots] outliers of keys, all heads and layers; zeroed with layer 0's prompt */
    uint32_t *beyond; /* device: the most outliers that a page has had beyond k_apart */
    /* Keys before RoPE: where they come from, in place of the pages; NULL: keys of the pages. Tables [positions][d_head / 2]. */
    const uint16_t *x;
    size_t ld;            /* elements from row to row; of request i of prompts the first row is start[i] */
    const int32_t *start; /* device [n], or NULL: row i */
    int32_t x_key, d_head, interleaved;
    bool before_rope;
    const float *cosine, *sine; /* NULL: no RoPE */
    const uint32_t *turn;       /* device, kvd_packed_turns of the tables; NULL: not made */
} kvd_packed_args;

/* What has to be coded by now: prompts from `rows`, steps from the ring. A prompt's newest rows go to the ring. */
cudaError_t kvd_packed_code(const kvd_packed_args *a, cudaStream_t stream);
/* All tokens of the requests into their working pages, from codes and the ring. */
cudaError_t kvd_packed_restore(const kvd_packed_args *a, cudaStream_t stream);
/* Outliers at plausible places, for pages that were never computed: as many of each page as are expected. */
cudaError_t kvd_packed_scatter_outliers(const kvd_packed_args *a, size_t pages, int32_t per_page,
                                        cudaStream_t stream);
/* table [n][max_pages]: the place in the ring of every page of a request. */
cudaError_t kvd_packed_ring_table(const int32_t *slot, int32_t n, int32_t max_pages, int32_t ring_pages,
                                  int32_t *table, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
