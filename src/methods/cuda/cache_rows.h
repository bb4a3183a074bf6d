/* Rounds projected K and V to the data type of a cache. */
#ifndef KVD_METHODS_CUDA_CACHE_ROWS_H
#define KVD_METHODS_CUDA_CACHE_ROWS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/half.h"
#include "methods/bits/packed_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rounds x [n][width], ld elements per token, to type `store`, written as float32. */
cudaError_t kvd_cache_round(kvd_dtype type, const void *x, size_t ld, kvd_dtype store, size_t n,
                            size_t width, float *to, cudaStream_t stream);

/*
 * Copies K and V of n tokens, each of one KV head, between pages and rows [n][2 d]. If `back`,
 * copies to the pages. k [n] has device addresses of K; V is 64 d elements later.
 */
cudaError_t kvd_cache_move(uint16_t *const *k, size_t n, int d, uint16_t *rows, bool back,
                           cudaStream_t stream);

/* Tokens of a KV head to quantise: n[0] keys from first[0] on, and n[1] values from first[1] on. */
typedef struct {
    int32_t first[2], n[2];
    float scale[2]; /* of the tensor (kvd_scales_at), for floating-point codes */
} kvd_cache_codes;

/*
 * Replaces the numbers in rows [][2 d] by quantised and decoded ones. list [n] is in device memory.
 * Integers share a scale among `group` tokens (K) or channels (V).
 */
cudaError_t kvd_cache_code(uint16_t *rows, int d, const kvd_cache_codes *list, size_t n,
                           const kvd_packed_form *f, int group, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
