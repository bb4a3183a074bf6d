/*
 * Prefill attention in CUDA on heads with different numbers of dimensions, in layout BLOCKED of
 * kernels/layout.h, bf16 or fp16. The functions launch on the caller's stream and never wait or
 * allocate.
 */
#ifndef KVD_KERNELS_CUDA_PREFILL_H
#define KVD_KERNELS_CUDA_PREFILL_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KVD_PREFILL_ROWS = 192, /* largest number of rows of a tile: 3 warpgroups of 64 */
    /* Largest number of rows of a tile in a layer with a head wider than KVD_WIDTH_NARROW. */
    KVD_PREFILL_WIDE_ROWS = 128
};

/*
 * Query rows of one head of one request, which a CTA computes together. The structure has 16 bytes,
 * and arrays of it must be aligned to 16 bytes.
 */
typedef struct {
    int32_t request, head; /* indices of the request and of the query head */
    int32_t row, n_rows;   /* first row in the request, a multiple of 64, and number of rows */
} kvd_prefill_tile;

/* Assignment of tiles to CTAs, filled on the device by prefill_plan.h. */
typedef struct {
    const kvd_prefill_tile *tile; /* device [n_tiles] */
    int32_t n_tiles;
    /*
     * Device [n_ctas + 1]: CTA c computes tiles first[c] .. first[c+1]-1 in this order. NULL: every
     * CTA takes the next tile by incrementing *next.
     */
    const int32_t *first;
    /*
     * Device [1]: index of the next tile that a CTA takes, 0 at launch; used if the member `first`
     * is NULL
     */
    int32_t *next;
    int32_t n_ctas; /* one per SM */
} kvd_prefill_work;

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16 */
    kvd_attn_map map;
    int32_t batch, max_pages, n_q8;
    /* Device [batch]: first row of each request in Q, and lengths. */
    const int32_t *q_start, *q_len, *kv_len;
    const int32_t *page_table; /* device [batch][max_pages] */
    const void *q;             /* blocked, on the device */
    const void *pool;          /* pool of pages with K and V, on the device */
    /*
     * Device [n_heads]: logits of the attention sinks. The exponential of a head's sink is added to
     * the denominators of its softmax, once per row. NULL: no sinks.
     */
    const float *sinks;
    /* Output, device [n_q8][o_pitch]. */
    void *o;
    /*
     * Output, device [n_heads][n_q8], natural logarithms of the softmax denominators. May be NULL.
     */
    float *lse;
    /*
     * Output, device [n_ctas]: nanoseconds from the start of a CTA's first tile to the end of its
     * last. May be NULL.
     */
    unsigned long long *busy;
    kvd_prefill_work work;
} kvd_prefill_args;

/*
 * Kernel for Hopper (sm_90a). Returns cudaErrorNotSupported on other devices. It has no variant for
 * heads wider than KVD_WIDTH_NARROW in KVD_F16, so it calls kvd_prefill_mma if a head is wider than
 * KVD_WIDTH_NARROW and the data type is KVD_F16.
 */
cudaError_t kvd_prefill_sm90(const kvd_prefill_args *args, cudaStream_t stream);

/*
 * Computes layers with a sliding window. Called by kvd_prefill_sm90 after it has checked the
 * arguments.
 */
cudaError_t kvd_prefill_window_sm90(const kvd_prefill_args *args, cudaStream_t stream);

/* Computes bf16 layers with a head wider than KVD_WIDTH_NARROW. Called by kvd_prefill_sm90. */
cudaError_t kvd_prefill_wide_sm90(const kvd_prefill_args *args, cudaStream_t stream);

/* Kernel for sm_80 and later, with the arguments of kvd_prefill_sm90. */
cudaError_t kvd_prefill_mma(const kvd_prefill_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
