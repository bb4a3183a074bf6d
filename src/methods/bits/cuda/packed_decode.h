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
#ifndef KVD_METHODS_BITS_CUDA_PACKED_DECODE_H
#define KVD_METHODS_BITS_CUDA_PACKED_DECODE_H

#include "methods/bits/cuda/packed_codes.h"

#ifdef __cplusplus
extern "C" {
#endif

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
