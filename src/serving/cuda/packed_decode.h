/*
 * Attention of steps on codes: what is read is what is stored. Even steps (kivi), up to 8 query heads to a KV head; the newest rows come from the ring.
 */
#ifndef KVD_SERVING_CUDA_PACKED_DECODE_H
#define KVD_SERVING_CUDA_PACKED_DECODE_H

#include "serving/cuda/packed_codes.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const void *q;         /* device [n][q_pitch] bf16                                    */
    void *o;               /* device [n][o_pitch] bf16                                out */
    int32_t *pages_before; /* device [n + 1]: of the requests before, written by the plan */
    float *partial;        /* device, kvd_packed_decode_bytes                             */
    int32_t n_ctas;        /* any; the number of multiprocessors is best                  */
} kvd_packed_decode_args;

/* Whether it does heads and codes of this form. */
bool kvd_packed_decodes(const kvd_packed_args *a);
size_t kvd_packed_decode_bytes(const kvd_attn_map *map, int n_ctas);
/* Once per iteration: n, kv_len and pages_before are read. */
cudaError_t kvd_packed_decode_plan(const int32_t *kv_len, int32_t n, int32_t *pages_before,
                                   cudaStream_t stream);
/* The newest token has been stored in the ring, and nothing of it was coded yet. */
cudaError_t kvd_packed_decode(const kvd_packed_args *a, const kvd_packed_decode_args *d, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
