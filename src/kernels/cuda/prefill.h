/*
 * Prefill attention in CUDA on heads with different numbers of dimensions. One launch computes all
 * heads of a layer for all requests. Layout BLOCKED of kernels/layout.h, bf16 or fp16. The
 * functions validate their arguments, launch on the caller's stream and return a cudaError_t. They
 * never synchronise, allocate or print.
 */
#ifndef KVD_KERNELS_CUDA_PREFILL_H
#define KVD_KERNELS_CUDA_PREFILL_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_PREFILL_ROWS = 192 }; /* most query rows of a tile: 3 warpgroups of 64 */

/*
 * Tile: n_rows (1 .. KVD_PREFILL_ROWS) query rows of one head of one request, the unit of work of a
 * CTA. 16 bytes; arrays of tiles must be aligned to 16 bytes.
 */
typedef struct {
    int32_t request, head; /* indices of the request and of the query head */
    int32_t row, n_rows;   /* row: first query row of the tile in the request, a multiple of 64 */
} kvd_prefill_tile;

/*
 * Assignment of tiles to CTAs, filled on the device by the schedulers of
 * kernels/cuda/prefill_plan.h.
 */
typedef struct {
    const kvd_prefill_tile *tile; /* device [n_tiles]: all tiles of the launch */
    int32_t n_tiles;
    /*
     * Device [n_ctas + 1]: CTA c computes tiles first[c] .. first[c+1]-1 in this order. NULL: every
     * CTA takes the next tile of the list by incrementing *next.
     */
    const int32_t *first;
    int32_t *next;  /* device [1]: index of the next tile, 0 at launch; used if `first` is NULL */
    int32_t n_ctas; /* number of CTAs launched, one per SM */
} kvd_prefill_work;

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16 (common/half.h) */
    kvd_attn_map map;
    int32_t batch, max_pages, n_q8;
    /* Device [batch]: first row in Q and lengths of each request. */
    const int32_t *q_start, *q_len, *kv_len;
    const int32_t *page_table; /* device [batch][max_pages]: pages of each request */
    const void *q;             /* blocked Q, on the device */
    const void *pool;          /* pages of K and V of this layer, on the device */
    /* Attention output, device [n_q8 rows of Q][o_pitch]. */
    void *o;
    /*
     * Output, device [n_heads][n_q8 rows of Q]: natural logarithms of the softmax denominators;
     * NULL: not written.
     */
    float *lse;
    /*
     * Output, device [n_ctas]: nanoseconds that each CTA worked, from the start of its first tile
     * to the end of its last (%globaltimer, or clock64 / clock). NULL: not measured.
     */
    unsigned long long *busy;
    kvd_prefill_work work;
} kvd_prefill_args;

/*
 * Computes prefill attention on Hopper (sm_90a) with bulk copies, wgmma and warp specialisation.
 * Returns cudaErrorNotSupported on other devices.
 */
cudaError_t kvd_prefill_sm90(const kvd_prefill_args *args, cudaStream_t stream);

/*
 * Does the work of kvd_prefill_sm90 for layers with a sliding window. kvd_prefill_sm90 calls it
 * after it has checked the arguments.
 */
cudaError_t kvd_prefill_window_sm90(const kvd_prefill_args *args, cudaStream_t stream);

/*
 * Computes prefill attention on sm_80 and later with mma.sync and cp.async. Takes the same
 * arguments as kvd_prefill_sm90.
 */
cudaError_t kvd_prefill_mma(const kvd_prefill_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
