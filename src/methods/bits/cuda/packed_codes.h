/* Kernels that quantise pages of the KV cache and restore them to bf16. The newest tokens stay in
 * bf16, in a ring buffer: page p is at p % ring_pages. Keys are quantised in complete blocks of
 * k_block tokens. If form.v_channels is true, V is quantised together with K. Otherwise, V of all
 * tokens but the newest v_newest is quantised. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_CODES_H
#define KVD_METHODS_BITS_CUDA_PACKED_CODES_H

#include <cuda_runtime_api.h>

#include "methods/bits/gear.h"
#include "methods/bits/packed_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tables of method allot in device memory, which give each dimension its own number of bits. */
typedef struct {
    int32_t wide;
    const uint8_t *bits; /* [n_kv_heads][2][wide] bits of each dimension of K and of V */
    /* [n_kv_heads][2][wide] Index of the 32-bit word at which the codes of each dimension of K and
     * V begin. Word 0 is the first word of the KV head in a page. */
    const uint16_t *word;
    const float *scale; /* [n_kv_heads][2][wide][2] mean and standard deviation */
    const float *level; /* [2][9][256] ascending levels of each number of bits */
} kvd_packed_allot;

typedef struct {
    kvd_gear of;
    /* Number of outliers of the prompt's keys that fit into a page, per channel. */
    int32_t k_room;
    /* [slots][map.page_elements / 64][columns] in device memory: right low-rank factors of each
     * request's prompt, float16. */
    uint16_t *right;
    /* [partial_room] in device memory: each CTA's partial sums in the power method that computes
     * low-rank factors. */
    float *partial;
    size_t partial_room;
} kvd_packed_gear;

/* Number of floats that a CTA writes to kvd_packed_gear.partial in each step of the power
 * method. */
enum { KVD_GEAR_PART = (KVD_WIDTH_NARROW + 2 * KVD_GEAR_RANK) * KVD_GEAR_RANK };

typedef struct {
    kvd_packed_rows of;
    /* Number of adjacent KV heads whose keys are multiplied together by a Walsh-Hadamard matrix. 0:
     * keys are not multiplied. */
    int32_t turned;
    /* Factor by which a vector's range is narrowed before quantisation (method rotatekv). 0: the
     * range is not narrowed. */
    float clip;
    /* [n_kv_heads * d_head] in device memory: channel i of a stored key is channel order[i] of the
     * key after its Walsh-Hadamard rotation. NULL: channels are not reordered. */
    const uint32_t *order;
} kvd_packed_row_codes;

typedef struct {
    kvd_packed_classes of;
    /* [slots][n_kv_heads][64 * ring_pages] in device memory: attention that each token in the ring
     * buffer received. */
    float *received;
    /* For prompts, in device memory. mass [n_heads][n_q8]: attention that each token received per
     * query head. score [n_kv_heads][n_q8]: scratch. q_start [n]: index of each prompt's first
     * token in these arrays. */
    const float *mass;
    float *score;
    const int32_t *q_start;
    int32_t n_q8;
} kvd_packed_class_codes;

typedef struct {
    kvd_packed_split of;
    /* In device memory: a table for each length m of a Fourier transform. The table begins at index
     * m * (m - 1). It has m cosines, then m sines, of the angles 2 pi i / m for i = 0 .. m - 1. */
    const double *wave;
    /* Device tables of method turboquant. Each array has two elements, first for channels with more
     * bits, then for channels with fewer bits. rotation and sketch: random matrices [m][m] for m
     * channels. level: quantisation levels [3][256]. */
    const float *rotation[2], *sketch[2], *level[2];
} kvd_packed_split_codes;

typedef struct {
    kvd_attn_map map;
    kvd_packed_form form;
    int32_t head_at[KVD_HEADS_MAX]; /* byte offset of each KV head in a page */
    /* [K, V][KV head] Number of stored dimensions, without padding. */
    uint16_t width[2][KVD_HEADS_MAX];
    /* Number of outliers in each token's V, per KV head. */
    uint8_t v_apart[KVD_HEADS_MAX];
    /* [K, V][KV head] Bits of one token's whole vector, for method allot only. */
    uint16_t allotted[2][KVD_HEADS_MAX];
    kvd_packed_allot allot;
    kvd_packed_gear gear;
    kvd_packed_row_codes row;
    kvd_packed_class_codes classes;
    kvd_packed_split_codes split;
    /* [slots] in device memory: number of tokens of each request's prompt, which are quantised as
     * one block. */
    int32_t *prompt;
    size_t page_bytes;
    char *codes;    /* device [pages][page_bytes] */
    uint16_t *ring; /* newest tokens, device [slots][ring_pages][map.page_elements] */
    uint16_t *rows; /* working pages in bf16, device [pages][map.page_elements] */
    int32_t ring_pages, k_block, v_newest;
    /* Number of tokens that share a scale of a key channel. Above 64, several pages share
     * scales. */
    int32_t span;
    int32_t n, max_pages;
    const int32_t *kv_len, *slot; /* device [n] */
    const int32_t *q_len;         /* device [n] lengths of prompts; NULL: decode steps */
    const int32_t *page_table;    /* device [n][max_pages] */
    /* Number of pages of a request that different CTAs process at the same time, for each KV
     * head. */
    int32_t pages_side_by_side;
    /* [K, V][encoding, decoding][2^bits] Quantisation levels in device memory. A code is the index
     * of the nearest encoding level, and decodes to the decoding level with the same index. NULL:
     * uniform quantisation. */
    const float *level;
    /* [n_kv_heads][2] in device memory: scales of K and V for floating-point methods. NULL: all
     * scales are 1. */
    const float *scale;
    /* [n_kv_heads][range_width][2] in device memory: middle and half width of each key channel's
     * range. */
    const float *range;
    int32_t range_width;
    /* Number of first tokens of a request that are stored as float16. */
    int32_t n_sink;
    /* [slots][n_sink][map.page_elements / 64] in device memory: first tokens of each request,
     * stored as float16. */
    uint16_t *sink;
    /* [slots] in device memory: number of outliers of K that each running request has. */
    uint32_t *apart;
    uint32_t *beyond;
    /* In device memory: Q, K and V of new tokens before RoPE. If before_rope is true, keys are read
     * from here and quantised before RoPE. */
    const uint16_t *x;
    /* Distance in elements between successive tokens in x. */
    size_t ld;
    /* [n] in device memory: index in x of the first token of each prompt. NULL: decode steps; token
     * i of x is the new token of request i. */
    const int32_t *start;
    int32_t x_key, d_head, interleaved;
    bool before_rope;
    const float *cosine, *sine; /* device [positions][d_head / 2]; NULL: no RoPE */
    /* [d][d] Transposed matrices of method turboquant. turn_rows: rotates vectors before
     * quantisation. turn_outputs: rotates attention outputs back. */
    const float *turn_rows, *turn_outputs;
    /* [d][d] Random matrices of method turboquant. sketch_rows: projects quantisation errors of K;
     * the signs of these projections are stored. sketch_back: estimates the errors from the
     * signs. */
    const float *sketch_rows, *sketch_back;
    /* Table of RoPE rotations in device memory, made by kvd_packed_rope_table. NULL: there is no
     * table. */
    const uint32_t *turn;
} kvd_packed_args;

/* Quantises the older tokens of each request. In prefill, also copies the newest tokens, in bf16,
 * to the ring buffer. */
cudaError_t kvd_packed_code(const kvd_packed_args *a, cudaStream_t stream);
/* Quantises prompts from a->rows with method turboquant. */
cudaError_t kvd_packed_turn_prompts(const kvd_packed_args *a, cudaStream_t stream);
/* Quantises the newest tokens with method turboquant, before attention in decode steps. Rotates
 * queries q [n][q_pitch] in place. If `sketched` is not NULL, writes random projections of the
 * queries to it. */
cudaError_t kvd_packed_turn_steps(const kvd_packed_args *a, void *q, void *sketched,
                                  cudaStream_t stream);
/* Rotates attention outputs o [n][o_pitch] back, in place (method turboquant). */
cudaError_t kvd_packed_turn_outputs(const kvd_packed_args *a, void *o, cudaStream_t stream);
/* Kernels of method turboquant. kvd_packed_code_turned quantises tokens; kvd_packed_restore_turned
 * decodes pages to bf16. All KV heads must have the same number of dimensions, a multiple of 32. */
cudaError_t kvd_packed_code_turned(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_turned(const kvd_packed_args *a, cudaStream_t stream);
/* Quantises tokens with method gear. Overwrites outliers with NaN in a->rows, and with 0 in the
 * ring buffer. */
cudaError_t kvd_packed_code_gear(const kvd_packed_args *a, cudaStream_t stream);
/* Kernels of method vidkv, and of method turboquant with a fractional number of bits.
 * kvd_packed_code_split quantises tokens; kvd_packed_restore_split decodes pages to bf16. */
cudaError_t kvd_packed_code_split(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_split(const kvd_packed_args *a, cudaStream_t stream);
/* Kernels of method zipcache. kvd_packed_code_classes quantises tokens; kvd_packed_restore_classes
 * decodes pages to bf16. */
cudaError_t kvd_packed_code_classes(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_classes(const kvd_packed_args *a, cudaStream_t stream);
/* Adds the attention that tokens in the ring buffer receive in a decode step to
 * a->classes.received. q [n][map.q_pitch]: bf16 queries. lse [n][n_heads]: natural logarithms of
 * the softmax denominators. */
cudaError_t kvd_packed_receive(const kvd_packed_args *a, const void *q, const float *lse,
                               cudaStream_t stream);
/* Kernels of methods hetero and rotatekv. kvd_packed_code_rows quantises new tokens.
 * kvd_packed_restore_rows decodes K and V of all tokens to bf16 pages. */
cudaError_t kvd_packed_code_rows(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_rows(const kvd_packed_args *a, cudaStream_t stream);
/* Restores the pages of methods allot and gear to bf16. */
cudaError_t kvd_packed_restore_pages(const kvd_packed_args *a, cudaStream_t stream);
/* Restores K and V of all tokens from quantised pages and ring buffers to the bf16 pages
 * a->rows. */
cudaError_t kvd_packed_restore(const kvd_packed_args *a, cudaStream_t stream);
/* Turns pages of random bytes into valid pages, for timing, with `per_page` outliers of K per page
 * and KV head. */
cudaError_t kvd_packed_make_plausible(const kvd_packed_args *a, size_t pages, int32_t per_page,
                                      cudaStream_t stream);
/* Fills the page table of ring buffers, table [n][max_pages]. Page p of request b is page p %
 * ring_pages of the ring buffer with index slot[b]. */
cudaError_t kvd_packed_ring_table(const int32_t *slot, int32_t n, int32_t max_pages,
                                  int32_t ring_pages, int32_t *table, cudaStream_t stream);

/* Arguments of kvd_packed_decode: attention of decode steps to quantised pages and ring buffers. */
typedef struct {
    const void *q; /* device [n][q_pitch] bf16 */
    /* [n][q_pitch] in device memory: random projections of the queries, which kvd_packed_turn_steps
     * writes if form.sketch is set. */
    const void *sketched;
    void *o; /* device [n][o_pitch] bf16 */
    /* [n + 1] in device memory, set by kvd_packed_decode_plan. Element i is the number of pages
     * that requests 0 .. i - 1 of the batch read. */
    int32_t *pages_before;
    /* [1] in device memory: number of real requests. Requests with this index or a higher one only
     * pad the batch. NULL: no request is padding. */
    const int32_t *live;
    /* [n_heads] in device memory: logits of the model's attention sinks. NULL: the model has
     * none. */
    const float *sinks;
    float *partial;
    int32_t n_ctas;
} kvd_packed_decode_args;

/* Returns true if kvd_packed_decode supports the method and shapes in *a on the current GPU. */
bool kvd_packed_decodes(const kvd_packed_args *a);
size_t kvd_packed_decode_bytes(int n_ctas);
/* Sets element i of d->pages_before to the number of pages that requests 0 .. i - 1 of the batch
 * read. Layers with equal sliding windows can share the array. */
cudaError_t kvd_packed_decode_plan(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                                   cudaStream_t stream);
/* Computes the attention of decode steps. The newest token of each request must already be in the
 * ring buffer. */
cudaError_t kvd_packed_decode(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                              cudaStream_t stream);

/* Returns the size in bytes of the table that kvd_packed_rope_table fills, for keys of d
 * dimensions. */
size_t kvd_packed_rope_table_bytes(int d);
/* Fills `turn` with RoPE rotations by 0 to 63 positions, from RoPE cosines and sines
 * [positions][d / 2]. d must be a multiple of 32. */
cudaError_t kvd_packed_rope_table(const float *cosine, const float *sine, int d, uint32_t *turn,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
