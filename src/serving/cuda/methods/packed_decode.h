/*
 * Attention of steps on codes: what is read is what is stored. Even steps (kivi) of 2, 3, 4 or 8 bits, levels (kvquant) of 2, 3
 * or 4, heads of 64 or 128, up to 8 query heads to a KV head; the newest rows come from the ring.
 */
#ifndef KVD_SERVING_CUDA_PACKED_DECODE_H
#define KVD_SERVING_CUDA_PACKED_DECODE_H

#include "serving/cuda/methods/packed_codes.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const void *q;         /* device [n][q_pitch] bf16                                    */
    void *o;               /* device [n][o_pitch] bf16                                out */
    int32_t *pages_before; /* device [n + 2]: of the requests before, of a warp; written by the plan */
    float *partial;        /* device, kvd_packed_decode_bytes                             */
    int32_t n_ctas;        /* any; the number of multiprocessors is best                  */
} kvd_packed_decode_args;

/* Whether it does heads and codes of this form. */
bool kvd_packed_decodes(const kvd_packed_args *a);
size_t kvd_packed_decode_bytes(int n_ctas);
/* Once per iteration, for all layers: n, kv_len, pages_before and n_ctas are those of the runs. */
cudaError_t kvd_packed_decode_plan(const kvd_packed_args *a, const kvd_packed_decode_args *d,
                                   cudaStream_t stream);
/* The newest token has been stored in the ring, and nothing of it was coded yet. */
cudaError_t kvd_packed_decode(const kvd_packed_args *a, const kvd_packed_decode_args *d, cudaStream_t stream);

/* What keys that were coded before RoPE are turned with, from tables of two positions at least, [positions][d / 2]; d a multiple of 32. */
size_t kvd_packed_turns_bytes(int d);
cudaError_t kvd_packed_turns(const float *cosine, const float *sine, int d, uint32_t *turn,
                             cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
