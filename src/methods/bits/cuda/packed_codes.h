/*
 * Kernels of caches that hold codes (packed_layout.h): they code rows, and restore rows from codes.
 * Lengths, slots and page numbers are read on the device. Grid sizes depend on the number of
 * requests and on the host's bound of the longest request.
 *
 * In a request of m tokens, the first m / k_block * k_block keys are coded, and the values of all
 * but the newest v_newest tokens (kvd_bits_method.window). The newest rows are in bf16 in the ring
 * of the request's slot. A ring consists of pages in the layout of kernels/layout.h; page p of the
 * request is ring page p % ring_pages.
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
    int32_t head_at[KVD_HEADS_MAX]; /* byte of a page of codes at which each KV head starts */
    size_t page_bytes;
    char *codes;    /* pages of codes of this layer, device [pages][page_bytes] */
    uint16_t *ring; /* newest rows, device [slots][ring_pages][map.page_elements], this layer */
    uint16_t *rows; /* working pages of bf16 rows, device [pages][map.page_elements] */
    int32_t ring_pages, k_block, v_newest;
    /* Number of requests of the batch, and length of their page tables. */
    int32_t n, max_pages;
    const int32_t *kv_len, *slot; /* device [n]: number of tokens and slot of each request */
    const int32_t *q_len;         /* device [n]: tokens of whole prompts; NULL: decode steps */
    const int32_t *page_table;    /* device [n][max_pages]: page numbers of each request */
    /* Number of CTAs that share the pages of a KV head of a request. */
    int32_t pages_side_by_side;
    /*
     * Tables of quantisation levels (kvquant), float [2][2][2^bits]; NULL: codes are equal steps.
     * The first index is 0 for keys and 1 for values. Each has two rising arrays. A number is
     * compared with the first to choose its code; the second gives the number as which a code is
     * read.
     */
    const float *level;
    /* Scales of floating-point keys and values, device [n_kv_heads][2]; NULL: all scales are 1. */
    const float *scale;
    /*
     * Range of every key channel, device [n_kv_heads][range_width][2]: its middle and half its
     * width.
     */
    const float *range;
    int32_t range_width;
    /* Number of first tokens of a request that are kept in float16 instead of codes. */
    int32_t n_sink;
    /*
     * Rows of the n_sink first tokens, device [slots][n_sink][map.page_elements / 64]: one KV head
     * after another, keys before values.
     */
    uint16_t *sink;
    /*
     * Number of key outliers of each slot in all heads and layers, device [slots]. Layer 0 of a
     * prompt resets it to 0.
     */
    uint32_t *apart;
    uint32_t *beyond; /* device: largest excess of a page's number of key outliers over k_apart */
    /*
     * Rows of Q, K and V before RoPE, on the device. Keys are read from here if before_rope is set,
     * else from the pages.
     */
    const uint16_t *x;
    /*
     * Number of elements from one row of x to the next. Row start[i] of x is the first row of
     * prompt i.
     */
    size_t ld;
    /* Device [n]: first row of each prompt; NULL: row i of x belongs to request i. */
    const int32_t *start;
    int32_t x_key, d_head, interleaved;
    bool before_rope;
    const float *cosine, *sine; /* RoPE tables [positions][d_head / 2], device; NULL: no RoPE */
    /*
     * Transposed matrices [d][d] that rotate rows before they are coded (turn_rows) and rotate
     * outputs back (turn_outputs). NULL: vectors are not rotated.
     */
    const float *turn_rows, *turn_outputs;
    /* Device table of RoPE rotations, filled by kvd_packed_rope_table; NULL: none. */
    const uint32_t *turn;
} kvd_packed_args;

/*
 * Codes all rows that the requests' lengths require to be coded and that are not coded yet. Rows of
 * prompts are read from a->rows, rows of decode steps from the ring. Copies the newest rows of a
 * prompt to the ring.
 */
cudaError_t kvd_packed_code(const kvd_packed_args *a, cudaStream_t stream);
/*
 * Kernels for codes of rotated vectors (turboquant), for the head sizes that kvd_packed_decode
 * supports. kvd_packed_turn_prompts codes the rows of whole prompts from a->rows.
 * kvd_packed_turn_steps runs before the attention of a decode step: it codes the newest rows and
 * rotates them in the ring, and it rotates the queries q [n][q_pitch] bf16. kvd_packed_turn_outputs
 * rotates the attention outputs o [n][o_pitch] bf16 back.
 */
cudaError_t kvd_packed_turn_prompts(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_turn_steps(const kvd_packed_args *a, void *q, cudaStream_t stream);
cudaError_t kvd_packed_turn_outputs(const kvd_packed_args *a, void *o, cudaStream_t stream);
/*
 * Writes the rows of all tokens of the requests to the working pages a->rows, from codes and from
 * the ring.
 */
cudaError_t kvd_packed_restore(const kvd_packed_args *a, cudaStream_t stream);
/*
 * Makes pages of random bytes usable for timing, in place of pages that were never computed. Writes
 * `per_page` outliers with valid places to each page. Floating-point codes become finite, with
 * scales of 1.
 */
cudaError_t kvd_packed_make_plausible(const kvd_packed_args *a, size_t pages, int32_t per_page,
                                      cudaStream_t stream);
/* Fills table [n][max_pages] with the number of the ring page of every page of a request. */
cudaError_t kvd_packed_ring_table(const int32_t *slot, int32_t n, int32_t max_pages,
                                  int32_t ring_pages, int32_t *table, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
