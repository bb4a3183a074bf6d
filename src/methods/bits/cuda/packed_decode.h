/*
 * Attention of decode steps that reads codes of few bits without restoring rows first. Supported
 * are equal steps (kivi) of 2, 3, 4 or 8 bits, quantisation levels of a table (kvquant, turboquant)
 * of 2, 3 or 4 bits, floating-point codes (fp8, mxfp4, nvfp4), heads of 64 or 128 dimensions and at
 * most 8 query heads per KV head. The newest rows are read in bf16 from the ring of the request's
 * slot.
 */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_DECODE_H
#define KVD_METHODS_BITS_CUDA_PACKED_DECODE_H

#include "methods/bits/cuda/packed_codes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arguments of attention on codes, in addition to kvd_packed_args. */
typedef struct {
    const void *q; /* queries, device [n][q_pitch] bf16 */
    void *o;       /* output, device [n][o_pitch] bf16 */
    /*
     * Prefix sums of page counts, device [n + 2], filled by kvd_packed_decode_plan: number of pages
     * of all requests before request i, for i = 0 .. n; then the number of pages per warp.
     */
    int32_t *pages_before;
    /*
     * Device: number of requests that have work, the first of the n. The outputs of the others are
     * not written. NULL: all n.
     */
    const int32_t *live;
    float *partial; /* device, kvd_packed_decode_bytes bytes */
    int32_t n_ctas; /* number of CTAs; fastest is the number of multiprocessors */
} kvd_packed_decode_args;

/* Returns true if kvd_packed_decode supports the heads and codes of *a on the current device. */
bool kvd_packed_decodes(const kvd_packed_args *a);
/* Returns the bytes of kvd_packed_decode_args.partial for n_ctas CTAs. */
size_t kvd_packed_decode_bytes(int n_ctas);
/*
 * Fills d->pages_before; called once per iteration for all layers. n, kv_len, live, pages_before
 * and n_ctas must be those of the later calls of kvd_packed_decode.
 */
cudaError_t kvd_packed_decode_plan(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                                   cudaStream_t stream);
/*
 * Computes the attention of decode steps on codes. The newest token of every request must be in the
 * ring and not yet coded.
 */
cudaError_t kvd_packed_decode(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                              cudaStream_t stream);

/*
 * Table of RoPE rotations for keys that were coded before RoPE. kvd_packed_rope_table_bytes returns
 * its size. kvd_packed_rope_table fills it from RoPE tables [positions][d / 2] of at least two
 * positions. d must be a multiple of 32.
 */
size_t kvd_packed_rope_table_bytes(int d);
cudaError_t kvd_packed_rope_table(const float *cosine, const float *sine, int d, uint32_t *turn,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
