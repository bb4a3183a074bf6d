/* Kernels that quantise KV cache pages and restore them to bf16. The newest tokens are not
 * quantised. Their page p is in page p % ring_pages of a ring buffer.
 *
 * Keys are quantised in blocks of k_block tokens; those of an incomplete last block are not. If
 * form.v_channels is true, values are quantised with the keys of their tokens. Otherwise the values
 * of all tokens but the newest v_newest are quantised. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_CODES_H
#define KVD_METHODS_BITS_CUDA_PACKED_CODES_H

#include <cuda_runtime_api.h>

#include "methods/bits/gear.h"
#include "methods/bits/packed_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers of bits per dimension of method allot, in device memory. */
typedef struct {
    int32_t wide;
    const uint8_t *bits; /* [n_kv_heads][2][wide] bits of each dimension of K and of V */
    /* [n_kv_heads][2][wide] Index of the first word with quantised numbers of each dimension of K
     * and of V, from the start of the KV head's part of a page. */
    const uint16_t *word;
    const float *scale; /* [n_kv_heads][2][wide][2] mean and standard deviation */
    const float *level; /* [2][9][256] ascending levels of each number of bits */
} kvd_packed_allot;

typedef struct {
    kvd_gear of;
    /* Number of outliers per key channel of a prompt for which a page has room. */
    int32_t k_room;
    /* [slots][map.page_elements / 64][columns] on the device: right low-rank factors, float16. */
    uint16_t *right;
    /* [partial_room] in device memory: partial sums of the power method, one part per CTA. */
    float *partial;
    size_t partial_room;
} kvd_packed_gear;

/* Number of floats that one CTA writes to kvd_packed_gear.partial in a step of the power method. */
enum { KVD_GEAR_PART = (KVD_WIDTH_NARROW + 2 * KVD_GEAR_RANK) * KVD_GEAR_RANK };

typedef struct {
    kvd_packed_rows of;
    /* Number of KV heads whose keys are rotated together, or 0 if keys are not rotated. */
    int32_t turned;
    /* Factor that narrows a vector's range before quantisation (method rotatekv), or 0 for none. */
    float clip;
    /* [n_kv_heads * d_head] on the device: stored number i of a token's keys is number order[i] of
     * the rotated keys. NULL: keys are not reordered. */
    const uint32_t *order;
} kvd_packed_row_codes;

typedef struct {
    kvd_packed_classes of;
    /* [slots][n_kv_heads][64 * ring_pages] in device memory: attention that each token received. */
    float *received;
    /* Prompts, in device memory. mass [n_heads][n_q8]: attention that each token received; score
     * [n_kv_heads][n_q8]: scratch; q_start [n]: index of each prompt's first token. */
    const float *mass;
    float *score;
    const int32_t *q_start;
    int32_t n_q8;
} kvd_packed_class_codes;

typedef struct {
    kvd_packed_split of;
    /* On the device: cosines and sines of 2 pi i / m, from index m * (m - 1) on. */
    const double *wave;
    /* Turboquant's tables for channels with more [0] and fewer [1] bits, on the device: matrices
     * [m][m] for m channels, and quantisation levels [3][256]. */
    const float *rotation[2], *sketch[2], *level[2];
} kvd_packed_split_codes;

typedef struct {
    kvd_attn_map map;
    kvd_packed_form form;
    int32_t head_at[KVD_HEADS_MAX]; /* byte offset of each KV head in a page */
    /* [keys, values][KV head] Number of stored dimensions, without padding. */
    uint16_t width[2][KVD_HEADS_MAX];
    /* Number of outliers per value vector of each KV head, at most form.v_apart. */
    uint8_t v_apart[KVD_HEADS_MAX];
    /* [keys, values][KV head] Bits per token. Only set if form.allotted is true. */
    uint16_t allotted[2][KVD_HEADS_MAX];
    kvd_packed_allot allot;
    kvd_packed_gear gear;
    kvd_packed_row_codes row;
    kvd_packed_class_codes classes;
    kvd_packed_split_codes split;
    /* [slots] on the device: how many first tokens of each prompt are quantised as one block. */
    int32_t *prompt;
    size_t page_bytes;
    char *codes;    /* device [pages][page_bytes] */
    uint16_t *ring; /* newest tokens, device [slots][ring_pages][map.page_elements] */
    uint16_t *rows; /* working pages in bf16, device [pages][map.page_elements] */
    int32_t ring_pages, k_block, v_newest;
    /* Number of tokens that share a scale of a key channel, over 64 if pages share scales. */
    int32_t span;
    int32_t n, max_pages;
    const int32_t *kv_len, *slot; /* device [n] */
    const int32_t *q_len;         /* device [n] lengths of prompts; NULL: decode steps */
    const int32_t *page_table;    /* device [n][max_pages] */
    /* Number of CTAs among which the pages of a KV head of a request are divided. */
    int32_t pages_side_by_side;
    /* [2][2][2^bits] on the device, for K and V: levels to search for the nearest, then the numbers
     * they decode to. NULL means equal steps. */
    const float *level;
    /* [n_kv_heads][2] in device memory: scales of floating-point keys and values. NULL means 1. */
    const float *scale;
    /* [n_kv_heads][range_width][2] on the device: middle and half width of channel ranges. */
    const float *range;
    int32_t range_width;
    /* Number of first tokens of a request that are stored as float16. */
    int32_t n_sink;
    /* [slots][n_sink][map.page_elements / 64] in device memory: first tokens, stored as float16. */
    uint16_t *sink;
    /* [slots] in device memory: number of key outliers of each running request. */
    uint32_t *apart;
    uint32_t *beyond;
    /* Q, K and V before RoPE on the device, from which keys are quantised if before_rope is set. */
    const uint16_t *x;
    /* Distance in elements between adjacent tokens in x. */
    size_t ld;
    /* [n] in device memory: first token of each prompt in x. NULL: token i belongs to request i. */
    const int32_t *start;
    int32_t x_key, d_head, interleaved;
    bool before_rope;
    const float *cosine, *sine; /* device [positions][d_head / 2]; NULL: no RoPE */
    /* [d][d] Transposed matrices that rotate vectors before quantisation, and rotate outputs
     * back. */
    const float *turn_rows, *turn_outputs;
    /* [d][d] Random matrices: to sketch errors of keys by signs, and to restore the errors. */
    const float *sketch_rows, *sketch_back;
    /* Table of RoPE rotations made by kvd_packed_rope_table in device memory, or NULL. */
    const uint32_t *turn;
} kvd_packed_args;

/* Quantises all but the newest tokens, which it copies to the ring buffer. */
cudaError_t kvd_packed_code(const kvd_packed_args *a, cudaStream_t stream);
/* Kernels of turboquant. Prompts are quantised from a->rows. Before attention,
 * kvd_packed_turn_steps quantises the newest tokens and rotates q [n][q_pitch] (bf16). After it,
 * kvd_packed_turn_outputs rotates o [n][o_pitch] back. `sketched` [n][q_pitch] gets the sketch of
 * q, or is NULL. */
cudaError_t kvd_packed_turn_prompts(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_turn_steps(const kvd_packed_args *a, void *q, void *sketched,
                                  cudaStream_t stream);
cudaError_t kvd_packed_turn_outputs(const kvd_packed_args *a, void *o, cudaStream_t stream);
/* Quantise and restore turboquant's pages. All heads must have equal sizes, a multiple of 32. */
cudaError_t kvd_packed_code_turned(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_turned(const kvd_packed_args *a, cudaStream_t stream);
/* Quantises tokens of gear. Outliers become NaN in a->rows, 0 in the ring buffer of new tokens. */
cudaError_t kvd_packed_code_gear(const kvd_packed_args *a, cudaStream_t stream);
/* Quantise and restore the pages of methods vidkv and turboquant with fractional bits. */
cudaError_t kvd_packed_code_split(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_split(const kvd_packed_args *a, cudaStream_t stream);
/* Quantise and restore the pages of method zipcache. */
cudaError_t kvd_packed_code_classes(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_classes(const kvd_packed_args *a, cudaStream_t stream);
/* Adds the attention of a decode step to a->classes.received, for tokens not yet quantised. q
 * [n][map.q_pitch] is bf16. lse [n][n_heads] has the natural logs of the softmax denominators. */
cudaError_t kvd_packed_receive(const kvd_packed_args *a, const void *q, const float *lse,
                               cudaStream_t stream);
/* Quantise and restore the pages of methods hetero and rotatekv. */
cudaError_t kvd_packed_code_rows(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_rows(const kvd_packed_args *a, cudaStream_t stream);
/* Restores the pages of methods allot and gear to bf16. */
cudaError_t kvd_packed_restore_pages(const kvd_packed_args *a, cudaStream_t stream);
/* Restores K and V of all tokens to the bf16 pages a->rows. */
cudaError_t kvd_packed_restore(const kvd_packed_args *a, cudaStream_t stream);
/* For timing, makes pages of random bytes decodable, with `per_page` key outliers per KV head. */
cudaError_t kvd_packed_make_plausible(const kvd_packed_args *a, size_t pages, int32_t per_page,
                                      cudaStream_t stream);
/* Fills table [n][max_pages]: page p of request b is page p % ring_pages of the ring buffer of
 * slot[b], which holds the newest tokens. */
cudaError_t kvd_packed_ring_table(const int32_t *slot, int32_t n, int32_t max_pages,
                                  int32_t ring_pages, int32_t *table, cudaStream_t stream);

/* Arguments for attention of decode steps on quantised pages and ring buffers. */
typedef struct {
    const void *q; /* device [n][q_pitch] bf16 */
    /* [n][q_pitch] in device memory: sketch of the bf16 queries, if form.sketch is set. */
    const void *sketched;
    void *o; /* device [n][o_pitch] bf16 */
    /* [n + 1] Number of pages of all earlier requests, set by kvd_packed_decode_plan. */
    int32_t *pages_before;
    /* [1] Number of requests, in device memory. Requests with an index from this number on are
     * padding. NULL: no request is padding. */
    const int32_t *live;
    /* [n_heads] in device memory: logits of attention sinks; NULL: no sinks. */
    const float *sinks;
    float *partial;
    int32_t n_ctas;
} kvd_packed_decode_args;

/* Returns true if kvd_packed_decode supports `*a` on the current device. */
bool kvd_packed_decodes(const kvd_packed_args *a);
size_t kvd_packed_decode_bytes(int n_ctas);
/* Sets d->pages_before: number of pages before each request. Serves layers of equal window. */
cudaError_t kvd_packed_decode_plan(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                                   cudaStream_t stream);
/* Computes the attention of decode steps. The newest token must be in the ring buffer. */
cudaError_t kvd_packed_decode(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                              cudaStream_t stream);

/* Bytes of a table of RoPE rotations, for keys of d dimensions that are quantised before RoPE.
 * kvd_packed_rope_table computes it from cosines and sines [positions][d / 2]. */
size_t kvd_packed_rope_table_bytes(int d);
cudaError_t kvd_packed_rope_table(const float *cosine, const float *sine, int d, uint32_t *turn,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
