/*
 * Kernels that quantise KV cache pages (packed_layout.h) and restore bf16 pages. Lengths, slots and
 * page numbers are read on the device.
 *
 * In a request of m tokens, the keys of all whole blocks of k_block tokens are quantised (the first
 * m / k_block * k_block tokens). If form.v_channels is set, the values of the same tokens are
 * quantised, otherwise the values of all but the newest v_newest tokens. The tokens that are not
 * quantised are bf16, in the ring buffer of the request's slot, in pages of the layout of
 * kernels/layout.h. Page p of the request is page p % ring_pages of the ring buffer.
 *
 * In a layer with a sliding window (map.window) of W tokens, the pages before that of token m - W
 * are neither read nor written in decode steps, and their entries of the page table are not used. W
 * must be at least k_block.
 */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_CODES_H
#define KVD_METHODS_BITS_CUDA_PACKED_CODES_H

#include <cuda_runtime_api.h>

#include "methods/bits/gear.h"
#include "methods/bits/packed_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Codes whose numbers of bits differ by dimension (allot). Pointers are to device memory. */
typedef struct {
    int32_t wide;
    const uint8_t *bits; /* [n_kv_heads][2][wide] bits of each dimension of K and of V */
    /*
     * [n_kv_heads][2][wide] first word of the dimension, from the start of the KV head's codes in a
     * page
     */
    const uint16_t *word;
    const float *scale; /* [n_kv_heads][2][wide][2] mean and standard deviation */
    const float *level; /* [2][9][256] quantisation levels of each number of bits, ascending */
} kvd_packed_allot;

/* Codes with low-rank parts (gear). */
typedef struct {
    kvd_gear of;
    /* Number of outliers of one key channel of a prompt that fit in a page. */
    int32_t k_room;
    /*
     * Right factors of the low-rank parts of prompts in float16, device [slots][map.page_elements /
     * 64][columns]: KV head after KV head, keys before values.
     */
    uint16_t *right;
    /*
     * Device memory [partial_room] in which several CTAs store their sums over parts of a prompt's
     * rows, to be added. If the memory is too small, one CTA reads all rows of a head.
     */
    float *partial;
    size_t partial_room;
} kvd_packed_gear;

/*
 * Number of floats of one CTA's sums in kvd_packed_gear.partial. If n CTAs read the rows of K or V
 * of a head, they need 2 * (n + 1) times this number: two buffers, each with the parts of n CTAs
 * and the right factor.
 */
enum { KVD_GEAR_PART = (KVD_WIDTH_NARROW + 2 * KVD_GEAR_RANK) * KVD_GEAR_RANK };

/* Codes of single tokens (hetero, rotatekv). */
typedef struct {
    kvd_packed_rows of;
    /* Number of KV heads whose keys are rotated together. 0: no rotation. */
    int32_t turned;
    /*
     * Factor by which the range of a vector shrinks before quantisation (rotatekv). 0: steps and
     * zero points are those of kvd_quantise_group.
     */
    float clip;
    /*
     * Device [n_kv_heads * d_head]: for each code of the keys that are rotated together, the
     * channel to which the code belongs. NULL: ascending order.
     */
    const uint32_t *order;
} kvd_packed_row_codes;

/* Codes of two classes of tokens (zipcache). */
typedef struct {
    kvd_packed_classes of;
    /*
     * Sums of the attention probabilities that the newest tokens received: device
     * [slots][n_kv_heads][64 * ring_pages]. Token t of a request has element t % (64 * ring_pages).
     */
    float *received;
    /*
     * These members must be set when prompts are coded. mass [n_heads][n_q8]: device, sum of the
     * probabilities that each token received in each query head. score [n_kv_heads][n_q8]: device,
     * scratch. q_start [n]: first row of each prompt in `mass`.
     */
    const float *mass;
    float *score;
    const int32_t *q_start;
    int32_t n_q8;
} kvd_packed_class_codes;

/*
 * Codes of methods that divide the channels of each vector in two parts (vidkv, turboquant with a
 * fractional number of bits).
 */
typedef struct {
    kvd_packed_split of;
    /*
     * Device array. For every m up to KVD_WIDTH_MAX, it has the cosines and then the sines of the m
     * angles 2 pi i / m (0 <= i < m). The angles of m begin at element m * (m - 1).
     */
    const double *wave;
    /*
     * Device tables of turboquant for the chosen channels [0] and the other channels [1]. With m
     * channels, rotation and sketch are matrices [m][m] (sketch is NULL if there is none). level
     * [3][256] has the quantisation levels for codes of of.bits - 1, of.bits and of.bits + 1 bits.
     */
    const float *rotation[2], *sketch[2], *level[2];
} kvd_packed_split_codes;

/* One layer, its memory, and the requests of a batch. */
typedef struct {
    kvd_attn_map map;
    kvd_packed_form form;
    int32_t head_at[KVD_HEADS_MAX]; /* byte offset of each KV head in a page */
    /*
     * Number of stored dimensions of each KV head, of keys and of values. The other dimensions of
     * map.d_qk and map.d_v are padding: they are 0 in bf16 rows, and may be any finite number after
     * decoding.
     */
    uint16_t width[2][KVD_HEADS_MAX];
    /*
     * Number of outliers that are stored for a value vector of each KV head, at most form.v_apart.
     */
    uint8_t v_apart[KVD_HEADS_MAX];
    /* With form.allotted: number of bits of a token of each KV head, of keys and of values. */
    uint16_t allotted[2][KVD_HEADS_MAX];
    kvd_packed_allot allot;
    kvd_packed_gear gear;
    kvd_packed_row_codes row;
    kvd_packed_class_codes classes;
    kvd_packed_split_codes split;
    /*
     * Number of tokens of each slot that were coded as one block at the end of the prompt, device
     * [slots], if kvd_packed_in_blocks(&form). If the number exceeds the length of the request, all
     * coded tokens of the request are one block.
     */
    int32_t *prompt;
    size_t page_bytes;
    char *codes;    /* device [pages][page_bytes] */
    uint16_t *ring; /* newest tokens, device [slots][ring_pages][map.page_elements] */
    uint16_t *rows; /* working pages in bf16, device [pages][map.page_elements] */
    int32_t ring_pages, k_block, v_newest;
    /*
     * Number of tokens that share a scale in each key channel: form.k_group or, for longer groups,
     * a multiple of 64.
     */
    int32_t span;
    /* Number of requests, and number of entries of each request's page table. */
    int32_t n, max_pages;
    const int32_t *kv_len, *slot; /* device [n] */
    const int32_t *q_len;         /* device [n] lengths of prompts; NULL: decode steps */
    const int32_t *page_table;    /* device [n][max_pages] */
    /* Number of CTAs among which the pages of a KV head of one request are divided. */
    int32_t pages_side_by_side;
    /*
     * Quantisation levels, device [2][2][2^bits], keys then values; NULL: codes are equal steps.
     * The first 2^bits numbers, in ascending order, are for coding: the code is the index of the
     * nearest one. The second 2^bits numbers are for decoding: the code is the index of the decoded
     * number.
     */
    const float *level;
    /* Scales of floating-point keys and values, device [n_kv_heads][2]. NULL: all scales are 1. */
    const float *scale;
    /*
     * Middle and half width of the range of every key channel, device [n_kv_heads][range_width][2].
     */
    const float *range;
    int32_t range_width;
    /* Number of first tokens of a request that are kept in float16. */
    int32_t n_sink;
    /*
     * Float16 numbers of the n_sink first tokens, device [slots][n_sink][map.page_elements / 64].
     * In each row, the KV heads follow one another, each with its key and then its value.
     */
    uint16_t *sink;
    /*
     * Number of key outliers of each slot in all heads and layers, device [slots]. The count of a
     * slot is reset when layer 0 of a new prompt is quantised.
     */
    uint32_t *apart;
    /* device: largest number of key outliers that a page had in excess of k_apart */
    uint32_t *beyond;
    /*
     * Q, K and V before RoPE, device. Keys are read from here if before_rope is set, else from the
     * pages.
     */
    const uint16_t *x;
    /* elements from a token of x to the next token */
    size_t ld;
    /* Device [n]: first token of each prompt in x. NULL: token i of x belongs to request i. */
    const int32_t *start;
    int32_t x_key, d_head, interleaved;
    bool before_rope;
    const float *cosine, *sine; /* device [positions][d_head / 2]; NULL: no RoPE */
    /*
     * Transposed matrices [d][d] that rotate vectors before quantisation (turn_rows) and rotate
     * attention outputs back (turn_outputs). NULL: no rotation.
     */
    const float *turn_rows, *turn_outputs;
    /*
     * If form.sketch is set, matrices [d][d] of turboquant's sketch, which stores the signs of
     * random projections of the residuals. sketch_rows is the transpose of the projection matrix S;
     * sketch_back multiplies the signs. The first 2^(bits - 1) numbers of `level` are then the
     * levels of keys.
     */
    const float *sketch_rows, *sketch_back;
    /* RoPE rotations from kvd_packed_rope_table, device, or NULL. */
    const uint32_t *turn;
} kvd_packed_args;

/*
 * Quantises all tokens that have left the exact window and are not yet quantised. Prompts are read
 * from a->rows, tokens of decode steps from the ring buffer. Copies the newest tokens of a prompt
 * to the ring buffer.
 */
cudaError_t kvd_packed_code(const kvd_packed_args *a, cudaStream_t stream);
/*
 * Kernels for turboquant, for the head sizes that kvd_packed_decode supports.
 * kvd_packed_turn_prompts quantises whole prompts from a->rows. kvd_packed_turn_steps must run
 * before the attention of a decode step: it quantises the newest tokens and rotates them in the
 * ring buffer, and it rotates the queries q [n][q_pitch] bf16. With form.sketch it also writes the
 * products S q of the rotated queries to `sketched` [n][q_pitch] bf16, which may otherwise be NULL.
 * kvd_packed_turn_outputs rotates the attention outputs o [n][o_pitch] bf16 back.
 */
cudaError_t kvd_packed_turn_prompts(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_turn_steps(const kvd_packed_args *a, void *q, void *sketched,
                                  cudaStream_t stream);
cudaError_t kvd_packed_turn_outputs(const kvd_packed_args *a, void *o, cudaStream_t stream);
/*
 * These functions do the work of kvd_packed_code and kvd_packed_restore for turboquant, for heads
 * of one width, a multiple of 32.
 */
cudaError_t kvd_packed_code_turned(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_turned(const kvd_packed_args *a, cudaStream_t stream);
/*
 * Does the work of kvd_packed_code for gear. Overwrites outliers with NaN in a->rows (prompts) and
 * with 0 in the ring buffer.
 */
cudaError_t kvd_packed_code_gear(const kvd_packed_args *a, cudaStream_t stream);
/*
 * These functions do the work of kvd_packed_code and kvd_packed_restore for vidkv, and for
 * turboquant with a fractional number of bits.
 */
cudaError_t kvd_packed_code_split(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_split(const kvd_packed_args *a, cudaStream_t stream);
/* These functions do the work of kvd_packed_code and kvd_packed_restore for zipcache. */
cudaError_t kvd_packed_code_classes(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_classes(const kvd_packed_args *a, cudaStream_t stream);
/*
 * Adds the probabilities of decode steps to a->classes.received, for the newest tokens, which are
 * not coded before the step. q [n][map.q_pitch] bf16 are the queries of the steps. lse [n][n_heads]
 * are the natural logarithms of the softmax denominators.
 */
cudaError_t kvd_packed_receive(const kvd_packed_args *a, const void *q, const float *lse,
                               cudaStream_t stream);
/* These functions do the work of kvd_packed_code and kvd_packed_restore for hetero and rotatekv. */
cudaError_t kvd_packed_code_rows(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_rows(const kvd_packed_args *a, cudaStream_t stream);
/*
 * Writes K and V of all tokens of the requests to the bf16 working pages a->rows. With a sliding
 * window, starts with the page of the first token of the window.
 */
cudaError_t kvd_packed_restore(const kvd_packed_args *a, cudaStream_t stream);
/*
 * Changes pages of random bytes into valid pages for timing: floating-point codes become finite,
 * their scales become 1, and each page gets `per_page` outliers at valid positions.
 */
cudaError_t kvd_packed_make_plausible(const kvd_packed_args *a, size_t pages, int32_t per_page,
                                      cudaStream_t stream);
/* Fills table [n][max_pages] with the page of the ring buffer for every page of a request. */
cudaError_t kvd_packed_ring_table(const int32_t *slot, int32_t n, int32_t max_pages,
                                  int32_t ring_pages, int32_t *table, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
