/*
 * Kernels that quantise KV cache pages (packed_layout.h) and restore bf16 pages. Lengths, slots and
 * page numbers are read on the device.
 *
 * If a request has m tokens, the keys of the first m / k_block * k_block are quantised. Values are
 * quantised for the same tokens (form.v_channels), or for all but the v_newest newest tokens.
 * Unquantised tokens are stored in bf16 in the request's ring buffer, page p in ring page p %
 * ring_pages.
 *
 * With a sliding window (map.window) of W >= k_block tokens, decode steps skip all pages before the
 * page of token m - W.
 */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_CODES_H
#define KVD_METHODS_BITS_CUDA_PACKED_CODES_H

#include <cuda_runtime_api.h>

#include "methods/bits/gear.h"
#include "methods/bits/packed_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Numbers of bits per dimension of method allot, and offsets of the quantised numbers, in device
 * memory.
 */
typedef struct {
    int32_t wide;
    const uint8_t *bits; /* [n_kv_heads][2][wide] bits of each dimension of K and of V */
    /*
     * First word of each dimension's quantised numbers in a page of the KV head,
     * [n_kv_heads][2][wide].
     */
    const uint16_t *word;
    const float *scale; /* [n_kv_heads][2][wide][2] mean and standard deviation */
    const float *level; /* [2][9][256] ascending levels of each number of bits */
} kvd_packed_allot;

typedef struct {
    kvd_gear of;
    /* Number of outliers that a page holds of each of the prompt's key channels. */
    int32_t k_room;
    /*
     * Right low-rank factors of prompts, float16, [slots][map.page_elements / 64][columns] in
     * device memory: keys, then values of each KV head.
     */
    uint16_t *right;
    /* Partial sums of the power method, one part per CTA, [partial_room] in device memory. */
    float *partial;
    size_t partial_room;
} kvd_packed_gear;

/* Number of floats of one CTA's sums in kvd_packed_gear.partial. */
enum { KVD_GEAR_PART = (KVD_WIDTH_NARROW + 2 * KVD_GEAR_RANK) * KVD_GEAR_RANK };

typedef struct {
    kvd_packed_rows of;
    /* Number of KV heads whose keys are rotated together, or 0 if keys are not rotated. */
    int32_t turned;
    /* Factor that narrows a vector's range before quantisation (method rotatekv), or 0 for none. */
    float clip;
    /*
     * [n_kv_heads * d_head] in device memory: original channel of each number of rotated keys. NULL
     * means that the order is unchanged.
     */
    const uint32_t *order;
} kvd_packed_row_codes;

typedef struct {
    kvd_packed_classes of;
    /*
     * Sums of attention probabilities that each token received, [slots][n_kv_heads][64 *
     * ring_pages] in device memory, token t at t % (64 * ring_pages).
     */
    float *received;
    /*
     * Device memory for prompts: attention probabilities received per query head, mass
     * [n_heads][n_q8]; scratch memory score [n_kv_heads][n_q8]; first row of each prompt, q_start
     * [n].
     */
    const float *mass;
    float *score;
    const int32_t *q_start;
    int32_t n_q8;
} kvd_packed_class_codes;

typedef struct {
    kvd_packed_split of;
    /*
     * In device memory: cosines and sines of 2 pi i / m for each length m, from index m * (m - 1)
     * on.
     */
    const double *wave;
    /*
     * Tables of turboquant for the chosen channels [0] and the others [1]: matrices [m][m] for m
     * channels, and quantisation levels [3][256].
     */
    const float *rotation[2], *sketch[2], *level[2];
} kvd_packed_split_codes;

typedef struct {
    kvd_attn_map map;
    kvd_packed_form form;
    int32_t head_at[KVD_HEADS_MAX]; /* byte offset of each KV head in a page */
    /* Number of stored dimensions of each KV head, for keys and for values, without padding. */
    uint16_t width[2][KVD_HEADS_MAX];
    /* Number of outliers per value vector of each KV head, at most form.v_apart. */
    uint8_t v_apart[KVD_HEADS_MAX];
    /* Bits of a token in each KV head, for keys and for values, if form.allotted is set. */
    uint16_t allotted[2][KVD_HEADS_MAX];
    kvd_packed_allot allot;
    kvd_packed_gear gear;
    kvd_packed_row_codes row;
    kvd_packed_class_codes classes;
    kvd_packed_split_codes split;
    /*
     * [slots] in device memory: number of a prompt's first tokens that are quantised as one block.
     */
    int32_t *prompt;
    size_t page_bytes;
    char *codes;    /* device [pages][page_bytes] */
    uint16_t *ring; /* newest tokens, device [slots][ring_pages][map.page_elements] */
    uint16_t *rows; /* working pages in bf16, device [pages][map.page_elements] */
    int32_t ring_pages, k_block, v_newest;
    /* Number of tokens per scale of a key channel: form.k_group or a multiple of 64. */
    int32_t span;
    int32_t n, max_pages;
    const int32_t *kv_len, *slot; /* device [n] */
    const int32_t *q_len;         /* device [n] lengths of prompts; NULL: decode steps */
    const int32_t *page_table;    /* device [n][max_pages] */
    /* Number of CTAs among which the pages of a KV head of a request are divided. */
    int32_t pages_side_by_side;
    /*
     * Tables of quantisation levels in device memory, [2][2][2^bits]: for K and for V, ascending
     * levels to compare with, then decoded numbers. NULL means equal steps.
     */
    const float *level;
    /* Scales of floating-point keys and values, device [n_kv_heads][2]; NULL: 1. */
    const float *scale;
    /*
     * Middle and half width of each key channel's range, [n_kv_heads][range_width][2] in device
     * memory.
     */
    const float *range;
    int32_t range_width;
    /* Number of first tokens of a request that are stored as float16. */
    int32_t n_sink;
    /*
     * First tokens stored as float16, [slots][n_sink][map.page_elements / 64] in device memory: key
     * and value of each KV head.
     */
    uint16_t *sink;
    /* Number of key outliers of each running request (slot), [slots] in device memory. */
    uint32_t *apart;
    uint32_t *beyond;
    /* Q, K and V before RoPE, device; if before_rope is set, keys are quantised from these. */
    const uint16_t *x;
    /* Distance in elements between adjacent tokens in x. */
    size_t ld;
    /* First token of each prompt in x, [n] in device memory. NULL: token i belongs to request i. */
    const int32_t *start;
    int32_t x_key, d_head, interleaved;
    bool before_rope;
    const float *cosine, *sine; /* device [positions][d_head / 2]; NULL: no RoPE */
    /*
     * Transposed matrices [d][d] that rotate vectors before quantisation, and rotate outputs back.
     * NULL: none.
     */
    const float *turn_rows, *turn_outputs;
    /*
     * Sketch matrices [d][d] (form.sketch): sketch_rows is the transpose of S; sketch_back
     * multiplies the signs when keys are restored.
     */
    const float *sketch_rows, *sketch_back;
    /* Table of RoPE rotations made by kvd_packed_rope_table, device memory, or NULL. */
    const uint32_t *turn;
} kvd_packed_args;

/*
 * Quantises all tokens outside the exact window: prompts from a->rows, decode steps from the ring
 * buffer. Copies a prompt's newest tokens to the ring buffer.
 */
cudaError_t kvd_packed_code(const kvd_packed_args *a, cudaStream_t stream);
/*
 * Kernels of turboquant, for the head sizes of kvd_packed_decode. kvd_packed_turn_prompts quantises
 * prompts from a->rows. kvd_packed_turn_steps, called before attention, quantises the newest tokens
 * and rotates them and q [n][q_pitch] (bf16); sketched [n][q_pitch] receives S q, or is NULL
 * without form.sketch. kvd_packed_turn_outputs rotates o [n][o_pitch] back.
 */
cudaError_t kvd_packed_turn_prompts(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_turn_steps(const kvd_packed_args *a, void *q, void *sketched,
                                  cudaStream_t stream);
cudaError_t kvd_packed_turn_outputs(const kvd_packed_args *a, void *o, cudaStream_t stream);
/* Quantise and restore turboquant's pages, for heads of one width, a multiple of 32. */
cudaError_t kvd_packed_code_turned(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_turned(const kvd_packed_args *a, cudaStream_t stream);
/* Quantises tokens (gear). Outliers become NaN in a->rows (prompts) and 0 in the ring buffer. */
cudaError_t kvd_packed_code_gear(const kvd_packed_args *a, cudaStream_t stream);
/* Quantise and restore the pages of methods vidkv and turboquant with fractional bits. */
cudaError_t kvd_packed_code_split(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_split(const kvd_packed_args *a, cudaStream_t stream);
/* Quantise and restore the pages of method zipcache. */
cudaError_t kvd_packed_code_classes(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_classes(const kvd_packed_args *a, cudaStream_t stream);
/*
 * Adds the attention probabilities of a decode step to a->classes.received, for tokens not yet
 * quantised. q [n][map.q_pitch] is bf16; lse [n][n_heads] has the natural logs of the softmax
 * denominators.
 */
cudaError_t kvd_packed_receive(const kvd_packed_args *a, const void *q, const float *lse,
                               cudaStream_t stream);
/* Quantise and restore the pages of methods hetero and rotatekv. */
cudaError_t kvd_packed_code_rows(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_rows(const kvd_packed_args *a, cudaStream_t stream);
/* Restores the pages of methods allot and gear to bf16. */
cudaError_t kvd_packed_restore_pages(const kvd_packed_args *a, cudaStream_t stream);
/* Restores K and V of all tokens (from the window's first page on) to the bf16 pages a->rows. */
cudaError_t kvd_packed_restore(const kvd_packed_args *a, cudaStream_t stream);
/* Turns pages of random bytes into valid ones for timing, with `per_page` outliers each. */
cudaError_t kvd_packed_make_plausible(const kvd_packed_args *a, size_t pages, int32_t per_page,
                                      cudaStream_t stream);
/* Fills table [n][max_pages] with the ring-buffer page of every page of a request. */
cudaError_t kvd_packed_ring_table(const int32_t *slot, int32_t n, int32_t max_pages,
                                  int32_t ring_pages, int32_t *table, cudaStream_t stream);

/*
 * Attention of decode steps on quantised pages, for heads of 64 or 128 dimensions, and
 *   kivi                 2, 3, 4 or 8 bits, also with heads of any widths up to 128
 *   comet                2, 3, 4 or 8 bits
 *   kvquant, turboquant  2, 3 or 4 bits
 *   hetero               up to 8 bits
 *   fp8, mxfp4, nvfp4    all, also with heads of any widths up to 128
 *   allot, gear          all, with heads of any widths up to 128, restored in shared memory
 * A KV head has at most 8 query heads or, except with turboquant, a number that 2, 3 or 4 divides
 * into at most 8. The newest tokens are read in bf16 from the request's ring buffer.
 */
typedef struct {
    const void *q; /* device [n][q_pitch] bf16 */
    /*
     * [n][q_pitch] in device memory: bf16 queries times the sketch matrix S, if form.sketch is set.
     */
    const void *sketched;
    void *o; /* device [n][o_pitch] bf16 */
    /*
     * [n + 1] in device memory, from kvd_packed_decode_plan: number of pages of the requests before
     * i.
     */
    int32_t *pages_before;
    /* In device memory: number of requests before the padding; NULL: all n requests. */
    const int32_t *live;
    /* [n_heads] in device memory: logits of attention sinks; NULL: no sinks. */
    const float *sinks;
    float *partial;
    int32_t n_ctas;
} kvd_packed_decode_args;

/* Returns true if kvd_packed_decode supports `*a` on the current device. */
bool kvd_packed_decodes(const kvd_packed_args *a);
size_t kvd_packed_decode_bytes(int n_ctas);
/*
 * Fills d->pages_before for the requests that kvd_packed_decode will process. One call per
 * iteration serves all layers with the same window.
 */
cudaError_t kvd_packed_decode_plan(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                                   cudaStream_t stream);
/*
 * Computes the attention of decode steps. Each request's newest token must be unquantised in the
 * ring buffer.
 */
cudaError_t kvd_packed_decode(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                              cudaStream_t stream);

/*
 * Compute tables of RoPE rotations for keys that are quantised before RoPE, from tables [positions
 * >= 2][d / 2] of cosines and sines; d is a multiple of 32.
 */
size_t kvd_packed_rope_table_bytes(int d);
cudaError_t kvd_packed_rope_table(const float *cosine, const float *sine, int d, uint32_t *turn,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
