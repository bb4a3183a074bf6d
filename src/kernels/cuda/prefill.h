/*
 * Prefill attention on heads of unequal width, CUDA. One launch covers all heads of a layer and all requests.
 *
 * Layout BLOCKED of kernels/layout.h, bf16 or fp16. Launchers validate, launch on the caller's stream and return
 * cudaError_t; they never synchronise, allocate or print.
 */
#ifndef KVD_KERNELS_CUDA_PREFILL_H
#define KVD_KERNELS_CUDA_PREFILL_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_PREFILL_ROWS = 192 }; /* query rows of one tile at most: 3 warpgroups of 64 */

/* One unit of work, 16 bytes (lists of them are aligned to 16): n_rows (1 .. KVD_PREFILL_ROWS) query rows of one head of one request. */
typedef struct {
    int32_t request, head; /* query head */
    int32_t row, n_rows;   /* first query row within the request, a multiple of 64 */
} kvd_prefill_tile;

/* Who does which tile (kernels/cuda/prefill_plan.h fills it, on the device). */
typedef struct {
    const kvd_prefill_tile
        *tile; /* device [n_tiles]                                                        */
    int32_t n_tiles;
    const int32_t *first; /* device [n_ctas + 1]: CTA c does tiles first[c] .. first[c+1]-1 in order;
                                     NULL: every CTA takes the next tile of the list from `next`            */
    int32_t *next;        /* device [1], zero at launch; used when first is NULL                     */
    int32_t n_ctas;       /* CTAs launched: one per SM                                               */
} kvd_prefill_work;

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16 (common/half.h)                        */
    kvd_attn_map map;
    int32_t batch, max_pages, n_q8;
    const int32_t *q_start, *q_len, *kv_len; /* device [batch]                                  */
    const int32_t *page_table;               /* device [batch][max_pages]                                  */
    const void *q;                           /* device, blocked Q                                          */
    const void *pool;                        /* device, pages of K and V of this layer                     */
    void *o;                                 /* device, [n_q8][o_pitch]                           out      */
    float *lse;                              /* device [n_heads][n_q8] natural log, or NULL       out      */
    unsigned long long *busy; /* device [n_ctas] ns that each CTA worked (first tile begun to last ended,
                                     %globaltimer or clock64 / clock), or NULL         out      */
    kvd_prefill_work work;
} kvd_prefill_args;

/* Hopper (sm_90a): bulk copies, wgmma, warp specialisation. cudaErrorNotSupported elsewhere. */
cudaError_t kvd_prefill_sm90(const kvd_prefill_args *args, cudaStream_t stream);

/* sm_80 and later: mma.sync, cp.async. The same arguments; `first`/`next` and tiles are honoured likewise. */
cudaError_t kvd_prefill_mma(const kvd_prefill_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
