/* Prefill attention in CUDA on bf16 or fp16 matrices of 8 x 8 blocks. The functions only queue
 * kernels; they never wait and allocate no memory. */
#ifndef KVD_KERNELS_CUDA_PREFILL_H
#define KVD_KERNELS_CUDA_PREFILL_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KVD_PREFILL_ROWS = 192, /* largest number of rows of a tile: 3 warpgroups of 64 */
    /* Largest number of query rows per tile in layers with a head wider than KVD_WIDTH_NARROW
     * dimensions. */
    KVD_PREFILL_WIDE_ROWS = 128
};

/* Tile of attention that one CTA computes: a range of query rows of one head of one request. */
typedef struct {
    int32_t request, head;
    int32_t row, n_rows; /* first row in the request, a multiple of 64, and number of rows */
} kvd_prefill_tile;

/* Tiles of attention (ranges of query rows of one head), and which CTA computes each of them.
 * Filled on the device. */
typedef struct {
    const kvd_prefill_tile *tile; /* device [n_tiles] */
    int32_t n_tiles;
    /* [n_ctas + 1] in device memory: index of each CTA's first tile. NULL: each free CTA takes the
     * tile with the index *next. */
    const int32_t *first;
    int32_t *next;  /* Device [1]: index of the next tile, 0 at launch; used if `first` is NULL. */
    int32_t n_ctas; /* number of CTAs, one per SM */
} kvd_prefill_work;

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16 */
    kvd_attn_map map;
    int32_t batch, max_pages, n_q8;
    /* [batch] on the device: first row of each request in Q, number of queries, of keys. */
    const int32_t *q_start, *q_len, *kv_len;
    const int32_t *page_table; /* device [batch][max_pages] */
    const void *q;             /* blocked Q on the device */
    const void *pool;          /* pages of K and V on the device */
    /* [n_heads] on the device, or NULL: logits of attention sinks. */
    const float *sinks;
    void *o; /* Output, device [n_q8][o_pitch]. */
    /* Output, [n_heads][n_q8] on the device, or NULL: logs of the softmax denominators. */
    float *lse;
    /* Output, [n_ctas] in device memory, or NULL: nanoseconds that each CTA worked. */
    unsigned long long *busy;
    kvd_prefill_work work;
} kvd_prefill_args;

/* Returns true if the prefill kernels support the sizes, types and alignments in *args. */
bool kvd_prefill_valid(const kvd_prefill_args *args);

/* Computes prefill attention on sm_90a; on other GPUs returns cudaErrorNotSupported. Calls
 * kvd_prefill_mma for fp16 heads wider than KVD_WIDTH_NARROW. */
cudaError_t kvd_prefill_sm90(const kvd_prefill_args *args, cudaStream_t stream);

/* Computes attention with a sliding window. Called by kvd_prefill_sm90 after checking `args`. */
cudaError_t kvd_prefill_window_sm90(const kvd_prefill_args *args, cudaStream_t stream);

/* Computes bf16 attention with heads wider than KVD_WIDTH_NARROW. Called by kvd_prefill_sm90. */
cudaError_t kvd_prefill_wide_sm90(const kvd_prefill_args *args, cudaStream_t stream);

/* Computes prefill attention on sm_80 and later. */
cudaError_t kvd_prefill_mma(const kvd_prefill_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
