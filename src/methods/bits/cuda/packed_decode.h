/*
 * Attention of decode steps that reads quantised pages directly. Supported are at most 8 query
 * heads per KV head, heads of 64 or of 128 dimensions, and these codes:
 *
 * kivi, comet          2, 3, 4 or 8 bits; kivi with 2, 3 or 4 bits also with heads of any widths
 * kvquant, turboquant  2, 3 or 4 bits
 * hetero               up to 8 bits
 * fp8, mxfp4, nvfp4    all
 *
 * The newest tokens are read in bf16 from the ring buffer of the request's slot.
 */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_DECODE_H
#define KVD_METHODS_BITS_CUDA_PACKED_DECODE_H

#include "methods/bits/cuda/packed_codes.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const void *q; /* device [n][q_pitch] bf16 */
    /* With form.sketch, device [n][q_pitch] bf16: S q of the rotated queries q. */
    const void *sketched;
    void *o; /* device [n][o_pitch] bf16 */
    /*
     * Device [n + 1], filled by kvd_packed_decode_plan: the number of pages that requests before
     * request i read.
     */
    int32_t *pages_before;
    /*
     * Device: number of requests that are not padding; they come first among the n. The outputs of
     * padding are not written. NULL: all n.
     */
    const int32_t *live;
    /*
     * Device [n_heads]: logits of the layer's attention sinks, whose exponentials are added to the
     * softmax denominators; NULL: no sinks.
     */
    const float *sinks;
    float *partial; /* device, kvd_packed_decode_bytes bytes */
    int32_t n_ctas; /* number of CTAs; one per multiprocessor is fastest */
} kvd_packed_decode_args;

/* Returns true if kvd_packed_decode supports `*a` on the current device. */
bool kvd_packed_decodes(const kvd_packed_args *a);
/* Returns the size of kvd_packed_decode_args.partial. */
size_t kvd_packed_decode_bytes(int n_ctas);
/*
 * Fills d->pages_before. The caller must call it once per iteration, for all layers with the same
 * window. n, kv_len, live and pages_before must be those of the later calls of kvd_packed_decode.
 */
cudaError_t kvd_packed_decode_plan(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                                   cudaStream_t stream);
/*
 * Computes the attention of decode steps. The newest token of every request must be in the ring
 * buffer and not yet quantised.
 */
cudaError_t kvd_packed_decode(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                              cudaStream_t stream);

/*
 * Table of RoPE rotations for keys that were quantised before RoPE. kvd_packed_rope_table fills it
 * from RoPE tables [positions][d / 2] of at least two positions. d must be a multiple of 32.
 */
size_t kvd_packed_rope_table_bytes(int d);
cudaError_t kvd_packed_rope_table(const float *cosine, const float *sine, int d, uint32_t *turn,
                                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
