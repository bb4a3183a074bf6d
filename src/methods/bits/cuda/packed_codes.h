/*
 * Kernels of caches of codes (packed_layout.h): code rows, and restore rows from codes. Lengths,
 * slots and pages are read on the device; grid sizes depend on the number of requests and on what
 * the host knows of the longest request.
 *
 * For a request of m tokens, the first m / k_block * k_block keys are coded, and the values of all
 * but the newest v_newest tokens (kvd_bits_method.window). The newest rows are in bf16 in the ring
 * of the request's slot: pages in the layout of kernels/layout.h, page p of the request at place p
 * % ring_pages.
 */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_CODES_H
#define KVD_METHODS_BITS_CUDA_PACKED_CODES_H

#include <cuda_runtime_api.h>

#include "methods/bits/packed_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arguments of all kernels on codes: a layer, its memory, and the requests of a batch. */
typedef struct {
    kvd_attn_map map; /* widths of the layer's heads and offsets within a page */
    kvd_packed_form form;
    int32_t head_at[KVD_HEADS_MAX]; /* byte of a page at which each KV head starts */
    size_t page_bytes;
    char *codes;    /* device [pages][page_bytes], this layer */
    uint16_t *ring; /* device [slots][ring_pages][map.page_elements], this layer */
    uint16_t *rows; /* device, working pages of bf16 rows [pages][map.page_elements] */
    int32_t ring_pages, k_block, v_newest;
    /* Requests of the batch. */
    int32_t n, max_pages;
    const int32_t *kv_len, *slot; /* device [n] */
    const int32_t *q_len;         /* device [n] lengths of whole prompts; NULL: decode steps */
    const int32_t *page_table;    /* device [n][max_pages] */
    int32_t pages_side_by_side;   /* number of CTAs that share the pages of a head */
    /*
     * Quantisation levels (kvquant), float [2][2][2^bits]; NULL: equal steps. The first index is 0
     * for keys and 1 for values. Of the two arrays, both rising, the first is compared with a
     * number to choose its code; the second gives the number that a code is read as.
     */
    const float *level;
    /* Scales of floating-point keys and values, device [n_kv_heads][2]; NULL: 1. */
    const float *scale;
    /*
     * Middle and half width of the range of every key channel, device [n_kv_heads][range_width][2].
     */
    const float *range;
    int32_t range_width;
    int32_t n_sink; /* number of first tokens kept in float16 */
    /*
     * Rows of the n_sink first tokens, device [slots][n_sink][map.page_elements / 64]: KV head
     * after KV head, keys before values.
     */
    uint16_t *sink;
    /*
     * Number of key outliers of each slot in all heads and layers, device [slots]. Layer 0 of a
     * prompt resets it to 0.
     */
    uint32_t *apart;
    uint32_t *beyond; /* device: largest excess of a page's outliers over k_apart */
    /*
     * Keys before RoPE, used if before_rope is set: device rows of Q, K and V. Otherwise keys are
     * read from the pages. cosine and sine are tables [positions][d_head / 2].
     */
    const uint16_t *x;
    /* Elements from one row of x to the next. Row start[i] is the first row of prompt i. */
    size_t ld;
    const int32_t *start; /* device [n]; NULL: the row of request i is row i */
    int32_t x_key, d_head, interleaved;
    bool before_rope;
    const float *cosine, *sine; /* NULL: no RoPE */
    /*
     * Transposed matrices [d][d] that rotate rows before they are coded, and rotate outputs back.
     * NULL: vectors are not rotated.
     */
    const float *turn_rows, *turn_outputs;
    /* device table of RoPE rotations, filled by kvd_packed_rope_table; NULL: none */
    const uint32_t *turn;
} kvd_packed_args;

/*
 * Codes all rows that the requests' lengths require to be coded and that are not coded yet: rows of
 * prompts from `rows`, rows of decode steps from the ring. Copies the newest rows of a prompt to
 * the ring.
 */
cudaError_t kvd_packed_code(const kvd_packed_args *a, cudaStream_t stream);
/*
 * Kernels for codes of rotated vectors (turboquant), for the heads that kvd_packed_decode supports.
 * kvd_packed_turn_prompts codes the rows of whole prompts from `rows`. kvd_packed_turn_steps codes
 * the newest rows, before the attention of their decode step, and rotates them in the ring and the
 * queries [n][q_pitch] bf16. kvd_packed_turn_outputs rotates the outputs [n][o_pitch] bf16 back.
 */
cudaError_t kvd_packed_turn_prompts(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_turn_steps(const kvd_packed_args *a, void *q, cudaStream_t stream);
cudaError_t kvd_packed_turn_outputs(const kvd_packed_args *a, void *o, cudaStream_t stream);
/*
 * Restores the rows of all tokens of the requests to their working pages, from codes and from the
 * ring.
 */
cudaError_t kvd_packed_restore(const kvd_packed_args *a, cudaStream_t stream);
/*
 * Makes pages of random bytes usable for timing, in place of pages that were never computed. Writes
 * `per_page` outliers at plausible places to each page; floating-point codes become finite, with
 * scales of 1.
 */
cudaError_t kvd_packed_make_plausible(const kvd_packed_args *a, size_t pages, int32_t per_page,
                                      cudaStream_t stream);
/* Fills table [n][max_pages] with the ring page of every page of a request. */
cudaError_t kvd_packed_ring_table(const int32_t *slot, int32_t n, int32_t max_pages,
                                  int32_t ring_pages, int32_t *table, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
